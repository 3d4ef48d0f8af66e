// gelu (erf) of sixteen floats at a time for 64-bit ARM: x * Phi(x) = max(x, 0) - |x| * Phi(-|x|), where Phi(-a) is one over the
// fourth power of a polynomial, found by least squares with weights that grow where the error is largest. Up to 3.2 it is within
// one part in 10 million with degree 11 and in 12,000 with degree 7; above that only Phi(a) is computed from it, to a float's
// precision. Below -3.2 the rational functions of maths.h keep the relative error; a pack that reaches there, one of ninety of
// normal numbers, is computed by those. Four floats take 15.3 cycles on a Neoverse N1.
// Included by loops.h.

namespace neon {

constexpr uint32_t kTail = 0xc04ccccdu;  // -3.2: the bits of all smaller floats are greater, as unsigned numbers

// The polynomial's even coefficients, each read again where it is overwritten, and its odd ones, four a register.
template <size_t Pairs>
struct Root {
    Constant even[Pairs];
    Lanes odd[(Pairs + 3) / 4];
};
static const Root<6> kFineRoot{
    {Constant(1.18920708f), Constant(0.118257143f), Constant(0.00588210858f), Constant(-0.000680193538f),
     Constant(-0.000288430281f), Constant(-1.32594932e-05f)},
    {{0.237214938f, 0.0314527638f, 0.00262886845f, 0.00073165138f}, {8.48960262e-05f, 1.05828678e-06f, 0.0f, 0.0f}}};
static const Root<4> kRoughRoot{
    {Constant(1.18918335f), Constant(0.111286275f), Constant(-0.0155023774f), Constant(-0.00425144937f)},
    {{0.238229439f, 0.0492151231f, 0.0156439561f, 0.000702513556f}}};

static GT_INLINE bool reaches_tail(const Pack<Floats>& x) {
    Words a = vmaxq_u32((Words)x.at[0], (Words)x.at[1]), b = vmaxq_u32((Words)x.at[2], (Words)x.at[3]);
    return vmaxvq_u32(vmaxq_u32(a, b)) > kTail;
}

// c[2 I] + c[2 I + 1] * a
template <size_t I, size_t Pairs>
static GT_INLINE Pack<Floats> pair(const Root<Pairs>& c, const Pack<Floats>& a) {
    Lanes odd = c.odd[I / 4];
    return each<Floats>([&](int i) { return vfmaq_laneq_f32(c.even[I], a.at[i], odd, I % 4); });
}

static GT_INLINE Pack<Floats> plus(const Pack<Floats>& a, const Pack<Floats>& b, const Pack<Floats>& c) {
    return each<Floats>([&](int i) { return vfmaq_f32(a.at[i], b.at[i], c.at[i]); });
}

static GT_INLINE Pack<Floats> squared(const Pack<Floats>& a) {
    return each<Floats>([&](int i) { return vmulq_f32(a.at[i], a.at[i]); });
}

template <size_t Pairs>
static GT_INLINE Pack<Floats> gelu(const Pack<Floats>& x, const Root<Pairs>& c) {
    Pack<Floats> a = at_most(each<Floats>([&](int i) { return vabsq_f32(x.at[i]); }), 5.6f);
    Pack<Floats> a2 = squared(a);
    Pack<Floats> high = plus(pair<Pairs - 2>(c, a), a2, pair<Pairs - 1>(c, a));
    Pack<Floats> a4 = squared(a2);
    if constexpr (Pairs == 6) high = plus(plus(pair<2>(c, a), a2, pair<3>(c, a)), a4, high);
    Pack<Floats> root = plus(plus(pair<0>(c, a), a2, pair<1>(c, a)), a4, high);
    root = squared(squared(root));
    Pack<Floats> part = each<Floats>([&](int i) { return vdivq_f32(a.at[i], root.at[i]); });
    return each<Floats>([&](int i) { return vsubq_f32(positive_part(x.at[i]), part.at[i]); });
}

template <class Op>
static __attribute__((noinline)) void tail_of(Pack<Floats>& x) {
    x = {{Op::of(x.at[0]), Op::of(x.at[1]), Op::of(x.at[2]), Op::of(x.at[3])}};
}

template <class Op, size_t Pairs>
static GT_INLINE Pack<Floats> gelu_or_tail(const Pack<Floats>& x, const Root<Pairs>& c) {
    if (__builtin_expect(reaches_tail(x), 0)) {
        Pack<Floats> made = x;
        tail_of<Op>(made);
        return made;
    }
    return gelu(x, c);
}

}  // namespace neon

static GT_INLINE Pack<Floats> apply(GeluErf, const Pack<Floats>& x) { return neon::gelu_or_tail<GeluErf>(x, neon::kFineRoot); }
static GT_INLINE Pack<Floats> apply(GeluErfRough, const Pack<Floats>& x) { return neon::gelu_or_tail<GeluErfRough>(x, neon::kRoughRoot); }
