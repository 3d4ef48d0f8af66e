// The kernels of a decode step, one for each kind of layer. Compiled at run time for the GPU that is there, once with
// GT_BFLOAT16 and once without; it includes nothing. Sums are float32. A row at position -1 is empty.
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if GT_BFLOAT16
typedef u16 Element;
#else
typedef float Element;
#endif

#define INLINE static __device__ __forceinline__
constexpr int GROUP = 4;  // query heads of one key-value head that are computed together
#define LARGE __int_as_float(0x7f800000)  // infinity
constexpr int VECTOR = 8;  // numbers that one lane holds of a head

INLINE float wide(u16 v) { return __uint_as_float(u32(v) << 16); }
INLINE float wide(float v) { return v; }
INLINE void put(float* to, float v) { *to = v; }
INLINE void put(u16* to, float v) {
  u16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v));
  *to = r;
}

// A read past the first-level cache, which does not see what other blocks wrote.
INLINE float fresh(const float* p) { return __ldcg(p); }

INLINE float warp_sum(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}

INLINE float silu(float v) { return v / (1.0f + expf(-v)); }

// ---- paged attention ----

struct Attention {
  const float *q_norm, *k_norm, *cos, *sin;  // null where there is none
  Element *keys, *values;                    // (pages, page_size, kv_heads, head_dim) of this layer
  int heads, kv_heads, head_dim;
  float eps, scale;
};

struct Pages {
  const int *positions, *slots, *tables;  // (rows,), (rows,), (slots, table_width)
  int table_width, page_size;
  u32 reciprocal;  // the next integer from 2^32 / page_size, for a division of few instructions
};

struct Partials {  // results of the parts of a split request, joined by the block that arrives last
  float *sums, *weights;  // (rows, heads, splits, head_dim), (rows, heads, splits, 2)
  int* arrived;           // (rows, heads), zero between uses
  int splits;
};

INLINE long long cache_token(const Pages& p, int slot, int t) {
  int page = p.page_size == 1 ? t : __umulhi(t, p.reciprocal), in_page = t - page * p.page_size;
  return (long long)p.tables[slot * p.table_width + page] * p.page_size + in_page;
}

// One warp: norm and rotate one head, of which `read` gives the two halves. Other loads are under way before it is called.
constexpr int PARTS = VECTOR / 2;  // numbers of half a head in one lane: heads have at most 32 * VECTOR
template <class Read>
INLINE void prepare(Read read, const float* norm, const Attention& a, int position, float* to) {
  int lane = threadIdx.x % 32, d = a.head_dim, half = (d + 1) / 2, rotary_row = position;
  float left[PARTS], right[PARTS], left_norm[PARTS], right_norm[PARTS], c[PARTS], s[PARTS], squares = 0;
#pragma unroll
  for (int n = 0; n < PARTS; n++) {
    int i = lane + 32 * n;
    bool in_left = i < half, in_right = i + half < d;
    left_norm[n] = norm && in_left ? norm[i] : 1.0f;
    right_norm[n] = norm && in_right ? norm[i + half] : 1.0f;
    c[n] = a.cos && in_left ? a.cos[rotary_row * half + i] : 1.0f;
    s[n] = a.cos && in_left ? a.sin[rotary_row * half + i] : 0.0f;
  }
  read(half, d, left, right);
#pragma unroll
  for (int n = 0; n < PARTS; n++) squares += left[n] * left[n] + right[n] * right[n];
  float factor = norm ? rsqrtf(warp_sum(squares) / d + a.eps) : 1.0f;
#pragma unroll
  for (int n = 0; n < PARTS; n++) {
    int i = lane + 32 * n;
    float l = left[n] * factor * left_norm[n], r = right[n] * factor * right_norm[n];
    if (i < half) to[i] = l * c[n] - r * s[n];
    if (i + half < d) to[i + half] = r * c[n] + l * s[n];
  }
}

