/* One layer of an LSTM on few units, and its gradients: oneDNN takes longer to prepare a step than these to compute it. Tensors are
   contiguous; sizes are steps, batch, inputs of a step and hidden units. Gates are input, forget, cell and output, as PyTorch has
   them, after their functions. */
enum { STEPS, BATCH, INPUTS, HIDDEN, SIZES_OF_LSTM };
enum { X = SIZES_OF_LSTM, W_IH, W_HH, B_IH, B_HH, H, C_0, Y, CELLS, GATES, TURNED, ROOM, LSTM_FORWARD };
enum { GY = ROOM + 1, GH, GC, G_GATES, G_X, G_W_IH, G_W_HH, G_BIAS, LSTM_BACKWARD };
#define F(i) ((float *)(uintptr_t)of[i])
#define I(i) ((int64_t *)(uintptr_t)of[i])

/* TURNED: the recurrent weight with its gates last; ROOM: the gates of a step. */
CLONES static void lstm_units(int64_t batch, int64_t hidden, float *restrict gates, const float *restrict room,
                              const float *restrict before, float *restrict cells, float *restrict y) {
    for (int64_t b = 0; b < batch; b++, gates += 4 * hidden, room += 4 * hidden, before += hidden, cells += hidden, y += hidden) {
        for (int64_t j = 0; j < 4 * hidden; j++) gates[j] += room[j];
        for (int64_t j = 0; j < 2 * hidden; j++) gates[j] = 1.0f / (1.0f + exponential(-gates[j]));
        for (int64_t j = 2 * hidden; j < 3 * hidden; j++) gates[j] = hyperbolic_tangent(gates[j]);
        for (int64_t j = 3 * hidden; j < 4 * hidden; j++) gates[j] = 1.0f / (1.0f + exponential(-gates[j]));
        for (int64_t j = 0; j < hidden; j++) {
            cells[j] = gates[hidden + j] * before[j] + gates[j] * gates[2 * hidden + j];
            y[j] = gates[3 * hidden + j] * hyperbolic_tangent(cells[j]);
        }
    }
}

static void lstm_forward(const int64_t *of) {
    int64_t steps = of[STEPS], batch = of[BATCH], inputs = of[INPUTS], n = of[HIDDEN], wide = 4 * n;
    Product all = {F(X), F(W_IH), F(B_IH), F(GATES), steps * batch, inputs, wide, inputs, 1, 1, inputs, 0};
    multiply(&all);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < wide; j++) F(TURNED)[i * wide + j] = F(W_HH)[j * n + i];
    for (int64_t t = 0; t < steps; t++) {
        const float *h = t ? F(Y) + (t - 1) * batch * n : F(H), *c = t ? F(CELLS) + (t - 1) * batch * n : F(C_0);
        Product step = {h, F(TURNED), F(B_HH), F(ROOM), batch, n, wide, n, 1, wide, 1, 0};
        multiply(&step);
        lstm_units(batch, n, F(GATES) + t * batch * wide, F(ROOM), c, F(CELLS) + t * batch * n, F(Y) + t * batch * n);
    }
}

/* The gradients of a step's gates, from those of its results in `gh` and `gc`; `gc` becomes that of the cells before. */
CLONES static void lstm_units_back(int64_t batch, int64_t n, const float *restrict gates, const float *restrict before,
                                   const float *restrict cells, const float *restrict gy, const float *restrict gh,
                                   float *restrict gc, float *restrict g_gates) {
    for (int64_t b = 0; b < batch; b++, gates += 4 * n, before += n, cells += n, gy += n, gh += n, gc += n, g_gates += 4 * n)
        for (int64_t j = 0; j < n; j++) {
            float i = gates[j], f = gates[n + j], g = gates[2 * n + j], o = gates[3 * n + j];
            float tangent = hyperbolic_tangent(cells[j]), h = gh[j] + gy[j];
            float c = gc[j] + h * o * (1.0f - tangent * tangent);
            g_gates[j] = c * g * i * (1.0f - i);
            g_gates[n + j] = c * before[j] * f * (1.0f - f);
            g_gates[2 * n + j] = c * i * (1.0f - g * g);
            g_gates[3 * n + j] = h * tangent * o * (1.0f - o);
            gc[j] = c * f;
        }
}

/* The sum over k rows of the products of a's and b's columns, added to `out`. */
static void add_outer(const float *a, const float *b, float *out, int64_t k, int64_t m, int64_t n) {
    for (int64_t first = 0; first < k; first += DEEPEST) {
        int64_t here = k - first < DEEPEST ? k - first : DEEPEST;
        Product p = {a + first * m, b + first * n, NULL, out, m, here, n, 1, m, n, 1, 1};
        multiply(&p);
    }
}

/* GH and GC hold the gradients of the last state, and become those of the first one; G_W_IH and G_W_HH are zeros before. */
static void lstm_backward(const int64_t *of) {
    int64_t steps = of[STEPS], batch = of[BATCH], inputs = of[INPUTS], n = of[HIDDEN], wide = 4 * n, each = batch * n;
    for (int64_t t = steps - 1; t >= 0; t--) {
        const float *before = t ? F(CELLS) + (t - 1) * each : F(C_0);
        float *g = F(G_GATES) + t * batch * wide;
        lstm_units_back(batch, n, F(GATES) + t * batch * wide, before, F(CELLS) + t * each, F(GY) + t * each, F(GH), F(GC), g);
        Product back = {g, F(W_HH), NULL, F(GH), batch, wide, n, wide, 1, n, 1, 0};
        multiply(&back);
    }
    Product of_inputs = {F(G_GATES), F(W_IH), NULL, F(G_X), steps * batch, wide, inputs, wide, 1, inputs, 1, 0};
    multiply(&of_inputs);
    add_outer(F(G_GATES), F(X), F(G_W_IH), steps * batch, wide, inputs);
    add_outer(F(G_GATES), F(H), F(G_W_HH), batch, wide, n);
    add_outer(F(G_GATES) + batch * wide, F(Y), F(G_W_HH), (steps - 1) * batch, wide, n);
    column_sums(F(G_GATES), F(G_BIAS), steps * batch, wide, 1.0f);
}
