// Words, by which the blocks of the step kernel hand numbers to one another, and attention on words. Appended to
// decode.cu.
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

// Load again what has another epoch: what is there already is not asked for twice.
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

// Wait for N words, or pairs of them, at where(n), zeros where that is null. All N loads are under way at one time.
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

INLINE float rounded(float v) {
  Element e;
  put(&e, v);
  return wide(e);
}

// Into shared memory: q of each head, normed and rotated, then the new key and value if this part of the request has the new token.
// Those two are also written to their page.
INLINE void prepare_heads(const Attention& a, const Pages& p, const Item& item, bool has_new, const u64* qkv, u32 epoch,
                          float* shared) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = a.head_dim;
  for (int job = warp; job < item.count + (has_new ? 2 : 0); job += WARPS) {
    bool is_q = job < item.count, is_key = job == item.count;
    int head = is_q ? item.first + job : a.heads + (is_key ? 0 : a.kv_heads) + item.kv;
    const u64* from = qkv + ((long long)item.row * (a.heads + 2 * a.kv_heads) + head) * d;
    float* to = shared + (is_q ? job : GROUP + !is_key) * d;
    auto read = [from, lane, epoch](int half, int d, float(&left)[PARTS], float(&right)[PARTS]) {
      u64 both[2 * PARTS];
      read_words(both, epoch, [=](int n) {
        int i = lane + 32 * (n / 2), at = n % 2 ? i + half : i;
        return i < half && at < d ? from + at : nullptr;
      });
#pragma unroll
      for (int n = 0; n < PARTS; n++) left[n] = number_of(both[2 * n]), right[n] = number_of(both[2 * n + 1]);
    };
    if (is_q || is_key) {
      prepare(read, is_q ? a.q_norm : a.k_norm, a, item.position, to);
    } else {
      float left[PARTS], right[PARTS];
      int half = (d + 1) / 2;
      read(half, d, left, right);
#pragma unroll
      for (int n = 0; n < PARTS; n++) {
        int i = lane + 32 * n;
        if (i < half) to[i] = left[n];
        if (i + half < d) to[i + half] = right[n];
      }
    }
    if (is_q) continue;
    __syncwarp();
    Element* page = (is_key ? a.keys : a.values) + (cache_token(p, item.slot, item.position) * a.kv_heads + item.kv) * d;
    for (int i = lane; i < d; i += 32) {
      to[i] = rounded(to[i]);
      if (item.chunk == 0 && item.active) put(page + i, to[i]);
    }
  }
}

// Join the parts of a split item. Each of its blocks computes some of the outputs, with `splits` lanes for two of them.
INLINE void join_splits(const Attention& a, const Item& item, const u64* sums, int splits, u64* out, u32 epoch) {
  int d = a.head_dim, pairs = item.count * d / 2, share = (pairs + splits - 1) / splits, mine = threadIdx.x % splits;
  for (int turn = 0; turn < share * splits; turn += TEAM) {
    int local = (turn + threadIdx.x) / splits, number = item.split * share + local;
    bool there = local < share && number < pairs;
    int g = number * 2 / d, i = number * 2 % d;
    const u64* part = sums + (((long long)item.row * a.heads + item.first + g) * splits + mine) * (d + 2);
    Pair both[2];  // sums; largest score and total
    read_words(both, epoch, [=](int n) { return there ? part + (n ? d : i) : nullptr; });
    float largest = there ? both[1].first() : -LARGE, above = largest;
    for (int o = splits / 2; o; o >>= 1) above = fmaxf(above, __shfl_xor_sync(~0u, above, o));
    float factor = largest == -LARGE ? 0.0f : exp2f(largest - above);
    float total = factor * both[1].second(), low = factor * both[0].first(), high = factor * both[0].second();
    for (int o = splits / 2; o; o >>= 1) {
      total += __shfl_xor_sync(~0u, total, o);
      low += __shfl_xor_sync(~0u, low, o);
      high += __shfl_xor_sync(~0u, high, o);
    }
    u64* to = out + (((long long)item.row * a.heads + item.first + g) * d + i) / 2;
    if (there && mine == 0) publish(to, packed(low / total, high / total), epoch);
  }
}

// The new token is a part of its own: one warp computes its score.
INLINE void attend_new(const Attention& a, const float* query, const float* key, const float* value, float* part) {
  int lane = threadIdx.x % 32, d = a.head_dim;
  float score = 0;
  for (int i = lane; i < d; i += 32) score += query[i] * key[i], part[i] = value[i];
  score = warp_sum(score) * a.scale * LOG2E;
  if (lane == 0) part[d] = score, part[d + 1] = 1;
}

// One item of attention by the whole team. The blocks of a split item wait for one another; no block has two items then, so
// none waits for itself. The number of splits is a power of two.
template <class Reader>
INLINE void attend_words(const Attention& a, const Pages& p, const u64* input, u64* sums, int splits, u64* out, int number, u32 epoch,
                         float* shared) {
  int thread = threadIdx.x, warp = thread / 32, d = a.head_dim;
  Item item(a, p, splits, number);
  bool has_new = item.begin <= item.position && item.position < item.end;
  Reader reader(item, warp, WARPS, min(item.end, item.position), d);
  reader.begin(a, p, item);
  float *new_key = shared + GROUP * d, *new_value = new_key + d, *parts = new_value + d;
  prepare_heads(a, p, item, has_new, input, epoch - 1, shared);
  team_sync();
  reader.query(shared, a, item);
  reader.attend(a, p, item);
  reader.leave(parts, warp, item, d);
  int number_of_parts = Reader::parts(item, WARPS);
  if (has_new) {
    if (warp < item.count) attend_new(a, shared + warp * d, new_key, new_value, parts + (number_of_parts + warp) * (d + 2));
    number_of_parts += item.count;
  }
  team_sync();
  for (int at = thread * 2; at < item.count * d; at += TEAM * 2) {
    int g = at / d, i = at % d;
    long long head = (long long)item.row * a.heads + item.first + g;
    Joined<2> both(parts, g, item.count, i, number_of_parts, d);
    if (splits == 1) {
      publish(out + (head * d + i) / 2, packed(both.sums[0] / both.total, both.sums[1] / both.total), epoch);
    } else {
      u64* part = sums + (head * splits + item.split) * (d + 2);
      publish(part + i, both.sums[0], epoch), publish(part + i + 1, both.sums[1], epoch);
      if (i == 0) publish(part + d, both.largest, epoch), publish(part + d + 1, both.total, epoch);
    }
  }
  if (splits > 1) join_splits(a, item, sums, splits, out, epoch);
  team_sync();  // the shared memory is free for the next item
}

#endif