// VECTOR numbers of the cache: in its own type, which takes few registers, and widened to floats.
#if GT_BFLOAT16
typedef uint4 Raw;
INLINE Raw load_raw(const u16* from) { return __ldg(reinterpret_cast<const uint4*>(from)); }
INLINE Raw load_few(const u16* from, int count) {  // at any address
  u32 words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) words[i] = (2 * i < count ? from[2 * i] : 0u) | (2 * i + 1 < count ? u32(from[2 * i + 1]) << 16 : 0u);
  return uint4{words[0], words[1], words[2], words[3]};
}
INLINE Raw no_raw() { return uint4{0, 0, 0, 0}; }
INLINE void widen(const Raw& raw, float (&v)[VECTOR]) {
  u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; i++) v[2 * i] = __uint_as_float(words[i] << 16), v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
}
#else
struct Raw {
  float v[VECTOR];
};
INLINE Raw load_few(const float* from, int count) {
  Raw raw;
#pragma unroll
  for (int i = 0; i < VECTOR; i++) raw.v[i] = i < count ? from[i] : 0.0f;
  return raw;
}
INLINE Raw load_raw(const float* from) { return load_few(from, VECTOR); }
INLINE Raw no_raw() { return Raw{}; }
INLINE void widen(const Raw& raw, float (&v)[VECTOR]) {
#pragma unroll
  for (int i = 0; i < VECTOR; i++) v[i] = raw.v[i];
}
#endif

// How a warp holds tokens: `lanes` neighbours have one, VECTOR numbers each, so `together` are held at one time.
struct Lanes {
  int lanes = 1, together, which, element;
  __device__ __forceinline__ explicit Lanes(int d) {
    while (lanes * VECTOR < d) lanes *= 2;
    together = 32 / lanes, which = threadIdx.x % 32 / lanes, element = threadIdx.x % lanes * VECTOR;
  }
};

// q times N keys, in all lanes that hold a key. All lanes of a warp call this.
template <int N>
INLINE void score(const float (&q)[VECTOR], const Raw (&keys)[N], int lanes, float (&scores)[N]) {
#pragma unroll
  for (int u = 0; u < N; u++) {
    float k[VECTOR];
    widen(keys[u], k);
    scores[u] = 0;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) scores[u] += q[i] * k[i];
  }
  for (int o = lanes / 2; o; o >>= 1) {
#pragma unroll
    for (int u = 0; u < N; u++) scores[u] += __shfl_xor_sync(~0u, scores[u], o);
  }
}

// Softmax of one head over the tokens that some lanes have read so far.
struct Running {
  float largest, total, sums[VECTOR];

  // A score of -LARGE adds nothing.
  template <int N>
  __device__ __forceinline__ void add(const float (&scores)[N], const Raw (&values)[N]) {
    float above = largest;
#pragma unroll
    for (int u = 0; u < N; u++) above = fmaxf(above, scores[u]);
    float from = above == -LARGE ? 0.0f : above, shrink = exp2f(largest - from);
    largest = above, total *= shrink;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sums[i] *= shrink;
#pragma unroll
    for (int u = 0; u < N; u++) {
      float v[VECTOR], likely = exp2f(scores[u] - from);
      widen(values[u], v);
      total += likely;
#pragma unroll
      for (int i = 0; i < VECTOR; i++) sums[i] += likely * v[i];
    }
  }

  // Join the tokens of the lanes at distance `o`.
  __device__ __forceinline__ void join(int o) {
    float other = __shfl_xor_sync(~0u, largest, o), above = fmaxf(largest, other);
    float mine = largest == -LARGE ? 0.0f : exp2f(largest - above), its = other == -LARGE ? 0.0f : exp2f(other - above);
    largest = above;
    total = total * mine + __shfl_xor_sync(~0u, total, o) * its;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sums[i] = sums[i] * mine + __shfl_xor_sync(~0u, sums[i], o) * its;
  }
};

// One part of one request's tokens, for up to GROUP heads that share a key-value head. An empty row is at position 0.
struct Item {
  int split, chunk, kv, row, position, slot, begin, end, first, count;
  bool active;
  __device__ __forceinline__ Item(const Attention& a, const Pages& p, int splits, int number) {
    int group = a.heads / a.kv_heads, chunks = (group + GROUP - 1) / GROUP;
    split = number % splits, chunk = number / splits % chunks, kv = number / (splits * chunks) % a.kv_heads;
    row = number / (splits * chunks * a.kv_heads);
    position = p.positions[row], active = position >= 0, position = max(position, 0), slot = p.slots[row];
    int visible = position + 1, each = (visible + splits - 1) / splits;
    begin = split * each, end = min(begin + each, visible);
    first = kv * group + chunk * GROUP, count = min(GROUP, group - chunk * GROUP);
  }
};

