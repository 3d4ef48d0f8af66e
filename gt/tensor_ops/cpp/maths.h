// The ops on one register of floats or doubles: no calls, no branches, no tables.
// Included once for each instruction set, after simd.h.
#pragma once

// exp(-a) = 2^n * exp(-q) with |q| <= ln(2) / 2. Adding 1.5 * 2^23 (2^52) to -a * log2(e) rounds it to the integer n and
// leaves that in the low bits; with the exponent's bias added too, a shift makes 2^n of it, and infinity where n is 128
// (1024). ln(2) is cut where its products with n are exact, since not every CPU has a fused multiply-add.
struct OfFloats {
    static constexpr float kRound = 12582912.0f, kMagic = kRound + 127.0f;
    static GT_INLINE Floats scale(Floats z) { return (Floats)((Ints)z << 23); }
};
struct OfDoubles {
    static constexpr double kMagic = 6755399441055744.0 + 1023.0;
    static GT_INLINE Doubles scale(Doubles z) { return (Doubles)((Longs)z << 52); }
};

// exp(-q), or 2^-q, by a polynomial.
static GT_INLINE Floats power_e(Floats q) {
    Floats q2 = q * q;
    Floats low = 1.0f - q, mid = 0.499992006f + q * -0.166671313f, high = 0.0418946114f + q * -0.0083122433f;
    return low + q2 * (mid + q2 * high);
}

static GT_INLINE Floats power_2(Floats q) {
    Floats q2 = q * q;
    Floats low = 1.0f - q * 0.6931471806f, mid = 0.2402226662f - q * 0.05550565601f, high = 0.009670746753f - q * 0.001329981352f;
    return low + q2 * (mid + q2 * high);
}

static GT_INLINE Doubles power_e(Doubles q) {
    Doubles q2 = q * q, q4 = q2 * q2;
    Doubles c0 = 0.5 + q * -0.1666666666666668516, c2 = 0.041666666666666034577 + q * -0.0083333333333156951363;
    Doubles c4 = 0.00138888888891343549 + q * -0.00019841269899744212689;
    Doubles c6 = 0.00002480158690361719615 + q * -2.7557231467438040281e-6;
    Doubles c8 = 2.7557592522806200998e-7 + q * -2.511323077806132708e-8, c10 = all<Doubles>(2.0825600575166277861e-9);
    return (1.0 - q) + q2 * ((c0 + q2 * c2) + q4 * ((c4 + q2 * c6) + q4 * (c8 + q2 * c10)));
}

// z holds n in its low bits.
static GT_INLINE Floats nearest(Floats a) { return OfFloats::kMagic - a * 1.44269504f; }
static GT_INLINE Doubles nearest(Doubles a) { return OfDoubles::kMagic - a * 1.4426950408889634; }

static GT_INLINE Floats reduced(Floats a, Floats z) {
    Floats n = z - OfFloats::kMagic;
    return (a + n * 0.693359375f) + n * -2.12194440e-4f;
}

static GT_INLINE Doubles reduced(Doubles a, Doubles z) {
    Doubles n = z - OfDoubles::kMagic;
    return (a + n * 6.93147180369123816490e-01) + n * 1.90821492927058770002e-10;
}

// x / (1 + exp(-a)). From -88.37 (-709.4) down the denominator is infinite: the result there, under 6e-37 (1e-301) in
// magnitude, is returned as zero. `a` must not be under -88.6 (-709.9), and x must be finite there.
static GT_INLINE Floats gate(Floats x, Floats a) {
    a = at_most(a, 87.0f);
    Floats z = nearest(a);
    return x / (1.0f + power_e(reduced(a, z)) * OfFloats::scale(z));
}

static GT_INLINE Doubles gate(Doubles x, Doubles a) {
    a = at_most(a, 700.0);
    Doubles z = nearest(a);
    return x / (1.0 + power_e(reduced(a, z)) * OfDoubles::scale(z));
}

struct Silu {
    static GT_INLINE Floats of(Floats x) {
        x = at_least(x, -88.6f);
        return gate(x, x);
    }
    static GT_INLINE Doubles of(Doubles x) {
        x = at_least(x, -709.9);
        return gate(x, x);
    }
};

struct Sigmoid {
    static GT_INLINE Floats of(Floats x) { return gate(all<Floats>(1.0f), at_least(x, -88.6f)); }
    static GT_INLINE Doubles of(Doubles x) { return gate(all<Doubles>(1.0), at_least(x, -709.9)); }
};

// gelu's tanh form is x * sigmoid(2u): 0.5 * (1 + tanh(u)) with u = sqrt(2/pi) * (x + 0.044715 x^3).
struct GeluTanh {
    // By 2^-t: log2(e) is a factor of the polynomial for t, where it costs neither an instruction nor a digit.
    static GT_INLINE Floats of(Floats x) {
        x = at_least(x, -10.06f);
        Floats t = at_most(x * (2.302208198f + 0.1029432396f * (x * x)), 125.5f);
        Floats z = OfFloats::kMagic - t;
        Floats q = t + (z - OfFloats::kMagic);
        return x / (1.0f + power_2(q) * OfFloats::scale(z));
    }
    static GT_INLINE Doubles of(Doubles x) {
        x = at_least(x, -21.3);
        return gate(x, at_least(x * (1.5957691216057308 + 0.07135481627260025 * (x * x)), -709.9));
    }
};

