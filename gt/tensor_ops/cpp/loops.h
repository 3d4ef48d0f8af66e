// The loops, included once for each instruction set inside that set's namespace and under its target pragma.

template <class T>
using Compute = std::conditional_t<std::is_same<T, double>::value, double, float>;

constexpr size_t kLanes = 16;   // independent partial results: four NEON, two AVX2 or one AVX-512 register of floats
constexpr size_t kSums = 32;    // the same for sums, whose chains of additions are longer
constexpr size_t kBlock = 512;  // elements widened to float at a time

template <class Op, class C>
static GT_INLINE void block(const C* x, C* y, size_t n) {
#ifdef __aarch64__
    if constexpr (std::is_same<C, float>::value && neon::Has<Op>::value) return neon::block<Op>(x, y, n);
#endif
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        // Locals, since x may be y: with nothing to alias, the compiler interleaves the lanes' chains.
        C v[kLanes];
        for (size_t j = 0; j < kLanes; ++j) v[j] = x[i + j];
        for (size_t j = 0; j < kLanes; ++j) v[j] = Op::of(v[j]);
        for (size_t j = 0; j < kLanes; ++j) y[i + j] = v[j];
    }
    for (; i < n; ++i) y[i] = Op::of(x[i]);
}

template <class Op, class T>
static void elementwise(const void* from, void* to, size_t begin, size_t end) {
    using C = Compute<T>;
    const T* x = static_cast<const T*>(from);
    T* y = static_cast<T*>(to);
    if constexpr (std::is_same<T, C>::value) return block<Op>(x + begin, y + begin, end - begin);
    for (size_t at = begin; at < end; at += kBlock) {
        size_t n = end - at < kBlock ? end - at : kBlock;
        C wide[kBlock];
        for (size_t i = 0; i < n; ++i) wide[i] = widen(x[at + i]);
        block<Op>(wide, wide, n);
        for (size_t i = 0; i < n; ++i) y[at + i] = Narrow<T>::from(wide[i]);
    }
}

// y has as many elements as x, or, with `one`, a single one.
template <class Op, class C>
static GT_INLINE void pair(const C* x, const C* y, C* to, size_t n, bool one) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        C a[kLanes], b[kLanes];
        for (size_t j = 0; j < kLanes; ++j) a[j] = x[i + j];
        if (one)
            for (size_t j = 0; j < kLanes; ++j) b[j] = y[0];
        else
            for (size_t j = 0; j < kLanes; ++j) b[j] = y[i + j];
        for (size_t j = 0; j < kLanes; ++j) a[j] = Op::of(a[j], b[j]);
        for (size_t j = 0; j < kLanes; ++j) to[i + j] = a[j];
    }
    for (; i < n; ++i) to[i] = Op::of(x[i], y[one ? 0 : i]);
}

// y repeats after `period` elements.
template <class Op, class T>
static void binary(const void* left, const void* right, void* result, size_t begin, size_t end, size_t period) {
    using C = Compute<T>;
    const T *x = static_cast<const T*>(left), *y = static_cast<const T*>(right);
    T* to = static_cast<T*>(result);
    bool one = period == 1;
    for (size_t at = begin, n; at < end; at += n) {
        size_t from = one ? 0 : at % period;
        n = end - at < kBlock ? end - at : kBlock;
        if (!one && period - from < n) n = period - from;
        if constexpr (std::is_same<T, C>::value) {
            pair<Op>(x + at, y + from, to + at, n, one);
        } else {
            C a[kBlock], b[kBlock];
            for (size_t i = 0; i < n; ++i) a[i] = widen(x[at + i]);
            for (size_t i = 0; i < (one ? 1 : n); ++i) b[i] = widen(y[from + i]);
            pair<Op>(a, b, a, n, one);
            for (size_t i = 0; i < n; ++i) to[at + i] = Narrow<T>::from(a[i]);
        }
    }
}

// Lanes keep the sum vectorised; folding them into a double every so often keeps long rows exact.
template <class T>
static GT_INLINE double folded(Compute<T>* lane) {
    for (size_t width = kSums / 2; width; width /= 2)
        for (size_t j = 0; j < width; ++j) lane[j] += lane[j + width];
    return double(lane[0]);
}

struct Nothing {
    GT_INLINE void operator()(size_t, size_t) const {}
};

// The sum of squares of x. `beside` is done for the same part of another row as each part is summed: what it has in the
// cache it writes while memory brings x.
template <class T, class Beside = Nothing>
static GT_INLINE double sum_of_squares(const T* x, size_t n, Beside beside = Beside()) {
    using C = Compute<T>;
    double total = 0;
    for (size_t at = 0; at < n; at += 64 * kSums) {
        size_t end = n - at < 64 * kSums ? n : at + 64 * kSums, i = at;
        C lane[kSums];
        for (size_t j = 0; j < kSums; ++j) lane[j] = C(0);
        for (; i + kSums <= end; i += kSums) {
            for (size_t j = 0; j < kSums; ++j) {
                C v = widen(x[i + j]);
                lane[j] += v * v;
            }
            beside(i, kSums);
        }
        beside(i, end - i);
        for (size_t j = 0; i < end; ++i, ++j) {
            C v = widen(x[i]);
            lane[j] += v * v;
        }
        total += folded<T>(lane);
    }
    return total;
}

