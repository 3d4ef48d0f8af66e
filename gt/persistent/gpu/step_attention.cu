// Attention in the step kernel: queries arrive as words, cached keys and values in the ring. Appended to step_ring.cu.
#if GT_BFLOAT16 && __CUDA_ARCH__ >= 900

INLINE float rounded(float v) {
  Element e;
  put(&e, v);
  return wide(e);
}

// The shared memory of an item: the second operand of the scores, (2 * GROUP, QUERY_STRIDE) bfloat16 numbers, then float32 queries,
// the new key, the new value, and the parts of all warps and of the new token.
constexpr int QUERY_STRIDE = 128 + 8;  // the banks of eight columns then differ
constexpr int QUERIES = 2 * GROUP * QUERY_STRIDE / 2;  // in floats

// Head `column` of the second operand, times the softmax's scale, and its remainder after rounding to bfloat16; zeros if there is
// no such head.
INLINE void pack_query(const Attention& a, const float* head, int column, float* shared) {
  int lane = threadIdx.x % 32, d = head ? a.head_dim : 0;
  u32* to = reinterpret_cast<u32*>(shared);
  float factor = a.scale * LOG2E;
#pragma unroll
  for (int pair = lane; pair < 64; pair += 32) {
    float low = 2 * pair < d ? head[2 * pair] * factor : 0.0f, high = 2 * pair < d ? head[2 * pair + 1] * factor : 0.0f;
    to[column * (QUERY_STRIDE / 2) + pair] = packed_part(low, high, false);
    to[(GROUP + column) * (QUERY_STRIDE / 2) + pair] = packed_part(low, high, true);
  }
}

// Into shared memory: q of each head, normed and rotated, then the new key and value if this part of the request has the new token.
// Key and value are also written to their page. Each warp does one of these jobs.
INLINE void prepare_heads(const Attention& a, const Pages& p, const Item& item, bool has_new, const u64* qkv, u32 epoch,
                          float* shared) {
  constexpr int N = 2;  // heads have at most 128 numbers
  int job = threadIdx.x / 32, lane = threadIdx.x % 32, d = a.head_dim, half = d / 2;
  bool is_q = job < GROUP, is_key = job == GROUP;
  if (job >= GROUP + (has_new ? 2 : 0)) return;
  if (is_q && job >= item.count) return pack_query(a, nullptr, job, shared);
  int head = is_q ? item.first + job : a.heads + (is_key ? 0 : a.kv_heads) + item.kv;
  const u64* from = qkv + ((long long)item.row * (a.heads + 2 * a.kv_heads) + head) * d;
  float* to = shared + QUERIES + job * d;
  auto read = [from, lane, epoch](int half, int d, float(&left)[N], float(&right)[N]) {
    u64 both[2 * N];
    read_words(both, epoch, [=](int n) {
      int i = lane + 32 * (n / 2);
      return i < half ? from + i + n % 2 * half : nullptr;
    });
#pragma unroll
    for (int n = 0; n < N; n++) left[n] = number_of(both[2 * n]), right[n] = number_of(both[2 * n + 1]);
  };
  if (is_q || is_key) {
    prepare<N>(read, is_q ? a.q_norm : a.k_norm, a, item.position, to);
  } else {
    float left[N], right[N];
    read(half, d, left, right);
#pragma unroll
    for (int n = 0; n < N; n++)
      if (lane + 32 * n < half) to[lane + 32 * n] = left[n], to[lane + 32 * n + half] = right[n];
  }
  __syncwarp();
  if (is_q) return pack_query(a, to, job, shared);
  Element* page = (is_key ? a.keys : a.values) + cache_place(p, item.slot, item.position, a.kv_heads, item.kv) * d;
  int turn = turn_of(item.position, d);
  for (int i = lane; i < d; i += 32) {
    to[i] = rounded(to[i]);
    if (item.chunk == 0 && item.active) put(page + turned(i, turn), to[i]);
  }
}

// In which of up to GROUP heads of d numbers a number is.
INLINE int head_of(int at, int d) {
  int head = 0;
#pragma unroll
  for (int g = 1; g < GROUP; g++) head += at >= g * d;
  return head;
}

