// A whole step of a small batch in one kernel, appended to decode.cu. Every multiprocessor has one block, which stays for the
// step. One warp of it copies the block's rows of all weights, in the order of their use, into a ring of shared memory, and
// never waits for the other blocks; eight warps compute, with a barrier among all blocks after every phase. So the memory is
// read while blocks wait for one another.
#if GT_BFLOAT16 && __CUDA_ARCH__ >= 900

constexpr int TEAM = 256;             // threads that compute
constexpr int WARPS = TEAM / 32;
constexpr int ROWS = 8;               // outputs of a tile, and the most rows of a batch
constexpr int DEPTH = 1024;           // numbers of one row in a stage of the ring
constexpr int STAGE_STRIDE = DEPTH * 2 + 64;  // bytes from row to row: the banks of two rows then differ
constexpr int STAGE = ROWS * STAGE_STRIDE;
constexpr int MOST_STAGES = 16;
constexpr int AT_ONCE = 8;            // loads of 16 bytes that a thread has under way; a row that is normed needs no more

constexpr int HELD = 6;               // tiles whose parts are summed together

enum Kind { EMBED = 0, PRODUCT = 1, ATTENTION = 2, HEAD = 3 };

struct Phase {  // gt/persistent/gpu/persistent.py fills it in
  int kind, width, padded, outputs, silu;
  float eps;
  const u16* weight;
  const float *norm, *bias, *input, *residual;
  float* output;
  Attention attention;
};

struct Step {
  const Phase* phases;
  int phase_count, rows;
  Pages pages;
  Partials partials;
  Run run;
  float* best_values;  // (blocks, rows)
  int* best_indices;
  u32* barrier;  // arrivals since the beginning, and steps that were taken
  int room, stages, greedy;  // bytes of shared memory before the ring
};

INLINE u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }

INLINE void wait_parity(u32 barrier, u32 parity) {
  for (u32 tries = 0;; tries++) {
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    if (done) return;
    if (tries > (1u << 27)) __trap();  // an error is better than a GPU that hangs
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
INLINE int weight_row(const Phase& p, int tile, int n) {
  if (p.silu) return min(tile * (ROWS / 2) + n / 2, p.outputs - 1) + (n & 1) * p.outputs;
  return min(tile * ROWS + n, p.outputs - 1);
}

INLINE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// What the phase reads beside weights, into the second-level cache. The producer is ahead of those that compute.
INLINE void prefetch_vectors(const Step& step, const Phase& p) {
  int lane = threadIdx.x % 32;
  if (p.kind != ATTENTION) {
    if (p.norm && blockIdx.x < 8)  // one line in eight blocks each: all blocks read the same
      for (int i = (blockIdx.x * 32 + lane) * 32; i < p.width; i += 8 * 32 * 32) prefetch(p.norm + i);
    return;
  }
  const Attention& a = p.attention;
  int chunks = (a.heads / a.kv_heads + GROUP - 1) / GROUP, splits = step.partials.splits;
  for (int item = blockIdx.x; item < step.rows * a.kv_heads * chunks * splits; item += gridDim.x) {
    int split = item % splits, chunk = item / splits % chunks, kv = item / (splits * chunks) % a.kv_heads;
    int row = item / (splits * chunks * a.kv_heads), position = step.pages.positions[row];
    if (position < 0 || chunk) continue;
    int each = (position + splits) / splits, end = min((split + 1) * each, position);
    for (int t = split * each + lane; t < end; t += 32) {
      long long at = (cache_token(step.pages, step.pages.slots[row], t) * a.kv_heads + kv) * a.head_dim;
      for (int i = 0; i < a.head_dim; i += 64) prefetch(a.keys + at + i), prefetch(a.values + at + i);
    }
    if (split == 0 && a.q_norm && lane * 32 < a.head_dim) prefetch(a.q_norm + lane * 32), prefetch(a.k_norm + lane * 32);
  }
}

INLINE void produce(const Step& step, Ring ring) {
  int lane = threadIdx.x % 32;
  for (int number = 0; number < step.phase_count; number++) {
    const Phase& p = step.phases[number];
    prefetch_vectors(step, p);
    if (p.kind != PRODUCT && p.kind != HEAD) continue;
    int tiles = tiles_of(p), padded = p.padded;
    const u16* weight = p.weight;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const u16* row = weight + (long long)weight_row(p, tile, lane % ROWS) * padded;
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

INLINE void multiply(float (&c)[4], u32 a0, u32 a2, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(0), "r"(a2), "r"(0), "r"(b0), "r"(b1));
}

INLINE u32 pair(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// All rows of the input in bfloat16, normed where the phase says so; zeros up to the padded width. Widths are multiples of 4.
INLINE void stage_input(const Phase& p, int rows, u16* x, float* sums) {
  int thread = threadIdx.x, stride = p.padded + 32, fours = p.width / 4, padded = p.padded / 4;
  for (int r = 0; r < rows; r++) {
    const float4* from = reinterpret_cast<const float4*>(p.input + (long long)r * p.width);
    const float4* norm = reinterpret_cast<const float4*>(p.norm);
    uint2* to = reinterpret_cast<uint2*>(x + r * stride);
    for (int base = 0; base < padded; base += AT_ONCE * TEAM) {  // once, where there is a norm
      int first = base + thread;
      float4 v[AT_ONCE], scale[AT_ONCE];
      float squares = 0, factor = 1;
#pragma unroll
      for (int n = 0; n < AT_ONCE; n++) {
        int i = first + n * TEAM;
        v[n] = i < fours ? __ldcg(from + i) : float4{0, 0, 0, 0};
        if (p.norm) scale[n] = i < fours ? norm[i] : float4{0, 0, 0, 0};
      }
      if (p.norm) {
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) squares += v[n].x * v[n].x + v[n].y * v[n].y + v[n].z * v[n].z + v[n].w * v[n].w;
        squares = warp_sum(squares);
        if (thread % 32 == 0) sums[(r & 1) * WARPS + thread / 32] = squares;
        team_sync(TEAM);
        float total = 0;
        for (int w = 0; w < WARPS; w++) total += sums[(r & 1) * WARPS + w];
        factor = rsqrtf(total / p.width + p.eps);
      }
#pragma unroll
      for (int n = 0; n < AT_ONCE; n++) {
        int i = first + n * TEAM;
        if (p.norm) v[n].x *= factor * scale[n].x, v[n].y *= factor * scale[n].y, v[n].z *= factor * scale[n].z, v[n].w *= factor * scale[n].w;
        if (i < padded) to[i] = uint2{pair(v[n].x, v[n].y), pair(v[n].z, v[n].w)};
      }
    }
  }
  team_sync(TEAM);
}

struct Best {
  float value;
  int index;
};

// Outputs of some tiles, summed over the warps: bias, silu, residual, then memory. A thread has the same row in all of them.
INLINE void finish(const Phase& p, int first_tile, int count, int rows, const float* partials, Best& best) {
  int a_tile = rows * ROWS, at_once = TEAM / a_tile, thread = threadIdx.x;
  int r = thread % a_tile / ROWS, n = thread % ROWS;
  for (int turn = 0; turn < count; turn += at_once) {  // all lanes of a warp take part in the shuffle
    int number = turn + thread / a_tile, tile = first_tile + number * gridDim.x;
    bool there = thread / a_tile < at_once && number < count;
    int output = p.silu ? tile * (ROWS / 2) + n / 2 : tile * ROWS + n;
    bool within = there && output < p.outputs;
    long long at = (long long)r * p.outputs + output;
    float residual = within && p.residual ? fresh(p.residual + at) : 0.0f, y = 0;
    if (there)
      for (int w = 0; w < WARPS; w++) y += partials[((number * WARPS + w) * rows + r) * ROWS + n];
    if (p.bias && within) y += p.bias[output + (p.silu && (n & 1) ? p.outputs : 0)];
    if (p.silu) y = silu(y) * __shfl_down_sync(~0u, y, 1);
    if (!within || (p.silu && (n & 1))) continue;
    y += residual;
    p.output[at] = y;
    if (y > best.value) best.value = y, best.index = output;
  }
}

INLINE void product(const Phase& p, int rows, Ring& ring, char* room, float* sums, float* partials, Best& best) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  u16* x = reinterpret_cast<u16*>(room);
  stage_input(p, rows, x, sums);
  const char* x_row = reinterpret_cast<const char*>(x + g * (p.padded + 32)) + t * 16;
  int tiles = tiles_of(p), padded = p.padded, held = 0, first_tile = blockIdx.x;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
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
        multiply(c, v.x, v.y, w0, w1);
        multiply(e, v.z, v.w, w2, w3);
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
      team_sync(TEAM);
      finish(p, first_tile, held, rows, partials, best);
      team_sync(TEAM);
      first_tile = tile + gridDim.x, held = 0;
    }
  }
}

// All blocks have written what they write in this phase before any reads it in the next.
INLINE void grid_barrier(u32* arrivals, u32 target, bool waits) {
  team_sync(TEAM);
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrivals) : "memory");
    for (u32 tries = 0; waits; tries++) {
      u32 seen;
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrivals) : "memory");
      if (int(seen - target) >= 0) break;
      if (tries > (1u << 26)) __trap();
    }
  }
  team_sync(TEAM);
}

