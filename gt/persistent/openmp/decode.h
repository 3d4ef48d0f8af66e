// Sums of products, softmax and sampling on plain arrays: the kernels of the decode loop. It knows no threads.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace gt {

// 16 numbers at a time; the compiler maps them to the processor's vectors.
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(64)));
constexpr int64_t LANES = 16;
constexpr int64_t ROWS = 4;  // of a weight that lie interleaved in memory

inline Floats load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline Floats load(const uint16_t* p) {  // bfloat16 is the upper half of a float
  Words w;
#ifdef __AVX512F__  // GCC 12 makes four shuffles of the conversion below, and this one
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  std::memcpy(&w, &wide, sizeof w);
#else
  Halves h;
  std::memcpy(&h, p, sizeof h);
  w = __builtin_convertvector(h, Words);
#endif
  w <<= 16;
  Floats v;
  std::memcpy(&v, &w, sizeof v);
  return v;
}

inline void store(float* p, Floats v) { std::memcpy(p, &v, sizeof v); }

inline float sum(const Floats& v) {  // by halves, which vectors do
  typedef float Eight __attribute__((vector_size(32)));
  typedef float Four __attribute__((vector_size(16)));
  Eight eights[2];
  std::memcpy(eights, &v, sizeof v);
  Eight eight = eights[0] + eights[1];
  Four fours[2];
  std::memcpy(fours, &eight, sizeof eight);
  Four four = fours[0] + fours[1];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

inline float dot(const float* a, const float* b, int64_t width) {
  Floats acc = {};
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) acc += load(a + i) * load(b + i);
  float s = sum(acc);
  for (; i < width; i++) s += a[i] * b[i];
  return s;
}

// e to the power of x to about two units in the last place; the smallest and largest float at the ends.
inline Floats exponential(Floats x) {
  Floats low = Floats{} - 87.0f, high = Floats{} + 88.0f;
  x = x < low ? low : x;
  x = x > high ? high : x;
  Floats shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to a whole number
  Floats n = shifted - 12582912.0f;
  Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  Ints bits = (__builtin_convertvector(n, Ints) + 127) << 23;
  Floats power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

// Calls f(at, count) for pieces of at most LANES numbers.
template <class F>
inline void pieces(int64_t begin, int64_t end, F f) {
  for (int64_t i = begin; i < end; i += LANES) f(i, std::min(LANES, end - i));
}

inline Floats load_some(const float* p, int64_t count) {
  if (count == LANES) return load(p);
  Floats v = {};
  std::memcpy(&v, p, count * sizeof(float));
  return v;
}

inline void store_some(float* p, Floats v, int64_t count) { std::memcpy(p, &v, count * sizeof(float)); }

// ROWS rows of a weight times R rows of x. `w` holds LANES numbers of each row in turn, zeros past the end, so it is read from
// front to back; x holds zeros past the end, too. Every sum is taken in the same order whatever R is, so neither the number of
// threads nor the batch changes a result.
template <int R, class W>
inline void products(const W* w, int64_t width, const float* const* x, float (*y)[R]) {
  constexpr int64_t AHEAD = 2048 / sizeof(W), LINE = 64 / sizeof(W);
  Floats acc[ROWS][R] = {};
#pragma GCC unroll 2
  for (int64_t k = 0; k < width; k += LANES, w += ROWS * LANES) {
    for (int64_t i = 0; i < ROWS * LANES; i += LINE) __builtin_prefetch(w + AHEAD + i);
    for (int r = 0; r < R; r++) {
      Floats in = load(x[r] + k);
      for (int o = 0; o < ROWS; o++) acc[o][r] += load(w + o * LANES) * in;
    }
  }
  for (int o = 0; o < ROWS; o++)
    for (int r = 0; r < R; r++) y[o][r] = sum(acc[o][r]);
}

inline float norm_factor(const float* x, int64_t width, float eps) {
  return 1.0f / std::sqrt(dot(x, x, width) / float(width) + eps);
}

inline void rms_norm(const float* x, const float* weight, int64_t width, float eps, float* y) {
  float factor = norm_factor(x, width, eps);
  for (int64_t i = 0; i < width; i++) y[i] = x[i] * factor * weight[i];
}

inline void rotate(float* x, const float* cos, const float* sin, int64_t width) {
  int64_t half = width / 2;
  for (int64_t i = 0; i < half; i++) {
    float left = x[i], right = x[i + half];
    x[i] = left * cos[i] - right * sin[i];
    x[i + half] = right * cos[i] + left * sin[i];
  }
}

inline uint64_t splitmix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

struct Sampling {
  double temperature;
  int64_t top_k;
  double top_p;
  uint64_t seed;
};

// The first of the largest numbers.
inline int64_t argmax(const float* x, int64_t count) {
  Floats top = Floats{} - INFINITY;
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    Floats v = load(x + i);
    top = v > top ? v : top;
  }
  float largest = -INFINITY;
  for (int64_t lane = 0; lane < LANES; lane++) largest = std::max(largest, top[lane]);
  for (; i < count; i++) largest = std::max(largest, x[i]);
  return std::min<int64_t>(std::find(x, x + count, largest) - x, count - 1);  // NaN equals nothing
}

// The same choice as gt/persistent/sampling.py makes, for a temperature above 0.
inline int64_t choose(const float* logits, int64_t count, const Sampling& s, int64_t position) {
  double number = double(splitmix(splitmix(s.seed) ^ uint64_t(position)) >> 11) * 0x1p-53;
  std::vector<int64_t> order(count);
  for (int64_t i = 0; i < count; i++) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  if (s.top_k) order.resize(std::min(count, s.top_k));
  std::vector<double> cumulated;
  double total = 0, largest = logits[order[0]] / s.temperature;
  for (int64_t i : order) cumulated.push_back(total += std::exp(logits[i] / s.temperature - largest));
  if (s.top_p < 1) {
    auto end = std::lower_bound(cumulated.begin(), cumulated.end(), s.top_p * total);
    cumulated.resize(std::min<int64_t>(end - cumulated.begin() + 1, int64_t(cumulated.size())));
  }
  auto found = std::upper_bound(cumulated.begin(), cumulated.end(), number * cumulated.back());
  return order[std::min<int64_t>(found - cumulated.begin(), int64_t(cumulated.size()) - 1)];
}

}  // namespace gt
