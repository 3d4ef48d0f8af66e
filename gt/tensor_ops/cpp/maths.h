// The maths of one element, written so that a loop over it vectorises: no calls, no branches, no tables.
// Included once for each instruction set, inside that set's namespace.

#if defined(__x86_64__)
// minps takes the second operand when either is NaN; fmin would cost two instructions more.
template <class C>
static GT_INLINE C least(C a, C b) { return a < b ? a : b; }
#else
static GT_INLINE float least(float a, float b) { return __builtin_fminf(a, b); }
static GT_INLINE double least(double a, double b) { return __builtin_fmin(a, b); }
#endif

// exp(-(a + rest)) for small rest and a above -88 (float) or -708 (double); what is under exp(-87) or exp(-700) is cut
// off there. exp(-a) = 2^n * exp(-q) with |q| <= ln(2) / 2: adding 1.5 * 2^23 (2^52) rounds to the integer n and leaves
// it in the low bits, from where a shift puts it in the exponent. ln(2) is cut where its products with n are exact,
// since not every CPU has a fused multiply-add.
static constexpr float kMagic = 12582912.0f;

static GT_INLINE float nearest(float a) { return kMagic - a * 1.44269504f; }

static GT_INLINE float reduced(float a, float z) {
    float n = z - kMagic;
    float q = a + n * 0.693359375f;
    return q + n * -2.12194440e-4f;
}

static GT_INLINE float power(float q, float z) {
    float q2 = q * q;
    float low = 1.0f - q, mid = 0.499992006f + q * -0.166671313f, high = 0.0418946114f + q * -0.0083122433f;
    float p = low + q2 * (mid + q2 * high);
    return bits<float>(bits<int32_t>(p) + int32_t(bits<uint32_t>(z) << 23));
}

static GT_INLINE float exp_minus(float a) {
    a = least(a, 87.0f);
    float z = nearest(a);
    return power(reduced(a, z), z);
}

// Apart from the one above, since adding a zero is an instruction.
static GT_INLINE float exp_minus(float a, float rest) {
    a = least(a, 87.0f);
    float z = nearest(a);
    return power(reduced(a, z) + rest, z);
}

// 2^-t, by the same polynomial in other units, for an argument that is itself a product: log2(e) is then one of its
// factors, where it costs neither an instruction nor a digit more.
static GT_INLINE float exp2_minus(float t) {
    t = least(t, 125.5f);
    float z = kMagic - t;
    float q = t + (z - kMagic), q2 = q * q;
    float low = 1.0f - q * 0.6931471806f, mid = 0.2402226662f - q * 0.05550565601f, high = 0.009670746753f - q * 0.001329981352f;
    float p = low + q2 * (mid + q2 * high);
    return bits<float>(bits<int32_t>(p) + int32_t(bits<uint32_t>(z) << 23));
}

static GT_INLINE double exp_minus(double a) {
    constexpr double magic = 6755399441055744.0;
    a = least(a, 700.0);
    double z = magic - a * 1.4426950408889634;
    double n = z - magic;
    double q = a + n * 6.93147180369123816490e-01;
    q = q + n * 1.90821492927058770002e-10;
    double q2 = q * q, q4 = q2 * q2;
    double c0 = 0.5 + q * -0.1666666666666668516, c2 = 0.041666666666666034577 + q * -0.0083333333333156951363;
    double c4 = 0.00138888888891343549 + q * -0.00019841269899744212689;
    double c6 = 0.00002480158690361719615 + q * -2.7557231467438040281e-6;
    double c8 = 2.7557592522806200998e-7 + q * -2.511323077806132708e-8, c10 = 2.0825600575166277861e-9;
    double p = (1.0 - q) + q2 * ((c0 + q2 * c2) + q4 * ((c4 + q2 * c6) + q4 * (c8 + q2 * c10)));
    return bits<double>(bits<int64_t>(p) + int64_t(bits<uint64_t>(z) << 52));
}

// Zero where the condition holds. By a mask, since GCC makes branches of `?:` around a division in unrolled code.
static GT_INLINE float unless(bool zero, float x) { return bits<float>(bits<int32_t>(x) & (int32_t(zero) - 1)); }
static GT_INLINE double unless(bool zero, double x) { return bits<double>(bits<int64_t>(x) & (int64_t(zero) - 1)); }

