/* Steps over rows: sums, extremes with their places, softmax, and rows that are picked or added by index. Operands are contiguous.
   An axis that is reduced is the middle one of (outer, n, inner). */
#define LANES 16
#define BLOCK 64 /* columns, and terms that are added up before their sum is added to the others' */

static inline float lanes_added(float *lanes) {
    for (int width = LANES / 2; width; width /= 2)
        for (int l = 0; l < width; l++) lanes[l] += lanes[l + width];
    return lanes[0];
}

#define ROW_SUM(NAME, TERM)                                                                                          \
    static inline float NAME(const float *restrict a, const float *restrict b, int64_t n) {                          \
        float lanes[LANES] = {0};                                                                                    \
        int64_t i = 0;                                                                                               \
        (void)b;                                                                                                     \
        for (; i + LANES <= n; i += LANES)                                                                           \
            for (int l = 0; l < LANES; l++) lanes[l] += TERM(i + l);                                                 \
        for (int l = 0; i < n; i++, l++) lanes[l] += TERM(i);                                                        \
        return lanes_added(lanes);                                                                                   \
    }
#define ITSELF(i) a[i]
#define SQUARED(i) (a[i] * a[i])
#define MULTIPLIED(i) (a[i] * b[i])
ROW_SUM(sum_of, ITSELF)
ROW_SUM(squares_of, SQUARED)
ROW_SUM(product_of, MULTIPLIED)

/* Four short rows at a time, as each addition waits for the one before it. */
CLONES static void short_row_sums(const float *restrict a, float *restrict out, int64_t rows, int64_t n, float scale) {
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4, a += 4 * n) {
        float w = 0, x = 0, y = 0, z = 0;
        for (int64_t j = 0; j < n; j++) w += a[j], x += a[n + j], y += a[2 * n + j], z += a[3 * n + j];
        out[i] = w / scale, out[i + 1] = x / scale, out[i + 2] = y / scale, out[i + 3] = z / scale;
    }
    for (; i < rows; i++, a += n) {
        float w = 0;
        for (int64_t j = 0; j < n; j++) w += a[j];
        out[i] = w / scale;
    }
}

CLONES static void long_row_sums(const float *restrict a, float *restrict out, int64_t rows, int64_t n, float scale) {
    for (int64_t i = 0; i < rows; i++) out[i] = sum_of(a + i * n, a, n) / scale;
}

CLONES static void column_sums(const float *restrict a, float *restrict out, int64_t n, int64_t inner, float scale) {
    for (int64_t first = 0; first < inner; first += BLOCK) {
        int64_t wide = inner - first < BLOCK ? inner - first : BLOCK;
        float total[BLOCK] = {0};
        for (int64_t i = 0; i < n; i += BLOCK) {
            int64_t end = i + BLOCK < n ? i + BLOCK : n;
            float part[BLOCK] = {0};
            for (int64_t k = i; k < end; k++)
                for (int64_t j = 0; j < wide; j++) part[j] += a[k * inner + first + j];
            for (int64_t j = 0; j < wide; j++) total[j] += part[j];
        }
        for (int64_t j = 0; j < wide; j++) out[first + j] = total[j] / scale;
    }
}

static void sums_along(const float *a, float *out, int64_t outer, int64_t n, int64_t inner, float scale) {
    if (inner != 1)
        for (int64_t i = 0; i < outer; i++) column_sums(a + i * n * inner, out + i * inner, n, inner, scale);
    else
        (n < LANES ? short_row_sums : long_row_sums)(a, out, outer, n, scale);
}

CLONES static void norm(const float *restrict a, float *restrict out, int64_t n) { out[0] = sqrtf(squares_of(a, a, n)); }

/* The first of the least (or largest) elements of each row, or its first NaN. */
#define EXTREME(NAME, WORSE)                                                                                         \
    static void NAME(const float *a, float *out, int64_t *places, int64_t rows, int64_t n) {                         \
        for (int64_t i = 0; i < rows; i++, a += n) {                                                                 \
            float best = a[0];                                                                                       \
            int64_t at = 0;                                                                                          \
            for (int64_t j = 1; j < n; j++) {                                                                        \
                int better = !(a[j] WORSE best) & (best == best);                                                    \
                best = better ? a[j] : best;                                                                         \
                at = better ? j : at;                                                                                \
            }                                                                                                        \
            if (out) out[i] = best;                                                                                  \
            places[i] = at;                                                                                          \
        }                                                                                                            \
    }
EXTREME(least_of_any, >=)
EXTREME(most_of_any, <=)

/* The same of rows without a NaN that have at least a vector of elements, several rows at a time, as each comparison waits for the
   one before it: the extreme, then the first place that is equal to it. A row's last vector may overlap the one before. */
