/* Elementwise steps: loops over a plane of n0 rows of n1 elements. Operands have a stride for each of the two axes, which is 0
   where an operand is broadcast; results are contiguous. */
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const void *a, *b, *c;
    void *out;
    int64_t n0, n1, a0, a1, b0, b1, c0, c1;
} Plane;

#define WHOLE_LOOP(...) \
    for (int64_t j = 0; j < n; j++) { __VA_ARGS__ }

#define UNARY(NAME, T, EXPRESSION)                                                                                   \
    CLONES static void NAME(const Plane *p) {                                                                        \
        int64_t n = p->n1, s = p->a1;                                                                                \
        for (int64_t i = 0; i < p->n0; i++) {                                                                        \
            const T *restrict a = (const T *)p->a + i * p->a0;                                                       \
            T *restrict out = (T *)p->out + i * n;                                                                   \
            if (s == 1) {                                                                                            \
                WHOLE_LOOP(T x = a[j]; out[j] = (EXPRESSION);)                                                       \
            } else                                                                                                   \
                WHOLE_LOOP(T x = a[j * s]; out[j] = (EXPRESSION);)                                                   \
        }                                                                                                            \
    }

/* A loop for each of the usual strides, so that compilers use vectors. */
#define BINARY(NAME, T, R, EXPRESSION)                                                                               \
    CLONES static void NAME(const Plane *p) {                                                                        \
        int64_t n = p->n1, s = p->a1, t = p->b1;                                                                     \
        for (int64_t i = 0; i < p->n0; i++) {                                                                        \
            const T *restrict a = (const T *)p->a + i * p->a0, *restrict b = (const T *)p->b + i * p->b0;            \
            R *restrict out = (R *)p->out + i * n;                                                                   \
            if (s == 1 && t == 1) {                                                                                  \
                WHOLE_LOOP(T x = a[j], y = b[j]; out[j] = (EXPRESSION);)                                             \
            } else if (s == 1 && t == 0) {                                                                           \
                T y = b[0];                                                                                          \
                WHOLE_LOOP(T x = a[j]; out[j] = (EXPRESSION);)                                                       \
            } else if (s == 0 && t == 1) {                                                                           \
                T x = a[0];                                                                                          \
                WHOLE_LOOP(T y = b[j]; out[j] = (EXPRESSION);)                                                       \
            } else                                                                                                   \
                WHOLE_LOOP(T x = a[j * s], y = b[j * t]; out[j] = (EXPRESSION);)                                     \
        }                                                                                                            \
    }

#define TERNARY(NAME, TA, EXPRESSION)                                                                                \
    CLONES static void NAME(const Plane *p) {                                                                        \
        int64_t n = p->n1, s = p->a1, t = p->b1, u = p->c1;                                                          \
        for (int64_t i = 0; i < p->n0; i++) {                                                                        \
            const TA *restrict a = (const TA *)p->a + i * p->a0;                                                     \
            const float *restrict b = (const float *)p->b + i * p->b0, *restrict c = (const float *)p->c + i * p->c0; \
            float *restrict out = (float *)p->out + i * n;                                                           \
            if (s == 1 && t == 1 && u == 1) {                                                                        \
                WHOLE_LOOP(TA x = a[j]; float y = b[j], z = c[j]; out[j] = (EXPRESSION);)                            \
            } else if (s == 1 && t == 1 && u == 0) {                                                                 \
                float z = c[0];                                                                                      \
                WHOLE_LOOP(TA x = a[j]; float y = b[j]; out[j] = (EXPRESSION);)                                      \
            } else if (s == 1 && t == 0 && u == 0) {                                                                 \
                float y = b[0], z = c[0];                                                                            \
                WHOLE_LOOP(TA x = a[j]; out[j] = (EXPRESSION);)                                                      \
            } else                                                                                                   \
                WHOLE_LOOP(TA x = a[j * s]; float y = b[j * t], z = c[j * u]; out[j] = (EXPRESSION);)                \
        }                                                                                                            \
    }

