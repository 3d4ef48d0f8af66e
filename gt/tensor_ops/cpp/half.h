// 16-bit floats to and from vectors of floats, rounding to nearest with ties to even. Included by simd.h.

// ---- bfloat16: the upper half of a float ----

#ifndef GT_NEON
// The float whose upper half is the rounded value. A NaN whose lower half is not zero could round to infinity.
static GT_INLINE Words rounded_bfloat(Floats x) {
    Words u = (Words)x;
    Words rounded = u + 0x7fffu + ((u >> 16) & 1u);
    return x == x ? rounded : (u | 0x400000u);
}
#endif

// In memory every other bfloat is the upper half of a 32-bit word already: even elements need a shift, odd ones a mask, and
// nothing has to move between lanes.
static GT_INLINE Pack<Floats> load(AnyOrder, const bfloat_t* x) {
    Words a = load_vector<Words>(x), b = load_vector<Words>(x + 2 * kLanes<Floats>);
    return {{(Floats)(a << 16), (Floats)(a & 0xffff0000u), (Floats)(b << 16), (Floats)(b & 0xffff0000u)}};
}

#ifdef GT_NEON
// The bfloats nearest to eight floats, whose upper and lower halves are given. Only an upper half of ones would leave NaN by
// adding one: a NaN that was computed is a quiet one, and one that was loaded has zeros in its lower half.
static GT_INLINE uint16x8_t nearest_bfloats(uint16x8_t upper, uint16x8_t lower) {
    uint16x8_t past_half = vqaddq_u16(lower, vandq_u16(upper, vdupq_n_u16(1)));
    uint16x8_t up = vcgtq_u16(past_half, vdupq_n_u16(0x8000));
    uint16x8_t ones = vceqq_u16(vorrq_u16(upper, vdupq_n_u16(0x8000)), vdupq_n_u16(0xffff));
    return vsubq_u16(upper, vbicq_u16(up, ones));
}

static GT_INLINE void store(AnyOrder, bfloat_t* y, const Pack<Floats>& p) {
    auto both = [](Floats even, Floats odd) {
        uint16x8_t a = vreinterpretq_u16_f32(even), b = vreinterpretq_u16_f32(odd);
        return nearest_bfloats(vtrn2q_u16(a, b), vtrn1q_u16(a, b));
    };
    store_vector(y, both(p.at[0], p.at[1]));
    store_vector(y + 2 * kLanes<Floats>, both(p.at[2], p.at[3]));
}
#else
static GT_INLINE void store(AnyOrder, bfloat_t* y, const Pack<Floats>& p) {
    auto both = [](Floats even, Floats odd) { return (rounded_bfloat(even) >> 16) | (rounded_bfloat(odd) & 0xffff0000u); };
    store_vector(y, both(p.at[0], p.at[1]));
    store_vector(y + 2 * kLanes<Floats>, both(p.at[2], p.at[3]));
}
#endif

static GT_INLINE Pack<Floats> load(NoTies, const bfloat_t* x) { return load(AnyOrder(), x); }

// A NaN that came from bfloats has zeros in its lower half and stays one.
static GT_INLINE void store(NoTies, bfloat_t* y, const Pack<Floats>& p) {
#ifdef GT_NEON
    auto both = [](Floats even, Floats odd) { return vtrn2q_u16((uint16x8_t)((Words)even + 0x8000u), (uint16x8_t)((Words)odd + 0x8000u)); };
#else
    auto both = [](Floats even, Floats odd) { return (((Words)even + 0x8000u) >> 16) | (((Words)odd + 0x8000u) & 0xffff0000u); };
#endif
    store_vector(y, both(p.at[0], p.at[1]));
    store_vector(y + 2 * kLanes<Floats>, both(p.at[2], p.at[3]));
}