#define PICKED(I, V, MASK, x, y) ((V)(((I)(x) & (MASK)) | ((I)(y) & ~(MASK))))
#define FIRST_OF_FOUR(m, BETTER, x, y) (x = m[1] BETTER m[0] ? m[1] : m[0], y = m[3] BETTER m[2] ? m[3] : m[2], y BETTER x ? y : x)
#define EXTREME_BY_VECTORS(NAME, TARGET, BYTES, ROWS, BETTER)                                                        \
    TARGET static int64_t NAME(const float *a, float *out, int64_t *places, int64_t rows, int64_t n) {               \
        typedef float __attribute__((vector_size(BYTES), aligned(4), may_alias)) V;                                  \
        typedef int32_t __attribute__((vector_size(BYTES))) I;                                                       \
        typedef float __attribute__((vector_size(16))) V4;                                                           \
        typedef uint32_t __attribute__((vector_size(16))) U4;                                                        \
        enum { W = BYTES / 4, QUARTERS = BYTES / 16 };                                                               \
        I order;                                                                                                     \
        for (int l = 0; l < W; l++) order[l] = l;                                                                    \
        int64_t i = 0;                                                                                               \
        for (; i + ROWS <= rows; i += ROWS, a += ROWS * n) {                                                         \
            V best[ROWS];                                                                                            \
            I at[ROWS];                                                                                              \
            float one[ROWS];                                                                                         \
            for (int r = 0; r < ROWS; r++) best[r] = *(const V *)(a + r * n);                                        \
            for (int64_t j = W; j < n; j += W)                                                                       \
                for (int r = 0; r < ROWS; r++) {                                                                     \
                    V x = *(const V *)(a + r * n + (j + W <= n ? j : n - W));                                        \
                    best[r] = PICKED(I, V, x BETTER best[r], x, best[r]);                                            \
                }                                                                                                    \
            for (int r = 0; r < ROWS; r++) {                                                                         \
                V4 q[QUARTERS];                                                                                      \
                memcpy(q, &best[r], BYTES);                                                                          \
                for (int half = QUARTERS / 2; half; half /= 2)                                                       \
                    for (int l = 0; l < half; l++) q[l] = PICKED(U4, V4, (U4)(q[l + half] BETTER q[l]), q[l + half], q[l]); \
                float x, y;                                                                                          \
                one[r] = FIRST_OF_FOUR(q[0], BETTER, x, y);                                                          \
                at[r] = order | ~(*(const V *)(a + r * n) == one[r]); /* -1 where it is not */                       \
            }                                                                                                        \
            for (int64_t j = W; j < n; j += W)                                                                       \
                for (int r = 0; r < ROWS; r++) {                                                                     \
                    int64_t from = j + W <= n ? j : n - W;                                                           \
                    I found = (order + (int32_t)from) | ~(*(const V *)(a + r * n + from) == one[r]);                 \
                    at[r] = PICKED(I, I, (at[r] >= 0) | (found < 0), at[r], found);                                  \
                }                                                                                                    \
            for (int r = 0; r < ROWS; r++) {                                                                         \
                U4 q[QUARTERS];                                                                                      \
                memcpy(q, &at[r], BYTES);                                                                            \
                for (int half = QUARTERS / 2; half; half /= 2)                                                       \
                    for (int l = 0; l < half; l++) q[l] = PICKED(U4, U4, (U4)(q[l + half] < q[l]), q[l + half], q[l]); \
                uint32_t x, y;                                                                                       \
                places[i + r] = FIRST_OF_FOUR(q[0], <, x, y);                                                        \
                if (out) out[i + r] = a[r * n + places[i + r]];                                                      \
            }                                                                                                        \
        }                                                                                                            \
        return i;                                                                                                    \
    }
