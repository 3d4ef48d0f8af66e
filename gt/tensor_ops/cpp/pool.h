// Threads that share one loop at a time. Each has a part of it, the same in every loop of this length, so that its elements
// stay in its core's cache; it takes its part in grains from a counter, and then helps with the others', so a thread that is
// late to wake costs nothing. No OpenMP, because two OpenMP runtimes, one of them torch's, are a hazard.
#pragma once
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <new>
#include <thread>

#if defined(__x86_64__) || defined(__i386__)
#define GT_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
// `yield` does nothing on most cores; this takes about as long as the pause of x86.
#define GT_PAUSE() asm volatile("isb\n\tisb")
#else
#define GT_PAUSE() ((void)0)
#endif

class Pool {
public:
    using Body = void (*)(const void* job, size_t begin, size_t end);

    void resize(int threads) { wanted_ = threads < 1 ? 1 : threads; }
    int threads() const { return wanted_; }

    void run(Body body, const void* job, size_t count, size_t grain) {
        // A caller that finds the pool in use works alone rather than wait: two callers are two threads already.
        std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
        if (!turn.owns_lock() || wanted_ == 1 || count <= grain) return body(job, 0, count);
        start();
        body_ = body, job_ = job, grain_ = grain;
        divide(count);
        state_.store(kOpen, std::memory_order_seq_cst);
        epoch_.fetch_add(1, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst)) {
            std::lock_guard<std::mutex> lock(sleep_);
            wake_.notify_all();
        }
        work(0);
        state_.fetch_and(~kOpen, std::memory_order_acq_rel);
        for (int spins = 0; state_.load(std::memory_order_acquire); ++spins) pause(spins);
    }

private:
    // The open bit and the number of threads inside share one word: a thread can only enter a loop that is open, and
    // the caller returns only when it is closed and empty, so nobody reads the next loop half written.
    static constexpr unsigned kOpen = 1u << 31;
    static constexpr int kSpins = 2000;

    static void pause(int spins) {
        if (spins % 64 == 63)
            sched_yield();
        else
            GT_PAUSE();
    }

    bool enter() {
        unsigned state = state_.load(std::memory_order_acquire);
        while (state & kOpen)
            if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) return true;
        return false;
    }

    struct alignas(64) Part {  // a cache line each, as every thread writes to its own
        std::atomic<size_t> next{0};
        size_t end = 0;
    };
    static constexpr int kMostParts = 256;

    void divide(size_t count) {
        int threads = wanted_;
        parts_ = threads < kMostParts ? threads : kMostParts;
        size_t grains = (count + grain_ - 1) / grain_;
        for (int i = 0; i < parts_; ++i) {
            size_t end = grains * (i + 1) / parts_ * grain_;
            part_[i].next.store(grains * i / parts_ * grain_, std::memory_order_relaxed);
            part_[i].end = end < count ? end : count;
        }
    }

    void work(int me) {
        for (int i = 0; i < parts_; ++i) {
            Part& part = part_[(me + i) % parts_];
            while (part.next.load(std::memory_order_relaxed) < part.end) {
                size_t begin = part.next.fetch_add(grain_, std::memory_order_relaxed);
                if (begin >= part.end) break;
                body_(job_, begin, begin + grain_ < part.end ? begin + grain_ : part.end);
            }
        }
    }

    void start() {
        for (; started_ < wanted_ - 1; ++started_) std::thread([this, me = started_] { serve(me); }).detach();
    }

    void serve(int me) {
        for (unsigned seen = 0;;) {
            seen = await(seen);
            if (me < wanted_ - 1 && enter()) {
                work(me + 1);
                state_.fetch_sub(1, std::memory_order_acq_rel);
            }
        }
    }

    unsigned await(unsigned seen) {
        for (int spins = 0; spins < kSpins; ++spins) {
            unsigned epoch = epoch_.load(std::memory_order_acquire);
            if (epoch != seen) return epoch;
            GT_PAUSE();
        }
        std::unique_lock<std::mutex> lock(sleep_);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(lock, [&] { return epoch_.load(std::memory_order_seq_cst) != seen; });
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        return epoch_.load(std::memory_order_acquire);
    }

    std::mutex turn_, sleep_;
    std::condition_variable wake_;
    std::atomic<unsigned> state_{0}, epoch_{0};
    std::atomic<int> sleepers_{0}, wanted_{1};
    Part part_[kMostParts];
    Body body_ = nullptr;
    const void* job_ = nullptr;
    size_t grain_ = 1;
    int parts_ = 1, started_ = 0;
};

// Threads do not survive a fork, and its locks may be held by ones that are gone: a child starts with a new pool.
// The old one is leaked on purpose; detached threads may still be inside it when the process ends.
inline Pool*& pool_slot() {
    static Pool* slot = [] {
        pthread_atfork(nullptr, nullptr, [] {
            int threads = pool_slot()->threads();
            pool_slot() = new Pool;
            pool_slot()->resize(threads);
        });
        return new Pool;
    }();
    return slot;
}
