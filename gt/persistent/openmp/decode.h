// Sums of products, softmax and sampling on plain arrays: what the decode loop computes with. It knows no threads.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace gt {

// 16 numbers at a time; the compiler makes of them what the processor has.
typedef float Floats __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(64)));
constexpr int64_t LANES = 16;

inline Floats load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline Floats load(const uint16_t* p) {  // bfloat16 is the upper half of a float
  Halves h;
  std::memcpy(&h, p, sizeof h);
  Words w = __builtin_convertvector(h, Words) << 16;
  Floats v;
  std::memcpy(&v, &w, sizeof v);
  return v;
}

inline float one(const float* p) { return *p; }
inline float one(const uint16_t* p) {
  uint32_t w = uint32_t(*p) << 16;
  float v;
  std::memcpy(&v, &w, sizeof v);
  return v;
}

inline float sum(const Floats& v) {
  float s = 0;
  for (int64_t i = 0; i < LANES; i++) s += v[i];
  return s;
}

// O rows of a weight times R rows of x. Every sum is taken in the same order whatever O and R are, so neither the number of
// threads nor the batch changes a result.
template <int O, int R, class W>
inline void products(const W* w, int64_t width, const float* const* x, float (*y)[R]) {
  Floats acc[O][R] = {};
  int64_t k = 0;
  for (; k + LANES <= width; k += LANES) {
    Floats in[R];
    for (int r = 0; r < R; r++) in[r] = load(x[r] + k);
    // The next rows of the weight, which the processor's own prefetch does not foresee at the end of these.
    for (int o = 0; o < O; o++) __builtin_prefetch(w + O * width + O * k + o * LANES);
    for (int o = 0; o < O; o++) {
      Floats weight = load(w + o * width + k);
      for (int r = 0; r < R; r++) acc[o][r] += weight * in[r];
    }
  }
  for (int o = 0; o < O; o++)
    for (int r = 0; r < R; r++) {
      float s = sum(acc[o][r]);
      for (int64_t i = k; i < width; i++) s += one(w + o * width + i) * x[r][i];
      y[o][r] = s;
    }
}

inline void rms_norm(const float* x, const float* weight, int64_t width, float eps, float* y) {
  float squares = 0;
  for (int64_t i = 0; i < width; i++) squares += x[i] * x[i];
  float factor = 1.0f / std::sqrt(squares / float(width) + eps);
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

// The same choice as gt/persistent/sampling.py makes.
inline int64_t choose(const float* logits, int64_t count, const Sampling& s, int64_t position) {
  if (s.temperature == 0) return std::max_element(logits, logits + count) - logits;
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
