// Vectors of floats and doubles for one instruction set: AVX-512, AVX2, NEON, or whatever 16-byte vectors the compiler has.
// Arithmetic, comparison and `?:` are the operators of the vector extension that GCC and Clang share. This file
// adds: the smaller of two that keeps NaN, loads and stores of 16-bit floats, and stores past the cache.
#pragma once
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define GT_AVX512 1
#define GT_VECTOR_BYTES 64
#define GT_SET_NAME "avx512"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define GT_AVX2 1
#define GT_VECTOR_BYTES 32
#define GT_SET_NAME "avx2"
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define GT_NEON 1
#define GT_VECTOR_BYTES 16
#define GT_SET_NAME "neon"
#else
#define GT_VECTOR_BYTES 16
#ifdef __SSE2__
#define GT_SET_NAME "sse2"
#else
#define GT_SET_NAME "generic"
#endif
#endif

#define GT_INLINE inline __attribute__((always_inline))

struct half_t {
    uint16_t raw;
};

struct bfloat_t {
    uint16_t raw;
};

#ifdef GT_NEON  // where the intrinsics' own types differ from others of the same content
typedef float32x4_t Floats;
typedef float64x2_t Doubles;
typedef int32x4_t Ints;
typedef int64x2_t Longs;
typedef uint32x4_t Words;
typedef uint16x4_t Shorts;
#else
typedef float Floats __attribute__((vector_size(GT_VECTOR_BYTES)));
typedef double Doubles __attribute__((vector_size(GT_VECTOR_BYTES)));
typedef int32_t Ints __attribute__((vector_size(GT_VECTOR_BYTES)));
typedef int64_t Longs __attribute__((vector_size(GT_VECTOR_BYTES)));
typedef uint32_t Words __attribute__((vector_size(GT_VECTOR_BYTES)));
typedef uint16_t Shorts __attribute__((vector_size(GT_VECTOR_BYTES / 2)));  // as many as there are Floats
#endif

template <class T>
using Compute = std::conditional_t<std::is_same<T, double>::value, double, float>;
template <class T>
using Vector = std::conditional_t<std::is_same<T, double>::value, Doubles, Floats>;
template <class V>
constexpr size_t kLanes = sizeof(V) / (std::is_same<V, Doubles>::value ? 8 : 4);

template <class V, class C>
static GT_INLINE V all(C c) { return V{} + c; }

template <class V>
static GT_INLINE V load_vector(const void* at) {
    V v;
    std::memcpy(&v, at, sizeof v);
    return v;
}

template <class V>
static GT_INLINE void store_vector(void* at, V v) { std::memcpy(at, &v, sizeof v); }

// The smaller and the larger of x and a bound; x where it is NaN.
#if defined(GT_AVX512)
static GT_INLINE Floats at_most(Floats x, Floats bound) { return _mm512_min_ps(bound, x); }
static GT_INLINE Floats at_least(Floats x, Floats bound) { return _mm512_max_ps(bound, x); }
static GT_INLINE Doubles at_most(Doubles x, Doubles bound) { return _mm512_min_pd(bound, x); }
static GT_INLINE Doubles at_least(Doubles x, Doubles bound) { return _mm512_max_pd(bound, x); }
#elif defined(GT_AVX2)
static GT_INLINE Floats at_most(Floats x, Floats bound) { return _mm256_min_ps(bound, x); }
static GT_INLINE Floats at_least(Floats x, Floats bound) { return _mm256_max_ps(bound, x); }
static GT_INLINE Doubles at_most(Doubles x, Doubles bound) { return _mm256_min_pd(bound, x); }
static GT_INLINE Doubles at_least(Doubles x, Doubles bound) { return _mm256_max_pd(bound, x); }
#elif defined(GT_NEON)
static GT_INLINE Floats at_most(Floats x, Floats bound) { return vminq_f32(x, bound); }
static GT_INLINE Floats at_least(Floats x, Floats bound) { return vmaxq_f32(x, bound); }
static GT_INLINE Doubles at_most(Doubles x, Doubles bound) { return vminq_f64(x, bound); }
static GT_INLINE Doubles at_least(Doubles x, Doubles bound) { return vmaxq_f64(x, bound); }
#elif defined(__SSE2__)
static GT_INLINE Floats at_most(Floats x, Floats bound) { return _mm_min_ps(bound, x); }
static GT_INLINE Floats at_least(Floats x, Floats bound) { return _mm_max_ps(bound, x); }
static GT_INLINE Doubles at_most(Doubles x, Doubles bound) { return _mm_min_pd(bound, x); }
static GT_INLINE Doubles at_least(Doubles x, Doubles bound) { return _mm_max_pd(bound, x); }
#else
template <class V>
static GT_INLINE V at_most(V x, V bound) { return bound < x ? bound : x; }
template <class V>
static GT_INLINE V at_least(V x, V bound) { return bound > x ? bound : x; }
#endif
template <class V, class C, class = std::enable_if_t<std::is_arithmetic<C>::value>>
static GT_INLINE V at_most(V x, C bound) { return at_most(x, all<V>(bound)); }
template <class V, class C, class = std::enable_if_t<std::is_arithmetic<C>::value>>
static GT_INLINE V at_least(V x, C bound) { return at_least(x, all<V>(bound)); }

