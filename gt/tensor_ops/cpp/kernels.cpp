// silu, gelu, rms_norm and the arithmetic of a training step for contiguous float, double, half and bfloat arrays, behind a C interface.
// One source is compiled for several instruction sets and the best that the running CPU has is chosen when the
// library loads. Shapes, strides, dtypes and overlap are checked by the caller.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#ifdef __aarch64__
#include <arm_neon.h>
#endif

#include "blocks.h"
#include "half.h"
#include "pool.h"

using Elementwise = void (*)(const void*, void*, size_t begin, size_t end);
using Binary = void (*)(const void*, const void*, void*, size_t begin, size_t end, size_t period);
using Rows = void (*)(const void*, const void*, void*, void* rstd, size_t begin, size_t end, size_t columns, double eps);

struct Kernels {
    Elementwise elementwise[6][4];
    Binary binary[7][4];
    Rows rms[4];
};

namespace base {
#include "maths.h"
#ifdef __aarch64__
#include "neon.h"
#endif
#include "loops.h"
}  // namespace base

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GT_LEVELS 3
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
namespace v3 {
#include "maths.h"
#include "loops.h"
}  // namespace v3
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
namespace v4 {
#include "maths.h"
#include "loops.h"
}  // namespace v4
#pragma GCC pop_options

static int highest_level() {
    __builtin_cpu_init();
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512cd");
    return v4 ? 2 : v3 ? 1 : 0;
}
static const Kernels* const levels[] = {&base::kernels, &v3::kernels, &v4::kernels};
#else
#define GT_LEVELS 1
static int highest_level() { return 0; }
static const Kernels* const levels[] = {&base::kernels};
#endif

static int level = highest_level();
static const Kernels* chosen = levels[level];

struct ElementwiseJob {
    Elementwise kernel;
    const void* x;
    void* y;
};

struct BinaryJob {
    Binary kernel;
    const void *x, *y;
    void* to;
    size_t period;
};

struct RowsJob {
    Rows kernel;
    const void *x, *w;
    void *y, *rstd;
    size_t columns;
    double eps;
};

struct CopyJob {
    const char* x;
    char* y;
};

// `least` is a few microseconds of work: less is not worth waking a thread for. More is cut into eight parts a thread:
// memory that is read in long stretches comes a tenth faster.
static size_t grain(size_t count, size_t least) {
    size_t part = count / (8 * size_t(pool_slot()->threads()));
    return part > least ? part / least * least : least;
}

extern "C" {

void gt_elementwise(int op, int dtype, const void* x, void* y, size_t n) {
    ElementwiseJob job{chosen->elementwise[op][dtype], x, y};
    pool_slot()->run(
        [](const void* j, size_t begin, size_t end) {
            auto* job = static_cast<const ElementwiseJob*>(j);
            job->kernel(job->x, job->y, begin, end);
        },
        &job, n, grain(n, 16384));
}

// y repeats after `period` elements, which may be n.
void gt_binary(int op, int dtype, const void* x, const void* y, void* to, size_t n, size_t period) {
    BinaryJob job{chosen->binary[op][dtype], x, y, to, period};
    pool_slot()->run(
        [](const void* j, size_t begin, size_t end) {
            auto* job = static_cast<const BinaryJob*>(j);
            job->kernel(job->x, job->y, job->to, begin, end, job->period);
        },
        &job, n, grain(n, 32768));
}

void gt_rms_norm(int dtype, const void* x, const void* w, void* y, void* rstd, size_t rows, size_t columns, double eps) {
    RowsJob job{chosen->rms[dtype], x, w, y, rstd, columns, eps};
    size_t least = columns ? 32768 / columns : 1;
    pool_slot()->run(
        [](const void* j, size_t begin, size_t end) {
            auto* job = static_cast<const RowsJob*>(j);
            job->kernel(job->x, job->w, job->y, job->rstd, begin, end, job->columns, job->eps);
        },
        &job, rows, grain(rows, least ? least : 1));
}

// The yardstick of the benchmarks: what the same threads move with nothing to compute.
void gt_copy(const void* x, void* y, size_t bytes) {
    CopyJob job{static_cast<const char*>(x), static_cast<char*>(y)};
    pool_slot()->run(
        [](const void* j, size_t begin, size_t end) {
            auto* job = static_cast<const CopyJob*>(j);
            std::memcpy(job->y + begin, job->x + begin, end - begin);
        },
        &job, bytes, grain(bytes, size_t(1) << 17));
}

void* gt_take(size_t bytes) { return blocks_slot()->take(bytes); }
void gt_give(void* at, size_t bytes) { blocks_slot()->give(at, bytes); }
void gt_keep(size_t bytes) { blocks_slot()->limit(bytes); }
size_t gt_kept() { return blocks_slot()->held(); }

void gt_set_threads(int threads) { pool_slot()->resize(threads); }
int gt_threads() { return pool_slot()->threads(); }

int gt_level() { return level; }
int gt_set_level(int wanted) {
    if (wanted < 0 || wanted > highest_level()) return -1;
    level = wanted;
    chosen = levels[level];
    return level;
}

// What the compiler was allowed to use in the lowest level, as bits: NEON, SVE, AVX, AVX2, AVX-512, FMA.
int gt_compiled_for() {
    int found = 0;
#ifdef __ARM_NEON
    found |= 1;
#endif
#ifdef __ARM_FEATURE_SVE
    found |= 2;
#endif
#ifdef __AVX__
    found |= 4;
#endif
#ifdef __AVX2__
    found |= 8;
#endif
#ifdef __AVX512F__
    found |= 16;
#endif
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    found |= 32;
#endif
    return found;
}
}
