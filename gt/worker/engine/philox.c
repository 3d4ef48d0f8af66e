/* Philox 4x32 random numbers in a core's vector registers: the numbers of gt/ops/random.py, several for each counter.
   The request and its memory are checked by philox.py, which also divides long stretches among threads.
   Built without contraction (setup.py), so that normal numbers have the same bits on every processor. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

#define COUNTERS 512 /* at once: their words stay in the first cache */
enum { FRACTIONS, WORDS, BERNOULLI, NORMAL, DROPOUT };

typedef uint16_t __attribute__((may_alias)) Lane; /* half of a word: words are written as uint32_t and read as these */

typedef struct {
    uint64_t seed, number;
    uint32_t least;
    float scale;
} Draw;

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

/* The words of n counters, one counter after another. */
CLONES static void make_words(const Draw *draw, uint64_t counter, int n, uint32_t *restrict words) {
    uint32_t part[4][COUNTERS];
    uint32_t low = (uint32_t)counter, high = (uint32_t)(counter >> 32);
    for (int i = 0; i < n; i++) {
        uint32_t c0 = low + (uint32_t)i, c1 = high + (c0 < low);
        uint32_t c2 = (uint32_t)draw->number, c3 = (uint32_t)(draw->number >> 32);
        uint32_t k0 = (uint32_t)draw->seed, k1 = (uint32_t)(draw->seed >> 32);
        ROUND ROUND ROUND ROUND ROUND ROUND ROUND ROUND ROUND ROUND
        part[0][i] = c0;
        part[1][i] = c1;
        part[2][i] = c2;
        part[3][i] = c3;
    }
    for (int i = 0; i < n; i++) {
        words[4 * i] = part[0][i];
        words[4 * i + 1] = part[1][i];
        words[4 * i + 2] = part[2][i];
        words[4 * i + 3] = part[3][i];
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

/* The logarithm of u in (0, 1]: u = 2^e * (1 + f) with 1 + f in [0.707, 1.414), and a polynomial for log(1 + f). */
static inline float logarithm(float u) {
    int32_t bits;
    memcpy(&bits, &u, 4);
    int32_t e = (bits - 0x3F3504F3) >> 23;
    bits -= e << 23;
    float m;
    memcpy(&m, &bits, 4);
    float f = m - 1.0f, z = f * f;
    float p = 7.0376836292e-2f;
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    float scale = (float)e;
    float y = f * z * p + scale * -2.12194440e-4f - 0.5f * z;
    return f + y + scale * 0.693359375f;
}

/* cos(2 pi v) for v in [0, 1), with 2 pi v rounded as the other engines round it: by the distance from the nearest quarter,
   with pi / 2 cut into parts whose products with q are exact. */
static inline float cosine_of_turn(float v) {
    float angle = v * 6.283185307179586f, q = (float)(int32_t)(v * 4.0f + 0.5f);
    float x = ((angle - q * 1.5703125f) - q * 4.837512969970703125e-4f) - q * 7.54978995489188e-8f, z = x * x;
    int32_t quarter = (int32_t)q, odd = -(quarter & 1), cosine, sine;
    float c = ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z - 0.5f * z + 1.0f;
    float s = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * x + x;
    memcpy(&cosine, &c, 4); /* chosen by bits: a branch would keep the loop out of vector registers */
    memcpy(&sine, &s, 4);
    int32_t bits = ((cosine & ~odd) | (sine & odd)) ^ (int32_t)(((uint32_t)(quarter + 1) & 2) << 30);
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

CLONES static void to_normal(const uint32_t *restrict words, float *restrict out, int n) {
    for (int i = 0; i < n; i++) {
        float u = (float)(int32_t)(words[2 * i] >> 8) * (1.0f / 16777216.0f) + 1.0f / 16777216.0f;
        float v = (float)(int32_t)(words[2 * i + 1] >> 8) * (1.0f / 16777216.0f);
        out[i] = sqrtf(-2.0f * logarithm(u)) * cosine_of_turn(v);
    }
}

static void fill(int distribution, const Draw *draw, uint64_t first, uint64_t count, char *out, const float *a) {
    uint32_t words[4 * COUNTERS];
    uint64_t each = distribution == BERNOULLI || distribution == DROPOUT ? 8 : distribution == NORMAL ? 2 : 4;
    uint64_t counter = first / each, skip = first - counter * each, done = 0;
    while (done < count) {
        uint64_t left = count - done + skip, n = (left + each - 1) / each;
        n = n < COUNTERS ? n : COUNTERS;
        make_words(draw, counter, (int)n, words);
        uint64_t here = n * each - skip;
        here = here < count - done ? here : count - done;
        const Lane *lanes = (const Lane *)words + skip;
        switch (distribution) {
            case FRACTIONS: to_fractions(words + skip, (float *)out + done, (int)here); break;
            case WORDS: to_numbers(words + skip, (int64_t *)out + done, (int)here); break;
            case BERNOULLI: to_truth(lanes, (uint8_t *)out + done, (int)here, draw->least); break;
            case NORMAL: to_normal(words + 2 * skip, (float *)out + done, (int)here); break;
            default: drop(lanes, a + done, (float *)out + done, (int)here, draw->least, draw->scale);
        }
        counter += n;
        done += here;
        skip = 0;
    }
}

/* fill(distribution, seed, number, first, count, out, a, least, scale): `out` and `a` are addresses. */
static PyObject *fill_(PyObject *module, PyObject *args) {
    int distribution;
    unsigned long long seed, number, first, count, out, a;
    unsigned int least;
    float scale;
    if (!PyArg_ParseTuple(args, "iKKKKKKIf", &distribution, &seed, &number, &first, &count, &out, &a, &least, &scale)) return NULL;
    Draw draw = {seed, number, least, scale};
    Py_BEGIN_ALLOW_THREADS
    fill(distribution, &draw, first, count, (char *)(uintptr_t)out, (const float *)(uintptr_t)a);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"fill", fill_, METH_VARARGS, "Random numbers into memory."}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_philox", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__philox(void) { return PyModule_Create(&module); }
