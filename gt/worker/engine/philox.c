/* Philox 4x32 random numbers in a core's vector registers: the numbers of gt/ops/random.py, several for each counter.
   The request and its memory are checked by philox.py, which also divides long stretches among threads.
   Built without contraction (setup.py), so that normal numbers have the same bits on every processor. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "../../small/clones.h"
#if X86
#include <immintrin.h>
#endif

#define COUNTERS 512 /* at once: their words stay in the first cache */
enum { FRACTIONS, WORDS, BERNOULLI, NORMAL, DROPOUT };

typedef uint16_t __attribute__((may_alias)) Lane; /* half of a word: words are written as uint32_t and read as these */

typedef struct {
    uint64_t seed, number;
    uint32_t least;
    float scale;
} Draw;

/* The words of the counters of a block: those of one position in an array, so that a vector holds one position of many counters.
   Vectors fill their last place beyond the counters that were asked for. */
typedef struct {
    uint32_t of[4][COUNTERS];
} __attribute__((aligned(64))) Words;

#define TEN(STEP) STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP
#define ROUND                                                                                              \
    {                                                                                                      \
        uint64_t p0 = (uint64_t)c0 * 0xD2511F53u, p1 = (uint64_t)c2 * 0xCD9E8D57u;                        \
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;                                                               \
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;                                                               \
        c1 = (uint32_t)p1;                                                                                 \
        c3 = (uint32_t)p0;                                                                                 \
        k0 += 0x9E3779B9u;                                                                                 \
        k1 += 0xBB67AE85u;                                                                                 \
    }

static void any_words(const Draw *draw, uint64_t counter, int n, Words *words) {
    uint32_t low = (uint32_t)counter, high = (uint32_t)(counter >> 32);
    for (int i = 0; i < n; i++) {
        uint32_t c0 = low + (uint32_t)i, c1 = high + (c0 < low);
        uint32_t c2 = (uint32_t)draw->number, c3 = (uint32_t)(draw->number >> 32);
        uint32_t k0 = (uint32_t)draw->seed, k1 = (uint32_t)(draw->seed >> 32);
        TEN(ROUND)
        words->of[0][i] = c0;
        words->of[1][i] = c1;
        words->of[2][i] = c2;
        words->of[3][i] = c3;
    }
}

#if X86
/* One instruction multiplies the lower halves of 64-bit lanes, but compilers take three for the products above. So counters are
   in such lanes, those with even numbers (a) and with odd ones (b) in a vector each; upper halves are never read. */
