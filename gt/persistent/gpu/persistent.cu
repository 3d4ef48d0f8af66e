// A whole step of a small batch in one kernel, appended to step_words.cu. Every multiprocessor has one block, which stays for the
// step. One warp of it copies the block's rows of all weights, in the order of their use, into a ring of shared memory, and
// never waits for the other blocks; eight warps compute, and wait only for the words that they read. So the memory is read while
// blocks wait for one another.
#if GT_BFLOAT16 && __CUDA_ARCH__ >= 900

constexpr int ROWS = 8;               // outputs of a tile, and the most rows of a batch
constexpr int DEPTH = 1024;           // numbers of one row in a stage of the ring
constexpr int STAGE_STRIDE = DEPTH * 2 + 64;  // bytes from row to row: the banks of two rows then differ
constexpr int STAGE = ROWS * STAGE_STRIDE;
constexpr int MOST_STAGES = 16;
constexpr int HELD = 6;               // tiles whose parts are summed together
constexpr int HELPERS = 64;           // threads that do not compute: one warp copies weights, one prefetches

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
  int phase_count, rows;
  Pages pages;
  u64* sums;  // of split attention: (rows, heads, splits, head_dim + 2) words
  int splits;
  Run run;
  float* logits;
  u64* best;  // (blocks, rows, 2) words
  u32* steps;  // number of steps taken so far, from which epochs are made
  int partials, residual, ring;  // offsets in shared memory: the parts of tiles, the residual, the ring
  int stages, greedy;
};

INLINE u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }

INLINE void wait_parity(u32 barrier, u32 parity) {
  for (u32 tries = 0;; tries++) {
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    if (done) return;
    if (tries > (1u << 27)) __trap();
  }
}

INLINE void arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }

// Where the ring is: producer and consumers walk over the same chunks in the same order.
struct Ring {
  u32 data, full, empty;  // addresses
  int stages, stage = 0;
  u32 parity = 0;
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

// Bring the norm's weight, or the cached keys and values, of a phase into the second-level cache.
INLINE void prefetch_vectors(const Step& step, const Phase& p) {
  int lane = threadIdx.x % 32;
  if (p.kind != ATTENTION) {
    if (p.norm && blockIdx.x < 8)  // one line in eight blocks each: all blocks read the same
      for (int i = (blockIdx.x * 32 + lane) * 32; i < p.width; i += 8 * 32 * 32) prefetch(p.norm + i);
    return;
  }
  const Attention& a = p.attention;
  int chunks = (a.heads / a.kv_heads + GROUP - 1) / GROUP;
  for (int number = blockIdx.x; number < step.rows * a.kv_heads * chunks * step.splits; number += gridDim.x) {
    Item item(a, step.pages, step.splits, number);
    if (!item.active || item.chunk) continue;
    for (int t = item.begin + lane; t < min(item.end, item.position); t += 32) {
      long long at = (cache_token(step.pages, item.slot, t) * a.kv_heads + item.kv) * a.head_dim;
      for (int i = 0; i < a.head_dim; i += 64) prefetch(a.keys + at + i), prefetch(a.values + at + i);
    }
    if (item.split == 0 && a.q_norm && lane * 32 < a.head_dim) prefetch(a.q_norm + lane * 32), prefetch(a.k_norm + lane * 32);
  }
}

// A warp that runs AHEAD phases before those that compute: what it reads waits in the second-level cache, which holds no more.
constexpr int AHEAD = 4;
INLINE void prefetch_ahead(const Step& step, const volatile int* progress) {
  for (int number = 0; number < step.phase_count; number++) {
    while (*progress + AHEAD < number) __nanosleep(100);
    prefetch_vectors(step, step.phases[number]);
  }
}

INLINE void produce(const Step& step, Ring ring) {
  int lane = threadIdx.x % 32;
  for (int number = 0; number < step.phase_count; number++) {
    const Phase& p = step.phases[number];
    int kind = p.kind, tiles = tiles_of(p), padded = p.padded, silu = p.silu, outputs = p.outputs;
    const u16* weight = p.weight;
    if (kind == ATTENTION) continue;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const u16* row = weight + (long long)weight_row(silu, outputs, tile, lane % ROWS) * padded;
      for (int k = 0; k < padded; k += DEPTH) {
        int bytes = min(DEPTH, padded - k) * 2;
        wait_parity(ring.empty + ring.stage * 8, ring.parity ^ 1);
        u32 full = ring.full + ring.stage * 8;
        if (lane == 0)
          asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full), "r"(bytes * ROWS) : "memory");
        __syncwarp();
        if (lane < ROWS)
          asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                       ::"r"(ring.data + ring.stage * STAGE + lane * STAGE_STRIDE), "l"(row + k), "r"(bytes), "r"(full) : "memory");
        ring.next();
      }
    }
  }
}