// x * sigmoid(a). Where `at` is below the edge exp(-a) would overflow; the result there is under 6e-37 (float) or 1e-301
// (double) and is returned as zero.
template <class C>
static GT_INLINE C gate(C x, C a, C at, C edge) { return unless(at < edge, x / (C(1) + exp_minus(a))); }

struct Silu {
    static GT_INLINE float of(float x) { return gate(x, x, x, -88.0f); }
    static GT_INLINE double of(double x) { return gate(x, x, x, -708.0); }
};

// A function of NaN is that NaN: `least` drops it.
template <class C>
static GT_INLINE C kept(C x, C y) { return x != x ? x : y; }

struct Exp {
    static GT_INLINE float of(float x) { return kept(x, x > 88.7228394f ? HUGE_VALF : unless(x < -87.0f, exp_minus(-x))); }
    static GT_INLINE double of(double x) {
        return kept(x, x > 709.782712893384 ? HUGE_VAL : unless(x < -700.0, exp_minus(-x)));
    }
};

struct Sigmoid {
    static GT_INLINE float of(float x) { return kept(x, gate(1.0f, x, x, -88.0f)); }
    static GT_INLINE double of(double x) { return kept(x, gate(1.0, x, x, -708.0)); }
};

struct Relu {
    template <class C>
    static GT_INLINE C of(C x) { return unless(x < C(0), x); }
};

struct Add {
    template <class C>
    static GT_INLINE C of(C x, C y) { return x + y; }
};

struct Sub {
    template <class C>
    static GT_INLINE C of(C x, C y) { return x - y; }
};

struct Mul {
    template <class C>
    static GT_INLINE C of(C x, C y) { return x * y; }
};

struct Div {
    template <class C>
    static GT_INLINE C of(C x, C y) { return x / y; }
};

// Gradients: of the result, and the value each is written in (relu's and sigmoid's result, silu's input).
struct ReluGrad {
    template <class C>
    static GT_INLINE C of(C g, C y) { return unless(y <= C(0), g); }
};

struct SigmoidGrad {
    template <class C>
    static GT_INLINE C of(C g, C y) { return g * y * (C(1) - y); }
};

struct SiluGrad {
    template <class C>
    static GT_INLINE C of(C g, C x) {
        C s = Sigmoid::of(x);
        return g * s * (C(1) + x * (C(1) - s));
    }
};

// gelu's tanh form is x * sigmoid(2u): 0.5 * (1 + tanh(u)) with u = sqrt(2/pi) * (x + 0.044715 x^3).
struct GeluTanh {
    static GT_INLINE float of(float x) {
        float t = x * (2.302208198f + 0.1029432396f * (x * x));  // 2u * log2(e)
        return unless(x < -10.02f, x / (1.0f + exp2_minus(t)));
    }
    static GT_INLINE double of(double x) {
        return gate(x, x * (1.5957691216057308 + 0.07135481627260025 * (x * x)), x, -21.1);
    }
};

// x * Phi(x) = max(x, 0) - |x| / 2 * erfc(|x| / sqrt(2)), and erfc(t) = exp(-t^2) * P((t - 2) / (t + 2)) / (1 + 2t).
struct GeluErf {
    static GT_INLINE float of(float x) {
        float a = least(__builtin_fabsf(x), 15.0f);
        float t = a * 0.707106781f;
        float s = (t - 2.0f) / (t + 2.0f);
        float p = 8.06256479505e-5f;
        p = p * s + 0.000172223353327f;
        p = p * s - 0.000399907185781f;
        p = p * s - 0.00142316590445f;
        p = p * s + 0.00125119765069f;
        p = p * s + 0.00870969170279f;
        p = p * s - 0.00803032943895f;
        p = p * s - 0.0542178675874f;
        p = p * s + 0.164050974698f;
        p = p * s - 0.166030522527f;
        p = p * s - 0.0927638186159f;
        p = p * s + 1.27697838271f;
        // The exponential would multiply the square's rounding error by the square. The square of a's upper 12 bits
        // is exact, and what is left is added where the argument has become small.
        float upper = bits<float>(bits<uint32_t>(a) & 0xfffff000u), lower = a - upper;
        float high = upper * upper;
        float e = exp_minus(0.5f * high, 0.5f * lower * (a + upper));
        float rest = unless(high > 174.0f, 0.5f * a * e * p / (1.0f + 2.0f * t));
        return unless(x < 0.0f, x) - rest;
    }
    static inline double of(double x) { return x < -40.0 ? 0.0 : 0.5 * x * std::erfc(x * -0.70710678118654752); }
};