// The cached tokens that one warp of `warps` attends to, WINDOW at a time: each warp has one head and every so many tokens.
// ALIGNED says that heads are multiples of VECTOR numbers.
constexpr int WINDOW = 4;  // 8 take more registers and were slower: 0.80 against 0.76 ms a step of Qwen3-0.6B's shape
template <bool ALIGNED>
struct Window {
  int head, base, stride, end, where[WINDOW];  // place of a token in the cache, -1 past the end
  Raw keys[WINDOW], values[WINDOW];

  __device__ __forceinline__ Window(const Item& item, const Lanes& l, int warp, int warps, int end) : end(end) {
    head = warp % item.count;
    int member = warp / item.count, members = (warps - head + item.count - 1) / item.count;
    base = item.begin + member * l.together, stride = members * l.together;
  }
  __device__ __forceinline__ void find(const Pages& p, const Item& item, const Lanes& l) {
#pragma unroll
    for (int u = 0; u < WINDOW; u++) {
      int t = base + u * stride + l.which;
      where[u] = t < end ? cache_token(p, item.slot, t) : -1;
    }
  }
  __device__ __forceinline__ void load(Raw (&to)[WINDOW], const Element* cache, const Attention& a, int kv, int element) {
    int d = a.head_dim, token = a.kv_heads * d;
    const Element* from = cache + kv * d + element;
#pragma unroll
    for (int u = 0; u < WINDOW; u++) {
      const Element* at = from + (long long)where[u] * token;
      to[u] = where[u] < 0 || element >= d ? no_raw() : ALIGNED ? load_raw(at) : load_few(at, d - element);
    }
  }
  __device__ __forceinline__ void begin(const Attention& a, const Pages& p, const Item& item, const Lanes& l) {
    find(p, item, l);
    load(keys, a.keys, a, item.kv, l.element);
    load(values, a.values, a, item.kv, l.element);
  }
  // After begin(). The next keys and values are under way while these are computed.
  __device__ __forceinline__ void attend(Running& running, const float (&q)[VECTOR], const Attention& a, const Pages& p, const Item& item,
                                         const Lanes& l) {
    while (base < end) {
      float scores[WINDOW];
      score(q, keys, l.lanes, scores);
#pragma unroll
      for (int u = 0; u < WINDOW; u++)
        if (where[u] < 0) scores[u] = -LARGE;
      base += WINDOW * stride;
      find(p, item, l);
      load(keys, a.keys, a, item.kv, l.element);
      running.add(scores, values);
      load(values, a.values, a, item.kv, l.element);
    }
  }
};

INLINE void scaled_query(float (&q)[VECTOR], const float* from, const Attention& a, int element) {
#pragma unroll
  for (int i = 0; i < VECTOR; i++) q[i] = element + i < a.head_dim ? from[element + i] * (a.scale * 1.4426950408889634f) : 0.0f;
}

// Each warp writes its softmax to shared memory: (warps, d) sums, then (warps, 2) largest scores and totals.
INLINE void leave_sums(Running& running, const Lanes& l, float* parts, int warp, int warps, int d) {
  for (int o = l.lanes; o < 32; o *= 2) running.join(o);
  if (l.which) return;
#pragma unroll
  for (int i = 0; i < VECTOR; i++)
    if (l.element + i < d) parts[warp * d + l.element + i] = running.sums[i];
  if (l.element == 0) parts[warps * d + warp * 2] = running.largest, parts[warps * d + warp * 2 + 1] = running.total;
}

// One number of a head, joined over the warps that computed it: every `count`-th warp from `g`.
struct Joined {
  float largest, total, sum;
  __device__ __forceinline__ Joined(const float* parts, int g, int count, int i, int warps, int d)
      : largest(-LARGE), total(0), sum(0) {
    const float* weights = parts + warps * d;
    for (int w = g; w < warps; w += count) largest = fmaxf(largest, weights[w * 2]);
    for (int w = g; w < warps; w += count) {
      float its = weights[w * 2], share = its == -LARGE ? 0.0f : exp2f(its - largest);
      total += share * weights[w * 2 + 1];
      sum += share * parts[w * d + i];
    }
  }
};

