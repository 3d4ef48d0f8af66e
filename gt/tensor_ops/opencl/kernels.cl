// silu, gelu and rms_norm, sixteen elements a work-item. The build defines STORE, the type in memory, and one of
// FLOAT32, FLOAT64, FLOAT16 and BFLOAT16. The maths is that of the C++ kernels. Products and sums are left for the
// compiler to fuse, choices are `?:`, and vectors are read through a type aligned like one element: PoCL makes calls of
// fma, fmin, select and vload16, which are up to three times as slow.
#pragma OPENCL FP_CONTRACT ON
#ifdef FLOAT64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
typedef double REAL;
typedef double16 VEC;
typedef double8 HALF_VEC;
#define LARGE 1e300
#define SMALL 1e-280
#define MOST DBL_MAX
#else
typedef float REAL;
typedef float16 VEC;
typedef float8 HALF_VEC;
#define LARGE 1e37f
#define SMALL 1e-30f
#define MOST FLT_MAX
#endif
typedef VEC LOOSE_VEC __attribute__((aligned(sizeof(REAL))));
#ifdef BFLOAT16
typedef ushort16 LOOSE __attribute__((aligned(2)));
#else
typedef LOOSE_VEC LOOSE;
#endif
#define WIDE 16
#define INLINE static inline __attribute__((always_inline))

#if defined(FLOAT16)
INLINE VEC load(__global const STORE* p) { return vload_half16(0, (__global const half*)p); }
INLINE REAL load_one(__global const STORE* p) { return vload_half(0, (__global const half*)p); }
INLINE void store(VEC v, __global STORE* p) { vstore_half16_rte(v, 0, (__global half*)p); }
INLINE void store_one(REAL v, __global STORE* p) { vstore_half_rte(v, 0, (__global half*)p); }
#elif defined(BFLOAT16)
INLINE uint16 rounded(VEC v) {
    uint16 u = as_uint16(v);
    return select((u + 0x7fff + ((u >> 16) & 1)) >> 16, (u >> 16) | 0x40, isnan(v));
}
INLINE uint rounded_one(REAL v) {
    uint u = as_uint(v);
    return isnan(v) ? (u >> 16) | 0x40 : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}
INLINE VEC load(__global const STORE* p) { return as_float16(convert_uint16(*(__global const LOOSE*)p) << 16); }
INLINE REAL load_one(__global const STORE* p) { return as_float((uint)*p << 16); }
INLINE void store(VEC v, __global STORE* p) { *(__global LOOSE*)p = convert_ushort16(rounded(v)); }
INLINE void store_one(REAL v, __global STORE* p) { *p = (ushort)rounded_one(v); }
#else
INLINE VEC load(__global const STORE* p) { return *(__global const LOOSE*)p; }
INLINE REAL load_one(__global const STORE* p) { return *p; }
INLINE void store(VEC v, __global STORE* p) { *(__global LOOSE*)p = v; }
INLINE void store_one(REAL v, __global STORE* p) { *p = v; }
#endif

#ifdef FLOAT64
INLINE VEC exp_minus(VEC a) { return exp(-a); }
#define SILU_EDGE -708.0
#define GELU_EDGE -21.1
#else
// See maths.h of the C++ kernels: 2^n * exp(-q), with n left in the low bits by an addition that rounds. A fused
// multiply-add cannot be counted on, so ln(2) is cut where its products with n are exact.
#define MAGIC 12582912.0f
#define LN2_HIGH 0.693359375f
#define LN2_LOW -2.12194440e-4f
INLINE VEC power(VEC q, VEC z) {
    VEC q2 = q * q;
    VEC mid = q * -0.166671313f + 0.499992006f, high = q * -0.0083122433f + 0.0418946114f;
    VEC p = q2 * (q2 * high + mid) + (1.0f - q);
    return as_float16(as_int16(p) + (as_int16(z) << 23));
}
INLINE VEC nearest(VEC a) { return a * -1.44269504f + MAGIC; }
INLINE VEC reduced(VEC a, VEC n) { return n * LN2_LOW + (n * LN2_HIGH + a); }
INLINE VEC exp_minus(VEC a) {
    a = a < 87.0f ? a : (VEC)87.0f;
    VEC z = nearest(a);
    return power(reduced(a, z - MAGIC), z);
}
INLINE VEC exp_minus_sum(VEC a, VEC rest) {
    a = a < 87.0f ? a : (VEC)87.0f;
    VEC z = nearest(a);
    return power(reduced(a, z - MAGIC) + rest, z);
}
#define SILU_EDGE -88.0f
#define GELU_EDGE -10.02f
#endif