// Copy all rows of the input, times the norm's weight if there is one, to shared memory, with zeros up to the padded width.
// finish() applies the other factor of the norm, for which `sums` gets each warp's sum of squares. A row has WARPS / rows warps,
// and each of their threads AT_ONCE loads of four numbers under way.
template <int AT_ONCE, bool NORMED>
INLINE void stage(const Phase& p, const Step& step, u32 epoch, u16* x, float* sums) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = WARPS / step.rows, row = warp / team;
  int stride = team * 32, count = p.width / 4, padded = p.padded / 4;
  float squares = 0;
  if (row < step.rows) {
    const u64* from = p.input + (long long)row * (p.width / 2);
    const uint2* table = reinterpret_cast<const uint2*>(p.table);
    if (table) table += (long long)step.run.tokens[row] * (p.table_stride / 4);
    uint2* to = reinterpret_cast<uint2*>(x + row * (p.padded + 32));
    for (int base = warp % team * 32 + lane; base < padded; base += AT_ONCE * stride) {
      float4 scale[AT_ONCE];
      Pair v[AT_ONCE];
#pragma unroll
      for (int n = 0; n < AT_ONCE; n++)
        if (NORMED)
          scale[n] = base + n * stride < count ? reinterpret_cast<const float4*>(p.norm)[base + n * stride] : float4{0, 0, 0, 0};
      if (NORMED && table) {
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
          uint2 four = base + n * stride < count ? table[base + n * stride] : uint2{0, 0};
          v[n] = {four.x, four.y};
        }
      } else {
        read_words(v, epoch, [=](int n) { return base + n * stride < count ? from + 2 * (base + n * stride) : nullptr; });
      }
#pragma unroll
      for (int n = 0; n < AT_ONCE; n++) {
        uint2 four = {u32(v[n].low), u32(v[n].high)};
        if (NORMED) {
          float f[4] = {__uint_as_float(four.x << 16), __uint_as_float(four.x & 0xffff0000u), __uint_as_float(four.y << 16),
                        __uint_as_float(four.y & 0xffff0000u)};
          squares += f[0] * f[0] + f[1] * f[1] + f[2] * f[2] + f[3] * f[3];
          four = {packed(f[0] * scale[n].x, f[1] * scale[n].y), packed(f[2] * scale[n].z, f[3] * scale[n].w)};
        }
        if (base + n * stride < padded) to[base + n * stride] = four;
      }
    }
  }
  if (!NORMED) return;
  squares = warp_sum(squares);
  if (lane == 0) sums[warp] = squares;
}

// All loads of a row at once where registers suffice: a second turn is a second trip to memory. A short row takes few: those that
// it does not need still cost instructions each time the words are read.
INLINE void stage_input(const Phase& p, const Step& step, u32 epoch, u16* x, float* sums) {
  int needed = (p.padded / 4 + 32 * (WARPS / step.rows) - 1) / (32 * (WARPS / step.rows));
  if (p.norm) {
    if (needed <= 2) stage<2, true>(p, step, epoch, x, sums);
    else stage<8, true>(p, step, epoch, x, sums);
  } else {
    if (needed <= 4) stage<4, false>(p, step, epoch, x, sums);
    else stage<16, false>(p, step, epoch, x, sums);
  }
  team_sync();
}

struct Best {
  float value;
  int index;
};

// Outputs of some tiles, summed over the warps: norm, bias, silu, residual, then words for the next phase, or logits.
INLINE void finish(const Phase& p, const Step& step, int first, int count, u32 epoch, const float* sums, const float* partials,
                   float* residual, Best& best) {
  int rows = step.rows, a_tile = rows * ROWS, at_once = TEAM / a_tile, thread = threadIdx.x, team = WARPS / rows;
  int r = thread % a_tile / ROWS, n = thread % ROWS;
  float factor = 1, squares = 0;
  if (p.norm) {
    for (int w = 0; w < team; w++) squares += sums[r * team + w];
    factor = rsqrtf(squares / p.width + p.eps);
  }
  for (int turn = 0; turn < count; turn += at_once) {  // all lanes of a warp take part in the shuffles
    int number = turn + thread / a_tile, tile = blockIdx.x + (first + number) * gridDim.x;
    bool there = thread / a_tile < at_once && number < count;
    int output = p.silu ? tile * (ROWS / 2) + n / 2 : tile * ROWS + n;
    bool within = there && output < p.outputs;
    float y = 0;
    if (there)
      for (int w = 0; w < WARPS; w++) y += partials[((number * WARPS + w) * rows + r) * ROWS + n];
    y *= factor;
    if (p.bias && within) y += p.bias[output + (p.silu && (n & 1) ? p.outputs : 0)];
    if (p.silu) y = silu(y) * __shfl_down_sync(~0u, y, 1);
    float* held = residual + ((first + number) * rows + r) * ROWS + n;
    if (p.adds_residual && within) y += *held;
    if (p.is_residual && within) *held = y;
    float other = __shfl_down_sync(~0u, y, p.silu ? 2 : 1);
    long long at = (long long)r * p.outputs + output;
    if (!within || (p.silu && (n & 1))) continue;
    if (p.kind == HEAD) {
      step.logits[at] = y;
      if (y > best.value) best.value = y, best.index = output;
    } else if (!p.in_pairs) {
      publish(p.output + at, y, epoch);
    } else if (output % 2 == 0) {
      publish(p.output + at / 2, packed(y, other), epoch);
    }
  }
}