#ifdef GT_NEON
static GT_INLINE Pack<Floats> load(InOrder, const bfloat_t* x) {
    uint16x8_t a = load_vector<uint16x8_t>(x), b = load_vector<uint16x8_t>(x + 8), zero = vdupq_n_u16(0);
    return {{(Floats)vzip1q_u16(zero, a), (Floats)vzip2q_u16(zero, a), (Floats)vzip1q_u16(zero, b), (Floats)vzip2q_u16(zero, b)}};
}

static GT_INLINE void store(InOrder, bfloat_t* y, const Pack<Floats>& p) {
    auto both = [](Floats low, Floats high) {
        uint16x8_t a = vreinterpretq_u16_f32(low), b = vreinterpretq_u16_f32(high);
        return nearest_bfloats(vuzp2q_u16(a, b), vuzp1q_u16(a, b));
    };
    store_vector(y, both(p.at[0], p.at[1]));
    store_vector(y + 8, both(p.at[2], p.at[3]));
}
#else
static GT_INLINE Floats widen_bfloat(Shorts x) { return (Floats)(__builtin_convertvector(x, Words) << 16); }

static GT_INLINE Shorts low_halves(Words u) {
#if defined(GT_AVX2)
    __m256i v = (__m256i)u;
    return (Shorts)_mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
#else
    return __builtin_convertvector(u, Shorts);
#endif
}

static GT_INLINE Pack<Floats> load(InOrder, const bfloat_t* x) {
    return each<Floats>([&](size_t i) { return widen_bfloat(load_vector<Shorts>(x + i * kLanes<Floats>)); });
}

static GT_INLINE void store(InOrder, bfloat_t* y, const Pack<Floats>& p) {
    every([&](size_t i) { store_vector(y + i * kLanes<Floats>, low_halves(rounded_bfloat(p.at[i]) >> 16)); });
}
#endif

// ---- float16: the CPU's conversion where it has one, integer arithmetic elsewhere ----

#if defined(GT_AVX512)
static GT_INLINE Floats widen_half(Shorts x) { return _mm512_cvtph_ps((__m256i)x); }
static GT_INLINE Shorts narrow_half(Floats x) { return (Shorts)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#elif defined(GT_AVX2)
static GT_INLINE Floats widen_half(Shorts x) { return _mm256_cvtph_ps((__m128i)x); }
static GT_INLINE Shorts narrow_half(Floats x) { return (Shorts)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#elif defined(GT_NEON)
static GT_INLINE Floats widen_half(Shorts x) { return vcvt_f32_f16((float16x4_t)x); }
static GT_INLINE Shorts narrow_half(Floats x) { return (Shorts)vcvt_f16_f32(x); }
#else
static GT_INLINE Floats widen_half(Shorts from) {
    Words x = __builtin_convertvector(from, Words);
    Words magnitude = (x & 0x7fffu) << 13, sign = (x & 0x8000u) << 16;
    // 2^112 moves the exponent from half's bias to float's and normalises subnormals on the way.
    Words finite = (Words)((Floats)magnitude * 0x1p112f);
    Words special = magnitude | 0x7f800000u;
    return (Floats)(sign | (magnitude >= 0x0f800000u ? special : finite));
}

static GT_INLINE Shorts narrow_half(Floats x) {
    Words u = (Words)x, sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    // Adding 0.5 lines a subnormal result up with the low mantissa bits; the addition does the rounding.
    Words small = (Words)((Floats)a + 0.5f) - 0x3f000000u;
    Words normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    Words large = a > 0x7f800000u ? all<Words>(0x7e00u) : all<Words>(0x7c00u);
    Words body = a < 0x38800000u ? small : normal;
    return low_halves(sign | (a >= 0x47800000u ? large : body));
}
#endif

template <class Order>
static GT_INLINE Pack<Floats> load(Order, const half_t* x) {
    return each<Floats>([&](size_t i) { return widen_half(load_vector<Shorts>(x + i * kLanes<Floats>)); });
}

template <class Order>
static GT_INLINE void store(Order, half_t* y, const Pack<Floats>& p) {
    every([&](size_t i) { store_vector(y + i * kLanes<Floats>, narrow_half(p.at[i])); });
}
