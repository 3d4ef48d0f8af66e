// silu, gelu and sigmoid of sixteen floats at a time for 64-bit ARM, in the maths of maths.h.
// Each step is done for all four registers before the next: a result is ready after four cycles, and the CPU does not
// look far enough ahead to fill them from the next sixteen. silu takes 11.6 cycles for four floats on a Neoverse N1 and gelu
// 12.9. Its instructions take 8.9 where none waits for another: 15 on two units and a division, which holds one of them for
// two cycles. Reciprocals by estimate and steps take 9.4, and the estimate itself is two cycles on one unit.
// Included by loops.h.

namespace neon {

using Lanes = float32x4_t;

// A multiply-add overwrites its addend. Reading the constant again is free, copying a register is an operation.
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
static GT_INLINE Pack<Floats> divided(const Pack<Floats>& x, const Pack<Floats>& q, const Pack<Floats>& z, const Power& c) {
    Lanes odd = c.odd;
    Pack<Floats> high = each<Floats>([&](int i) { return vfmaq_laneq_f32(c.c4, q.at[i], odd, 2); });
    Pack<Floats> mid = each<Floats>([&](int i) { return vfmaq_laneq_f32(c.c2, q.at[i], odd, 1); });
    Pack<Floats> square = each<Floats>([&](int i) { return vmulq_f32(q.at[i], q.at[i]); });
    mid = each<Floats>([&](int i) { return vfmaq_f32(mid.at[i], square.at[i], high.at[i]); });
    Pack<Floats> low = each<Floats>([&](int i) { return vfmaq_laneq_f32(c.c0, q.at[i], odd, 0); });
    Pack<Floats> scale = each<Floats>([&](int i) { return vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(z.at[i]), 23)); });
    low = each<Floats>([&](int i) { return vfmaq_f32(low.at[i], square.at[i], mid.at[i]); });
    Pack<Floats> below = each<Floats>([&](int i) { return vfmaq_f32(c.c0, low.at[i], scale.at[i]); });
    return each<Floats>([&](int i) { return vdivq_f32(x.at[i], below.at[i]); });
}

// Below `least` n would pass 128; the result there is x / infinity. FMAX and FMIN keep a NaN.
static GT_INLINE Pack<Floats> at_least(const Pack<Floats>& x, float least) {
    Lanes bound = all<Floats>(least);
    return each<Floats>([&](int i) { return vmaxq_f32(x.at[i], bound); });
}

static GT_INLINE Pack<Floats> at_most(const Pack<Floats>& x, float most) {
    Lanes bound = all<Floats>(most);
    return each<Floats>([&](int i) { return vminq_f32(x.at[i], bound); });
}

// x / (1 + exp(-a))
static GT_INLINE Pack<Floats> gate(const Pack<Floats>& x, const Pack<Floats>& from) {
    Lanes magic = all<Floats>(kMagic), ln2 = {0.693359375f, -2.12194440e-4f, 0.0f, 0.0f}, odd = kExp.odd;
    Pack<Floats> a = at_most(from, 87.0f);
    Pack<Floats> z = each<Floats>([&](int i) { return vfmsq_laneq_f32(kMagicAgain, a.at[i], odd, 3); });
    Pack<Floats> n = each<Floats>([&](int i) { return vsubq_f32(z.at[i], magic); });
    Pack<Floats> q = each<Floats>([&](int i) { return vfmaq_laneq_f32(a.at[i], n.at[i], ln2, 0); });
    q = each<Floats>([&](int i) { return vfmaq_laneq_f32(q.at[i], n.at[i], ln2, 1); });
    return divided(x, q, z, kExp);
}

static GT_INLINE Pack<Floats> of(Silu, Pack<Floats> x) {
    x = at_least(x, -88.6f);
    return gate(x, x);
}

static GT_INLINE Pack<Floats> of(Sigmoid, Pack<Floats> x) {
    return gate(each<Floats>([](int) { return all<Floats>(1.0f); }), at_least(x, -88.6f));
}

static GT_INLINE Pack<Floats> of(GeluTanh, Pack<Floats> x) {
    static const Constant linear(2.302208198f);
    Lanes magic = all<Floats>(kMagic), odd = kExp2.odd;
    x = at_least(x, -10.06f);
    Pack<Floats> t = each<Floats>([&](int i) { return vmulq_f32(x.at[i], x.at[i]); });
    t = each<Floats>([&](int i) { return vfmaq_laneq_f32(linear, t.at[i], odd, 3); });
    t = at_most(each<Floats>([&](int i) { return vmulq_f32(x.at[i], t.at[i]); }), 125.5f);
    Pack<Floats> z = each<Floats>([&](int i) { return vsubq_f32(magic, t.at[i]); });
    Pack<Floats> q = each<Floats>([&](int i) { return vaddq_f32(t.at[i], vsubq_f32(z.at[i], magic)); });
    return divided(x, q, z, kExp2);
}

}  // namespace neon

static GT_INLINE Pack<Floats> apply(Silu, const Pack<Floats>& x) { return neon::of(Silu(), x); }
static GT_INLINE Pack<Floats> apply(Sigmoid, const Pack<Floats>& x) { return neon::of(Sigmoid(), x); }
static GT_INLINE Pack<Floats> apply(GeluTanh, const Pack<Floats>& x) { return neon::of(GeluTanh(), x); }
