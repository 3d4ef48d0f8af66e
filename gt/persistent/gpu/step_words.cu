// Words: the step kernel's blocks pass numbers to one another in them. Appended to decode.cu.
#if GT_BFLOAT16 && __CUDA_ARCH__ >= 900

constexpr int TEAM = 256;  // threads that compute
constexpr int WARPS = TEAM / 32;
constexpr u32 MOST_TRIES = 1u << 24;  // a reader that waits longer traps: an error is better than a GPU that hangs

// A barrier among the threads that compute; the block's last warp only copies.
INLINE void team_sync() { asm volatile("bar.sync 1, %0;" ::"r"(TEAM) : "memory"); }

// A word is a number and the epoch of its writing, in one store of 8 bytes. A reader loads it again until the epoch is the one it
// waits for: when the epoch is there, the number is too, without a fence, a counter or a second trip to memory. Each phase of each
// step has its own epoch; they repeat after 2^32 phases.
INLINE void publish(u64* to, u32 number, u32 epoch) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(u64(epoch) << 32 | number) : "memory");
}
INLINE void publish(u64* to, float number, u32 epoch) { publish(to, __float_as_uint(number), epoch); }

INLINE float number_of(u64 word) { return __uint_as_float(u32(word)); }

struct Pair {  // two neighbouring words
  u64 low, high;
  __device__ __forceinline__ bool is_of(u32 epoch) const { return u32(low >> 32) == epoch && u32(high >> 32) == epoch; }
  __device__ __forceinline__ float first() const { return number_of(low); }
  __device__ __forceinline__ float second() const { return number_of(high); }
};

// Load again the words whose epoch differs; words that have arrived are not loaded twice.
INLINE bool load_missing(Pair& pair, const u64* at, u32 epoch) {
  u32 missing = !pair.is_of(epoch);
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%3]; }"
               : "+l"(pair.low), "+l"(pair.high) : "r"(missing), "l"(at));
  return missing;
}

INLINE bool load_missing(u64& word, const u64* at, u32 epoch) {
  u32 missing = u32(word >> 32) != epoch;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; @p ld.relaxed.gpu.global.b64 %0, [%2]; }"
               : "+l"(word) : "r"(missing), "l"(at));
  return missing;
}

INLINE void of_epoch(Pair& pair, u32 epoch) { pair.low = pair.high = u64(epoch) << 32; }
INLINE void of_epoch(u64& word, u32 epoch) { word = u64(epoch) << 32; }

// Wait for N words, or pairs of them, at where(n), zeros where that is null. All N loads are in flight together.
template <int N, class Word, class Where>
INLINE void read_words(Word (&words)[N], u32 epoch, Where where) {
#pragma unroll
  for (int n = 0; n < N; n++) of_epoch(words[n], where(n) ? epoch - 1 : epoch);
  for (u32 tries = 0;; tries++) {
    bool missing = false;
#pragma unroll
    for (int n = 0; n < N; n++) missing |= load_missing(words[n], where(n), epoch);
    if (!missing) return;
    if (tries > MOST_TRIES) __trap();
  }
}
#endif
