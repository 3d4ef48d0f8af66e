// The decode loop: all layers and all steps of a call inside one parallel region, with a spin barrier between layers.
#include <omp.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "decode.h"

using namespace gt;

namespace {

enum Kind : int64_t { EMBED, RMS_NORM, LINEAR, ATTENTION, SILU_MUL, ALL_REDUCE };

// Numbers of tensors are -1 where there is none. gt/persistent/openmp/executor.py fills this in, field by field.
struct Layer {
  int64_t layer_type, input, output, weight, bias, residual;
  int64_t heads, kv_heads, head_dim, layer, q_norm, k_norm, cos, sin;
  double eps;
};

struct Model {
  int64_t layer_count;
  const Layer* layers;
  const void* const* weights;
  const int64_t* is_bfloat16;  // of every weight
  float* const* activations;   // (max_tokens, stride) each
  const int64_t* widths;       // of every activation
  const int64_t* strides;      // widths, rounded up to whole vectors; the numbers past the width stay zero
  int64_t logits;              // number of an activation
  float* cache;                // (layers, 2, pages, page_size, kv_heads, head_dim)
  int64_t pages, page_size, max_length, threads;
  float* scores;   // (threads, max_length)
  int64_t* tops;   // (threads, max_tokens): each thread's choice from its part of the logits
  int64_t tops_width;
};

struct Batch {
  int64_t rows;
  int64_t *tokens, *positions, *slots;  // (rows,)
  const int64_t* tables;                // (slots, table_width): pages
  int64_t table_width;
  int64_t wanted_count;
  const int64_t* wanted;  // rows whose logits are asked for
};

struct Generation {
  int64_t steps, stop_at_first_end;
  const Sampling* sampling;  // (rows,)
  const int64_t* limits;     // (rows,)
  const int64_t* eos;
  int64_t eos_count;
  int64_t* made;    // (rows, steps)
  int64_t* counts;  // (rows,)
};

// The others arrive soon where every thread has a processor, so a waiting thread looks again for some time. Where processors are
// shared, one of the others may have lost its own: then they sleep, as the scheduler soon runs a thread that has slept, and takes
// the processor from one that spins in the middle of its next layer.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait() {
    int turn = turn_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.exchange(turn + 1);  // a store could be passed by the load below where an emulator (QEMU) computes for ARM
      if (asleep_.load()) wake();
      return;
    }
    for (int looks = 0; looks < LOOKS; looks++) {
      if (turn_.load(std::memory_order_acquire) != turn) return;
      pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    asleep_.fetch_add(1);  // before the look at the turn, as the last thread writes the turn before it looks for sleepers
    awake_.wait(lock, [&] { return turn_.load() != turn; });
    asleep_.fetch_sub(1);
  }

 private:
  static constexpr int LOOKS = 2000;  // about 0.1 ms
  void wake() {
    { std::lock_guard<std::mutex> lock(mutex_); }  // none is between its look at the turn and its sleep
    awake_.notify_all();
  }
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
  }
  const int threads_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> turn_{0};
  std::atomic<int> asleep_{0};
  std::mutex mutex_;
  std::condition_variable awake_;
};

struct Part {
  int64_t begin, end;
};

Part part(int64_t count, int thread, int threads) { return {count * thread / threads, count * (thread + 1) / threads}; }

// One thread's view of one forward.
struct Worker {
  const Model& model;
  const Batch& batch;
  int thread, threads;
  Barrier& barrier;

  const float* floats(int64_t number) const { return number < 0 ? nullptr : static_cast<const float*>(model.weights[number]); }
  float* row(int64_t activation, int64_t r) const { return model.activations[activation] + r * model.strides[activation]; }

  // Row r of a matrix: see `products` for how it lies in memory.
  template <class W>
  void matrix_row(const W* weight, int64_t r, int64_t width, float* y) const {
    int64_t stride = (width + LANES - 1) / LANES * LANES;
    const W* from = weight + r / ROWS * ROWS * stride + r % ROWS * LANES;
    pieces(0, width, [&](int64_t i, int64_t count) { store_some(y + i, load(from + i * ROWS), count); });
  }

