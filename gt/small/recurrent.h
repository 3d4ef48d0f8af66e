/* One layer of recurrent cells on few units, in one direction, and its gradients: libraries take longer to prepare a step than these
   to compute it. Tensors are contiguous but Y and GY, whose rows are Y_ROW elements apart: both directions of a layer write into one
   tensor. Cells have PyTorch's numbers, and gates its order: of an LSTM input, forget, cell and output, of a GRU reset, update and
   new. */
enum { RELU_CELL, TANH_CELL, LSTM_CELL, GRU_CELL, CELLS };
enum { CELL, BACKWARDS, STEPS, BATCH, INPUTS, HIDDEN, Y_ROW, SIZES_OF_LAYER };
enum { X = SIZES_OF_LAYER, W_IH, W_HH, B_IH, B_HH, H, C_0, Y, INNER, GATES, OF_BOTH };
enum { TURNED = OF_BOTH, ROOM, LAYER_FORWARD };
enum { GY = OF_BOTH, GH, GC, G_GATES, G_HIDDEN, G_X, G_W_IH, G_W_HH, G_B_IH, G_B_HH, LAYER_BACKWARD };
#define F(i) ((float *)(uintptr_t)of[i])
#define I(i) ((int64_t *)(uintptr_t)of[i])

static const int64_t GATES_OF[CELLS] = {1, 1, 4, 3};

/* A step of a batch. GATES: of the inputs, then after their functions; ROOM: of the state before; `before`: an LSTM's cells or a GRU's
   state before the step; INNER: an LSTM's cells, or a GRU's third of ROOM. */
typedef struct {
    int64_t batch, n, y_row;
    float *gates, *inner, *y;
    const float *room, *before;
    int64_t before_row; /* elements from one row of `before` to the next */
} Step;

static inline float logistic(float x) { return 1.0f / (1.0f + exponential(-x)); }

CLONES static void lstm_units(Step s) {
    for (int64_t b = 0, n = s.n; b < s.batch; b++) {
        float *restrict gates = s.gates + b * 4 * n, *restrict cells = s.inner + b * n, *restrict y = s.y + b * s.y_row;
        const float *restrict room = s.room + b * 4 * n, *restrict before = s.before + b * s.before_row;
        for (int64_t j = 0; j < 4 * n; j++) gates[j] += room[j];
        for (int64_t j = 0; j < 2 * n; j++) gates[j] = logistic(gates[j]);
        for (int64_t j = 2 * n; j < 3 * n; j++) gates[j] = hyperbolic_tangent(gates[j]);
        for (int64_t j = 3 * n; j < 4 * n; j++) gates[j] = logistic(gates[j]);
        for (int64_t j = 0; j < n; j++) {
            cells[j] = gates[n + j] * before[j] + gates[j] * gates[2 * n + j];
            y[j] = gates[3 * n + j] * hyperbolic_tangent(cells[j]);
        }
    }
}

CLONES static void gru_units(Step s) {
    for (int64_t b = 0, n = s.n; b < s.batch; b++) {
        float *restrict gates = s.gates + b * 3 * n, *restrict inner = s.inner + b * n, *restrict y = s.y + b * s.y_row;
        const float *restrict room = s.room + b * 3 * n, *restrict before = s.before + b * s.before_row;
        for (int64_t j = 0; j < 2 * n; j++) gates[j] = logistic(gates[j] + room[j]);
        for (int64_t j = 0; j < n; j++) {
            inner[j] = room[2 * n + j];
            float new = hyperbolic_tangent(gates[2 * n + j] + gates[j] * inner[j]);
            gates[2 * n + j] = new;
            y[j] = new + gates[n + j] * (before[j] - new);
        }
    }
}

CLONES static void tanh_units(Step s) {
    for (int64_t b = 0; b < s.batch; b++) {
        const float *restrict gates = s.gates + b * s.n, *restrict room = s.room + b * s.n;
        float *restrict y = s.y + b * s.y_row;
        for (int64_t j = 0; j < s.n; j++) y[j] = hyperbolic_tangent(gates[j] + room[j]);
    }
}

CLONES static void relu_units(Step s) {
    for (int64_t b = 0; b < s.batch; b++) {
        const float *restrict gates = s.gates + b * s.n, *restrict room = s.room + b * s.n;
        float *restrict y = s.y + b * s.y_row;
        for (int64_t j = 0; j < s.n; j++) y[j] = gates[j] + room[j] < 0 ? 0.0f : gates[j] + room[j];
    }
}