INLINE void product(const Phase& p, const Step& step, u32 epoch, Ring& ring, char* memory, float* sums, Best& best) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, rows = step.rows, tiles = tiles_of(p);
  if (blockIdx.x >= tiles) return;
  u16* x = reinterpret_cast<u16*>(memory);
  float* all_partials = reinterpret_cast<float*>(memory + step.partials);
  float* residual = reinterpret_cast<float*>(memory + step.residual);
  stage_input(p, step, epoch - 1, x, sums);
  const char* x_row = reinterpret_cast<const char*>(x + g * (p.padded + 32)) + t * 16;
  int padded = p.padded, held = 0, first = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float* partials = all_partials + first / HELD % 2 * (HELD * WARPS * rows * ROWS);
    float c[4] = {0, 0, 0, 0}, e[4] = {0, 0, 0, 0};
    for (int k = 0; k < padded; k += DEPTH) {
      int blocks = min(DEPTH, padded - k) / 32;
      wait_parity(ring.full + ring.stage * 8, ring.parity);
      u32 at = ring.data + ring.stage * STAGE + g * STAGE_STRIDE + t * 16;
#pragma unroll 4
      for (int b = warp; b < blocks; b += WARPS) {
        u32 w0, w1, w2, w3;
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(w0), "=r"(w1), "=r"(w2), "=r"(w3) : "r"(at + b * 64));
        uint4 v = {0, 0, 0, 0};
        if (g < rows) v = *reinterpret_cast<const uint4*>(x_row + (k + b * 32) * 2);
        multiply(c, v.x, 0, v.y, 0, w0, w1);
        multiply(e, v.z, 0, v.w, 0, w2, w3);
      }
      __syncwarp();
      if (lane == 0) arrive(ring.empty + ring.stage * 8);
      ring.next();
    }
    if (g < rows) {
      float* partial = partials + ((held * WARPS + warp) * rows + g) * ROWS + 2 * t;
      partial[0] = c[0] + e[0];
      partial[1] = c[1] + e[1];
    }
    if (++held == HELD || tile + gridDim.x >= tiles) {
      team_sync();  // partials alternate between two rooms, so this also shows that the finish() before the last is done
      finish(p, step, first, held, epoch, sums, partials, residual, best);
      first += held, held = 0;
    }
  }
}

// The residual starts as the embedding; this block keeps the numbers that it adds to later.
INLINE void embed_residual(const Phase& p, const Step& step, float* residual) {
  int a_tile = step.rows * ROWS, tiles = (p.width + ROWS - 1) / ROWS;
  for (int at = threadIdx.x; blockIdx.x + at / a_tile * gridDim.x < tiles; at += TEAM) {
    int output = (blockIdx.x + at / a_tile * gridDim.x) * ROWS + at % ROWS, row = at % a_tile / ROWS;
    residual[at] = output < p.width ? wide(p.table[(long long)step.run.tokens[row] * p.table_stride + output]) : 0.0f;
  }
}

// Publish the largest logit of each row among those that this block computed.
INLINE void leave_best(const Step& step, Best best, u32 epoch, float* values) {
  int *indices = reinterpret_cast<int*>(values + TEAM), thread = threadIdx.x, lane = thread % 32, row = thread / 32;
  team_sync();  // all have left finish(), which read this memory
  values[thread] = best.value, indices[thread] = best.index;
  team_sync();
  if (row >= step.rows) return;
  best = {-LARGE, 0x7fffffff};
  for (int other = lane; other < TEAM; other += 32)
    if (other % (step.rows * ROWS) / ROWS == row) take(best.value, best.index, values[other], indices[other]);
  warp_argmax(best.value, best.index);
  u64* to = step.best + (blockIdx.x * step.rows + row) * 2;
  if (lane == 0) publish(to, best.value, epoch), publish(to + 1, u32(best.index), epoch);
}

