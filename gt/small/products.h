/* Products of small matrices: of four rows and sixteen columns at a time, whose sums stay in registers. The columns of the second
   factor are copied side by side first. Operands have any strides. */
#define COLUMNS 16
#define DEEPEST 512 /* most terms of a sum */

typedef struct {
    const float *a, *b, *bias; /* bias: one for each column, or NULL */
    float *out;
    int64_t m, k, n, a_row, a_step, b_step, b_column; /* strides: of a's rows and terms, of b's terms and columns */
    int adds; /* to what `out` has */
} Product;

static void side_by_side(const Product *p, int64_t first, int64_t wide, float *restrict to) {
    for (int64_t t = 0; t < p->k; t++) {
        const float *b = p->b + t * p->b_step + first * p->b_column;
        if (wide == COLUMNS && p->b_column == 1)
            memcpy(to + t * COLUMNS, b, COLUMNS * sizeof(float));
        else
            for (int64_t j = 0; j < COLUMNS; j++) to[t * COLUMNS + j] = j < wide ? b[j * p->b_column] : 0.0f;
    }
}

static inline void written(const Product *p, const float *sums, int64_t row, int64_t first, int64_t wide) {
    float *out = p->out + row * p->n + first;
    if (wide == COLUMNS && !p->adds && !p->bias)
        memcpy(out, sums, COLUMNS * sizeof(float));
    else if (p->adds)
        for (int64_t j = 0; j < wide; j++) out[j] += sums[j];
    else if (p->bias)
        for (int64_t j = 0; j < wide; j++) out[j] = sums[j] + p->bias[first + j];
    else
        for (int64_t j = 0; j < wide; j++) out[j] = sums[j];
}

#define PRODUCT(NAME, TARGET, BYTES)                                                                                 \
    TARGET static void NAME(const Product *p, float *restrict b) {                                                   \
        typedef float __attribute__((vector_size(BYTES), may_alias)) V;                                              \
        enum { VECTORS = COLUMNS * 4 / BYTES };                                                                      \
        for (int64_t first = 0; first < p->n; first += COLUMNS) {                                                    \
            int64_t wide = p->n - first < COLUMNS ? p->n - first : COLUMNS;                                          \
            side_by_side(p, first, wide, b);                                                                         \
            for (int64_t row = 0; row < p->m; row += 4) {                                                            \
                int64_t rows = p->m - row < 4 ? p->m - row : 4;                                                      \
                const float *a[4];                                                                                   \
                for (int r = 0; r < 4; r++) a[r] = p->a + (row + (r < rows ? r : 0)) * p->a_row;                     \
                V sums[4][VECTORS];                                                                                  \
                for (int r = 0; r < 4; r++)                                                                          \
                    for (int v = 0; v < VECTORS; v++) sums[r][v] = (V){0};                                           \
                for (int64_t t = 0; t < p->k; t++) {                                                                 \
                    const V *column = (const V *)(b + t * COLUMNS);                                                  \
                    for (int r = 0; r < 4; r++) {                                                                    \
                        float x = a[r][t * p->a_step];                                                               \
                        for (int v = 0; v < VECTORS; v++) sums[r][v] += x * column[v];                               \
                    }                                                                                                \
                }                                                                                                    \
                for (int r = 0; r < rows; r++) written(p, (const float *)sums[r], row + r, first, wide);             \
            }                                                                                                        \
        }                                                                                                            \
    }

PRODUCT(product_of_128_bits, , 16)
#if X86
PRODUCT(product_of_256_bits, __attribute__((target("arch=x86-64-v3"))), 32)
PRODUCT(product_of_512_bits, __attribute__((target("arch=x86-64-v4"))), 64)
#endif

static void multiply(const Product *p) {
    float columns[DEEPEST * COLUMNS] __attribute__((aligned(64)));
#if X86
    if (__builtin_cpu_supports("x86-64-v4")) return product_of_512_bits(p, columns);
    if (__builtin_cpu_supports("x86-64-v3")) return product_of_256_bits(p, columns);
#endif
    product_of_128_bits(p, columns);
}