// Join the parts of a split item. Each of its blocks computes some of the outputs, with `splits` lanes for two of them.
INLINE void join_splits(const Attention& a, const Item& item, const Step& step, u64* out, u32 epoch) {
  int splits = step.splits, bits = step.split_bits, d = a.head_dim, pairs = item.count * d / 2;
  int share = (pairs + splits - 1) >> bits, mine = threadIdx.x & (splits - 1);
  for (int turn = 0; turn < share << bits; turn += TEAM) {
    int local = (turn + threadIdx.x) >> bits, number = item.split * share + local;
    bool there = local < share && number < pairs;
    int g = head_of(number * 2, d), i = number * 2 - g * d;
    const u64* part = step.sums + (((long long)item.row * a.heads + item.first + g) * splits + mine) * (d + 2);
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
    if (there && mine == 0) publish(to, packed(__fdividef(low, total), __fdividef(high, total)), epoch);
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

INLINE void load_matrices(u32 (&to)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(row));
}
INLINE void load_transposed(u32 (&to)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(row));
}

// As Tiles, of tokens that the helpers have copied to the ring: two warps have 16 tokens each of a stage, and the other warps the
// next stages. Two warps have the same places of the ring each time: so a warp waits only for stages that it has emptied itself,
// and the parity of their barriers is enough. The ring's numbers past the last token or the end of a head are not zero.
struct RingTiles {
  static constexpr int EACH = 16, BLOCKS = 128 / 16;
  int g, t, lane, warp, begin, end;
  u32 q[BLOCKS][2];
  float largest[2] = {-LARGE, -LARGE}, total[2] = {0, 0};  // of heads 2t % GROUP and the next
  float sums[BLOCKS][4] = {};

  __device__ __forceinline__ RingTiles(const Item& item) : begin(item.begin), end(min(item.end, item.position)) {
    lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  }
  __device__ __forceinline__ void query(const float* shared) {
    u32 column = shared_address(shared) + (lane % 8 * QUERY_STRIDE + lane / 8 * 8) * 2;
#pragma unroll
    for (int block = 0; block < BLOCKS; block += 2) {
      u32 both[4];
      load_matrices(both, column + block * 32);
      q[block][0] = both[0], q[block][1] = both[1], q[block + 1][0] = both[2], q[block + 1][1] = both[3];
    }
  }
  // Of token g with two heads, then of token g + 8. Lanes t and t ^ 2 have the same.
  __device__ __forceinline__ void score(float (&scores)[4], u32 keys, int base, int d) {
    float c[4][4] = {};
    u32 row = keys + lane % 16 * d * 2;
    int turn = turn_of(base + lane, d);
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
      u32 k[4];
      load_matrices(k, row + (min(block * 2 + lane / 16, d / VECTOR - 1) ^ turn) * 16);
      multiply(c[block % 4], k[0], k[1], k[2], k[3], q[block][0], q[block][1]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float both = c[0][i] + c[1][i] + (c[2][i] + c[3][i]);
      both += __shfl_xor_sync(~0u, both, 2);
      scores[i] = base + g + i / 2 * 8 < end ? both : -LARGE;
    }
  }
  // Scores become weights, and the sums so far shrink where a larger score was found.
  __device__ __forceinline__ void weigh(float (&scores)[4]) {
    float shrink[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float above = fmaxf(scores[i], scores[i + 2]);
      for (int o = 4; o < 32; o *= 2) above = fmaxf(above, __shfl_xor_sync(~0u, above, o));
      above = fmaxf(above, largest[i]);
      float from = above == -LARGE ? 0.0f : above;
      shrink[i] = exp2f(largest[i] - from), largest[i] = above;
      scores[i] = exp2f(scores[i] - from), scores[i + 2] = exp2f(scores[i + 2] - from);
      total[i] = total[i] * shrink[i] + scores[i] + scores[i + 2];
    }
    if (!__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) return;
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[block][i] *= shrink[i % 2];
  }
  static __device__ __forceinline__ u32 pair_mask(int left) { return left >= 2 ? ~0u : left == 1 ? 0xffffu : 0u; }