/* Of the step at place `t`: its first state, or the state behind the step before it. */
static const float *state_before(const int64_t *of, int64_t t, int first, int tensor, int64_t row) {
    int64_t before = of[BACKWARDS] ? t + 1 : t - 1;
    return before < 0 || before >= of[STEPS] ? F(first) : F(tensor) + before * of[BATCH] * row;
}
static int64_t row_before(const int64_t *of, int64_t t) { /* of the state h */
    return t == (of[BACKWARDS] ? of[STEPS] - 1 : 0) ? of[HIDDEN] : of[Y_ROW];
}

static void (*const UNITS[CELLS])(Step) = {relu_units, tanh_units, lstm_units, gru_units};

/* TURNED: the recurrent weight with its gates last. */
static void layer_forward(const int64_t *of) {
    int64_t steps = of[STEPS], batch = of[BATCH], inputs = of[INPUTS], n = of[HIDDEN], wide = GATES_OF[of[CELL]] * n;
    Product all = {F(X), F(W_IH), F(B_IH), F(GATES), steps * batch, inputs, wide, inputs, 1, 1, inputs, 0};
    multiply(&all);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < wide; j++) F(TURNED)[i * wide + j] = F(W_HH)[j * n + i];
    for (int64_t k = 0; k < steps; k++) {
        int64_t t = of[BACKWARDS] ? steps - 1 - k : k, row = row_before(of, t);
        const float *h = state_before(of, t, H, Y, of[Y_ROW]);
        Product step = {h, F(TURNED), F(B_HH), F(ROOM), batch, n, wide, row, 1, wide, 1, 0};
        multiply(&step);
        int lstm = of[CELL] == LSTM_CELL;
        Step s = {batch, n, of[Y_ROW], F(GATES) + t * batch * wide, F(INNER) + t * batch * n, F(Y) + t * batch * of[Y_ROW], F(ROOM),
                  lstm ? state_before(of, t, C_0, INNER, n) : h, lstm ? n : row};
        UNITS[of[CELL]](s);
    }
}

/* The gradients of a step's gates, from those of its results in GY, GH and GC; GH and GC become those of the state before, GH without
   the part through the recurrent weight. G_GATES: of the inputs' part of the gates; G_HIDDEN: of the state's part, which only a GRU
   has in a tensor of its own. */
typedef struct {
    Step of;
    const float *gy;
    float *gh, *gc, *gates, *hidden;
} Back;

CLONES static void lstm_units_back(Back s) {
    for (int64_t b = 0, n = s.of.n; b < s.of.batch; b++) {
        const float *restrict gates = s.of.gates + b * 4 * n, *restrict cells = s.of.inner + b * n;
        const float *restrict before = s.of.before + b * s.of.before_row, *restrict gy = s.gy + b * s.of.y_row;
        float *restrict gh = s.gh + b * n, *restrict gc = s.gc + b * n, *restrict to = s.gates + b * 4 * n;
        for (int64_t j = 0; j < n; j++) {
            float i = gates[j], f = gates[n + j], g = gates[2 * n + j], o = gates[3 * n + j];
            float tangent = hyperbolic_tangent(cells[j]), h = gh[j] + gy[j];
            float c = gc[j] + h * o * (1.0f - tangent * tangent);
            to[j] = c * g * i * (1.0f - i);
            to[n + j] = c * before[j] * f * (1.0f - f);
            to[2 * n + j] = c * i * (1.0f - g * g);
            to[3 * n + j] = h * tangent * o * (1.0f - o);
            gc[j] = c * f;
        }
    }
}

CLONES static void gru_units_back(Back s) {
    for (int64_t b = 0, n = s.of.n; b < s.of.batch; b++) {
        const float *restrict gates = s.of.gates + b * 3 * n, *restrict inner = s.of.inner + b * n;
        const float *restrict before = s.of.before + b * s.of.before_row, *restrict gy = s.gy + b * s.of.y_row;
        float *restrict gh = s.gh + b * n, *restrict to = s.gates + b * 3 * n, *restrict hidden = s.hidden + b * 3 * n;
        for (int64_t j = 0; j < n; j++) {
            float r = gates[j], z = gates[n + j], new = gates[2 * n + j], h = gh[j] + gy[j];
            float g = h * (1.0f - z) * (1.0f - new * new);
            to[j] = hidden[j] = g * inner[j] * r * (1.0f - r);
            to[n + j] = hidden[n + j] = h * (before[j] - new) * z * (1.0f - z);
            to[2 * n + j] = g;
            hidden[2 * n + j] = g * r;
            gh[j] = h * z;
        }
    }
}

