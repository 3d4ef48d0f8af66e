// A whole step of a small batch in one kernel, appended to step_attention.cu. Every multiprocessor has one block, which stays for
// the step. Its helpers copy the block's rows of all weights and its part of the cached keys and values, in the order of their
// use, into a ring of shared memory, and never wait for the other blocks; eight warps compute, and wait only for the words that
// they read. So the memory is read while blocks wait for one another.
#if GT_BFLOAT16 && __CUDA_ARCH__ >= 900

constexpr int HELD = 6;  // tiles whose parts are summed together

// Copy all rows of the input, times the norm's weight if there is one, to shared memory, with zeros up to the padded width.
// finish() applies the other factor of the norm, for which `sums` gets each warp's sum of squares. A row has WARPS / rows warps,
// and each of their threads AT_ONCE loads of four numbers under way.
template <int AT_ONCE, bool NORMED>
INLINE void stage(const Phase& p, const Step& step, u32 epoch, u16* x, float* sums) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = WARPS >> step.row_bits, row = warp << step.row_bits >> 3;
  int stride = team * 32, count = p.width / 4, padded = p.padded / 4;
  float squares = 0;
  if (row < step.rows) {
    const u64* from = p.input + (long long)row * (p.width / 2);
    const uint2* table = reinterpret_cast<const uint2*>(p.table);
    if (table) table += (long long)step.run.tokens[row] * (p.table_stride / 4);
    uint2* to = reinterpret_cast<uint2*>(x + row * (p.padded + 32));
    for (int base = (warp & (team - 1)) * 32 + lane; base < padded; base += AT_ONCE * stride) {
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

// All loads of a row at once where registers suffice: a second turn is a second trip to memory. A short row issues few: unneeded
// loads still cost instructions each time the words are read.
INLINE void stage_input(const Phase& p, const Step& step, u32 epoch, u16* x, float* sums) {
  int threads = TEAM >> step.row_bits, quads = p.padded / 4;
  if (p.norm) {
    if (quads <= threads) stage<1, true>(p, step, epoch, x, sums);
    else if (quads <= 2 * threads) stage<2, true>(p, step, epoch, x, sums);
    else stage<8, true>(p, step, epoch, x, sums);
  } else {
    if (quads <= 2 * threads) stage<2, false>(p, step, epoch, x, sums);
    else if (quads <= 4 * threads) stage<4, false>(p, step, epoch, x, sums);
    else if (quads <= 16 * threads) stage<16, false>(p, step, epoch, x, sums);
    else stage<12, false>(p, step, epoch, x, sums);
  }
  team_sync();
}

struct Best {
  float value;
  int index;
};

// What becomes of a product, in registers while the block still waits for the input.
struct Outputs {
  int kind, outputs, silu, in_pairs, adds_residual, is_residual, normed;
  float eps, share;  // of one number in the mean
  const float* bias;
  u64* to;
  __device__ __forceinline__ explicit Outputs(const Phase& p)
      : kind(p.kind), outputs(p.outputs), silu(p.silu), in_pairs(p.in_pairs), adds_residual(p.adds_residual),
        is_residual(p.is_residual), normed(p.norm != nullptr), eps(p.eps), share(__fdividef(1.0f, p.width)), bias(p.bias), to(p.output) {}
};

// The factor of the norm for the row that this thread finishes.
INLINE float norm_factor(const Outputs& o, const Step& step, const float* sums) {
  int bits = step.row_bits, team = WARPS >> bits, r = threadIdx.x / ROWS & ((1 << bits) - 1);
  float squares = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) squares += w < team ? sums[r * team + w] : 0.0f;
  return rsqrtf(squares * o.share + o.eps);
}

// Outputs of some tiles, summed over the warps: norm, bias, silu, residual, then words for the next phase, or logits.
INLINE void finish(const Outputs& o, const Step& step, int first, int count, u32 epoch, float factor, const float* partials,
                   float* residual, Best& best) {
  int bits = step.row_bits, at_once = TEAM / ROWS >> bits, thread = threadIdx.x;
  int r = thread / ROWS & ((1 << bits) - 1), n = thread % ROWS, stride = ROWS << bits;
  for (int turn = 0; turn < count; turn += at_once) {  // all lanes of a warp take part in the shuffles
    int number = turn + (thread / ROWS >> bits), tile = blockIdx.x + (first + number) * gridDim.x;
    bool there = r < step.rows && number < count;
    int output = o.silu ? tile * (ROWS / 2) + n / 2 : tile * ROWS + n;
    bool within = there && output < o.outputs;
    const float* partial = partials + number * WARPS * stride + r * ROWS + n;
    float part[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) part[w] = there ? partial[w * stride] : 0.0f;
    float y = ((part[0] + part[1]) + (part[2] + part[3]) + ((part[4] + part[5]) + (part[6] + part[7]))) * factor;
    if (o.bias && within) y += o.bias[output + (o.silu && (n & 1) ? o.outputs : 0)];
    if (o.silu) y = __fdividef(y, 1.0f + __expf(-y)) * __shfl_down_sync(~0u, y, 1);
    float* held = residual + (((first + number) << bits) + r) * ROWS + n;
    if (o.adds_residual && within) y += *held;
    if (o.is_residual && within) *held = y;
    float other = __shfl_down_sync(~0u, y, o.silu ? 2 : 1);
    int at = r * o.outputs + output;
    if (!within || (o.silu && (n & 1))) continue;
    if (o.kind == HEAD) {
      step.logits[at] = y;
      if (y > best.value) best.value = y, best.index = output;
    } else if (!o.in_pairs) {
      publish(o.to + at, y, epoch);
    } else if (output % 2 == 0) {
      publish(o.to + at / 2, packed(y, other), epoch);
    }
  }
}

INLINE uint4 load_shared(u32 at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}

// 32 numbers of each row of input and weight.
INLINE void multiply_block(float (&c)[4], float (&e)[4], const uint4& input, const uint4& weight) {
  multiply(c, input.x, 0, input.y, 0, weight.x, weight.y);
  multiply(e, input.z, 0, input.w, 0, weight.z, weight.w);
}

constexpr int TURNS = DEPTH / 32 / WARPS;  // blocks of 32 numbers of a stage that a warp multiplies
INLINE void product(const Phase& p, const Step& step, u32 epoch, Ring& ring, char* memory, float* sums, Best& best) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, rows = step.rows, tiles = tiles_of(p);
  if (blockIdx.x >= tiles) return;
  u16* x = reinterpret_cast<u16*>(memory);
  float* all_partials = reinterpret_cast<float*>(memory + step.partials);
  float* residual = reinterpret_cast<float*>(memory + step.residual);
  Outputs outputs(p);
  int padded = p.padded;
  stage_input(p, step, epoch - 1, x, sums);
  float factor = outputs.normed ? norm_factor(outputs, step, sums) : 1.0f;
  const char* x_row = reinterpret_cast<const char*>(x + g * (padded + 32)) + t * 16 + warp * 64;
  int held = 0, first = 0, room = HELD * WARPS * ROWS << step.row_bits;
  uint4 v[TURNS];
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float* partials = all_partials + (first / HELD & 1) * room;
    float c[4][4] = {};
    for (int k = 0; k < padded; k += DEPTH) {
      u32 at = ring.at() + g * STAGE_STRIDE + t * 16 + warp * 64;
      if (padded - k < DEPTH) {
        wait_parity(ring.full(), ring.parity);
        for (int b = warp; b < (padded - k) / 32; b += WARPS) {
          uint4 few = g < rows ? *reinterpret_cast<const uint4*>(x_row + (k + (b - warp) * 32) * 2) : uint4{0, 0, 0, 0};
          multiply_block(c[0], c[1], few, load_shared(at + (b - warp) * 64));
        }
      } else {
        if (padded > DEPTH || tile == blockIdx.x) {  // else the input's part is the one of the tile before
#pragma unroll
          for (int n = 0; n < TURNS; n++)
            v[n] = g < rows ? *reinterpret_cast<const uint4*>(x_row + k * 2 + n * WARPS * 64) : uint4{0, 0, 0, 0};
        }
        wait_parity(ring.full(), ring.parity);
        uint4 w[TURNS];
#pragma unroll
        for (int n = 0; n < TURNS; n++) w[n] = load_shared(at + n * WARPS * 64);
#pragma unroll
        for (int n = 0; n < TURNS; n++) multiply_block(c[n % 2 * 2], c[n % 2 * 2 + 1], v[n], w[n]);
      }
      __syncwarp();
      if (lane == 0) arrive(ring.empty());
      ring.next();
    }
    if (g < rows) {
      float* partial = partials + (((held * WARPS + warp) << step.row_bits) + g) * ROWS + 2 * t;
      *reinterpret_cast<float2*>(partial) = {c[0][0] + c[1][0] + (c[2][0] + c[3][0]), c[0][1] + c[1][1] + (c[2][1] + c[3][1])};
    }
    if (++held == HELD || tile + gridDim.x >= tiles) {
      team_sync();  // partials alternate between two rooms, so this also shows that the finish() before the last is done
      finish(outputs, step, first, held, epoch, factor, partials, residual, best);
      first += held, held = 0;
    }
  }
}