// x, or zero where it is negative. Negative zero and NaN stay.
static GT_INLINE Floats positive_part(Floats x) {
#if defined(__SSE2__)
    return at_least(x, 0.0f);
#elif defined(GT_NEON)  // GCC makes six instructions of the choice below
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vcltzq_f32(x)));
#else
    return x < 0.0f ? Floats{} : x;
#endif
}

static GT_INLINE Floats magnitude(Floats x) { return (Floats)((Ints)x & 0x7fffffff); }

// a^2 and the rounding error of that. Without a fused multiply-add, the square of a's upper 12 bits, which is exact.
static GT_INLINE void square_of(Floats a, Floats& square, Floats& rest) {
#if defined(GT_AVX512)
    square = a * a, rest = _mm512_fmsub_ps(a, a, square);
#elif defined(GT_AVX2)
    square = a * a, rest = _mm256_fmsub_ps(a, a, square);
#elif defined(GT_NEON)
    square = a * a, rest = vfmaq_f32(-square, a, a);
#else
    Floats upper = (Floats)((Ints)a & int32_t(0xfffff000));
    square = upper * upper, rest = (a - upper) * (a + upper);
#endif
}

// 1 / x for finite x from 1 up: to 14 bits, and to about one unit. A division of 64 bytes takes as long as eight steps.
#if defined(GT_AVX512)
static GT_INLINE Floats rough_reciprocal(Floats x) { return _mm512_rcp14_ps(x); }
static GT_INLINE Floats reciprocal(Floats x) {
    Floats r = _mm512_rcp14_ps(x);
    return r + r * (1.0f - x * r);
}
#else
static GT_INLINE Floats rough_reciprocal(Floats x) { return 1.0f / x; }
static GT_INLINE Floats reciprocal(Floats x) { return 1.0f / x; }
#endif

// Four registers: enough independent work to hide the time that one result takes.
constexpr size_t kRegisters = 4;

template <class V>
struct Pack {
    V at[kRegisters];
};

template <class T>
constexpr size_t kPack = kRegisters * kLanes<Vector<T>>;

template <class V, class Step>
static GT_INLINE Pack<V> each(Step step) {
    return {{step(0), step(1), step(2), step(3)}};
}

// A loop would be kept as one at -O2, with the pack in memory.
template <class Step>
static GT_INLINE void every(Step step) { step(0), step(1), step(2), step(3); }

// How elements lie in a pack: as in memory, or, in exchange for cheaper conversion, in any order that `store` undoes.
struct InOrder {};
struct AnyOrder {};
struct NoTies {};  // any order, for results that are never halfway between two 16-bit ones: those round by adding a half

template <class Order, class C>
static GT_INLINE Pack<Vector<C>> load(Order, const C* x) {
    return each<Vector<C>>([&](size_t i) { return load_vector<Vector<C>>(x + i * kLanes<Vector<C>>); });
}

template <class Order, class C>
static GT_INLINE void store(Order, C* y, const Pack<Vector<C>>& p) {
    every([&](size_t i) { store_vector(y + i * kLanes<Vector<C>>, p.at[i]); });
}

#include "half.h"

// Stores past the cache, to memory that a pack's bytes divide. Only x86 has them for whole vectors.
#if defined(__SSE2__)
constexpr bool kHasStream = true;
static GT_INLINE void stream_bytes(void* at, const void* from, size_t bytes) {
#pragma GCC unroll 8
    for (size_t i = 0; i < bytes; i += GT_VECTOR_BYTES) {
        char* to = static_cast<char*>(at) + i;
        const char* part = static_cast<const char*>(from) + i;
#if defined(GT_AVX512)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to), load_vector<__m512i>(part));
#elif defined(GT_AVX2)
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to), load_vector<__m256i>(part));
#else
        _mm_stream_si128(reinterpret_cast<__m128i*>(to), load_vector<__m128i>(part));
#endif
    }
}
static GT_INLINE void stream_done() { _mm_sfence(); }
#else
constexpr bool kHasStream = false;
static GT_INLINE void stream_bytes(void*, const void*, size_t) {}
static GT_INLINE void stream_done() {}
#endif
