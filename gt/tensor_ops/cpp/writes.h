// How large results are written: through the caches, into lines that are fetched ahead, or past the caches. Which is faster
// depends on the machine, the threads, and how much of a shared cache its other users leave: on two x86-64 hosts stores past the
// caches took 0.8 and 1.5 of the time of those through them. So each op times both, and takes the faster. The results are the
// same.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>

#include "table.h"

#if defined(__x86_64__)
constexpr bool kHasPast = true;
#else
constexpr bool kHasPast = false;  // nor do the kernels fetch ahead: it gains nothing on 64-bit ARM
#endif

// The times of one op, dtype and size. Threads may share it: what one overwrites of another's is one measurement.
class Timed {
public:
    // The first calls take turns; later every 32nd measures the other way again.
    Writes next() {
        unsigned call = calls_.fetch_add(1, std::memory_order_relaxed);
        bool past = call < kFirst ? call % 2 : past_is_faster() != (call % kAgain == 0);
        return past ? Writes::kPast : Writes::kAhead;
    }

    // A shorter time counts at once. A longer one, which other work on the machine may explain, counts for an eighth.
    void took(Writes writes, float seconds) {
        std::atomic<float>& known = seconds_[writes == Writes::kPast];
        float last = known.load(std::memory_order_relaxed);
        known.store(last == 0 || seconds < last ? seconds : last + (seconds - last) / 8, std::memory_order_relaxed);
    }

private:
    static constexpr unsigned kFirst = 6, kAgain = 32;

    // By a twentieth at least: what was written through the caches is faster to read next.
    bool past_is_faster() const {
        return seconds_[1].load(std::memory_order_relaxed) < 0.95f * seconds_[0].load(std::memory_order_relaxed);
    }

    std::atomic<unsigned> calls_{0};
    std::atomic<float> seconds_[2] = {};
};

// The times of one op.
class LargeResults {
public:
    static inline std::atomic<size_t> calls[2] = {};  // of all ops: through the caches and past them

    // Calls `body` with the way to write `bytes`.
    template <class Body>
    void run(int dtype, size_t bytes, bool in_place, const Body& body) {
        if (!kHasPast || bytes < kLarge) return body(Writes::kNear);
        if (in_place) return body(Writes::kAhead);
        int size = 0;
        while (size + 1 < kSizes && bytes >> size >= 2 * kLarge) ++size;
        Timed& timed = times_[dtype][size];
        Writes writes = timed.next();
        calls[writes == Writes::kPast].fetch_add(1, std::memory_order_relaxed);
        auto began = std::chrono::steady_clock::now();
        body(writes);
        std::chrono::duration<float> took = std::chrono::steady_clock::now() - began;
        timed.took(writes, took.count() / float(bytes));
    }

private:
    static constexpr size_t kLarge = size_t(8) << 20;  // four times the cache of one core
    static constexpr int kSizes = 8;                   // powers of two
    Timed times_[4][kSizes];
};
