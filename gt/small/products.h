/* Products of small matrices: of up to eight rows and sixteen columns at a time, whose sums stay in registers. The columns of the
   second factor are copied side by side first, unless few rows are multiplied by them. Operands have any strides. */
#define COLUMNS 16
#define DEEPEST 512 /* most terms of a sum */
#define DOTS 8 /* columns of a row at a time */
#define FEW_ROWS 4 /* of which columns are read where they are */
#define FEW_TERMS 16 /* of which sums are not worth adding up lane by lane */

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

/* `ROWS` rows from `row` on by sixteen columns side by side, whose terms are `step` numbers apart. */
#define ROWS_OF(NAME, TARGET, BYTES, ROWS)                                                                           \
    TARGET static void NAME(const Product *p, const float *b, int64_t step, int64_t row, int64_t first,              \
                            int64_t wide) {                                                                          \
        typedef float __attribute__((vector_size(BYTES), may_alias, aligned(4))) V;                                  \
        enum { VECTORS = COLUMNS * 4 / BYTES };                                                                      \
        const float *a[ROWS];                                                                                        \
        for (int r = 0; r < ROWS; r++) a[r] = p->a + (row + r) * p->a_row;                                           \
        V sums[ROWS][VECTORS];                                                                                       \
        for (int r = 0; r < ROWS; r++)                                                                               \
            for (int v = 0; v < VECTORS; v++) sums[r][v] = (V){0};                                                   \
        for (int64_t t = 0; t < p->k; t++) {                                                                         \
            const V *column = (const V *)(b + t * step);                                                             \
            for (int r = 0; r < ROWS; r++) {                                                                         \
                float x = a[r][t * p->a_step];                                                                       \
                for (int v = 0; v < VECTORS; v++) sums[r][v] += x * column[v];                                       \
            }                                                                                                        \
        }                                                                                                            \
        for (int r = 0; r < ROWS; r++) written(p, (const float *)sums[r], row + r, first, wide);                     \
    }

/* One row by columns whose terms stand side by side, as those of a layer's weights do: eight columns at a time. */
#define ROW(NAME, TARGET, BYTES)                                                                                     \
    TARGET static void NAME(const Product *p, int64_t row) {                                                         \
        typedef float __attribute__((vector_size(BYTES), may_alias, aligned(4))) V;                                  \
        enum { WIDE = BYTES / 4 };                                                                                   \
        const float *a = p->a + row * p->a_row;                                                                      \
        for (int64_t first = 0; first < p->n; first += DOTS) {                                                       \
            int64_t wide = p->n - first < DOTS ? p->n - first : DOTS, t = 0;                                         \
            const float *b[DOTS];                                                                                    \
            for (int c = 0; c < DOTS; c++) b[c] = p->b + (first + (c < wide ? c : 0)) * p->b_column;                 \
            V sums[DOTS];                                                                                            \
            float found[DOTS];                                                                                       \
            for (int c = 0; c < DOTS; c++) sums[c] = (V){0};                                                         \
            for (; t + WIDE <= p->k; t += WIDE) {                                                                    \
                V x = *(const V *)(a + t);                                                                           \
                for (int c = 0; c < DOTS; c++) sums[c] += x * *(const V *)(b[c] + t);                                \
            }                                                                                                        \
            for (int c = 0; c < DOTS; c++) {                                                                         \
                float lanes[WIDE];                                                                                   \
                memcpy(lanes, &sums[c], BYTES);                                                                      \
                for (int half = WIDE / 2; half; half /= 2)                                                           \
                    for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];                                      \
                found[c] = lanes[0];                                                                                 \
                for (int64_t rest = t; rest < p->k; rest++) found[c] += a[rest] * b[c][rest];                        \
            }                                                                                                        \
            written(p, found, row, first, wide);                                                                     \
        }                                                                                                            \
    }

#define PRODUCT(NAME, TARGET, BYTES, ROWS)                                                                           \
    ROWS_OF(NAME##_rows, TARGET, BYTES, ROWS)                                                                        \
    ROWS_OF(NAME##_fewer, TARGET, BYTES, ROWS / 2)                                                                   \
    ROWS_OF(NAME##_row, TARGET, BYTES, 1)                                                                            \
    ROW(NAME##_dots, TARGET, BYTES)                                                                                  \
    TARGET static void NAME(const Product *p, float *restrict b) {                                                   \
        if (p->m < FEW_ROWS && p->k >= FEW_TERMS && p->a_step == 1 && p->b_step == 1) {                              \
            for (int64_t row = 0; row < p->m; row++) NAME##_dots(p, row);                                            \
            return;                                                                                                  \
        }                                                                                                            \
        for (int64_t first = 0; first < p->n; first += COLUMNS) {                                                    \
            int64_t wide = p->n - first < COLUMNS ? p->n - first : COLUMNS, row = 0;                                 \
            const float *columns = b;                                                                                \
            int64_t step = COLUMNS;                                                                                  \
            if (p->m < FEW_ROWS && p->b_column == 1 && wide == COLUMNS)                                              \
                columns = p->b + first, step = p->b_step;                                                            \
            else                                                                                                     \
                side_by_side(p, first, wide, b);                                                                     \
            for (; row + ROWS <= p->m; row += ROWS) NAME##_rows(p, columns, step, row, first, wide);                 \
            for (; row + ROWS / 2 <= p->m; row += ROWS / 2) NAME##_fewer(p, columns, step, row, first, wide);        \
            for (; row < p->m; row++) NAME##_row(p, columns, step, row, first, wide);                                \
        }                                                                                                            \
    }

PRODUCT(product_of_128_bits, , 16, 4)
#if X86
PRODUCT(product_of_256_bits, __attribute__((target("arch=x86-64-v3"))), 32, 4)
PRODUCT(product_of_512_bits, __attribute__((target("arch=x86-64-v4"))), 64, 8)
#endif

static void multiply(const Product *p) {
    float columns[DEEPEST * COLUMNS] __attribute__((aligned(64)));
#if X86
    if (__builtin_cpu_supports("x86-64-v4")) return product_of_512_bits(p, columns);
    if (__builtin_cpu_supports("x86-64-v3")) return product_of_256_bits(p, columns);
#endif
    product_of_128_bits(p, columns);
}
