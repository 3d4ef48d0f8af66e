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
INLINE float rounded(float v) {
  Element e;
  put(&e, v);
  return wide(e);
}

// Reads past the first-level cache, which does not see what other blocks wrote.
INLINE float fresh(const float* p) { return __ldcg(p); }
INLINE float fresh(const u16* p) { return wide(__ldcg(p)); }

// A barrier among the threads that compute; a block may have others that only copy.
INLINE void team_sync(int threads) { asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory"); }

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
};

struct Partials {  // what the parts of a split request leave for the last of them to join
  float *sums, *weights;  // (rows, heads, splits, head_dim), (rows, heads, splits, 2)
  int* arrived;           // (rows, kv_heads, chunks), zero between uses
  int splits;
};

INLINE long long cache_token(const Pages& p, int slot, int t) {
  return (long long)p.tables[slot * p.table_width + t / p.page_size] * p.page_size + t % p.page_size;
}

// One warp: norm and rotate one head. All loads are under way before the first is waited for.
template <class Q>
INLINE void prepare(const Q* from, const float* norm, const Attention& a, int position, float* to) {
  constexpr int PARTS = 32 * VECTOR / 2 / 32;  // heads have at most 32 * VECTOR numbers
  int lane = threadIdx.x % 32, d = a.head_dim, half = (d + 1) / 2, rotary_row = position;
  float left[PARTS], right[PARTS], left_norm[PARTS], right_norm[PARTS], c[PARTS], s[PARTS], squares = 0;
#pragma unroll
  for (int n = 0; n < PARTS; n++) {
    int i = lane + 32 * n;
    bool in_left = i < half, in_right = i + half < d;
    left[n] = in_left ? fresh(from + i) : 0.0f;
    right[n] = in_right ? fresh(from + i + half) : 0.0f;
    left_norm[n] = norm && in_left ? norm[i] : 1.0f;
    right_norm[n] = norm && in_right ? norm[i + half] : 1.0f;
    c[n] = a.cos && in_left ? a.cos[rotary_row * half + i] : 1.0f;
    s[n] = a.cos && in_left ? a.sin[rotary_row * half + i] : 0.0f;
  }
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

// VECTOR numbers of the cache as they lie there, which takes few registers, and as floats.
#if GT_BFLOAT16
typedef uint4 Raw;
INLINE Raw load_raw(const u16* from, int first, int d) {
  if (d % VECTOR == 0) return *reinterpret_cast<const uint4*>(from + first);
  u32 words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int at = first + 2 * i;
    words[i] = (at < d ? from[at] : 0u) | (at + 1 < d ? u32(from[at + 1]) << 16 : 0u);
  }
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
INLINE Raw load_raw(const float* from, int first, int d) {
  Raw raw;
#pragma unroll
  for (int i = 0; i < VECTOR; i++) raw.v[i] = first + i < d ? from[first + i] : 0.0f;
  return raw;
}
INLINE Raw no_raw() { return Raw{}; }
INLINE void widen(const Raw& raw, float (&v)[VECTOR]) {
#pragma unroll
  for (int i = 0; i < VECTOR; i++) v[i] = raw.v[i];
}
#endif

// Softmax so far of one head, of the tokens that some lanes have seen.
struct Running {
  float largest, total, sums[VECTOR];

  // `lanes` neighbours hold one token. All lanes of a warp call this; those whose token is not valid change nothing.
  __device__ __forceinline__ void add(const float (&q)[VECTOR], const Raw& key, const Raw& value, int lanes, bool valid) {
    float k[VECTOR], v[VECTOR], score = 0;
    widen(key, k);
    widen(value, v);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) score += q[i] * k[i];
    for (int o = lanes / 2; o; o >>= 1) score += __shfl_xor_sync(~0u, score, o);
    if (!valid) return;
    float above = fmaxf(largest, score), likely = exp2f(score - above), shrink = exp2f(largest - above);
    largest = above;
    total = total * shrink + likely;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sums[i] = sums[i] * shrink + likely * v[i];
  }

  // Join what lanes at distance `o` have seen.
  __device__ __forceinline__ void join(int o) {
    float other = __shfl_xor_sync(~0u, largest, o), above = fmaxf(largest, other);
    float mine = largest == -LARGE ? 0.0f : exp2f(largest - above), its = other == -LARGE ? 0.0f : exp2f(other - above);
    largest = above;
    total = total * mine + __shfl_xor_sync(~0u, total, o) * its;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sums[i] = sums[i] * mine + __shfl_xor_sync(~0u, sums[i], o) * its;
  }
};