  void embed(const Layer& l) const {
    int64_t width = model.widths[l.output];
    Part mine = part(batch.rows, thread, threads);
    for (int64_t r = mine.begin; r < mine.end; r++) {
      const void* weight = model.weights[l.weight];
      if (model.is_bfloat16[l.weight])
        matrix_row(static_cast<const uint16_t*>(weight), batch.tokens[r], width, row(l.output, r));
      else
        matrix_row(static_cast<const float*>(weight), batch.tokens[r], width, row(l.output, r));
    }
  }

  // Rows `which` of the input become rows 0, 1, ... of the output; all rows in their order where `which` is null.
  template <class W>
  void linear(const Layer& l, const int64_t* which, int64_t rows) const {
    const W* weight = static_cast<const W*>(model.weights[l.weight]);
    Part mine = part((model.widths[l.output] + ROWS - 1) / ROWS, thread, threads);
    for (int64_t block = mine.begin; block < mine.end; block++) {
      int64_t r = 0;
      for (; r + 4 <= rows; r += 4) tile<4>(l, weight, block * ROWS, which, r);
      for (; r < rows; r++) tile<1>(l, weight, block * ROWS, which, r);
    }
  }

  template <int R, class W>
  void tile(const Layer& l, const W* weight, int64_t o, const int64_t* which, int64_t first) const {
    int64_t stride = model.strides[l.input], count = std::min(ROWS, model.widths[l.output] - o);
    const float* x[R];
    float y[ROWS][R];
    for (int r = 0; r < R; r++) x[r] = row(l.input, which ? which[first + r] : first + r);
    products<R>(weight + o * stride, stride, x, y);
    for (int i = 0; i < count; i++)
      for (int r = 0; r < R; r++) {
        float value = y[i][r] + (l.bias < 0 ? 0.0f : floats(l.bias)[o + i]);
        if (l.residual >= 0) value += row(l.residual, which ? which[first + r] : first + r)[o + i];
        row(l.output, first + r)[o + i] = value;
      }
  }

  float* cached(const Layer& l, int64_t which, int64_t r, int64_t position, int64_t head) const {
    int64_t page = batch.tables[batch.slots[r] * batch.table_width + position / model.page_size];
    int64_t token = ((l.layer * 2 + which) * model.pages + page) * model.page_size + position % model.page_size;
    return model.cache + (token * l.kv_heads + head) * l.head_dim;
  }

  void attention(const Layer& l) const {
    int64_t d = l.head_dim, all = l.heads + 2 * l.kv_heads;
    Part mine = part(batch.rows * all, thread, threads);
    for (int64_t i = mine.begin; i < mine.end; i++) prepare(l, i / all, i % all, d);
    barrier.wait();
    mine = part(batch.rows * l.heads, thread, threads);
    for (int64_t i = mine.begin; i < mine.end; i++) attend(l, i / l.heads, i % l.heads, d);
  }

  // Norm and rotate a head of q or k in place; keys and values go to their page.
  void prepare(const Layer& l, int64_t r, int64_t head, int64_t d) const {
    float* x = row(l.input, r) + head * d;
    bool is_q = head < l.heads, is_k = !is_q && head < l.heads + l.kv_heads;
    int64_t position = batch.positions[r];
    if (is_q || is_k) {
      int64_t norm = is_q ? l.q_norm : l.k_norm;
      if (norm >= 0) rms_norm(x, floats(norm), d, float(l.eps), x);
      int64_t rotary_row = position;
      if (l.cos >= 0) rotate(x, floats(l.cos) + rotary_row * (d / 2), floats(l.sin) + rotary_row * (d / 2), d);
    }
    if (!is_q) {
      int64_t kv = head - l.heads - (is_k ? 0 : l.kv_heads);
      std::memcpy(cached(l, is_k ? 0 : 1, r, position, kv), x, d * sizeof(float));
    }
  }

