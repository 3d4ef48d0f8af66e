// rms_norm of rows. Included by loops.h.
#pragma once

// Partial sums: two packs on 16-byte vectors, whose registers are short, else one.
constexpr size_t kSumPacks = GT_VECTOR_BYTES == 16 ? 2 : 1;
template <class T>
constexpr size_t kStep = kSumPacks * kPack<T>;

struct Nothing {
    GT_INLINE void operator()(size_t, size_t) const {}
};

template <class T>
static GT_INLINE void add_squares(Pack<Vector<T>>& sums, const Pack<Vector<T>>& x) {
    every([&](size_t i) { sums.at[i] += x.at[i] * x.at[i]; });
}

// A double, so that long rows stay exact.
template <class T>
static GT_INLINE double folded(const Pack<Vector<T>>* sums) {
    Vector<T> one{};
#pragma GCC unroll 2
    for (size_t k = 0; k < kSumPacks; ++k)
#pragma GCC unroll 4
        for (size_t i = 0; i < kRegisters; ++i) one += sums[k].at[i];
    double total = 0;
    for (size_t i = 0; i < kLanes<Vector<T>>; ++i) total += double(one[i]);
    return total;
}

// The sum of squares of x. `between` is called for the same part of another row as each part is summed: it writes a row
// that lies in the cache while memory brings x.
template <class T, class Between = Nothing>
static GT_INLINE double sum_of_squares(const T* x, size_t n, Between between = Between()) {
    InOrder order;
    double total = 0;
    for (size_t at = 0; at < n; at += 64 * kStep<T>) {
        size_t end = n - at < 64 * kStep<T> ? n : at + 64 * kStep<T>, i = at;
        Pack<Vector<T>> sums[kSumPacks] = {};
        for (; i + kStep<T> <= end; i += kStep<T>) {
#pragma GCC unroll 2  // kept as a loop, it would hold the sums in memory
            for (size_t k = 0; k < kSumPacks; ++k) add_squares<T>(sums[k], load(order, x + i + k * kPack<T>));
            between(i, kStep<T>);
        }
        between(i, end - i);
        for (; i < end; i += kPack<T>)
            add_squares<T>(sums[0], load_part(order, x + i, end - i < kPack<T> ? end - i : kPack<T>));
        total += folded<T>(sums);
    }
    return total;
}

// x / most * scale * w, in doubles where the range of the type would not do. Rare, so by the element.
template <class T>
static GT_INLINE double one_value(const T* x) {
    if constexpr (std::is_same<T, double>::value || std::is_same<T, float>::value) {
        return *x;
    } else {
        return load_part(InOrder(), x, 1).at[0][0];
    }
}

// For squares that leave the range of the type: everything is divided by the largest magnitude first.
template <class T>
static __attribute__((noinline)) void rms_row_scaled(const T* x, const Compute<T>* w, T* y, size_t n, double eps, Compute<T>* rstd) {
    double root = std::sqrt(eps), most = root, sum = 0;
    for (size_t i = 0; i < n; ++i) {
        double v = std::fabs(one_value(x + i));
        most = v > most ? v : most;
    }
    most = std::fmin(most, std::numeric_limits<double>::max());
    for (size_t i = 0; i < n; ++i) {
        double v = one_value(x + i) / most;
        sum += v * v;
    }
    double scale = 1.0 / std::sqrt(sum / double(n) + (root / most) * (root / most));
    if (rstd) *rstd = Compute<T>(scale / most);
    for (size_t i = 0; i < n; ++i) {
        Pack<Vector<T>> one{};
        one.at[0][0] = Compute<T>(one_value(x + i) / most * scale * double(w[i]));
        store_part(InOrder(), y + i, 1, one);
    }
}

template <class T>
static GT_INLINE Pack<Vector<T>> scaled(const Pack<Vector<T>>& x, Compute<T> scale, const Pack<Vector<T>>& w) {
    return each<Vector<T>>([&](size_t i) { return x.at[i] * scale * w.at[i]; });
}

template <class T>
static __attribute__((noinline)) void scale_part(const T* x, const Compute<T>* w, T* y, Compute<T> scale, size_t n) {
    InOrder order;
    store_part(order, y, n, scaled<T>(load_part(order, x, n), scale, load_part(order, w, n)));
}

template <class T>
static GT_INLINE void scale_range(const T* x, const Compute<T>* w, T* y, Compute<T> scale, size_t n, Writes writes) {
    InOrder order;
    size_t i = 0;
    for (; i + kPack<T> <= n; i += kPack<T>) {
        Pack<Vector<T>> made = scaled<T>(load(order, x + i), scale, load(order, w + i));
        write(order, y + i, made, writes);
    }
    if (i < n) scale_part(x + i, w + i, y + i, scale, n - i);
}

// `rstds`, where it is given, has room for each row's 1 / sqrt(mean + eps).
template <class T>
static void rms_rows(const void* from, const void* weight, void* to, void* rstds, size_t begin, size_t end, size_t n,
                     double eps, Writes writes) {
    using C = Compute<T>;
    const T* x = static_cast<const T*>(from) + begin * n;
    T* y = static_cast<T*>(to) + begin * n;
    C* rstd = static_cast<C*>(rstds);
    const C* w = static_cast<const C*>(weight);
    constexpr double small = std::is_same<C, float>::value ? 1e-30 : 1e-280;
    constexpr double large = std::is_same<C, float>::value ? 1e37 : 1e300;
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
        if (lead) scale_part(x, w, y, scale, lead);
        auto write_part = [&](size_t at, size_t count) {
            at += lead;
            if (at < n) scale_range(x + at, w + at, y + at, scale, at + count <= n ? count : n - at, writes);
        };
        // Without stores past the cache the two take turns by the row: their loops are shorter, and the row lies in the cache.
        if (kHasStream && !last) {
            sum = sum_of_squares(x + n, n, write_part);
            continue;
        }
        write_part(0, n);
        if (!last) sum = sum_of_squares(x + n, n);
    }
    if (writes == Writes::kPast) stream_done();
}
