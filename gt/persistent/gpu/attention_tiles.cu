// Attention on tensor cores, for bfloat16 and heads of multiples of VECTOR numbers. Appended to attention.cu.
#if GT_BFLOAT16

INLINE u32 packed(float low, float high) {  // two bfloat16 numbers
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

INLINE void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

INLINE u32 transposed(u32 pair) {  // of a matrix of 8 x 8 bfloat16 numbers, two in each lane
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
  return r;
}

// Two numbers in bfloat16, or with `rest` their rounding errors in bfloat16: value and error together have 16 bits.
INLINE u32 packed_part(float low, float high, bool rest) {
  u32 both = packed(low, high);
  return rest ? packed(low - __uint_as_float(both << 16), high - __uint_as_float(both & 0xffff0000u)) : both;
}

// The cached tokens that one warp attends to, for all heads of the item, 16 at a time: keys and values are read once. They are the
// first operand of a product. The second has a head in each of its columns, GROUP of them, and in the columns after them the
// rounding errors of the same queries or weights: the sum of both results is as exact as with float32 numbers. Lane (g, t)
// of 8 x 4 loads 16 neighbouring bytes at a time; the summed dimension may be in any order, the same in both operands.
template <int DIMS>
struct Tiles {
  static constexpr int TOKENS = 16, BLOCKS = DIMS / 32, HALVES = DIMS / 64;
  int g, t, base, stride, end, place;  // place of the head of token base + lane % 16 in the cache, -1 past the end
  u32 q[BLOCKS][4];
  Raw keys[2][BLOCKS], values[HALVES][4];
  float largest[2] = {-LARGE, -LARGE}, total[2] = {0, 0};  // of heads 2t % GROUP and the next
  float sums[HALVES][4][4] = {};

  __device__ __forceinline__ Tiles(const Item& item, int warp, int warps, int end, int) : end(end) {
    g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    base = item.begin + warp * TOKENS, stride = warps * TOKENS;
  }
  static __device__ __forceinline__ int parts(const Item& item, int warps) { return warps * item.count; }

  __device__ __forceinline__ void find(const Attention& a, const Pages& p, const Item& item) {
    int token = base + threadIdx.x % TOKENS;
    place = token < end ? cache_place(p, item.slot, token, a.kv_heads, item.kv) : -1;
  }
  // Zeros past the end. What is read once does not stay in the first-level cache.
  static __device__ __forceinline__ Raw load(const Element* token, int where, int element, int d) {
    Raw r;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;"
                 "@p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "=&r"(r.x), "=&r"(r.y), "=&r"(r.z), "=&r"(r.w) : "l"(token + element), "r"(u32(where >= 0 && element < d)));
    return r;
  }
  // Tokens g and g + 8.
  __device__ __forceinline__ void load_keys(const Attention& a) {
    int turn = turn_of(base + g, a.head_dim);
#pragma unroll
    for (int n = 0; n < 2; n++) {
      int where = __shfl_sync(~0u, place, n * 8 + g);
      const Element* token = a.keys + (long long)where * a.head_dim;
#pragma unroll
      for (int block = 0; block < BLOCKS; block++)
        keys[n][block] = load(token, where, turned(block * 32 + t * VECTOR, turn), a.head_dim);
    }
  }
  // Tokens 2t, 2t + 1, 2t + 8 and 2t + 9.
  __device__ __forceinline__ void load_values(const Attention& a) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
      int where = __shfl_sync(~0u, place, 2 * t + n % 2 + n / 2 * 8);
      int turn = turn_of(base + 2 * t + n % 2, a.head_dim);
      const Element* token = a.values + (long long)where * a.head_dim;
#pragma unroll
      for (int half = 0; half < HALVES; half++)
        values[half][n] = load(token, where, turned(half * 64 + g * VECTOR, turn), a.head_dim);
    }
  }
  // The first loads are under way before the queries are known.
  __device__ __forceinline__ void begin(const Attention& a, const Pages& p, const Item& item) {
    find(a, p, item);
    load_keys(a);
    load_values(a);
  }
  __device__ __forceinline__ void query(const float* queries, const Attention& a, const Item& item) {
    int head = g % GROUP;
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
#pragma unroll
      for (int n = 0; n < 4; n++) {
        int element = block * 32 + t * VECTOR + n * 2;
        bool there = head < item.count && element < a.head_dim;
        const float* from = queries + head * a.head_dim + element;
        float factor = a.scale * LOG2E, low = there ? from[0] * factor : 0.0f, high = there ? from[1] * factor : 0.0f;
        q[block][n] = packed_part(low, high, g >= GROUP);
      }
  }
  // Of token g with two heads, then of token g + 8. Lanes t and t ^ 2 have the same.
  __device__ __forceinline__ void score(float (&scores)[4]) {
    float c[4] = {}, e[4] = {};
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
      const Raw &k = keys[0][block], &l = keys[1][block];
      multiply(c, k.x, l.x, k.y, l.y, q[block][0], q[block][1]);
      multiply(e, k.z, l.z, k.w, l.w, q[block][2], q[block][3]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float both = c[i] + e[i];
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
    for (int half = 0; half < HALVES; half++)
#pragma unroll
      for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[half][n][i] *= shrink[i % 2];
  }
  __device__ __forceinline__ void add(const float (&weights)[4]) {
    u32 first = transposed(packed_part(weights[0], weights[1], t >= 2)), second = transposed(packed_part(weights[2], weights[3], t >= 2));
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
      const Raw(&v)[4] = values[half];
      add_two(sums[half][0], v[0].x, v[1].x, v[2].x, v[3].x, first, second);
      add_two(sums[half][1], v[0].y, v[1].y, v[2].y, v[3].y, first, second);
      add_two(sums[half][2], v[0].z, v[1].z, v[2].z, v[3].z, first, second);
      add_two(sums[half][3], v[0].w, v[1].w, v[2].w, v[3].w, first, second);
    }
  }
  // Two neighbouring numbers of a head, of four tokens.
  static __device__ __forceinline__ void add_two(float (&c)[4], u32 v0, u32 v1, u32 v2, u32 v3, u32 first, u32 second) {
    multiply(c, __byte_perm(v0, v1, 0x5410), __byte_perm(v0, v1, 0x7632), __byte_perm(v2, v3, 0x5410), __byte_perm(v2, v3, 0x7632),
             first, second);
  }
  // After begin() and query(). The next keys and values are under way while these are computed.
  __device__ __forceinline__ void attend(const Attention& a, const Pages& p, const Item& item) {
#pragma unroll 1
    while (base < end) {
      float scores[4];
      score(scores);
      base += stride;
      find(a, p, item);
      load_keys(a);
      weigh(scores);
      add(scores);
      load_values(a);
    }
  }
  __device__ __forceinline__ void leave(float* parts, int warp, const Item& item, int d) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int head = 2 * t % GROUP + i;
      float* part = parts + (warp * item.count + head) * (d + 2);
      for (int o = 4; o < 32; o *= 2) total[i] += __shfl_xor_sync(~0u, total[i], o);
      bool there = t < 2 && head < item.count;
#pragma unroll
      for (int n = 0; n < 8 * HALVES; n++) {
        float sum = sums[n / 8][n % 8 / 2][n % 2 * 2 + i];
        int element = n / 8 * 64 + g * VECTOR + n % 8;
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (there && element < d) part[element] = sum;
      }
      if (there && g == 0) part[d] = largest[i], part[d + 1] = total[i];
    }
  }
};
#endif