  void attend(const Layer& l, int64_t r, int64_t head, int64_t d) const {
    const float* q = row(l.input, r) + head * d;
    float* scores = model.scores + thread * model.max_length;
    float* y = row(l.output, r) + head * d;
    int64_t kv = head / (l.heads / l.kv_heads);
    int64_t visible = batch.positions[r] + 1;
    float scale = 1.0f / std::sqrt(float(d)), largest = -INFINITY, total = 0;
    int64_t size = model.page_size, stride = l.kv_heads * d, count = 0;
    for (int64_t start = 0; start < visible; start += size) {
      int64_t held = std::min(size, visible - start);
      const float* key = cached(l, 0, r, start, kv);
      for (int64_t t = 0; t < held; t++, key += stride) {
        scores[count] = dot(q, key, d) * scale;
        largest = std::max(largest, scores[count++]);
      }
    }
    pieces(0, count, [&](int64_t t, int64_t some) {
      store_some(scores + t, exponential(load_some(scores + t, some) - largest), some);
    });
    for (int64_t t = 0; t < count; t++) total += scores[t];
    std::fill(y, y + d, 0.0f);
    int64_t done = 0;
    for (int64_t start = 0; start < visible && done < count; start += size) {
      int64_t held = std::min(size, count - done);
      const float* value = cached(l, 1, r, start, kv);
      for (int64_t t = 0; t < held; t++, value += stride) {
        float share = scores[done++] / total;
        for (int64_t i = 0; i < d; i++) y[i] += share * value[i];
      }
    }
  }

  // Every thread has a part of every row. The factor of a norm is each thread's own work, which is less than a barrier.
  void each_number(const Layer& l) const {
    int64_t width = model.widths[l.output];
    Part mine = part((width + LANES - 1) / LANES, thread, threads);
    int64_t begin = mine.begin * LANES, end = std::min(width, mine.end * LANES);
    for (int64_t r = 0; r < batch.rows; r++) {
      const float* x = row(l.input, r);
      float* y = row(l.output, r);
      float factor = l.layer_type == RMS_NORM ? norm_factor(x, width, float(l.eps)) : 1.0f;
      if (l.layer_type == RMS_NORM && l.input == l.output) barrier.wait();  // others may still read the values that this overwrites
      pieces(begin, end, [&](int64_t i, int64_t count) {
        Floats v = load_some(x + i, count);
        if (l.layer_type == RMS_NORM) v = v * factor * load_some(floats(l.weight) + i, count);
        if (l.layer_type == SILU_MUL) v = v / (1.0f + exponential(-v)) * load_some(x + width + i, count);
        store_some(y + i, v, count);
      });
    }
  }

  // This thread's part of the greedy choice of every row.
  void choose_part() const {
    Part mine = part(model.widths[model.logits], thread, threads);
    for (int64_t r = 0; r < batch.rows; r++)
      model.tops[thread * model.tops_width + r] =
          mine.begin == mine.end ? -1 : mine.begin + argmax(row(model.logits, r) + mine.begin, mine.end - mine.begin);
  }

  void run(const Layer& l, bool head) const {
    const int64_t* which = head ? batch.wanted : nullptr;
    int64_t rows = head ? batch.wanted_count : batch.rows;
    switch (l.layer_type) {
      case EMBED: embed(l); break;
      case LINEAR: model.is_bfloat16[l.weight] ? linear<uint16_t>(l, which, rows) : linear<float>(l, which, rows); break;
      case ATTENTION: attention(l); break;
      default: each_number(l);
    }
    barrier.wait();
  }
};

// Only the wanted rows go through the head, if it is the last layer and no residual of its own rows is overwritten.
bool is_head(const Model& m, int64_t layer) {
  const Layer& l = m.layers[layer];
  return layer == m.layer_count - 1 && l.layer_type == LINEAR && l.output == m.logits && l.residual != l.output;
}

void forward(const Worker& worker) {
  for (int64_t i = 0; i < worker.model.layer_count; i++) worker.run(worker.model.layers[i], is_head(worker.model, i));
}

const float* logits_of(const Model& m, const Batch& b, int64_t i) {
  return m.activations[m.logits] + (is_head(m, m.layer_count - 1) ? i : b.wanted[i]) * m.strides[m.logits];
}

