/* Batch norm in training of few elements, and its gradients: PyTorch takes longer to start its loops over channels than these to
   compute. Tensors are contiguous (images, channels, elements). */
enum { IMAGES, CHANNELS, ELEMENTS, SIZES_OF_NORM };
enum { N_A = SIZES_OF_NORM, N_W, N_B, N_Y, N_MEAN, N_RSTD, N_VAR, NORM_FORWARD };
enum { N_G = SIZES_OF_NORM, N_OF, N_M, N_R, N_WEIGHT, N_GA, N_GW, N_GB, NORM_BACKWARD };

#define CENTRED(i) ((a[i] - b[0]) * (a[i] - b[0]))
ROW_SUM(squares_around, CENTRED)

/* A channel's sums over the images; rows of few elements are added up one by one. */
static inline double channel_sum(const float *a, int64_t images, int64_t step, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < images; i++, a += step)
        if (n < LANES)
            for (int64_t j = 0; j < n; j++) sum += a[j];
        else
            sum += sum_of(a, a, n);
    return sum;
}

static inline double channel_squares(const float *a, float mean, int64_t images, int64_t step, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < images; i++, a += step)
        if (n < LANES)
            for (int64_t j = 0; j < n; j++) sum += (a[j] - mean) * (a[j] - mean);
        else
            sum += squares_around(a, &mean, n);
    return sum;
}

CLONES static void channel_norm(const int64_t *of, double eps) {
    int64_t images = of[IMAGES], channels = of[CHANNELS], n = of[ELEMENTS], step = channels * n;
    double count = (double)images * (double)n;
    for (int64_t c = 0; c < channels; c++) {
        const float *a = F(N_A) + c * n;
        float *y = F(N_Y) + c * n;
        float mean = (float)(channel_sum(a, images, step, n) / count);
        double squares = channel_squares(a, mean, images, step, n);
        float rstd = (float)(1.0 / sqrt(squares / count + eps)), scale = rstd * F(N_W)[c], shift = F(N_B)[c];
        F(N_MEAN)[c] = mean, F(N_RSTD)[c] = rstd, F(N_VAR)[c] = (float)(squares / (count - 1.0));
        for (int64_t i = 0; i < images; i++)
            for (int64_t j = 0; j < n; j++) y[i * step + j] = (a[i * step + j] - mean) * scale + shift;
    }
}

/* A loop has one array of sums: compilers keep no two in registers. */
static inline float centred_product(const float *restrict g, const float *restrict a, float mean, int64_t n) {
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lanes[l] += g[i + l] * (a[i + l] - mean);
    for (int l = 0; i < n; i++, l++) lanes[l] += g[i] * (a[i] - mean);
    return lanes_added(lanes);
}

static inline double channel_product(const float *g, const float *a, float mean, int64_t images, int64_t step, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < images; i++, g += step, a += step)
        if (n < LANES)
            for (int64_t j = 0; j < n; j++) sum += g[j] * (a[j] - mean);
        else
            sum += centred_product(g, a, mean, n);
    return sum;
}

CLONES static void channel_norm_gradient(const int64_t *of) {
    int64_t images = of[IMAGES], channels = of[CHANNELS], n = of[ELEMENTS], step = channels * n;
    double count = (double)images * (double)n;
    for (int64_t c = 0; c < channels; c++) {
        const float *g = F(N_G) + c * n, *a = F(N_OF) + c * n;
        float mean = F(N_M)[c], rstd = F(N_R)[c], scale = rstd * F(N_WEIGHT)[c], *to = F(N_GA) + c * n;
        double sum = channel_sum(g, images, step, n), dot = channel_product(g, a, mean, images, step, n);
        F(N_GW)[c] = (float)(dot * rstd), F(N_GB)[c] = (float)sum;
        float each = (float)(sum / count), slope = (float)(dot / count * rstd * rstd);
        for (int64_t i = 0; i < images; i++)
            for (int64_t j = 0; j < n; j++)
                to[i * step + j] = (g[i * step + j] - each - (a[i * step + j] - mean) * slope) * scale;
    }
}