#define SIMPLE_BACK(NAME, SLOPE)                                                                                     \
    CLONES static void NAME(Back s) {                                                                                \
        for (int64_t b = 0, n = s.of.n; b < s.of.batch; b++) {                                                       \
            const float *restrict y = s.of.y + b * s.of.y_row, *restrict gy = s.gy + b * s.of.y_row;                   \
            const float *restrict gh = s.gh + b * n;                                                                 \
            float *restrict to = s.gates + b * n;                                                                    \
            for (int64_t j = 0; j < n; j++) to[j] = SLOPE;                                                           \
        }                                                                                                            \
    }
SIMPLE_BACK(tanh_units_back, (gh[j] + gy[j]) * (1.0f - y[j] * y[j]))
SIMPLE_BACK(relu_units_back, y[j] <= 0 ? 0.0f : gh[j] + gy[j])

static void (*const UNITS_BACK[CELLS])(Back) = {relu_units_back, tanh_units_back, lstm_units_back, gru_units_back};

/* The sum over k rows, `row` elements apart in b, of the products of a's and b's columns, added to `out`. */
static void add_outer(const float *a, const float *b, int64_t row, float *out, int64_t k, int64_t m, int64_t n) {
    for (int64_t first = 0; first < k; first += DEEPEST) {
        int64_t here = k - first < DEEPEST ? k - first : DEEPEST;
        Product p = {a + first * m, b + first * row, NULL, out, m, here, n, 1, m, row, 1, 1};
        multiply(&p);
    }
}

/* GH and GC hold the gradients of the last state, and become those of the first one; G_W_IH and G_W_HH are zeros before. The backward
   direction adds to the G_X of the forward one. */
static void layer_backward(const int64_t *of) {
    int64_t steps = of[STEPS], batch = of[BATCH], inputs = of[INPUTS], n = of[HIDDEN], wide = GATES_OF[of[CELL]] * n;
    int lstm = of[CELL] == LSTM_CELL, gru = of[CELL] == GRU_CELL;
    for (int64_t k = 0; k < steps; k++) {
        int64_t t = of[BACKWARDS] ? k : steps - 1 - k, at = t * batch, row = row_before(of, t);
        const float *before = lstm ? state_before(of, t, C_0, INNER, n) : state_before(of, t, H, Y, of[Y_ROW]);
        Step step = {batch, n, of[Y_ROW], F(GATES) + at * wide, F(INNER) + at * n, F(Y) + at * of[Y_ROW], NULL, before, lstm ? n : row};
        Back s = {step, F(GY) + at * of[Y_ROW], F(GH), F(GC), F(G_GATES) + at * wide, F(G_HIDDEN) + at * wide};
        UNITS_BACK[of[CELL]](s);
        Product back = {s.hidden, F(W_HH), NULL, F(GH), batch, wide, n, wide, 1, n, 1, gru};
        multiply(&back);
    }
    Product of_inputs = {F(G_GATES), F(W_IH), NULL, F(G_X), steps * batch, wide, inputs, wide, 1, inputs, 1, (int)of[BACKWARDS]};
    multiply(&of_inputs);
    add_outer(F(G_GATES), F(X), inputs, F(G_W_IH), steps * batch, wide, inputs);
    int64_t first = of[BACKWARDS] ? (steps - 1) * batch : 0, later = of[BACKWARDS] ? 0 : batch;
    add_outer(F(G_HIDDEN) + first * wide, F(H), n, F(G_W_HH), batch, wide, n);
    add_outer(F(G_HIDDEN) + later * wide, F(Y) + (batch - later) * of[Y_ROW], of[Y_ROW], F(G_W_HH), (steps - 1) * batch, wide, n);
    if (of[G_B_IH]) {
        column_sums(F(G_GATES), F(G_B_IH), steps * batch, wide, 1.0f);
        column_sums(F(G_HIDDEN), F(G_B_HH), steps * batch, wide, 1.0f);
    }
}