struct Exp {
    // The exponent is added rather than multiplied by: the largest results are 2^128 times a number under one.
    static GT_INLINE Floats of(Floats x) {
        Floats a = -at_least(at_most(x, 89.0f), -87.0f), z = nearest(a) - 127.0f;
        Floats n = z - OfFloats::kRound;
        Floats p = power_e((a + n * 0.693359375f) + n * -2.12194440e-4f);
        Floats y = (Floats)((Ints)p + ((Ints)z << 23));
        y = x < -87.0f ? all<Floats>(0.0f) : y;
        y = x > 88.7228394f ? all<Floats>(__builtin_huge_valf()) : y;
        return x == x ? y : x;
    }
    static GT_INLINE Doubles of(Doubles x) {
        Doubles a = -at_least(at_most(x, 710.0), -700.0), z = nearest(a) - 1023.0;
        Doubles p = power_e(reduced(a, z + 1023.0));
        Doubles y = (Doubles)((Longs)p + ((Longs)z << 52));
        y = x < -700.0 ? all<Doubles>(0.0) : y;
        y = x > 709.782712893384 ? all<Doubles>(__builtin_huge_val()) : y;
        return x == x ? y : x;
    }
};

struct Relu {
    template <class V>
    static GT_INLINE V of(V x) { return x < 0 ? V{} : x; }
};

// x * Phi(x) = max(x, 0) - |x| * Q(|x|), and Q(a) = exp(-a^2 / 2) * P(a) / D(a) with polynomials of degree 3 and 4, to one
// part in 3 million from 0 to 13.3. From 13.25 up the exponent of 2^-127 is zero, and so is the result.
struct GeluErf {
    static GT_INLINE Floats of(Floats x) {
        Floats a = at_most(magnitude(x), 13.27f), square, rest;
        // The exponential would multiply the square's rounding error by the square.
        square_of(a, square, rest);
        Floats z = OfFloats::kMagic - square * 0.72134752f;
        Floats n = z - OfFloats::kMagic;
        Floats q = (square + n * 1.38671875f) + (n * -4.2438880e-4f + rest);  // twice that of exp(-q)
        Floats p = 0.002618413212f + q * -0.000259757603f;
        p = 0.1249980015f + q * (-0.02083391412f + q * p);
        p = (1.0f + q * (-0.5f + q * p)) * OfFloats::scale(z);
        Floats above = 0.4999998254986232f + a * (0.3606153320773114f + a * (0.11875358235715452f + a * 0.016863335309074762f));
        Floats below = 0.949711769949175f + a * (0.29745625658528435f + a * 0.042275554328192765f);
        below = 1.0f + a * (1.5190977113029767f + a * below);
        return positive_part(x) - (a * above) * p * reciprocal(below);
    }
    // Only this one is computed element by element.
    static inline Doubles of(Doubles x) {
        for (size_t i = 0; i < kLanes<Doubles>; ++i) x[i] = x[i] < -40.0 ? 0.0 : 0.5 * x[i] * std::erfc(x[i] * -0.70710678118654752);
        return x;
    }
};

// gelu to one part in 8000, for results of at most 11 bits.
struct GeluErfRough {
    static GT_INLINE Floats of(Floats x) {
        Floats a = at_most(magnitude(x), 13.27f), square = a * a;
        Floats z = OfFloats::kMagic - square * 0.72134752f;
        Floats q = square * 0.72134752f + (z - OfFloats::kMagic);
        Floats p = 0.99992807f + q * (-0.69326099f + q * (0.24261112f + q * -0.05517166f));
        Floats above = 0.5000113912620606f + a * (0.2771116211698397f + a * 0.062034374709269216f);
        Floats below = 1.0f + a * (1.352822307385265f + a * (0.6998899825580562f + a * 0.1553091870164898f));
        return positive_part(x) - (a * above) * (p * OfFloats::scale(z)) * rough_reciprocal(below);
    }
};

// The op for 16-bit results, and whether its exact results are never halfway between two of them.
template <class Op>
struct Short {
    using Of = Op;
    static constexpr bool ties = true;
};
template <>
struct Short<GeluErf> {
    using Of = GeluErfRough;
    static constexpr bool ties = false;
};
template <>
struct Short<GeluTanh> {
    using Of = GeluTanh;
    static constexpr bool ties = false;
};
template <>
struct Short<Silu> {
    using Of = Silu;
    static constexpr bool ties = false;
};

struct Add {
    template <class V>
    static GT_INLINE V of(V x, V y) { return x + y; }
};

struct Sub {
    template <class V>
    static GT_INLINE V of(V x, V y) { return x - y; }
};

struct Mul {
    template <class V>
    static GT_INLINE V of(V x, V y) { return x * y; }
};

struct Div {
    template <class V>
    static GT_INLINE V of(V x, V y) { return x / y; }
};

// Gradients: of the result, and the value each is written in (relu's and sigmoid's result, silu's input).
struct ReluGrad {
    template <class V>
    static GT_INLINE V of(V g, V y) { return y <= 0 ? V{} : g; }
};

struct SigmoidGrad {
    template <class V>
    static GT_INLINE V of(V g, V y) { return g * y * (1 - y); }
};

struct SiluGrad {
    template <class V>
    static GT_INLINE V of(V g, V x) {
        V s = Sigmoid::of(x);
        return g * s * (1 + x * (1 - s));
    }
};
