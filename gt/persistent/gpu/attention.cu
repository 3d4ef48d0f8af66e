// Paged attention by the warps of a block. The sources here are one text, in the order of cuda_executor.py, compiled at run time
// for the GPU that is there, once with GT_BFLOAT16 and once without; it includes nothing. Sums are float32. A row at
// position -1 is empty.
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

// A read past the first-level cache, which does not see the writes of other blocks.
INLINE float fresh(const float* p) { return __ldcg(p); }

INLINE float warp_sum(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}

INLINE float silu(float v) { return v / (1.0f + expf(-v)); }

constexpr float LOG2E = 1.4426950408889634f;  // softmax is computed in powers of two

struct Attention {
  const float *q_norm, *k_norm, *cos, *sin;  // null where there is none
  Element *keys, *values;                    // (pages, kv_heads, page_size, head_dim) of this layer, turned: see turn_of
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

INLINE int page_of(const Pages& p, int t) { return p.page_size == 1 ? t : __umulhi(t, p.reciprocal); }

// The place of a token's head in the cache, in heads. In a page the tokens of a head are neighbours, so they are copied together.
INLINE long long cache_place(const Pages& p, int slot, int t, int kv_heads, int kv) {
  int page = page_of(p, t), in_page = t - page * p.page_size;
  return ((long long)p.tables[slot * p.table_width + page] * kv_heads + kv) * p.page_size + in_page;
}

// The vectors of a head of 64 or 128 bfloat16 numbers stand in another order in the cache: number v at v ^ turn_of(...). As the banks
// of shared memory of the same vector of eight neighbouring tokens then differ, tokens are copied there as they are.
INLINE int turn_of(int t, int head_dim) { return sizeof(Element) == 2 && (head_dim == 64 || head_dim == 128) ? t & 7 : 0; }
INLINE int turned(int element, int turn) { return element ^ turn * VECTOR; }

// One warp: norm and rotate one head, of which `read` gives the two halves. Other loads are under way before it is called.
// A lane has N numbers of each half, so heads have at most 64 * N.
constexpr int PARTS = VECTOR / 2;
template <int N, class Read>
INLINE void prepare(Read read, const float* norm, const Attention& a, int position, float* to) {
  int lane = threadIdx.x % 32, d = a.head_dim, half = (d + 1) / 2, rotary_row = position;
  float left[N], right[N], left_norm[N], right_norm[N], c[N], s[N], squares = 0;
#pragma unroll
  for (int n = 0; n < N; n++) {
    int i = lane + 32 * n;
    bool in_left = i < half, in_right = i + half < d;
    left_norm[n] = norm && in_left ? norm[i] : 1.0f;
    right_norm[n] = norm && in_right ? norm[i + half] : 1.0f;
    c[n] = a.cos && in_left ? a.cos[rotary_row * half + i] : 1.0f;
    s[n] = a.cos && in_left ? a.sin[rotary_row * half + i] : 0.0f;
  }
  read(half, d, left, right);
#pragma unroll
  for (int n = 0; n < N; n++) squares += left[n] * left[n] + right[n] * right[n];
  float factor = norm ? rsqrtf(warp_sum(squares) / d + a.eps) : 1.0f;
#pragma unroll
  for (int n = 0; n < N; n++) {
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
  Item() = default;
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
// ALIGNED: heads are multiples of VECTOR numbers.
constexpr int WINDOW = 4;  // 8 take more registers and were slower: 0.80 against 0.76 ms a step of Qwen3-0.6B's shape
template <bool ALIGNED>
struct Window {
  Lanes l;
  int head, base, stride, end, where[WINDOW];  // place of a token's head in the cache, -1 past the end
  Raw keys[WINDOW], values[WINDOW];
  float q[VECTOR];
  Running running = {-LARGE, 0, {}};

  __device__ __forceinline__ Window(const Item& item, int warp, int warps, int end, int d) : l(d), end(end) {
    head = warp % item.count;
    int member = warp / item.count, members = (warps - head + item.count - 1) / item.count;
    base = item.begin + member * l.together, stride = members * l.together;
  }
  static __device__ __forceinline__ int parts(const Item&, int warps) { return warps; }

  __device__ __forceinline__ void find(const Attention& a, const Pages& p, const Item& item) {
#pragma unroll
    for (int u = 0; u < WINDOW; u++) {
      int t = base + u * stride + l.which;
      where[u] = t < end ? cache_place(p, item.slot, t, a.kv_heads, item.kv) : -1;
    }
  }
  __device__ __forceinline__ void load(Raw (&to)[WINDOW], const Element* cache, int d) {
    const Element* from = cache + l.element;  // heads that this reads are not turned
#pragma unroll
    for (int u = 0; u < WINDOW; u++) {
      const Element* at = from + (long long)where[u] * d;
      to[u] = where[u] < 0 || l.element >= d ? no_raw() : ALIGNED ? load_raw(at) : load_few(at, d - l.element);
    }
  }
  // The first loads are under way before the queries are known.
  __device__ __forceinline__ void begin(const Attention& a, const Pages& p, const Item& item) {
    find(a, p, item);
    load(keys, a.keys, a.head_dim);
    load(values, a.values, a.head_dim);
  }
  __device__ __forceinline__ void query(const float* queries, const Attention& a, const Item&) {
    const float* from = queries + head * a.head_dim;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) q[i] = l.element + i < a.head_dim ? from[l.element + i] * a.scale * LOG2E : 0.0f;
  }
  // After begin() and query(). The next keys and values are under way while these are computed.
  __device__ __forceinline__ void attend(const Attention& a, const Pages& p, const Item& item) {
    while (base < end) {
      float scores[WINDOW];
      score(q, keys, l.lanes, scores);
#pragma unroll
      for (int u = 0; u < WINDOW; u++)
        if (where[u] < 0) scores[u] = -LARGE;
      base += WINDOW * stride;
      find(a, p, item);
      load(keys, a.keys, a.head_dim);
      running.add(scores, values);
      load(values, a.values, a.head_dim);
    }
  }
  __device__ __forceinline__ void leave(float* parts, int warp, const Item&, int d) {
    for (int o = l.lanes; o < 32; o *= 2) running.join(o);
    if (l.which) return;
    float* part = parts + warp * (d + 2);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
      if (l.element + i < d) part[l.element + i] = running.sums[i];
    if (l.element == 0) part[d] = running.largest, part[d + 1] = running.total;
  }
};

// A number of a head, joined over the parts that hold it: every `count`-th of `number` from `g`. A part in shared memory is the
// sums of a head, d numbers, then its largest score and its total.
struct Joined {
  float largest = -LARGE, total = 0, sum = 0;
  __device__ __forceinline__ Joined(const float* parts, int g, int count, int i, int number, int d) {
#pragma unroll 4
    for (int n = g; n < number; n += count) largest = fmaxf(largest, parts[n * (d + 2) + d]);
#pragma unroll 4
    for (int n = g; n < number; n += count) {
      const float* part = parts + n * (d + 2);
      float share = part[d] == -LARGE ? 0.0f : exp2f(part[d] - largest);
      total += share * part[d + 1];
      sum += share * part[i];
    }
  }
};