INLINE VEC gate(VEC x, VEC a, REAL edge) { return x < edge ? (VEC)0 : x / (1 + exp_minus(a)); }

INLINE VEC silu_of(VEC x) { return gate(x, x, SILU_EDGE); }

INLINE VEC gelu_tanh_of(VEC x) {
    return gate(x, x * ((REAL)1.5957691216057308 + (REAL)0.07135481627260025 * (x * x)), GELU_EDGE);
}

#ifdef FLOAT64
INLINE VEC gelu_erf_of(VEC x) { return x < -40.0 ? (VEC)0 : 0.5 * x * erfc(x * -0.70710678118654752); }
#else
INLINE VEC gelu_erf_of(VEC x) {
    VEC a = fabs(x);
    a = a < 15.0f ? a : (VEC)15.0f;
    VEC t = a * 0.707106781f;
    VEC s = (t - 2.0f) / (t + 2.0f);
    VEC p = 8.06256479505e-5f;
    p = p * s + 0.000172223353327f;
    p = p * s - 0.000399907185781f;
    p = p * s - 0.00142316590445f;
    p = p * s + 0.00125119765069f;
    p = p * s + 0.00870969170279f;
    p = p * s - 0.00803032943895f;
    p = p * s - 0.0542178675874f;
    p = p * s + 0.164050974698f;
    p = p * s - 0.166030522527f;
    p = p * s - 0.0927638186159f;
    p = p * s + 1.27697838271f;
    VEC upper = as_float16(as_int16(a) & (int)0xfffff000), lower = a - upper;
    VEC high = upper * upper;
    VEC e = exp_minus_sum(0.5f * high, 0.5f * lower * (a + upper));
    VEC rest = high > 174.0f ? (VEC)0 : 0.5f * a * e * p / (1.0f + 2.0f * t);
    return (x < 0.0f ? (VEC)0 : x) - rest;
}
#endif