// One item; rotate_kernel has written the new key and value into their page. The last block of a split request joins the parts.
template <bool ALIGNED>
INLINE void attend_item(const Attention& a, const Pages& p, const Partials& s, const Element* qkv, Element* out, int number,
                        float* shared) {
  int thread = threadIdx.x, threads = blockDim.x, warp = thread / 32, warps = threads / 32, d = a.head_dim;
  Item item(a, p, s.splits, number);
  if (!item.active) return;
  Lanes l(d);
  Window<ALIGNED> window(item, l, warp, warps, item.end);
  window.begin(a, p, item, l);
  int row = item.row, first = item.first, count = item.count;
  float *q_shared = shared, *parts = q_shared + GROUP * d, q[VECTOR];
  const Element* from = qkv + ((long long)row * (a.heads + 2 * a.kv_heads) + first) * d;
  for (int i = thread; i < count * d; i += threads) q_shared[i] = wide(from[i]);
  __syncthreads();
  scaled_query(q, q_shared + window.head * d, a, l.element);
  Running running = {-LARGE, 0, {}};
  window.attend(running, q, a, p, item, l);
  leave_sums(running, l, parts, warp, warps, d);
  __syncthreads();
  for (int at = thread; at < count * d; at += threads) {
    int g = at / d, i = at % d, head = first + g;
    Joined joined(parts, g, count, i, warps, d);
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

// ---- one kernel for each kind of layer ----

extern "C" __global__ void embed_kernel(const int* tokens, const Element* table, Element* out, int width, int stride) {
  const Element* from = table + (long long)tokens[blockIdx.x] * stride;
  for (int i = threadIdx.x; i < width; i += blockDim.x) out[(long long)blockIdx.x * width + i] = from[i];
}

extern "C" __global__ void norm_kernel(const Element* x, const float* weight, Element* out, int width, float eps) {
  __shared__ float sums[32];
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
  long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= (long long)rows * width) return;
  const Element* gate = x + at / width * 2 * width + at % width;
  put(out + at, silu(wide(gate[0])) * wide(gate[width]));
}

// One warp for each head of q, k and v.
extern "C" __global__ void rotate_kernel(Element* qkv, Attention a, Pages p) {
  extern __shared__ float head[];
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
    prepare(read, is_q ? a.q_norm : a.k_norm, a, position, head);
  else
    for (int i = lane; i < d; i += 32) head[i] = wide(at[i]);
  __syncwarp();
  int kv = number - a.heads - (is_k ? 0 : a.kv_heads);
  if (!is_q) at = (is_k ? a.keys : a.values) + (cache_token(p, p.slots[row], position) * a.kv_heads + kv) * d;
  for (int i = lane; i < d; i += 32) put(at + i, head[i]);
}

extern "C" __global__ void attention_kernel(const Element* qkv, Element* out, Attention a, Pages p, Partials s) {
  extern __shared__ float shared[];
  if (a.head_dim % VECTOR == 0) attend_item<true>(a, p, s, qkv, out, blockIdx.x, shared);
  else attend_item<false>(a, p, s, qkv, out, blockIdx.x, shared);
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

extern "C" __global__ void argmax_kernel(const float* logits, int* chosen, int count) {
  __shared__ float bests[32];
  __shared__ int indices[32];
  const float* row = logits + (long long)blockIdx.x * count;
  float best = -LARGE;
  int index = count - 1;
  for (int i = threadIdx.x; i < count; i += blockDim.x) take(best, index, row[i], i);
  warp_argmax(best, index);
  if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best, indices[threadIdx.x / 32] = index;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  int warps = blockDim.x / 32, lane = threadIdx.x;
  best = lane < warps ? bests[lane] : -LARGE, index = lane < warps ? indices[lane] : count - 1;
  warp_argmax(best, index);
  if (lane == 0) chosen[blockIdx.x] = index;
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

extern "C" __global__ void advance_kernel(Run run, int rows) { advance(run, rows, threadIdx.x); }
