// 16-bit floats by integer arithmetic, so that loops over them vectorise on every target and no compiler
// support for _Float16 or __bf16 is needed. Both directions round to nearest, ties to even.
#pragma once
#include <cstdint>
#include <cstring>

#define GT_INLINE inline __attribute__((always_inline))

template <class To, class From>
static GT_INLINE To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits keeps the size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

struct half_t {
    uint16_t raw;
};

struct bfloat_t {
    uint16_t raw;
};

static GT_INLINE float widen(float x) { return x; }
static GT_INLINE double widen(double x) { return x; }

static GT_INLINE float widen(bfloat_t x) { return bits<float>(uint32_t(x.raw) << 16); }

static GT_INLINE float widen(half_t x) {
    uint32_t magnitude = uint32_t(x.raw & 0x7fff) << 13;
    uint32_t sign = uint32_t(x.raw & 0x8000) << 16;
    // 2^112 moves the exponent from half's bias to float's and normalises subnormals on the way.
    uint32_t finite = bits<uint32_t>(bits<float>(magnitude) * 0x1p112f);
    uint32_t special = magnitude | 0x7f800000u;
    return bits<float>(sign | (magnitude >= 0x0f800000u ? special : finite));
}

template <class T>
struct Narrow;

template <>
struct Narrow<float> {
    static GT_INLINE float from(float x) { return x; }
};

template <>
struct Narrow<double> {
    static GT_INLINE double from(double x) { return x; }
};

template <>
struct Narrow<bfloat_t> {
    static GT_INLINE bfloat_t from(float x) {
        uint32_t u = bits<uint32_t>(x);
        uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
        uint32_t quiet = (u >> 16) | 0x40;
        return {uint16_t((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded)};
    }
};

template <>
struct Narrow<half_t> {
    static GT_INLINE half_t from(float x) {
        uint32_t u = bits<uint32_t>(x);
        uint32_t sign = (u >> 16) & 0x8000;
        uint32_t a = u & 0x7fffffffu;
        // Adding 0.5 lines a subnormal result up with the low mantissa bits; the addition does the rounding.
        uint32_t small = bits<uint32_t>(bits<float>(a) + 0.5f) - 0x3f000000u;
        uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1)) >> 13;
        uint32_t large = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
        uint32_t body = a < 0x38800000u ? small : normal;
        return {uint16_t(sign | (a >= 0x47800000u ? large : body))};
    }
};
