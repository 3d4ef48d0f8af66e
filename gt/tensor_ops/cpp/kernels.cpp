// silu, gelu, rms_norm and the arithmetic of a training step for contiguous float, double, half and bfloat arrays, behind a C interface.
// instruction_set.cpp is compiled for several instruction sets and the best that the running CPU has is chosen when the
// library loads. Shapes, strides, dtypes and overlap are checked by the caller.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "blocks.h"
#include "pool.h"
#include "table.h"
#include "writes.h"

extern "C" {
#if defined(__x86_64__)
extern const Kernels gt_sse2, gt_avx2, gt_avx512;
#else
extern const Kernels gt_native;
#endif
}

#if defined(__x86_64__)
static const Kernels* const sets[] = {&gt_sse2, &gt_avx2, &gt_avx512};

static int highest_set() {
    __builtin_cpu_init();
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return v4 ? 2 : v3 ? 1 : 0;
}
#else
static const Kernels* const sets[] = {&gt_native};
static int highest_set() { return 0; }
#endif

static int set = highest_set();
static const Kernels* chosen = sets[set];

static constexpr size_t kItemSize[] = {4, 8, 2, 2};
static LargeResults large_unary[6], large_rms;

struct UnaryJob {
    Unary kernel;
    const void* x;
    void* y;
    Writes writes;
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
    Writes writes;
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
    large_unary[op].run(dtype, n * kItemSize[dtype], x == y, [&](Writes writes) {
        UnaryJob job{chosen->unary[op][dtype], x, y, writes};
        pool_slot()->run(
            [](const void* j, size_t begin, size_t end) {
                auto* job = static_cast<const UnaryJob*>(j);
                job->kernel(job->x, job->y, begin, end, job->writes);
            },
            &job, n, grain(n, 16384));
    });
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
    size_t least = columns ? 32768 / columns : 1;
    large_rms.run(dtype, rows * columns * kItemSize[dtype], x == y, [&](Writes writes) {
        RowsJob job{chosen->rms[dtype], x, w, y, rstd, columns, eps, writes};
        pool_slot()->run(
            [](const void* j, size_t begin, size_t end) {
                auto* job = static_cast<const RowsJob*>(j);
                job->kernel(job->x, job->w, job->y, job->rstd, begin, end, job->columns, job->eps, job->writes);
            },
            &job, rows, grain(rows, least ? least : 1));
    });
}

// The yardstick of the benchmarks: the bandwidth of the same threads with nothing to compute.
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

// Calls that wrote large results past the caches, or through them, since the library was loaded.
size_t gt_large_results(int past) { return LargeResults::calls[past != 0].load(std::memory_order_relaxed); }

// The instruction set in use, and how to use a lower one: 0 is the lowest.
const char* gt_set_name() { return chosen->name; }
int gt_set() { return set; }
int gt_use_set(int wanted) {
    if (wanted < 0 || wanted > highest_set()) return -1;
    set = wanted;
    chosen = sets[set];
    return set;
}
}