INLINE void embed(const Phase& p, const Step& step) {
  long long count = (long long)step.rows * p.outputs;
  for (long long at = blockIdx.x * TEAM + threadIdx.x; at < count; at += gridDim.x * TEAM) {
    int row = at / p.outputs, i = at % p.outputs;
    p.output[at] = wide(p.weight[(long long)step.run.tokens[row] * p.padded + i]);
  }
}

// The threads of a block that made outputs of a row leave the best of them.
INLINE void leave_best(const Step& step, Best best, float* values) {
  int* indices = reinterpret_cast<int*>(values + TEAM), thread = threadIdx.x, a_tile = step.rows * ROWS;
  values[thread] = best.value, indices[thread] = best.index;
  team_sync(TEAM);
  if (thread >= step.rows) return;
  best = {-LARGE, 0x7fffffff};
  for (int other = 0; other < TEAM; other++)
    if (other % a_tile / ROWS == thread) take(best.value, best.index, values[other], indices[other]);
  step.best_values[blockIdx.x * step.rows + thread] = best.value;
  step.best_indices[blockIdx.x * step.rows + thread] = best.index;
}

INLINE void choose(const Step& step) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp >= step.rows) return;
  float best = -LARGE;
  int index = 0x7fffffff;
  for (int b = lane; b < gridDim.x; b += 32)
    take(best, index, fresh(step.best_values + b * step.rows + warp), __ldcg(step.best_indices + b * step.rows + warp));
  warp_argmax(best, index);
  if (lane == 0) step.run.chosen[warp] = index == 0x7fffffff ? 0 : index;
}

INLINE void consume(const Step& step, Ring ring, char* room, float* sums, float* partials) {
  u32 target = step.barrier[1] * step.phase_count * gridDim.x;
  Best best = {-LARGE, 0x7fffffff};
  __shared__ Phase phases[2];
  constexpr int WORDS = sizeof(Phase) / 4;
  const int* first = reinterpret_cast<const int*>(step.phases);
  if (threadIdx.x < WORDS) reinterpret_cast<int*>(&phases[0])[threadIdx.x] = first[threadIdx.x];
  team_sync(TEAM);
  for (int number = 0; number < step.phase_count; number++) {
    const Phase& p = phases[number & 1];
    bool is_last = number + 1 == step.phase_count;
    if (!is_last && threadIdx.x >= TEAM - WORDS) {  // the next phase is there when the barrier is passed
      int word = threadIdx.x - (TEAM - WORDS);
      reinterpret_cast<int*>(&phases[(number + 1) & 1])[word] = first[(number + 1) * WORDS + word];
    }
    if (p.kind == EMBED) embed(p, step);
    else if (p.kind == ATTENTION) {
      const Attention& a = p.attention;
      int chunks = (a.heads / a.kv_heads + GROUP - 1) / GROUP;
      int items = step.rows * a.kv_heads * chunks * step.partials.splits;
      for (int item = blockIdx.x; item < items; item += gridDim.x)
        attend_item<float, float, true>(a, step.pages, step.partials, p.input, p.output, item, TEAM, reinterpret_cast<float*>(room));
    } else {
      if (p.kind == HEAD) best = {-LARGE, 0x7fffffff};
      product(p, step.rows, ring, room, sums, partials, best);
      if (p.kind == HEAD) leave_best(step, best, partials);
    }
    target += gridDim.x;
    grid_barrier(step.barrier, target, !is_last || blockIdx.x == 0);
  }
  if (blockIdx.x == 0 && step.greedy) choose(step);
}

extern "C" __global__ void __launch_bounds__(TEAM + 32, 1) step_kernel(const __grid_constant__ Step step) {
  extern __shared__ __align__(128) char memory[];
  __shared__ __align__(8) u64 full[MOST_STAGES], empty[MOST_STAGES];
  __shared__ float sums[2 * WARPS], partials[HELD * WARPS * ROWS * ROWS];
  bool active = false;
  for (int r = 0; r < step.rows; r++) active |= step.pages.positions[r] >= 0;
  if (!active) return;
  if (threadIdx.x < step.stages) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(full + threadIdx.x)) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(empty + threadIdx.x)), "r"(WARPS) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  Ring ring{shared_address(memory + step.room), shared_address(full), shared_address(empty), step.stages};
  if (threadIdx.x >= TEAM)
    produce(step, ring);
  else
    consume(step, ring, memory, sums, partials);
  if (blockIdx.x) return;
  __syncthreads();
  if (step.greedy) advance(step.run, step.rows, threadIdx.x);
  if (threadIdx.x == 0) step.barrier[1]++;
}
#endif
