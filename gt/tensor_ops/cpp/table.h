// The kernels of one instruction set, by op and dtype (float, double, half, bfloat).
#pragma once
#include <cstddef>

// How results are written: into lines that a cache holds already, into lines that are fetched ahead, or past the caches.
enum class Writes { kNear, kAhead, kPast };

using Unary = void (*)(const void* x, void* y, size_t begin, size_t end, Writes writes);
using Binary = void (*)(const void* x, const void* y, void* to, size_t begin, size_t end, size_t period);
using Rows = void (*)(const void* x, const void* w, void* y, void* rstd, size_t begin, size_t end, size_t columns, double eps,
                      Writes writes);

struct Kernels {
    const char* name;
    Unary unary[6][4];
    Binary binary[7][4];
    Rows rms[4];
};
