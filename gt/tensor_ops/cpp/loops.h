// The loops over arrays, included once for each instruction set.
#pragma once

// Spelt out, since a lambda that holds much is not always inlined. A specialisation may interleave the registers' steps; this leaves it to the CPU.
template <class Op, class V>
static GT_INLINE Pack<V> apply(Op, const Pack<V>& x) {
    return {{Op::of(x.at[0]), Op::of(x.at[1]), Op::of(x.at[2]), Op::of(x.at[3])}};
}

#ifdef GT_NEON
#include "neon.h"
#include "neon_gelu.h"
#endif
#ifdef GT_AVX512
#include "avx512.h"
#endif

// Part of a pack, by way of a buffer, so that an element's result does not depend on where it lies.
template <class Order, class T>
static GT_INLINE Pack<Vector<T>> load_part(Order order, const T* x, size_t n) {
    alignas(64) T whole[kPack<T>] = {};
    std::memcpy(whole, x, n * sizeof(T));
    return load(order, whole);
}

template <class Order, class T>
static GT_INLINE void store_part(Order order, T* y, size_t n, const Pack<Vector<T>>& p) {
    alignas(64) T whole[kPack<T>];
    store(order, whole, p);
    std::memcpy(y, whole, n * sizeof(T));
}

template <class Order, class T>
static GT_INLINE void stream(Order order, T* y, const Pack<Vector<T>>& p) {
    alignas(64) T whole[kPack<T>];
    store(order, whole, p);
    stream_bytes(y, whole, sizeof whole);
}

// Fetch the lines a page behind this pack, to read or to write them: a CPU by itself fetches ahead within a page only.
static constexpr size_t kPage = 4096;
template <bool kWrite, class T>
static GT_INLINE void prefetch(const T* x) {
    auto* page = reinterpret_cast<const char*>(x) + kPage;
    for (size_t at = 0; at < kPack<T> * sizeof(T); at += 64) __builtin_prefetch(page + at, kWrite);
}

template <class Order, class T>
static GT_INLINE void write(Order order, T* y, const Pack<Vector<T>>& p, Writes writes) {
    if (kHasStream && writes == Writes::kPast) return stream(order, y, p);
    if (kHasStream && writes == Writes::kAhead) prefetch<true>(y);
    store(order, y, p);
}

// Elements before the next cache line, or multiple of a pack's bytes where that is less; n at most. Stores that cross lines
// halve the speed, and NumPy's arrays begin sixteen bytes into one.
template <class T>
static GT_INLINE size_t before_line(const T* y, size_t n) {
    constexpr size_t line = 64 / sizeof(T) < kPack<T> ? 64 / sizeof(T) : kPack<T>;
    size_t past = reinterpret_cast<uintptr_t>(y) / sizeof(T) % line;
    size_t lead = past ? line - past : 0;
    return lead < n ? lead : n;
}

template <class Op, class T>
using OfType = std::conditional_t<sizeof(T) == 2, typename Short<Op>::Of, Op>;
template <class Op>
using OrderOf = std::conditional_t<Short<Op>::ties, AnyOrder, NoTies>;

template <class Op, class T>
static __attribute__((noinline)) void unary_part(const T* x, T* y, size_t n) {
    OrderOf<Op> order;
    store_part(order, y, n, apply(OfType<Op, T>(), load_part(order, x, n)));
}

template <class Op, class T>
static void unary(const void* from, void* to, size_t begin, size_t end, Writes writes) {
    OrderOf<Op> order;
    const T* x = static_cast<const T*>(from) + begin;
    T* y = static_cast<T*>(to) + begin;
    size_t n = end - begin, i = before_line(y, n);
    if (i) unary_part<Op>(x, y, i);
    for (; i + kPack<T> <= n; i += kPack<T>) {
        Pack<Vector<T>> made = apply(OfType<Op, T>(), load(order, x + i));
        if (kHasStream && writes != Writes::kNear) prefetch<false>(x + i);
        write(order, y + i, made, writes);
    }
    if (i < n) unary_part<Op>(x + i, y + i, n - i);
    if (writes == Writes::kPast) stream_done();
}

template <class Op, class V>
static GT_INLINE Pack<V> apply(Op, const Pack<V>& x, const Pack<V>& y) {
    return {{Op::of(x.at[0], y.at[0]), Op::of(x.at[1], y.at[1]), Op::of(x.at[2], y.at[2]), Op::of(x.at[3], y.at[3])}};
}

template <class Op, class T>
static __attribute__((noinline)) void binary_part(const T* x, const T* y, T* to, size_t n) {
    AnyOrder any;
    store_part(any, to, n, apply(Op(), load_part(any, x, n), load_part(any, y, n)));
}

// y moves on by `step` elements for each of x's.
template <class Op, class T>
static GT_INLINE void binary_range(const T* x, const T* y, T* to, size_t n, size_t step) {
    AnyOrder any;
    size_t i = 0;
    for (; i + kPack<T> <= n; i += kPack<T>) store(any, to + i, apply(Op(), load(any, x + i), load(any, y + i * step)));
    if (i < n) binary_part<Op>(x + i, y + i * step, to + i, n - i);
}

// y repeats after `period` elements.
template <class Op, class T>
static void binary(const void* left, const void* right, void* result, size_t begin, size_t end, size_t period) {
    const T *x = static_cast<const T*>(left), *y = static_cast<const T*>(right);
    T* to = static_cast<T*>(result);
    T same[kPack<T>];  // a single element, repeated
    bool one = period == 1;
    for (size_t i = 0; one && i < kPack<T>; ++i) same[i] = y[0];
    for (size_t at = begin, n; at < end; at += n) {
        size_t from = one ? 0 : at % period;
        n = one || end - at < period - from ? end - at : period - from;
        binary_range<Op>(x + at, one ? same : y + from, to + at, n, one ? 0 : 1);
    }
}

#include "rms_norm.h"

#define GT_ROW(Op) {unary<Op, float>, unary<Op, double>, unary<Op, half_t>, unary<Op, bfloat_t>}
#define GT_PAIR(Op) {binary<Op, float>, binary<Op, double>, binary<Op, half_t>, binary<Op, bfloat_t>}
static constexpr Kernels kTable = {
    GT_SET_NAME,
    {GT_ROW(Silu), GT_ROW(GeluTanh), GT_ROW(GeluErf), GT_ROW(Exp), GT_ROW(Sigmoid), GT_ROW(Relu)},
    {GT_PAIR(Add), GT_PAIR(Sub), GT_PAIR(Mul), GT_PAIR(Div), GT_PAIR(ReluGrad), GT_PAIR(SigmoidGrad), GT_PAIR(SiluGrad)},
    {rms_rows<float>, rms_rows<double>, rms_rows<half_t>, rms_rows<bfloat_t>}};
#undef GT_ROW
#undef GT_PAIR