  __device__ __forceinline__ void add(const float (&weights)[4], u32 values, int base, int d) {
    u32 first = transposed(packed_part(weights[0], weights[1], t >= 2)), second = transposed(packed_part(weights[2], weights[3], t >= 2));
    u32 near = pair_mask(end - base - 2 * t), far = pair_mask(end - base - 2 * t - 8);
    u32 row = values + (lane % 8 + lane / 16 * 8) * d * 2;
    int turn = turn_of(base + lane, d);
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
      u32 v[4];
      load_transposed(v, row + ((block * 2 + lane / 8 % 2) ^ turn) * 16);
      multiply(sums[block], v[0] & near, v[1] & near, v[2] & far, v[3] & far, first, second);
    }
  }
  __device__ __forceinline__ void attend(Ring& ring, int d) {
    for (int base = begin; base < end; base += TOKENS, ring.next()) {
      if (ring.stage % (WARPS / 2) != warp / 2) continue;
      int mine = base + warp % 2 * EACH;
      u32 at = ring.at() + warp % 2 * EACH * d * 2;
      wait_parity(ring.full(), ring.parity);
      if (mine < end) {
        float scores[4];
        score(scores, at, mine, d);
        weigh(scores);
        add(scores, at + VALUES, mine, d);
      }
      __syncwarp();
      if (lane == 0) arrive(ring.empty(), WARPS / 2);
    }
  }
  // Lanes t and t ^ 2 add their sums of the same two heads, and each stores one of them.
  __device__ __forceinline__ void leave(float* parts, const Item& item, int d) {
    int mine = t / 2, head = 2 * t % GROUP + mine;
    float* part = parts + (warp * item.count + head) * (d + 2);
#pragma unroll
    for (int i = 0; i < 2; i++)
      for (int o = 4; o < 32; o *= 2) total[i] += __shfl_xor_sync(~0u, total[i], o);
#pragma unroll
    for (int n = 0; n < 2 * BLOCKS; n++) {
      float low = sums[n / 2][n % 2 * 2], high = sums[n / 2][n % 2 * 2 + 1];
      float sum = (mine ? high : low) + __shfl_xor_sync(~0u, mine ? low : high, 2);
      if (head < item.count && n * 8 + g < d) part[n * 8 + g] = sum;
    }
    if (head < item.count && g == 0) part[d] = mine ? largest[1] : largest[0], part[d + 1] = mine ? total[1] : total[0];
  }
};

// Two neighbouring numbers of head g, joined over the parts of the warps and of the new token.
struct JoinedPair {
  float largest = -LARGE, total = 0, low = 0, high = 0;
  __device__ __forceinline__ JoinedPair(const float* parts, int g, int count, int i, int number, int d) {
    constexpr int MOST = WARPS + 1;
    const float* part = parts + g * (d + 2);
    float2 top[MOST], two[MOST];  // all loads are in flight together
#pragma unroll
    for (int n = 0; n < MOST; n++) {
      const float* its = part + n * count * (d + 2);
      top[n] = n < number ? *reinterpret_cast<const float2*>(its + d) : float2{-LARGE, 0};
      two[n] = n < number ? *reinterpret_cast<const float2*>(its + i) : float2{0, 0};
      largest = fmaxf(largest, top[n].x);
    }
    float from = largest == -LARGE ? 0.0f : largest;
#pragma unroll
    for (int n = 0; n < MOST; n++) {
      float share = exp2f(top[n].x - from);
      total += share * top[n].y, low += share * two[n].x, high += share * two[n].y;
    }
  }
};

// One item of attention by the whole team. The blocks of a split item wait for one another; no block has two items then, so
// none waits for itself. The number of splits is a power of two.
INLINE void attend_words(const Attention& a, const Pages& p, const Step& step, const Item& item, Ring& ring, const u64* input, u64* out,
                         u32 epoch, float* shared) {
  int thread = threadIdx.x, warp = thread / 32, d = a.head_dim, splits = step.splits;
  bool has_new = item.begin <= item.position && item.position < item.end;
  float *queries = shared + QUERIES, *new_key = queries + GROUP * d, *new_value = new_key + d, *parts = new_value + d;
  RingTiles tiles(item);
  prepare_heads(a, p, item, has_new, input, epoch - 1, shared);
  team_sync();
  tiles.query(shared);
  tiles.attend(ring, d);
  tiles.leave(parts, item, d);
  int head = WARPS - 1 - warp;
  if (has_new && head < item.count)
    attend_new(a, queries + head * d, new_key, new_value, parts + (WARPS * item.count + head) * (d + 2));
  team_sync();
  for (int at = thread * 2; at < item.count * d; at += TEAM * 2) {
    int g = head_of(at, d), i = at - g * d;
    long long head = (long long)item.row * a.heads + item.first + g;
    JoinedPair both(parts, g, item.count, i, WARPS + has_new, d);
    if (splits == 1) {
      publish(out + (head * d + i) / 2, packed(__fdividef(both.low, both.total), __fdividef(both.high, both.total)), epoch);
    } else {
      u64* part = step.sums + (head * splits + item.split) * (d + 2);
      publish(part + i, both.low, epoch), publish(part + i + 1, both.high, epoch);
      if (i == 0) publish(part + d, both.largest, epoch), publish(part + d + 1, both.total, epoch);
    }
  }
  if (splits > 1) join_splits(a, item, step, out, epoch);
  team_sync();  // the shared memory is free for the next item
}
#endif
