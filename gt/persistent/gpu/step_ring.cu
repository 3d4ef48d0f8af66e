// The ring in shared memory that holds a block's next weights and cached keys and values, in the order of their use.
// Appended to step_words.cu.
#if GT_BFLOAT16 && __CUDA_ARCH__ >= 900

constexpr int ROWS = 8;               // outputs of a tile, and the most rows of a batch
constexpr int DEPTH = 1024;           // numbers of one row of a weight in a stage of the ring
constexpr int STAGE_STRIDE = DEPTH * 2 + 64;  // bytes from row to row: the banks of two rows then differ
constexpr int TOKENS = 32;            // tokens in a stage: their keys, then their values
constexpr int VALUES = TOKENS * 128 * 2;      // offset of the values in a stage
constexpr int STAGE = ROWS * STAGE_STRIDE;
static_assert(2 * VALUES <= STAGE, "a stage holds either");
constexpr int MOST_STAGES = 16;
constexpr int HELPERS = 4;            // warps that copy

enum Kind { PRODUCT = 0, ATTENTION = 1, HEAD = 2 };

// The input of a phase is the output of the phase before it: float32 words for attention, words of two bfloat16 numbers for
// others. A block keeps the residual's numbers that it adds to in its shared memory, in float32.
struct Phase {  // gt/persistent/gpu/persistent.py fills it in
  int kind, width, padded, outputs, silu, in_pairs, adds_residual, is_residual;
  float eps;
  int table_stride;
  const u16 *weight, *table;  // the embedding's table in the first phase, else null
  const float *norm, *bias;
  const u64* input;
  u64* output;
  Attention attention;
};

struct Step {
  const Phase* phases;
  int phase_count, rows, row_bits;  // 1 << row_bits is rows or the next power of two
  Pages pages;
  u64* sums;  // of split attention: (rows, heads, splits, head_dim + 2) words
  int splits, split_bits;
  Run run;
  float* logits;
  u64* best;  // (blocks, rows, 2) words
  u32* steps;  // number of steps taken so far, from which epochs are made
  int partials, residual, ring;  // offsets in shared memory: the parts of tiles, the residual, the ring
  int stages, greedy;
};

INLINE u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }

INLINE void init_barrier(u32 barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

INLINE void wait_parity(u32 barrier, u32 parity) {
  for (u32 tries = 0;; tries++) {
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    if (done) return;
    if (tries > (1u << 27)) __trap();
  }
}

INLINE void arrive(u32 barrier, int count = 1) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

INLINE void arrive_expecting(u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

INLINE void copy(u32 to, const void* from, int bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// The position in the ring: helpers and computing warps advance over the same stages in the same order. A stage is full when all
// helpers have arrived and their copies are complete, and empty again after WARPS arrivals.
struct Ring {
  u32 data, full_at, empty_at;  // addresses
  int stages, stage = 0;
  u32 parity = 0;
  __device__ __forceinline__ u32 full() const { return full_at + stage * 8; }
  __device__ __forceinline__ u32 empty() const { return empty_at + stage * 8; }
  __device__ __forceinline__ u32 at() const { return data + stage * STAGE; }
  __device__ __forceinline__ void next() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

INLINE int tiles_of(const Phase& p) { return p.silu ? (p.outputs + ROWS / 2 - 1) / (ROWS / 2) : (p.outputs + ROWS - 1) / ROWS; }

// The row of the weight that is output n of a tile; with silu, gate and up alternate.
INLINE int weight_row(int silu, int outputs, int tile, int n) {
  if (silu) return min(tile * (ROWS / 2) + n / 2, outputs - 1) + (n & 1) * outputs;
  return min(tile * ROWS + n, outputs - 1);
}

INLINE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Vectors that all blocks read are brought into the second-level cache by a few.
INLINE void prefetch_vectors(const Phase& p) {
  int lane = threadIdx.x % 32;
  const Attention& a = p.attention;
  if (p.kind != ATTENTION && p.norm && blockIdx.x < 8)
    for (int i = (blockIdx.x * 32 + lane) * 32; i < p.width; i += 8 * 32 * 32) prefetch(p.norm + i);
  if (p.kind == ATTENTION && a.q_norm && blockIdx.x == 0 && lane * 32 < a.head_dim)
    prefetch(a.q_norm + lane * 32), prefetch(a.k_norm + lane * 32);
}

// Each helper copies some of the eight rows of a stage.
INLINE void copy_weights(const Phase& p, int helper, Ring& ring) {
  constexpr int EACH = ROWS / HELPERS;
  int lane = threadIdx.x % 32, row = helper * EACH + lane % EACH, tiles = tiles_of(p), padded = p.padded, silu = p.silu;
  int outputs = p.outputs;
  const u16* weight = p.weight;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const u16* from = weight + (long long)weight_row(silu, outputs, tile, row) * padded;
    for (int k = 0; k < padded; k += DEPTH) {
      int bytes = min(DEPTH, padded - k) * 2;
      wait_parity(ring.empty(), ring.parity ^ 1);
      if (lane == 0) arrive_expecting(ring.full(), bytes * EACH);
      __syncwarp();
      if (lane < EACH) copy(ring.at() + row * STAGE_STRIDE, from + k, bytes, ring.full());
      ring.next();
    }
  }
}

// The tokens of a stage lie in runs, one in each page: two helpers copy runs of keys, two of values. The newest token is not in
// the cache yet.
INLINE void copy_tokens(const Attention& a, const Pages& p, const Item& item, int helper, Ring& ring) {
  int lane = threadIdx.x % 32, end = min(item.end, item.position), bytes = a.head_dim * 2, size = p.page_size;
  const Element* cache = helper % 2 ? a.values : a.keys;
  for (int base = item.begin; base < end; base += TOKENS) {
    int last = min(base + TOKENS, end), page = page_of(p, base) + lane * 2 + helper / 2;
    int first = max(base, page * size), count = min(last, (page + 1) * size) - first;
    const Element* from = count > 0 ? cache + cache_place(p, item.slot, first, a.kv_heads, item.kv) * a.head_dim : cache;
    wait_parity(ring.empty(), ring.parity ^ 1);
    if (lane == 0) helper ? arrive(ring.full()) : arrive_expecting(ring.full(), 2 * (last - base) * bytes);
    __syncwarp();
    if (count > 0) copy(ring.at() + helper % 2 * VALUES + (first - base) * bytes, from, count * bytes, ring.full());
    ring.next();
  }
}

// The items of a block: every gridDim.x-th. The first is found once for all layers of the same heads, as it takes many divisions.
struct Items {
  int heads = 0, kv_heads = 0, count;
  Item first;
  __device__ __forceinline__ void find(const Attention& a, const Pages& pages, const Step& step) {
    if (a.heads == heads && a.kv_heads == kv_heads) return;
    heads = a.heads, kv_heads = a.kv_heads;
    count = step.rows * kv_heads * ((heads / kv_heads + GROUP - 1) / GROUP) * step.splits;
    if (blockIdx.x < count) first = Item(a, pages, step.splits, blockIdx.x);
  }
  template <class Work>
  __device__ __forceinline__ void each(const Attention& a, const Pages& pages, const Step& step, Work work) {
    find(a, pages, step);
    for (int number = blockIdx.x; number < count; number += gridDim.x)
      work(number == blockIdx.x ? first : Item(a, pages, step.splits, number));
  }
};

// Barriers among the threads of a block, in addition to team_sync() of the computing threads.
INLINE void pages_are_near() { asm volatile("bar.arrive 2, %0;" ::"r"(TEAM + HELPERS * 32) : "memory"); }
INLINE void wait_for_pages() { asm volatile("bar.sync 2, %0;" ::"r"(TEAM + HELPERS * 32) : "memory"); }

INLINE void fill_ring(const Step& step, const Pages& pages, Ring ring) {
  int helper = threadIdx.x / 32 - WARPS;
  bool waited = false;
  Items items;
  for (int number = 0; number < step.phase_count; number++) {
    const Phase& p = step.phases[number];
    if (helper == 0) prefetch_vectors(p);
    if (p.kind != ATTENTION) {
      copy_weights(p, helper, ring);
      continue;
    }
    if (!waited) wait_for_pages();
    waited = true;
    items.each(p.attention, pages, step, [&](const Item& item) { copy_tokens(p.attention, pages, item, helper, ring); });
  }
  if (!waited) wait_for_pages();
}
#endif