// The first block chooses the token of each row among the blocks' largest logits.
INLINE void choose(const Step& step, u32 epoch) {
  int row = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= step.rows) return;
  float best = -LARGE;
  int index = 0x7fffffff;
  for (int b = lane; b < gridDim.x; b += 32) {
    Pair found[1];
    read_words(found, epoch, [=](int) { return step.best + (b * step.rows + row) * 2; });
    take(best, index, found[0].first(), int(u32(found[0].high)));
  }
  warp_argmax(best, index);
  if (lane == 0) step.run.chosen[row] = index == 0x7fffffff ? 0 : index;
}

// Positions and tables of pages, which every layer reads, in shared memory where they fit.
constexpr int MOST_PAGES = 2048;
struct Nearby {
  Pages pages;
  int positions[ROWS], rows[ROWS], tables[MOST_PAGES];

  __device__ __forceinline__ void fill(const Step& step) {
    const Pages& far = step.pages;
    int thread = threadIdx.x, width = far.table_width;
    bool fits = width * step.rows <= MOST_PAGES;
    if (thread < step.rows) positions[thread] = far.positions[thread], rows[thread] = thread;
    if (fits)
      for (int at = thread; at < width * step.rows; at += TEAM) tables[at] = far.tables[far.slots[at / width] * width + at % width];
    if (thread) return;
    pages = far, pages.positions = positions;
    if (fits) pages.slots = rows, pages.tables = tables;
  }
};

INLINE void consume(const Step& step, Ring ring, char* memory, float* sums, Nearby& nearby, volatile int* progress) {
  u32 epoch = *step.steps * (step.phase_count + 1) + 1;
  Best best = {-LARGE, 0x7fffffff};
  __shared__ Phase phases[2];
  constexpr int WORDS = sizeof(Phase) / 4;
  const int* first = reinterpret_cast<const int*>(step.phases);
  if (threadIdx.x < WORDS) reinterpret_cast<int*>(&phases[0])[threadIdx.x] = first[threadIdx.x];
  nearby.fill(step);
  team_sync();
  embed_residual(phases[0], step, reinterpret_cast<float*>(memory + step.residual));
  for (int number = 0; number < step.phase_count; number++) {
    const Phase& p = phases[number & 1];
    if (number + 1 < step.phase_count && threadIdx.x >= TEAM - WORDS) {
      int word = threadIdx.x - (TEAM - WORDS);
      reinterpret_cast<int*>(&phases[(number + 1) & 1])[word] = first[(number + 1) * WORDS + word];
    }
    epoch++;
    if (threadIdx.x == 0) *progress = number;
    if (p.kind == ATTENTION) {
      const Attention& a = p.attention;
      float* shared = reinterpret_cast<float*>(memory);
      int chunks = (a.heads / a.kv_heads + GROUP - 1) / GROUP, items = step.rows * a.kv_heads * chunks * step.splits;
      for (int item = blockIdx.x; item < items; item += gridDim.x)
        attend_words<Tiles<128>>(a, nearby.pages, p.input, step.sums, step.splits, p.output, item, epoch, shared);
    } else {
      product(p, step, epoch, ring, memory, sums, best);
    }
    team_sync();  // the next phase is in shared memory, and this one's memory is free
  }
  leave_best(step, best, epoch, reinterpret_cast<float*>(memory + step.partials));
  if (blockIdx.x == 0) choose(step, epoch);
}

extern "C" __global__ void __launch_bounds__(TEAM + HELPERS, 1) step_kernel(const __grid_constant__ Step step) {
  extern __shared__ __align__(128) char memory[];
  __shared__ __align__(8) u64 full[MOST_STAGES], empty[MOST_STAGES];
  __shared__ float sums[WARPS];
  __shared__ Nearby nearby;
  __shared__ int progress;
  bool active = false;
  for (int r = 0; r < step.rows; r++) active |= step.pages.positions[r] >= 0;
  if (!active) return;
  if (threadIdx.x < step.stages) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(full + threadIdx.x)) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(empty + threadIdx.x)), "r"(WARPS) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (threadIdx.x == 0) progress = 0;
  __syncthreads();
  Ring ring{shared_address(memory + step.ring), shared_address(full), shared_address(empty), step.stages};
  if (threadIdx.x >= TEAM + 32)
    prefetch_ahead(step, &progress);
  else if (threadIdx.x >= TEAM)
    produce(step, ring);
  else
    consume(step, ring, memory, sums, nearby, &progress);
  if (blockIdx.x) return;
  __syncthreads();
  if (step.greedy) advance(step.run, step.rows, threadIdx.x);
  if (threadIdx.x == 0) ++*step.steps;
}
#endif