// The residual starts as the embedding; this block keeps the numbers that it adds to later.
INLINE void embed_residual(const Phase& p, const Step& step, float* residual) {
  int bits = step.row_bits, tiles = (p.width + ROWS - 1) / ROWS;
  for (int at = threadIdx.x; blockIdx.x + (at / ROWS >> bits) * gridDim.x < tiles; at += TEAM) {
    int output = (blockIdx.x + (at / ROWS >> bits) * gridDim.x) * ROWS + at % ROWS, row = at / ROWS & ((1 << bits) - 1);
    residual[at] = row < step.rows && output < p.width ? wide(p.table[(long long)step.run.tokens[row] * p.table_stride + output]) : 0.0f;
  }
}

// Publish the largest logit of each row among the logits of this block.
INLINE void leave_best(const Step& step, Best best, u32 epoch, float* values) {
  int *indices = reinterpret_cast<int*>(values + TEAM), thread = threadIdx.x, lane = thread % 32, row = thread / 32;
  team_sync();  // all have left finish(), which read this memory
  values[thread] = best.value, indices[thread] = best.index;
  team_sync();
  if (row >= step.rows) return;
  best = {-LARGE, 0x7fffffff};
  for (int other = lane; other < TEAM; other += 32)
    if ((other / ROWS & ((1 << step.row_bits) - 1)) == row) take(best.value, best.index, values[other], indices[other]);
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

INLINE void consume(const Step& step, Ring ring, char* memory, float* sums, Nearby& nearby) {
  u32 epoch = *step.steps * (step.phase_count + 1) + 1;
  Best best = {-LARGE, 0x7fffffff};
  Items items;
  __shared__ Phase phases[2];
  constexpr int WORDS = sizeof(Phase) / 4;
  const int* first = reinterpret_cast<const int*>(step.phases);
  if (threadIdx.x < WORDS) reinterpret_cast<int*>(&phases[0])[threadIdx.x] = first[threadIdx.x];
  nearby.fill(step);
  team_sync();
  pages_are_near();
  embed_residual(phases[0], step, reinterpret_cast<float*>(memory + step.residual));
  for (int number = 0; number < step.phase_count; number++) {
    const Phase& p = phases[number & 1];
    bool has_word = number + 1 < step.phase_count && threadIdx.x < WORDS;  // of the next phase, loaded now and stored at the end
    int word = has_word ? first[(number + 1) * WORDS + threadIdx.x] : 0;
    epoch++;
    if (p.kind == ATTENTION) {
      const Attention& a = p.attention;
      float* shared = reinterpret_cast<float*>(memory);
      items.each(a, nearby.pages, step, [&](const Item& item) {
        attend_words(a, nearby.pages, step, item, ring, p.input, p.output, epoch, shared);
      });
    } else {
      product(p, step, epoch, ring, memory, sums, best);
    }
    if (has_word) reinterpret_cast<int*>(&phases[(number + 1) & 1])[threadIdx.x] = word;
    team_sync();  // the next phase is in shared memory, and this one's memory is free
  }
  leave_best(step, best, epoch, reinterpret_cast<float*>(memory + step.partials));
  if (blockIdx.x == 0) choose(step, epoch);
}

extern "C" __global__ void __launch_bounds__(TEAM + HELPERS * 32, 1) step_kernel(const __grid_constant__ Step step) {
  extern __shared__ __align__(128) char memory[];
  __shared__ __align__(8) u64 full[MOST_STAGES], empty[MOST_STAGES];
  __shared__ float sums[WARPS];
  __shared__ Nearby nearby;
  bool active = false;
  for (int r = 0; r < step.rows; r++) active |= step.pages.positions[r] >= 0;
  if (!active) return;
  if (threadIdx.x < step.stages) {
    init_barrier(shared_address(full + threadIdx.x), HELPERS);
    init_barrier(shared_address(empty + threadIdx.x), WARPS);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  Ring ring{shared_address(memory + step.ring), shared_address(full), shared_address(empty), step.stages};
  if (threadIdx.x >= TEAM)
    fill_ring(step, nearby.pages, ring);
  else
    consume(step, ring, memory, sums, nearby);
  if (blockIdx.x) return;
  __syncthreads();
  if (step.greedy) advance(step.run, step.rows, threadIdx.x);
  if (threadIdx.x == 0) ++*step.steps;
}
#endif