// For squares that leave the range of the type: everything is divided by the largest magnitude first.
template <class T>
static __attribute__((noinline)) void rms_row_scaled(const T* x, const Compute<T>* w, T* y, size_t n, double eps, Compute<T>* rstd) {
    double root = std::sqrt(eps), most = root, sum = 0;
    for (size_t i = 0; i < n; ++i) {
        double v = std::fabs(double(widen(x[i])));  // GCC 12 fails inside on a reduction by std::fmax here
        most = v > most ? v : most;
    }
    most = std::fmin(most, std::numeric_limits<double>::max());
    for (size_t at = 0; at < n; at += kBlock) {
        size_t count = n - at < kBlock ? n - at : kBlock;
        double part[kBlock];
        for (size_t i = 0; i < count; ++i) part[i] = double(widen(x[at + i])) / most;
        sum += sum_of_squares(part, count);
    }
    double scale = 1.0 / std::sqrt(sum / double(n) + (root / most) * (root / most));
    if (rstd) *rstd = Compute<T>(scale / most);
    for (size_t i = 0; i < n; ++i)
        y[i] = Narrow<T>::from(Compute<T>(double(widen(x[i])) / most * scale * double(w[i])));
}

template <class T>
static GT_INLINE void scale_by(const T* x, const Compute<T>* w, T* y, Compute<T> scale, size_t n) {
#pragma GCC ivdep
    for (size_t i = 0; i < n; ++i) y[i] = Narrow<T>::from(widen(x[i]) * scale * w[i]);
}

// Elements before the next cache line, n at most. Stores that cross lines halve the speed, and NumPy's arrays begin
// sixteen bytes into one.
template <class T>
static GT_INLINE size_t before_line(const T* y, size_t n) {
    size_t line = 64 / sizeof(T), past = reinterpret_cast<uintptr_t>(y) / sizeof(T) % line;
    size_t lead = past ? line - past : 0;
    return lead < n ? lead : n;
}

// `rstds`, where it is given, has room for each row's 1 / sqrt(mean + eps).
template <class T>
static void rms_rows(const void* from, const void* weight, void* to, void* rstds, size_t begin, size_t end, size_t n,
                     double eps) {
    using C = Compute<T>;
    constexpr double small = std::is_same<C, float>::value ? 1e-30 : 1e-280;
    constexpr double large = std::is_same<C, float>::value ? 1e37 : 1e300;
    const C* w = static_cast<const C*>(weight);
    C* rstd = static_cast<C*>(rstds);
    const T* x = static_cast<const T*>(from) + begin * n;
    T* y = static_cast<T*>(to) + begin * n;
    double sum = sum_of_squares(x, n);
    for (size_t row = begin; row < end; ++row, x += n, y += n) {
        bool last = row + 1 == end;
        double mean = sum / double(n) + eps;
        if (!(mean >= small && sum <= large)) {
            rms_row_scaled(x, w, y, n, eps, rstd ? rstd + row : nullptr);
            if (!last) sum = sum_of_squares(x + n, n);
            continue;
        }
        C scale = C(1.0 / std::sqrt(mean));
        if (rstd) rstd[row] = scale;
        size_t lead = before_line(y, n);
        scale_by(x, w, y, scale, lead);
        auto write = [&](size_t at, size_t count) {
            at += lead;
            if (at + count <= n)
                scale_by(x + at, w + at, y + at, scale, count);
            else if (at < n)
                scale_by(x + at, w + at, y + at, scale, n - at);
        };
        if (last)
            write(0, n);
        else
            sum = sum_of_squares(x + n, n, write);
    }
}

#define GT_ROW(Op) {elementwise<Op, float>, elementwise<Op, double>, elementwise<Op, half_t>, elementwise<Op, bfloat_t>}
#define GT_PAIR(Op) {binary<Op, float>, binary<Op, double>, binary<Op, half_t>, binary<Op, bfloat_t>}
static const Kernels kernels = {{GT_ROW(Silu), GT_ROW(GeluTanh), GT_ROW(GeluErf), GT_ROW(Exp), GT_ROW(Sigmoid),
                                 GT_ROW(Relu)},
                                {GT_PAIR(Add), GT_PAIR(Sub), GT_PAIR(Mul), GT_PAIR(Div), GT_PAIR(ReluGrad),
                                 GT_PAIR(SigmoidGrad), GT_PAIR(SiluGrad)},
                                {rms_rows<float>, rms_rows<double>, rms_rows<half_t>, rms_rows<bfloat_t>}};
#undef GT_ROW
#undef GT_PAIR