// The greedy choice of a row, from those of the threads.
int64_t greedy(const Model& m, const float* logits, int64_t r, int threads) {
  int64_t found = -1;
  for (int t = 0; t < threads; t++) {
    int64_t one = m.tops[t * m.tops_width + r];
    if (one >= 0 && (found < 0 || logits[one] > logits[found])) found = one;
  }
  return found;
}

// Choose a token for every row, and drop the rows that are at their end. Returns whether one is.
bool advance(const Model& m, Batch& b, const Generation& g, std::vector<int64_t>& request, int threads) {
  int64_t kept = 0, before = b.rows;
  for (int64_t r = 0; r < before; r++) {
    int64_t id = request[r], length = b.positions[r] + 1;
    const float* logits = logits_of(m, b, r);
    int64_t token = g.sampling[id].temperature == 0 ? greedy(m, logits, r, threads)
                                                    : choose(logits, m.widths[m.logits], g.sampling[id], length);
    g.made[id * g.steps + g.counts[id]++] = token;
    if (std::find(g.eos, g.eos + g.eos_count, token) != g.eos + g.eos_count || length + 1 >= g.limits[id]) continue;
    request[kept] = id, b.tokens[kept] = token, b.positions[kept] = length, b.slots[kept] = b.slots[r];
    kept++;
  }
  b.rows = b.wanted_count = kept;
  return kept < before;
}

}  // namespace

// One forward of any rows; the logits of the wanted ones are copied out.
extern "C" void gt_decode_forward(const Model* m, const Batch* b, float* logits) {
  Barrier* barrier = nullptr;
#pragma omp parallel num_threads(int(m->threads))
  {
    int thread = omp_get_thread_num(), threads = omp_get_num_threads();
#pragma omp single
    barrier = new Barrier(threads);
    forward(Worker{*m, *b, thread, threads, *barrier});
  }
  delete barrier;
  int64_t width = m->widths[m->logits];
  for (int64_t i = 0; i < b->wanted_count; i++) std::memcpy(logits + i * width, logits_of(*m, *b, i), width * sizeof(float));
}

// Many steps of a batch with one row for every request, all wanted. Returns how many were taken.
extern "C" int64_t gt_decode_steps(const Model* m, Batch* b, const Generation* g) {
  Barrier* barrier = nullptr;
  int64_t taken = 0;
  bool more = g->steps > 0 && b->rows > 0;
  std::vector<int64_t> request(b->rows);
  for (int64_t r = 0; r < b->rows; r++) request[r] = r;
#pragma omp parallel num_threads(int(m->threads))
  {
    int thread = omp_get_thread_num(), threads = omp_get_num_threads();
#pragma omp single
    barrier = new Barrier(threads);
    Worker worker{*m, *b, thread, threads, *barrier};
    while (more) {
      forward(worker);
      worker.choose_part();
      barrier->wait();
      if (thread == 0) {
        bool ended = advance(*m, *b, *g, request, threads);
        taken++;
        more = taken < g->steps && b->rows > 0 && !(ended && g->stop_at_first_end);
      }
      barrier->wait();
    }
  }
  delete barrier;
  return taken;
}

// Reads arrays with the threads of a model, each its part of every array, and does no more with them than a sum: how fast
// weights can be read at all. Returns that sum, so that no compiler leaves the reading out.
extern "C" double gt_decode_read(const void* const* arrays, const int64_t* bytes, int64_t count, int64_t threads) {
  double total = 0;
#pragma omp parallel num_threads(int(threads)) reduction(+ : total)
  for (int64_t a = 0; a < count; a++) {
    const float* from = static_cast<const float*>(arrays[a]);
    Part mine = part(bytes[a] / 256, omp_get_thread_num(), omp_get_num_threads());
    Floats sums[4] = {};
    for (int64_t i = mine.begin; i < mine.end; i++)
      for (int j = 0; j < 4; j++) {
        __builtin_prefetch(from + i * 64 + j * LANES + 512);
        sums[j] += load(from + i * 64 + j * LANES);
      }
    total += sum(sums[0] + sums[1] + sums[2] + sums[3]);
  }
  return total;
}
