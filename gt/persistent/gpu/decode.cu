// The kernels of a decode step, one for each kind of layer. Appended to attention_tiles.cu.

// The next kernel may take its place on the GPU, and this one waits for all that the kernel before it wrote.
INLINE void after_the_last() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory");
#endif
}

// One item; rotate_kernel has written the new key and value into their page. The last block of a split request joins the parts.
template <class Reader>
INLINE void attend_item(const Attention& a, const Pages& p, const Partials& s, const Element* qkv, Element* out, int number,
                        float* shared) {
  int thread = threadIdx.x, threads = blockDim.x, warp = thread / 32, warps = threads / 32, d = a.head_dim;
  Item item(a, p, s.splits, number);
  if (!item.active) return;
  Reader reader(item, warp, warps, item.end, d);
  reader.begin(a, p, item);
  int row = item.row, first = item.first, count = item.count;
  float *q_shared = shared, *parts = q_shared + GROUP * d;
  const Element* from = qkv + ((long long)row * (a.heads + 2 * a.kv_heads) + first) * d;
  for (int i = thread; i < count * d; i += threads) q_shared[i] = wide(from[i]);
  __syncthreads();
  reader.query(q_shared, a, item);
  reader.attend(a, p, item);
  reader.leave(parts, warp, item, d);
  __syncthreads();
  for (int at = thread; at < count * d; at += threads) {
    int g = at / d, i = at % d, head = first + g;
    Joined joined(parts, g, count, i, Reader::parts(item, warps), d);
    if (s.splits == 1) {
      put(out + ((long long)row * a.heads + head) * d + i, joined.sum / joined.total);
    } else {
      long long part = ((long long)row * a.heads + head) * s.splits + item.split;
      s.sums[part * d + i] = joined.sum;
      if (i == 0) s.weights[2 * part] = joined.largest, s.weights[2 * part + 1] = joined.total;
    }
  }
  if (s.splits == 1) return;
  __threadfence();
  __syncthreads();
  int* is_last = reinterpret_cast<int*>(shared);
  int* arrived = s.arrived + row * a.heads + first;
  if (thread == 0) *is_last = atomicAdd(arrived, 1) == s.splits - 1;
  __syncthreads();
  if (!*is_last) return;
  if (thread == 0) *arrived = 0;
  float* weights = shared + 4;  // (count, splits, 2), after is_last
  for (int at = thread; at < count * s.splits * 2; at += threads)
    weights[at] = fresh(s.weights + 2 * ((long long)row * a.heads + first) * s.splits + at);
  __syncthreads();
  for (int at = thread; at < count * d; at += threads) {
    int g = at / d, i = at % d;
    const float* sums = s.sums + ((long long)row * a.heads + first + g) * s.splits * d + i;
    float largest = -LARGE, total = 0, sum = 0;
    for (int w = 0; w < s.splits; w++) largest = fmaxf(largest, weights[2 * (g * s.splits + w)]);
#pragma unroll 8
    for (int w = 0; w < s.splits; w++) {
      float share = exp2f(weights[2 * (g * s.splits + w)] - largest);
      total += share * weights[2 * (g * s.splits + w) + 1];
      sum += share * fresh(sums + w * d);
    }
    put(out + ((long long)row * a.heads + first + g) * d + i, sum / total);
  }
}

extern "C" __global__ void embed_kernel(const int* tokens, const Element* table, Element* out, int width, int stride) {
  after_the_last();
  const Element* from = table + (long long)tokens[blockIdx.x] * stride;
  for (int i = threadIdx.x; i < width; i += blockDim.x) out[(long long)blockIdx.x * width + i] = from[i];
}

extern "C" __global__ void norm_kernel(const Element* x, const float* weight, Element* out, int width, float eps) {
  __shared__ float sums[32];
  after_the_last();
  const Element* row = x + (long long)blockIdx.x * width;
  float squares = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) squares += wide(row[i]) * wide(row[i]);
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
  __syncthreads();
  float total = 0;
  for (int w = 0; w < blockDim.x / 32; w++) total += sums[w];
  float factor = rsqrtf(total / width + eps);
  for (int i = threadIdx.x; i < width; i += blockDim.x) put(out + (long long)blockIdx.x * width + i, wide(row[i]) * factor * weight[i]);
}

extern "C" __global__ void gate_kernel(const Element* x, Element* out, int rows, int width) {
  after_the_last();
  long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= (long long)rows * width) return;
  const Element* gate = x + at / width * 2 * width + at % width;
  put(out + at, silu(wide(gate[0])) * wide(gate[width]));
}

