// silu, gelu and sigmoid of sixteen floats at a time for 64-bit ARM, in the maths of maths.h.
// Each step is done for all four registers before the next: a result is ready after four cycles, and the CPU does not
// look far enough ahead to fill them from the next sixteen. silu takes 10.9 cycles for four floats on a Neoverse N1 and gelu
// 12.7. Its instructions take 8.9 where none waits for another: 15 on two units and a division, which holds one of them for
// two cycles. Reciprocals by estimate and steps take 9.4, and the estimate itself is two cycles on one unit.
// Included after maths.h, in its namespace.

namespace neon {

using Lanes = float32x4_t;

struct Sixteen {
    Lanes at[4];
};

template <class Step>
static GT_INLINE Sixteen each(Step step) {
    Sixteen made;
    for (int i = 0; i < 4; ++i) made.at[i] = step(i);
    return made;
}

static GT_INLINE Lanes all(float c) { return vdupq_n_f32(c); }

// A multiply-add overwrites what it adds to. Reading the constant again is free, copying a register is an operation.
struct Constant {
    Lanes lanes;
    explicit constexpr Constant(float c) : lanes{c, c, c, c} {}
    GT_INLINE operator Lanes() const { return *const_cast<const volatile Lanes*>(&lanes); }
};

// The polynomial c0 + c1 q + ... + c5 q^5. The odd coefficients share a register with a fourth factor.
struct Power {
    Constant c0, c2, c4;
    Lanes odd;
};
static const Power kExp{Constant(1.0f), Constant(0.499992006f), Constant(0.0418946114f),
                        {-1.0f, -0.166671313f, -0.0083122433f, 1.44269504f}};
static const Power kExp2{Constant(1.0f), Constant(0.2402226662f), Constant(0.009670746753f),
                         {-0.6931471806f, -0.05550565601f, -0.001329981352f, 0.1029432396f}};

// Its low bits are an exponent's: a shift makes 2^n of 1.5 * 2^23 + 127 + n, and infinity where n is 128.
static constexpr float kMagic = 12582912.0f + 127.0f;
static const Constant kMagicAgain(kMagic);

// x / (1 + 2^n * power(q)), where z is n + kMagic.
static GT_INLINE Sixteen divided(const Sixteen& x, const Sixteen& q, const Sixteen& z, const Power& c) {
    Lanes odd = c.odd;
    Sixteen high = each([&](int i) { return vfmaq_laneq_f32(c.c4, q.at[i], odd, 2); });
    Sixteen mid = each([&](int i) { return vfmaq_laneq_f32(c.c2, q.at[i], odd, 1); });
    Sixteen square = each([&](int i) { return vmulq_f32(q.at[i], q.at[i]); });
    mid = each([&](int i) { return vfmaq_f32(mid.at[i], square.at[i], high.at[i]); });
    Sixteen low = each([&](int i) { return vfmaq_laneq_f32(c.c0, q.at[i], odd, 0); });
    Sixteen scale = each([&](int i) { return vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(z.at[i]), 23)); });
    low = each([&](int i) { return vfmaq_f32(low.at[i], square.at[i], mid.at[i]); });
    Sixteen below = each([&](int i) { return vfmaq_f32(c.c0, low.at[i], scale.at[i]); });
    return each([&](int i) { return vdivq_f32(x.at[i], below.at[i]); });
}

// Below `least` n would pass 128; the result there is x / infinity. FMAX and FMIN keep a NaN.
static GT_INLINE Sixteen at_least(const Sixteen& x, float least) {
    Lanes bound = all(least);
    return each([&](int i) { return vmaxq_f32(x.at[i], bound); });
}

static GT_INLINE Sixteen at_most(const Sixteen& x, float most) {
    Lanes bound = all(most);
    return each([&](int i) { return vminq_f32(x.at[i], bound); });
}

// x / (1 + exp(-a))
static GT_INLINE Sixteen gate(const Sixteen& x, const Sixteen& from) {
    Lanes magic = all(kMagic), ln2 = {0.693359375f, -2.12194440e-4f, 0.0f, 0.0f}, odd = kExp.odd;
    Sixteen a = at_most(from, 87.0f);
    Sixteen z = each([&](int i) { return vfmsq_laneq_f32(kMagicAgain, a.at[i], odd, 3); });
    Sixteen n = each([&](int i) { return vsubq_f32(z.at[i], magic); });
    Sixteen q = each([&](int i) { return vfmaq_laneq_f32(a.at[i], n.at[i], ln2, 0); });
    q = each([&](int i) { return vfmaq_laneq_f32(q.at[i], n.at[i], ln2, 1); });
    return divided(x, q, z, kExp);
}

static GT_INLINE Sixteen of(Silu, Sixteen x) {
    x = at_least(x, -88.6f);
    return gate(x, x);
}

static GT_INLINE Sixteen of(Sigmoid, Sixteen x) {
    return gate(each([](int) { return all(1.0f); }), at_least(x, -88.6f));
}

static GT_INLINE Sixteen of(GeluTanh, Sixteen x) {
    static const Constant linear(2.302208198f);
    Lanes magic = all(kMagic), odd = kExp2.odd;
    x = at_least(x, -10.06f);
    Sixteen t = each([&](int i) { return vmulq_f32(x.at[i], x.at[i]); });
    t = each([&](int i) { return vfmaq_laneq_f32(linear, t.at[i], odd, 3); });
    t = at_most(each([&](int i) { return vmulq_f32(x.at[i], t.at[i]); }), 125.5f);
    Sixteen z = each([&](int i) { return vsubq_f32(magic, t.at[i]); });
    Sixteen q = each([&](int i) { return vaddq_f32(t.at[i], vsubq_f32(z.at[i], magic)); });
    return divided(x, q, z, kExp2);
}

template <class Op>
struct Has : std::false_type {};
template <>
struct Has<Silu> : std::true_type {};
template <>
struct Has<Sigmoid> : std::true_type {};
template <>
struct Has<GeluTanh> : std::true_type {};

template <class Op>
static GT_INLINE void apply(const float* x, float* y) {
    Sixteen made = of(Op(), each([&](int i) { return vld1q_f32(x + 4 * i); }));
    for (int i = 0; i < 4; ++i) vst1q_f32(y + 4 * i, made.at[i]);
}

// The last few go through the same code, so that an element's result does not depend on where it lies.
template <class Op>
static GT_INLINE void block(const float* x, float* y, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) apply<Op>(x + i, y + i);
    if (i == n) return;
    float rest[16] = {};
    std::memcpy(rest, x + i, (n - i) * sizeof(float));
    apply<Op>(rest, rest);
    std::memcpy(y + i, rest, (n - i) * sizeof(float));
}

}  // namespace neon
