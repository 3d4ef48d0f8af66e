// Recycled output memory. The first touch of a fresh 64 MiB costs ten times as much as a second write, so blocks
// that arrays give back are kept, up to a limit, and large ones ask for huge pages.
#pragma once
#include <pthread.h>
#include <sys/mman.h>

#include <cstddef>
#include <mutex>
#include <vector>

class Blocks {
public:
    static constexpr size_t kPage = size_t(2) << 20;

    static size_t rounded(size_t bytes) {
        size_t unit = bytes < kPage ? 65536 : kPage;
        return (bytes + unit - 1) / unit * unit;
    }

    void* take(size_t bytes) {
        bytes = rounded(bytes);
        std::lock_guard<std::mutex> lock(lock_);
        for (size_t i = kept_.size(); i-- > 0;)
            if (kept_[i].bytes == bytes) {
                void* at = kept_[i].at;
                kept_.erase(kept_.begin() + long(i));
                held_ -= bytes;
                return at;
            }
        return map(bytes);
    }

    void give(void* at, size_t bytes) {
        bytes = rounded(bytes);
        std::lock_guard<std::mutex> lock(lock_);
        if (bytes > limit_) {
            munmap(at, bytes);
            return;
        }
        kept_.push_back({at, bytes});
        held_ += bytes;
        shrink();
    }

    void limit(size_t bytes) {
        std::lock_guard<std::mutex> lock(lock_);
        limit_ = bytes;
        shrink();
    }

    size_t held() {
        std::lock_guard<std::mutex> lock(lock_);
        return held_;
    }

private:
    struct Block {
        void* at;
        size_t bytes;
    };

    void shrink() {
        size_t gone = 0;
        for (; held_ > limit_; ++gone) {
            munmap(kept_[gone].at, kept_[gone].bytes);
            held_ -= kept_[gone].bytes;
        }
        kept_.erase(kept_.begin(), kept_.begin() + long(gone));
    }

    static void* map(size_t bytes) {
        size_t slack = bytes < kPage ? 0 : kPage;
        void* at = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) return nullptr;
        if (!slack) return at;
        // Huge pages need alignment to their size; pages outside the aligned part are unmapped.
        char* begin = static_cast<char*>(at);
        size_t lead = (kPage - reinterpret_cast<size_t>(begin) % kPage) % kPage;
        if (lead) munmap(begin, lead);
        if (slack > lead) munmap(begin + lead + bytes, slack - lead);
#ifdef MADV_HUGEPAGE
        madvise(begin + lead, bytes, MADV_HUGEPAGE);
#endif
        return begin + lead;
    }

    std::mutex lock_;
    std::vector<Block> kept_;
    size_t held_ = 0, limit_ = size_t(256) << 20;
};

// The lock may be held by a thread that a fork leaves behind, so a child starts with a new, empty store.
inline Blocks*& blocks_slot() {
    static Blocks* slot = [] {
        pthread_atfork(nullptr, nullptr, [] { blocks_slot() = new Blocks; });
        return new Blocks;
    }();
    return slot;
}