#define ELEMENTWISE(name)                                                            \
    __kernel void name(__global const STORE* x, __global STORE* y, ulong n) {        \
        ulong at = (ulong)get_global_id(0) * WIDE;                                   \
        if (at + WIDE <= n) {                                                        \
            store(name##_of(load(x + at)), y + at);                                  \
        } else {                                                                     \
            for (; at < n; ++at) store_one(name##_of((VEC)load_one(x + at)).s0, y + at); \
        }                                                                            \
    }

ELEMENTWISE(silu)
ELEMENTWISE(gelu_tanh)
ELEMENTWISE(gelu_erf)

INLINE REAL sum_lanes(VEC v) {
    HALF_VEC eight = v.lo + v.hi;
    return ((eight.s0 + eight.s4) + (eight.s1 + eight.s5)) + ((eight.s2 + eight.s6) + (eight.s3 + eight.s7));
}

INLINE REAL sum_of_group(REAL mine, __local REAL* part) {
    int me = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    part[me] = mine;
    for (int width = get_local_size(0) / 2; width; width /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < width) part[me] += part[me + width];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return part[0];
}

// This work-item's share of the sum of squares; long rows are summed in runs, which keeps them exact.
#define SQUARES(name, VALUE)                                                              \
    INLINE REAL name(__global const STORE* x, ulong n, REAL unit) {                              \
        ulong step = get_local_size(0) * WIDE, at = get_local_id(0) * WIDE;               \
        VEC total = 0;                                                                    \
        while (at + WIDE <= n) {                                                          \
            VEC run = 0;                                                                  \
            for (int i = 0; i < 64 && at + WIDE <= n; ++i, at += step) {                  \
                VEC v = VALUE(load(x + at));                                              \
                run += v * v;                                                             \
            }                                                                             \
            total += run;                                                                 \
        }                                                                                 \
        REAL sum = sum_lanes(total);                                                      \
        for (at = n / WIDE * WIDE + get_local_id(0); at < n; at += get_local_size(0)) {   \
            REAL v = VALUE(load_one(x + at));                                             \
            sum += v * v;                                                                 \
        }                                                                                 \
        return sum;                                                                       \
    }
#define AS_IS(v) (v)
#define IN_UNITS(v) ((v) / unit)
SQUARES(squares, AS_IS)
SQUARES(squares_in_units, IN_UNITS)

INLINE REAL largest(__global const STORE* x, ulong n, __local REAL* part) {
    int me = get_local_id(0);
    REAL most = 0;
    for (ulong at = me; at < n; at += get_local_size(0)) most = fmax(most, fabs(load_one(x + at)));
    barrier(CLK_LOCAL_MEM_FENCE);
    part[me] = most;
    for (int width = get_local_size(0) / 2; width; width /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < width) part[me] = fmax(part[me], part[me + width]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return part[0];
}

#define WRITE_ROW(VALUE)                                                              \
    for (ulong at = get_local_id(0) * WIDE; at + WIDE <= n; at += step)               \
        store(VALUE(load(x + at)) * scale * *(__global const LOOSE_VEC*)(w + at), y + at);              \
    for (ulong at = n / WIDE * WIDE + get_local_id(0); at < n; at += get_local_size(0)) \
        store_one(VALUE(load_one(x + at)) * scale * w[at], y + at);

// Write a row and sum the squares of the one behind it, in one work-item: the first lies in the cache, and is written
// while memory brings the second.
INLINE REAL write_and_sum(__global const STORE* x, __global const REAL* w, __global STORE* y, ulong n, REAL scale) {
    ulong at = 0;
    VEC total = 0;
    while (at + WIDE <= n) {
        VEC run = 0;
        for (int i = 0; i < 64 && at + WIDE <= n; ++i, at += WIDE) {
            VEC v = load(x + n + at);
            run += v * v;
            store(load(x + at) * scale * *(__global const LOOSE_VEC*)(w + at), y + at);
        }
        total += run;
    }
    REAL sum = sum_lanes(total);
    for (; at < n; ++at) {
        REAL v = load_one(x + n + at);
        sum += v * v;
        store_one(load_one(x + at) * scale * w[at], y + at);
    }
    return sum;
}

// A work-group has `each` rows, one where it has several work-items, and its size is a power of two. `rstd`, where it is
// given, has room for each row's 1 / sqrt(mean).
__kernel void rms_norm(__global const STORE* x, __global const REAL* w, __global STORE* y, __global REAL* rstd, ulong n,
                       REAL eps, REAL root, ulong rows, ulong each, __local REAL* part) {
    ulong row = get_group_id(0) * each, end = min(row + each, rows), step = get_local_size(0) * WIDE;
    x += row * n;
    y += row * n;
    REAL sum = sum_of_group(squares(x, n, 1), part);
    for (; row < end; ++row, x += n, y += n) {
        bool more = row + 1 < end;
        REAL mean = sum / n + eps;
        if (mean >= SMALL && sum <= LARGE) {
            REAL scale = 1 / sqrt(mean);
            if (rstd && get_local_id(0) == 0) rstd[row] = scale;
            if (more) {
                sum = write_and_sum(x, w, y, n, scale);
                continue;
            }
            WRITE_ROW(AS_IS)
        } else {
            // Squares left the type's range: everything is divided by the largest magnitude first.
            REAL unit = fmin(fmax(largest(x, n, part), root), MOST);
            mean = sum_of_group(squares_in_units(x, n, unit), part) / n + (root / unit) * (root / unit);
            REAL scale = 1 / sqrt(mean);
            if (rstd && get_local_id(0) == 0) rstd[row] = scale / unit;
            WRITE_ROW(IN_UNITS)
            if (more) sum = squares(x + n, n, 1);
        }
    }
}
