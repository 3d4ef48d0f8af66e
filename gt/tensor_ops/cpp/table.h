// The kernels of one instruction set, by op and dtype (float, double, half, bfloat).
#pragma once
#include <cstddef>

// `past_cache` writes large results past the cache: they would not stay in it.
using Unary = void (*)(const void* x, void* y, size_t begin, size_t end, bool past_cache);
using Binary = void (*)(const void* x, const void* y, void* to, size_t begin, size_t end, size_t period);
using Rows = void (*)(const void* x, const void* w, void* y, void* rstd, size_t begin, size_t end, size_t columns, double eps,
                      bool past_cache);

struct Kernels {
    const char* name;
    Unary unary[6][4];
    Binary binary[7][4];
    Rows rms[4];
};