// One warp for each head of q, k and v.
extern "C" __global__ void rotate_kernel(Element* qkv, Attention a, Pages p) {
  extern __shared__ float head[];
  after_the_last();
  int row = blockIdx.x, number = blockIdx.y, lane = threadIdx.x, d = a.head_dim, position = p.positions[row];
  if (position < 0) return;
  Element* at = qkv + ((long long)row * (a.heads + 2 * a.kv_heads) + number) * d;
  bool is_q = number < a.heads, is_k = !is_q && number < a.heads + a.kv_heads;
  auto read = [at, lane](int half, int d, float(&left)[PARTS], float(&right)[PARTS]) {
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
      int i = lane + 32 * n;
      left[n] = i < half ? wide(at[i]) : 0.0f;
      right[n] = i + half < d ? wide(at[i + half]) : 0.0f;
    }
  };
  if (is_q || is_k)
    prepare<PARTS>(read, is_q ? a.q_norm : a.k_norm, a, position, head);
  else
    for (int i = lane; i < d; i += 32) head[i] = wide(at[i]);
  __syncwarp();
  int kv = number - a.heads - (is_k ? 0 : a.kv_heads);
  if (!is_q) at = (is_k ? a.keys : a.values) + cache_place(p, p.slots[row], position, a.kv_heads, kv) * d;
  int turn = is_q ? 0 : turn_of(position, d);
  for (int i = lane; i < d; i += 32) put(at + turned(i, turn), head[i]);
}

extern "C" __global__ void __launch_bounds__(128, 3) attention_kernel(const Element* qkv, Element* out, Attention a, Pages p, Partials s) {
  extern __shared__ float shared[];
  after_the_last();
#if GT_BFLOAT16
  if (a.head_dim % VECTOR == 0 && a.head_dim <= 64) return attend_item<Tiles<64>>(a, p, s, qkv, out, blockIdx.x, shared);
  if (a.head_dim % VECTOR == 0 && a.head_dim <= 128) return attend_item<Tiles<128>>(a, p, s, qkv, out, blockIdx.x, shared);
#endif
  if (a.head_dim % VECTOR == 0) attend_item<Window<true>>(a, p, s, qkv, out, blockIdx.x, shared);
  else attend_item<Window<false>>(a, p, s, qkv, out, blockIdx.x, shared);
}

// The larger of two numbers, and the lower index where they are equal.
INLINE void take(float& best, int& index, float other, int other_index) {
  if (other > best || (other == best && other_index < index)) best = other, index = other_index;
}

INLINE void warp_argmax(float& best, int& index) {
  for (int o = 16; o; o >>= 1) {
    float other = __shfl_xor_sync(~0u, best, o);
    take(best, index, other, __shfl_xor_sync(~0u, index, o));
  }
}

// The best of all threads of a block, in its first thread.
INLINE void block_argmax(float& best, int& index) {
  __shared__ float bests[32];
  __shared__ int indices[32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  warp_argmax(best, index);
  if (lane == 0) bests[warp] = best, indices[warp] = index;
  __syncthreads();
  best = lane < blockDim.x / 32 ? bests[lane] : -LARGE, index = lane < blockDim.x / 32 ? indices[lane] : 0x7fffffff;
  warp_argmax(best, index);
}

// Each row has gridDim.y blocks, of which the last to arrive chooses among the bests of all: (rows, gridDim.y, 2) words. `arrived`
// is zero between uses.
extern "C" __global__ void argmax_kernel(const float* logits, int* chosen, int* bests, int* arrived, int count) {
  __shared__ int is_last;
  after_the_last();
  int row = blockIdx.x, parts = gridDim.y, threads = blockDim.x, index = count - 1;
  const float* from = logits + (long long)row * count;
  float best = -LARGE;
#pragma unroll 8
  for (int i = blockIdx.y * threads + threadIdx.x; i < count; i += parts * threads) take(best, index, from[i], i);
  block_argmax(best, index);
  int* mine = bests + (row * parts + blockIdx.y) * 2;
  if (threadIdx.x == 0) {
    mine[0] = __float_as_int(best), mine[1] = index;
    __threadfence();
    is_last = atomicAdd(arrived + row, 1) == parts - 1;
  }
  __syncthreads();
  if (!is_last || threadIdx.x >= 32) return;
  __threadfence();
  best = -LARGE, index = count - 1;
  for (int part = threadIdx.x; part < parts; part += 32) {
    const int* its = bests + (row * parts + part) * 2;
    take(best, index, __int_as_float(__ldcg(its)), __ldcg(its + 1));
  }
  warp_argmax(best, index);
  if (threadIdx.x == 0) chosen[row] = index, arrived[row] = 0;
}

struct Run {  // gt/persistent/gpu/state.py holds these
  int *chosen, *tokens, *positions, *counts, *made;
  const int *limits, *eos, *stop_at_first_end;
  int made_width, stops;
};

// One block of at least `rows` threads: append the chosen tokens; rows at their end become empty, all of them at the first end
// where that is asked for.
INLINE void advance(const Run& run, int rows, int row) {
  __shared__ int any_ended;
  if (row == 0) any_ended = 0;
  __syncthreads();
  int position = row < rows ? run.positions[row] : -1, length = position + 1;
  bool ended = false;
  if (position >= 0) {
    int token = __ldcg(run.chosen + row), count = run.counts[row];
    run.made[row * run.made_width + count] = token;
    run.counts[row] = count + 1;
    run.tokens[row] = token;
    ended = length + 1 >= run.limits[row];
    for (int i = 0; i < run.stops && run.eos[i] >= 0; i++) ended |= run.eos[i] == token;
    if (ended) any_ended = 1;
  }
  __syncthreads();
  bool halted = any_ended && *run.stop_at_first_end;
  if (position >= 0) run.positions[row] = ended || halted ? -1 : length;
}

extern "C" __global__ void advance_kernel(Run run, int rows) {
  after_the_last();
  advance(run, rows, threadIdx.x);
}