#define WIDE_ROUND(c)                                                                                      \
    {                                                                                                      \
        V p0 = MULTIPLY(c##0, m0), p1 = MULTIPLY(c##2, m1);                                                \
        c##0 = (p1 >> 32) ^ c##1 ^ k0;                                                                     \
        c##2 = (p0 >> 32) ^ c##3 ^ k1;                                                                     \
        c##1 = p1;                                                                                         \
        c##3 = p0;                                                                                         \
    }
#define BOTH_ROUNDS                                                                                        \
    WIDE_ROUND(a)                                                                                          \
    WIDE_ROUND(b)                                                                                          \
    k0 += 0x9E3779B9u;                                                                                     \
    k1 += 0xBB67AE85u;
#define KEEP(j) *(V *)(words->of[j] + i) = (a##j & 0xFFFFFFFFu) | (b##j << 32);
#define WIDE_WORDS(NAME, ARCH, BYTES)                                                                      \
    __attribute__((target(ARCH))) static void NAME(const Draw *draw, uint64_t counter, int n, Words *words) { \
        typedef uint64_t __attribute__((vector_size(BYTES), may_alias)) V;                                 \
        V even = {0}, m0 = even + 0xD2511F53u, m1 = even + 0xCD9E8D57u;                                    \
        for (int i = 0; i < BYTES / 8; i++) even[i] = counter + 2 * (uint64_t)i;                           \
        for (int i = 0; i < n; i += BYTES / 4, even += BYTES / 4) {                                        \
            V a0 = even, a1 = a0 >> 32, a2 = m0 - m0 + draw->number, a3 = a2 >> 32;                        \
            V b0 = even + 1, b1 = b0 >> 32, b2 = a2, b3 = a3;                                              \
            V k0 = m0 - m0 + draw->seed, k1 = k0 >> 32;                                                    \
            TEN(BOTH_ROUNDS)                                                                               \
            KEEP(0) KEEP(1) KEEP(2) KEEP(3)                                                                \
        }                                                                                                  \
    }
#define MULTIPLY(x, y) (V) _mm512_mul_epu32((__m512i)(x), (__m512i)(y))
WIDE_WORDS(words_of_512_bits, "arch=x86-64-v4", 64)
#undef MULTIPLY
#define MULTIPLY(x, y) (V) _mm256_mul_epu32((__m256i)(x), (__m256i)(y))
WIDE_WORDS(words_of_256_bits, "arch=x86-64-v3", 32)

static void make_words(const Draw *draw, uint64_t counter, int n, Words *words) {
    if (__builtin_cpu_supports("x86-64-v4"))
        words_of_512_bits(draw, counter, n, words);
    else if (__builtin_cpu_supports("x86-64-v3"))
        words_of_256_bits(draw, counter, n, words);
    else
        any_words(draw, counter, n, words);
}
#else
#define make_words any_words
#endif

/* One counter's words after another's. */
CLONES static void in_order(const Words *words, uint32_t *restrict out, int n) {
    for (int i = 0; i < n; i++) {
        out[4 * i] = words->of[0][i];
        out[4 * i + 1] = words->of[1][i];
        out[4 * i + 2] = words->of[2][i];
        out[4 * i + 3] = words->of[3][i];
    }
}

CLONES static void to_fractions(const uint32_t *restrict words, float *restrict out, int n) {
    for (int i = 0; i < n; i++) out[i] = (float)(int32_t)(words[i] >> 8) * (1.0f / 16777216.0f);
}

CLONES static void to_numbers(const uint32_t *restrict words, int64_t *restrict out, int n) {
    for (int i = 0; i < n; i++) out[i] = words[i];
}

CLONES static void to_truth(const Lane *restrict lanes, uint8_t *restrict out, int n, uint32_t least) {
    for (int i = 0; i < n; i++) out[i] = lanes[i] >= least;
}

CLONES static void drop(const Lane *restrict lanes, const float *restrict a, float *restrict out, int n, uint32_t least,
                        float scale) {
    for (int i = 0; i < n; i++) {
        float kept = a[i] * scale;
        out[i] = lanes[i] >= least ? kept : 0.0f;
    }
}

/* -2 log(u) of u in (0, 1]: u = 2^e * (1 + f) with 1 + f in [0.707, 1.414), and a polynomial for log(1 + f). */
static inline float squared_radius(float u) {
    int32_t bits;
    memcpy(&bits, &u, 4);
    int32_t e = (int32_t)((uint32_t)(bits - 0x3F3504F3) & 0xFF800000u); /* in units of 2^-23 */
    bits -= e;
    float m;
    memcpy(&m, &bits, 4);
    float f = m - 1.0f;
    float p = -2.0f * 7.0376836292e-2f;
    p = fmaf(p, f, 2.0f * 1.1514610310e-1f);
    p = fmaf(p, f, -2.0f * 1.1676998740e-1f);
    p = fmaf(p, f, 2.0f * 1.2420140846e-1f);
    p = fmaf(p, f, -2.0f * 1.4249322787e-1f);
    p = fmaf(p, f, 2.0f * 1.6668057665e-1f);
    p = fmaf(p, f, -2.0f * 2.0000714765e-1f);
    p = fmaf(p, f, 2.0f * 2.4999993993e-1f);
    p = fmaf(p, f, -2.0f * 3.3333331174e-1f);
    p = fmaf(p, f, 1.0f);
    p = fmaf(p, f, -2.0f);
    return fmaf(p, f, (float)e * (-2.0f * 0.6931471805599453f / 8388608.0f));
}

/* sin(2 pi v) for v in [-0.25, 0.25], with a small relative error near zero, too. */
static inline float sine_of_turn(float v) {
    float z = v * v;
    float p = 40.803658f;
    p = fmaf(p, z, -76.71898f);
    p = fmaf(p, z, 81.60829f);
    p = fmaf(p, z, -41.341763f);
    p = fmaf(p, z, 6.2831855f);
    return v * p;
}

/* A pair of normal numbers, of two words: -cosine and sine of a turn, times the radius. */
static inline void box_muller(uint32_t word, uint32_t next, float *restrict pair) {
    float u = (float)(int32_t)(word >> 8) * (1.0f / 16777216.0f) + 1.0f / 16777216.0f;
    float turn = (float)(int32_t)(next >> 8) * (1.0f / 16777216.0f) - 0.5f;
    float across = fabsf(turn) - 0.25f, along = copysignf(0.25f - fabsf(across), turn);
    float radius = sqrtf(squared_radius(u));
    pair[0] = radius * sine_of_turn(across);
    pair[1] = radius * sine_of_turn(along);
}

/* Four numbers for each counter. */
CLONES static void to_normal(const Words *words, float *restrict out, int n) {
    for (int i = 0; i < n; i++) {
        box_muller(words->of[0][i], words->of[1][i], out + 4 * i);
        box_muller(words->of[2][i], words->of[3][i], out + 4 * i + 2);
    }
}

static void fill(int distribution, const Draw *draw, uint64_t first, uint64_t count, char *out, const float *a) {
    Words made;
    uint32_t words[4 * COUNTERS];
    float numbers[4 * COUNTERS];
    uint64_t each = distribution == BERNOULLI || distribution == DROPOUT ? 8 : 4;
    uint64_t counter = first / each, skip = first - counter * each, done = 0;
    while (done < count) {
        uint64_t left = count - done + skip, n = (left + each - 1) / each;
        n = n < COUNTERS ? n : COUNTERS;
        make_words(draw, counter, (int)n, &made);
        uint64_t here = n * each - skip;
        here = here < count - done ? here : count - done;
        int whole = here == n * each;
        if (distribution == NORMAL)
            to_normal(&made, whole ? (float *)out + done : numbers, (int)n);
        else
            in_order(&made, words, (int)n);
        const Lane *lanes = (const Lane *)words + skip;
        switch (distribution) {
            case FRACTIONS: to_fractions(words + skip, (float *)out + done, (int)here); break;
            case WORDS: to_numbers(words + skip, (int64_t *)out + done, (int)here); break;
            case BERNOULLI: to_truth(lanes, (uint8_t *)out + done, (int)here, draw->least); break;
            case NORMAL:
                if (!whole) memcpy((float *)out + done, numbers + skip, here * sizeof(float));
                break;
            default: drop(lanes, a + done, (float *)out + done, (int)here, draw->least, draw->scale);
        }
        counter += n;
        done += here;
        skip = 0;
    }
}

/* fill(distribution, seed, number, first, count, out, a, least, scale): seed and number modulo 2^64; `out` and `a` are addresses.
   Fewer than ALONE numbers take less time than it may take to get the interpreter's lock back from a thread that waits for it. */
#define ALONE 16384
static PyObject *fill_(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    unsigned long long of[8];
    if (given != 9) return PyErr_Format(PyExc_TypeError, "fill expected 9 arguments, got %zd", given);
    for (int i = 0; i < 8; i++) {
        of[i] = PyLong_AsUnsignedLongLongMask(args[i]);
        if (of[i] == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
    }
    double scale = PyFloat_AsDouble(args[8]);
    if (scale == -1.0 && PyErr_Occurred()) return NULL;
    Draw draw = {of[1], of[2], (uint32_t)of[7], (float)scale};
    PyThreadState *state = of[4] < ALONE ? NULL : PyEval_SaveThread();
    fill((int)of[0], &draw, of[3], of[4], (char *)(uintptr_t)of[5], (const float *)(uintptr_t)of[6]);
    if (state) PyEval_RestoreThread(state);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"fill", (PyCFunction)(void (*)(void))fill_, METH_FASTCALL, "Random numbers into memory."}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_philox", SOURCE, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__philox(void) { return PyModule_Create(&module); }