EXTREME_BY_VECTORS(least_of_128_bits, , 16, 4, <)
EXTREME_BY_VECTORS(most_of_128_bits, , 16, 4, >)
#if X86
EXTREME_BY_VECTORS(least_of_256_bits, __attribute__((target("arch=x86-64-v3"))), 32, 2, <)
EXTREME_BY_VECTORS(most_of_256_bits, __attribute__((target("arch=x86-64-v3"))), 32, 2, >)
EXTREME_BY_VECTORS(least_of_512_bits, __attribute__((target("arch=x86-64-v4"))), 64, 2, <)
EXTREME_BY_VECTORS(most_of_512_bits, __attribute__((target("arch=x86-64-v4"))), 64, 2, >)
#define WIDEST(NAME, n)                                                                                              \
    ((n) >= 16 && __builtin_cpu_supports("x86-64-v4")  ? NAME##_of_512_bits                                          \
     : (n) >= 8 && __builtin_cpu_supports("x86-64-v3") ? NAME##_of_256_bits                                          \
                                                       : NAME##_of_128_bits)
#else
#define WIDEST(NAME, n) NAME##_of_128_bits
#endif

CLONES static int has_nan(const float *restrict a, int64_t n) {
    int found = 0;
    for (int64_t i = 0; i < n; i++) found |= a[i] != a[i];
    return found;
}

#define EXTREME_OF_ROWS(NAME)                                                                                        \
    static void NAME(const float *a, float *out, int64_t *places, int64_t rows, int64_t n) {                         \
        int64_t done = n < 4 || has_nan(a, rows * n) ? 0 : WIDEST(NAME, n)(a, out, places, rows, n);                 \
        NAME##_of_any(a + done * n, out ? out + done : NULL, places + done, rows - done, n);                         \
    }
EXTREME_OF_ROWS(least)
EXTREME_OF_ROWS(most)

static inline float largest(const float *restrict a, int64_t n) {
    float m = a[0];
    int64_t i = 0;
    if (n >= LANES) {
        float lanes[LANES];
        for (int l = 0; l < LANES; l++) lanes[l] = a[l];
        for (i = LANES; i + LANES <= n; i += LANES)
            for (int l = 0; l < LANES; l++) lanes[l] = a[i + l] > lanes[l] ? a[i + l] : lanes[l];
        for (int l = 0; l < LANES; l++) m = lanes[l] > m ? lanes[l] : m;
    }
    for (; i < n; i++) m = a[i] > m ? a[i] : m;
    return m; /* any element will do in a row with a NaN, whose sum is NaN */
}

/* With `logarithms`, x - m - log(sum of e^(x - m)); else e^(x - m) over that sum. */
CLONES static void softmax(const float *restrict a, float *restrict out, int64_t rows, int64_t n, int logarithms) {
    for (int64_t i = 0; i < rows; i++, a += n, out += n) {
        float m = largest(a, n);
        for (int64_t j = 0; j < n; j++) out[j] = exponential(a[j] - m);
        float sum = sum_of(out, out, n);
        if (logarithms) {
            float log_sum = logf(sum);
            for (int64_t j = 0; j < n; j++) out[j] = a[j] - m - log_sum;
        } else
            for (int64_t j = 0; j < n; j++) out[j] /= sum;
    }
}

CLONES static void softmax_gradient(const float *restrict g, const float *restrict y, float *restrict out, int64_t rows,
                                    int64_t n, int logarithms) {
    for (int64_t i = 0; i < rows; i++, g += n, y += n, out += n) {
        float sum = logarithms ? sum_of(g, g, n) : product_of(g, y, n);
        if (logarithms) {
            for (int64_t j = 0; j < n; j++) out[j] = g[j] - exponential(y[j]) * sum;
        } else
            for (int64_t j = 0; j < n; j++) out[j] = y[j] * (g[j] - sum);
    }
}

/* Each returns whether all places are inside. */
static int in_range(const int64_t *places, int64_t count, int64_t size) {
    uint64_t most = 0;
    for (int64_t i = 0; i < count; i++) most = (uint64_t)places[i] > most ? (uint64_t)places[i] : most;
    return !count || most < (uint64_t)size;
}

static int picked_rows(const float *a, const int64_t *places, float *out, int64_t count, int64_t rows, int64_t width) {
    if (!in_range(places, count, rows)) return 0;
    for (int64_t i = 0; i < count; i++) memcpy(out + i * width, a + places[i] * width, (size_t)width * sizeof(float));
    return 1;
}

CLONES static void rows_added(const int64_t *places, const float *source, float *out, int64_t count, int64_t width) {
    if (width == 1)
        for (int64_t i = 0; i < count; i++) out[places[i]] += source[i];
    else
        for (int64_t i = 0; i < count; i++, source += width) {
            float *to = out + places[i] * width;
            for (int64_t j = 0; j < width; j++) to[j] += source[j];
        }
}

CLONES static void scaled_rows_added(const int64_t *places, const float *source, float *out, int64_t count, int64_t width,
                                     float scale) {
    for (int64_t i = 0; i < count; i++, source += width) {
        float *to = out + places[i] * width;
        for (int64_t j = 0; j < width; j++) to[j] += scale * source[j];
    }
}

static int added_rows(const float *a, const int64_t *places, const float *source, float *out, int64_t count, int64_t rows,
                      int64_t width) {
    if (!in_range(places, count, rows)) return 0;
    if (a)
        memcpy(out, a, (size_t)(rows * width) * sizeof(float));
    else
        memset(out, 0, (size_t)(rows * width) * sizeof(float));
    rows_added(places, source, out, count, width);
    return 1;
}

/* Elements of rows of n by index, `width` a row. */
static int gathered(const float *a, const int64_t *places, float *out, int64_t rows, int64_t n, int64_t width) {
    if (!in_range(places, rows * width, n)) return 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++) out[i * width + j] = a[i * n + places[i * width + j]];
    return 1;
}

static int scattered(const float *g, const int64_t *places, float *out, int64_t rows, int64_t n, int64_t width) {
    if (!in_range(places, rows * width, n)) return 0;
    memset(out, 0, (size_t)(rows * n) * sizeof(float));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++) out[i * n + places[i * width + j]] += g[i * width + j];
    return 1;
}
