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

/* The first of the least (or largest) elements of each row, or its first NaN; four rows at a time. */
#define EXTREME(NAME, WORSE)                                                                                         \
    static inline void NAME##_row(const float *a, int64_t n, float *out, int64_t *place) {                           \
        float best = a[0];                                                                                           \
        int64_t at = 0;                                                                                              \
        for (int64_t j = 1; j < n; j++) {                                                                            \
            int better = !(a[j] WORSE best) & (best == best);                                                        \
            best = better ? a[j] : best;                                                                             \
            at = better ? j : at;                                                                                    \
        }                                                                                                            \
        if (out) *out = best;                                                                                        \
        *place = at;                                                                                                 \
    }                                                                                                                \
    static void NAME(const float *a, float *out, int64_t *places, int64_t rows, int64_t n) {                         \
        int64_t i = 0;                                                                                               \
        for (; i + 4 <= rows; i += 4) {                                                                              \
            const float *r = a + i * n;                                                                              \
            float v[4] = {r[0], r[n], r[2 * n], r[3 * n]};                                                           \
            int64_t at[4] = {0};                                                                                     \
            for (int64_t j = 1; j < n; j++)                                                                          \
                for (int k = 0; k < 4; k++) {                                                                        \
                    float x = r[k * n + j];                                                                          \
                    int better = !(x WORSE v[k]) & (v[k] == v[k]);                                                   \
                    v[k] = better ? x : v[k];                                                                        \
                    at[k] = better ? j : at[k];                                                                      \
                }                                                                                                    \
            for (int k = 0; k < 4; k++) {                                                                            \
                if (out) out[i + k] = v[k];                                                                          \
                places[i + k] = at[k];                                                                               \
            }                                                                                                        \
        }                                                                                                            \
        for (; i < rows; i++) NAME##_row(a + i * n, n, out ? out + i : NULL, places + i);                            \
    }
EXTREME(least, >=)
EXTREME(most, <=)

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