/* e^x = 2^n e^r with r in [-0.35, 0.35], and a polynomial for e^r. Adding MAGIC rounds to an integer, which is then in the
   lower bits. 2^n is two factors, since the result may be subnormal. */
#define MAGIC 12582912.0f
static inline float exponential(float x) {
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float shifted = x * 1.44269504088896341f + MAGIC, n = shifted - MAGIC;
    int32_t bits, half;
    memcpy(&bits, &shifted, 4);
    bits -= 0x4B400000;
    half = bits >> 1;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float q = 1.9875691500e-4f;
    q = q * r + 1.3981999507e-3f;
    q = q * r + 8.3334519073e-3f;
    q = q * r + 4.1665795894e-2f;
    q = q * r + 1.6666665459e-1f;
    q = q * r + 5.0000001201e-1f;
    float y = q * r * r + r + 1.0f;
    int32_t low = (int32_t)((uint32_t)(half + 127) << 23), high = (int32_t)((uint32_t)(bits - half + 127) << 23);
    float f, g;
    memcpy(&f, &low, 4);
    memcpy(&g, &high, 4);
    return y * f * g;
}

static inline float hyperbolic_tangent(float x) {
    float size = x < 0 ? -x : x, z = x * x;
    float q = -5.70498872745e-3f;
    q = q * z + 2.06390887954e-2f;
    q = q * z - 5.37397155531e-2f;
    q = q * z + 1.33314422036e-1f;
    q = q * z - 3.33332819422e-1f;
    float near = q * z * x + x, far = 1.0f - 2.0f / (exponential(2.0f * size) + 1.0f);
    far = x < 0 ? -far : far;
    return size < 0.625f ? near : far;
}

UNARY(copy_words, uint32_t, x)
UNARY(copy_longs, uint64_t, x)
UNARY(copy_bytes, uint8_t, x)
UNARY(negate, float, -x)
UNARY(absolute, float, fabsf(x))
UNARY(square, float, x *x)
UNARY(square_root, float, sqrtf(x))
UNARY(inverse, float, 1.0f / x)
UNARY(positive_part, float, x < 0 ? 0.0f : x)
UNARY(exponentials, float, exponential(x))
UNARY(tangents, float, hyperbolic_tangent(x))
UNARY(sigmoids, float, 1.0f / (1.0f + exponential(-x)))
UNARY(logarithms, float, logf(x))
UNARY(not_true, uint8_t, !x)

BINARY(sums, float, float, x + y)
BINARY(differences, float, float, x - y)
BINARY(products, float, float, x *y)
BINARY(quotients, float, float, x / y)
BINARY(larger, float, float, x > y || x != x ? x : y)
BINARY(smaller, float, float, x < y || x != x ? x : y)
BINARY(equal, float, uint8_t, x == y)
BINARY(unequal, float, uint8_t, x != y)
BINARY(less, float, uint8_t, x < y)
BINARY(at_most, float, uint8_t, x <= y)
BINARY(greater, float, uint8_t, x > y)
BINARY(at_least, float, uint8_t, x >= y)
BINARY(both, uint8_t, uint8_t, x &y)
BINARY(either, uint8_t, uint8_t, x | y)
BINARY(one_of_two, uint8_t, uint8_t, x ^ y)
BINARY(square_gradients, float, float, (x * y) * 2.0f)
BINARY(tangent_gradients, float, float, x *(1.0f - y * y))
BINARY(sigmoid_gradients, float, float, x *(1.0f - y) * y)
BINARY(positive_gradients, float, float, y <= 0 ? 0.0f : x)

/* log(1 + e^(scale x)) / scale; x itself past the threshold. */
static inline float soft_plus(float x, float scale, float threshold) {
    float z = x * scale;
    return z > threshold ? x : log1pf(expf(z)) / scale;
}
TERNARY(soft_pluses, float, soft_plus(x, y, z))
TERNARY(chosen, uint8_t, x ? y : z)
static inline float limited(float x, float low, float high) {
    x = x < low || low != low ? low : x; /* a NaN stays, and is a limit, too */
    return x > high || high != high ? high : x;
}
TERNARY(clamped, float, limited(x, y, z))