// VECTOR numbers of shared memory, as if they came from the cache.
INLINE Raw raw_of(const float* from, int first, int d) {
  float v[VECTOR];
#pragma unroll
  for (int i = 0; i < VECTOR; i++) v[i] = first + i < d ? from[first + i] : 0.0f;
#if GT_BFLOAT16
  u32 words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) words[i] = __float_as_uint(v[2 * i]) >> 16 | (__float_as_uint(v[2 * i + 1]) & 0xffff0000u);
  return uint4{words[0], words[1], words[2], words[3]};
#else
  Raw raw;
#pragma unroll
  for (int i = 0; i < VECTOR; i++) raw.v[i] = v[i];
  return raw;
#endif
}

// One part of one request's tokens, for up to GROUP heads that share a key-value head. Where NEW, q and k come as the product
// left them, and the new key and value go to their page here; else rotate_kernel has done that.
template <class Q, class O, bool NEW>
INLINE void attend_item(const Attention& a, const Pages& p, const Partials& s, const Q* qkv, O* out, int item, int threads, float* shared) {
  int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, warps = threads / 32, d = a.head_dim;
  int group = a.heads / a.kv_heads, chunks = (group + GROUP - 1) / GROUP;
  int split = item % s.splits, chunk = item / s.splits % chunks, kv = item / (s.splits * chunks) % a.kv_heads;
  int row = item / (s.splits * chunks * a.kv_heads);
  int position = p.positions[row];
  if (position < 0) return;
  int slot = p.slots[row], visible = position + 1, each = (visible + s.splits - 1) / s.splits;
  int begin = split * each, end = min(begin + each, visible), cached = NEW ? min(end, position) : end;
  bool has_new = NEW && begin <= position && position < end;
  int first = kv * group + chunk * GROUP, count = min(GROUP, group - chunk * GROUP);
  float *q_shared = shared, *new_key = q_shared + GROUP * d, *new_value = new_key + d, *parts = new_value + d;
  const Q* from = qkv + (long long)row * (a.heads + 2 * a.kv_heads) * d;
  for (int job = warp; job < count + 2; job += warps) {
    if (job < count) {
      const Q* head = from + (first + job) * d;
      if (NEW)
        prepare(head, a.q_norm, a, position, q_shared + job * d);
      else
        for (int i = lane; i < d; i += 32) q_shared[job * d + i] = wide(head[i]);
    } else if (has_new) {
      bool is_key = job == count;
      const Q* head = from + (a.heads + (is_key ? 0 : a.kv_heads) + kv) * d;
      float* to = is_key ? new_key : new_value;
      if (is_key)
        prepare(head, a.k_norm, a, position, to);
      else
        for (int i = lane; i < d; i += 32) to[i] = fresh(head + i);
      __syncwarp();
      Element* page = (is_key ? a.keys : a.values) + (cache_token(p, slot, position) * a.kv_heads + kv) * d;
      for (int i = lane; i < d; i += 32) {
        to[i] = rounded(to[i]);
        if (chunk == 0) put(page + i, to[i]);
      }
    }
  }
  team_sync(threads);

  // Each warp has one head and every so many tokens. Little code matters: it runs once a phase, so it is fetched each time.
  int lanes = 1;
  while (lanes * VECTOR < d) lanes *= 2;
  int together = 32 / lanes, which = lane / lanes, element = lane % lanes * VECTOR;
  int mine = warp % count, member = warp / count, members = (warps - mine + count - 1) / count;
  float q[VECTOR];
#pragma unroll
  for (int i = 0; i < VECTOR; i++) q[i] = element + i < d ? q_shared[mine * d + element + i] * (a.scale * 1.4426950408889634f) : 0.0f;
  Running running = {-LARGE, 0, {}};
  constexpr int AT_ONCE = NEW ? 8 : 4;
  int stride = members * together;
  for (int base = begin + member * together; base < cached; base += stride * AT_ONCE) {
    Raw keys[AT_ONCE], values[AT_ONCE];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      int t = base + u * stride + which;
      bool valid = t < cached && element < d;
      long long at = valid ? (cache_token(p, slot, t) * a.kv_heads + kv) * d : 0;
      keys[u] = valid ? load_raw(a.keys + at, element, d) : no_raw();
      values[u] = valid ? load_raw(a.values + at, element, d) : no_raw();
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++)
      if (base + u * stride < cached) running.add(q, keys[u], values[u], lanes, base + u * stride + which < cached);
  }
  if (has_new && member == 0) running.add(q, raw_of(new_key, element, d), raw_of(new_value, element, d), lanes, which == 0);
  for (int o = lanes; o < 32; o *= 2) running.join(o);
  float *warp_sums = parts, *warp_weights = parts + warps * d;
  if (which == 0) {
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
      if (element + i < d) warp_sums[warp * d + element + i] = running.sums[i];
    if (element == 0) warp_weights[warp * 2] = running.largest, warp_weights[warp * 2 + 1] = running.total;
  }
  team_sync(threads);
  for (int at = thread; at < count * d; at += threads) {
    int g = at / d, i = at % d, head = first + g;
    float largest = -LARGE, total = 0, sum = 0;
    for (int w = g; w < warps; w += count) largest = fmaxf(largest, warp_weights[w * 2]);
    for (int w = g; w < warps; w += count) {
      float its = warp_weights[w * 2], share = its == -LARGE ? 0.0f : exp2f(its - largest);
      total += share * warp_weights[w * 2 + 1];
      sum += share * warp_sums[w * d + i];
    }
    if (s.splits == 1) {
      put(out + ((long long)row * a.heads + head) * d + i, sum / total);
    } else {
      long long part = ((long long)row * a.heads + head) * s.splits + split;
      s.sums[part * d + i] = sum;
      if (i == 0) s.weights[2 * part] = largest, s.weights[2 * part + 1] = total;
    }
  }
  if (s.splits > 1) {
    __threadfence();
    team_sync(threads);
    int* is_last = reinterpret_cast<int*>(shared);
    int* arrived = s.arrived + (row * a.kv_heads + kv) * chunks + chunk;
    if (thread == 0) *is_last = atomicAdd(arrived, 1) == s.splits - 1;
    team_sync(threads);
    if (*is_last) {
      if (thread == 0) *arrived = 0;
      float* weights = shared + 4;  // (count, splits, 2), after is_last
      for (int at = thread; at < count * s.splits * 2; at += threads)
        weights[at] = fresh(s.weights + 2 * ((long long)row * a.heads + first) * s.splits + at);
      team_sync(threads);
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
  }
  team_sync(threads);  // the shared memory is free for the next item
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
  if (is_q || is_k)
    prepare(at, is_q ? a.q_norm : a.k_norm, a, position, head);
  else
    for (int i = lane; i < d; i += 32) head[i] = wide(at[i]);
  __syncwarp();
  int kv = number - a.heads - (is_k ? 0 : a.kv_heads);
  if (!is_q) at = (is_k ? a.keys : a.values) + (cache_token(p, p.slots[row], position) * a.kv_heads + kv) * d;
  for (int i = lane; i < d; i += 32) put(at + i, head[i]);
}

extern "C" __global__ void attention_kernel(const Element* qkv, Element* out, Attention a, Pages p, Partials s) {
  extern __shared__ float shared[];
  attend_item<Element, Element, false>(a, p, s, qkv, out, blockIdx.x, blockDim.x, shared);
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
