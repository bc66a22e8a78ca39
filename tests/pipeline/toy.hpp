// A model small enough to be run as a pipeline thousands of times: linear stages with a penalty on
// their outputs, squared error at the end, and a row number that travels along without gradient.
//
//     y = x W,   loss = seed * sum over rows of (|y_last - target|^2 / 2 + sum of penalty |y|^2 /
//     2)
//
// A pass uses everything that an executor hands out: two tensors per boundary, memory from F to I
// (y), memory from F to W (x), memory from I to W (the gradient of y).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/random.hpp>
#include <polyrank/host/stream.hpp>
#include <polyrank/pipeline/stage.hpp>
#include <polyrank/pipeline/table.hpp>

#include <cstddef>
#include <cstring>
#include <functional>
#include <vector>

namespace polyrank::test {

inline constexpr std::size_t width = 4;
inline constexpr float penalty = 0.0625f;

/// The whole batch: inputs and targets, [rows][width].
struct toy_batch {
  std::vector<float> x, target;
  explicit toy_batch(std::size_t rows, std::uint64_t seed = 1) {
    for (std::size_t i = 0; i < rows * width; ++i) {
      x.push_back(2 * uniform(seed, 1, i) - 1);
      target.push_back(2 * uniform(seed, 2, i) - 1);
    }
  }
};

/// The identity, a little disturbed, so that twenty-four of them neither blow up nor vanish.
inline std::vector<float> toy_weights(std::size_t stage) {
  std::vector<float> w(width * width);
  for (std::size_t i = 0; i < w.size(); ++i)
    w[i] = (i % (width + 1) == 0 ? 1.0f : 0.0f) + 0.2f * (uniform(77, stage, i) - 0.5f);
  return w;
}

namespace toy {

inline void multiply(const float* x, const float* w, float* y, std::size_t rows, bool transposed) {
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t j = 0; j < width; ++j) {
      float sum = 0;
      for (std::size_t i = 0; i < width; ++i)
        sum += x[r * width + i] * (transposed ? w[j * width + i] : w[i * width + j]);
      y[r * width + j] = sum;
    }
}
inline void weight_gradient(const float* x, const float* g, float* dw, std::size_t rows) {
  for (std::size_t i = 0; i < width; ++i)
    for (std::size_t j = 0; j < width; ++j) {
      float sum = 0;
      for (std::size_t r = 0; r < rows; ++r) sum += x[r * width + i] * g[r * width + j];
      dw[i * width + j] += sum;
    }
}
/// g = gradient of y: what comes from above (or of the loss), and of the penalty.
inline void output_gradient(const float* y, const float* dy, const float* target, float seed,
                            float* g, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    g[i] = (dy != nullptr ? dy[i] : seed * (y[i] - target[i])) + seed * penalty * y[i];
}

} // namespace toy

/// One stage, on host streams.
struct toy_stage {
  using pass = pipeline::pass<host::stream>;

  std::size_t stage, stages;
  const toy_batch* batch;
  std::vector<float> w, dw;
  float *weights = nullptr, *gradient = nullptr; ///< in the place of w and dw, if set
  std::vector<float>* seen = nullptr;            ///< last stage: the row numbers that arrived
  std::function<void(char kind, std::size_t microbatch)> on_work{}; ///< runs on the stream

  toy_stage(std::size_t s, std::size_t of, const toy_batch& b)
      : stage(s), stages(of), batch(&b), w(toy_weights(s)), dw(w.size(), 0.0f) {}

  [[nodiscard]] std::vector<pipeline::boundary> tensors() const {
    return {{"x", dtype::f32, width, true}, {"row", dtype::f32, 1, false}};
  }
  [[nodiscard]] std::vector<pipeline::boundary> inputs() const {
    return stage == 0 ? std::vector<pipeline::boundary>{} : tensors();
  }
  [[nodiscard]] std::vector<pipeline::boundary> outputs() const {
    return stage + 1 == stages ? std::vector<pipeline::boundary>{} : tensors();
  }
  [[nodiscard]] pipeline::stage_bytes bytes(std::size_t rows) const {
    const std::size_t one = rows * width * sizeof(float);
    return {.activation = 3 * one, .weight_context = 2 * one}; // x, g | y
  }

  void forward(const pass& p) {
    p.stream.enqueue([this, c = copy(p)] {
      work('F', c);
      const std::size_t n = c.rows * width;
      float *x = c.memory, *y = c.memory + 2 * n;
      std::memcpy(x, stage == 0 ? batch->x.data() + c.first * width : c.x, n * sizeof(float));
      toy::multiply(x, c.w, y, c.rows, false);
      if (stage + 1 < stages) std::memcpy(c.y, y, n * sizeof(float));
      for (std::size_t r = 0; r < c.rows; ++r) {
        const float row = stage == 0 ? static_cast<float>(c.first + r) : c.row_in[r];
        if (stage + 1 < stages) c.row_out[r] = row;
        if (stage + 1 == stages && seen != nullptr) (*seen)[c.first + r] = row;
      }
    });
  }
  void backward_input(const pass& p) {
    p.stream.enqueue([this, c = copy(p)] {
      work('I', c);
      const std::size_t n = c.rows * width;
      float *g = c.memory + n, *y = c.memory + 2 * n;
      toy::output_gradient(y, c.dy, batch->target.data() + c.first * width, c.seed, g, n);
      if (stage > 0) toy::multiply(g, c.w, c.dx, c.rows, true);
    });
  }
  void backward_weight(const pass& p) {
    p.stream.enqueue([this, c = copy(p)] {
      work('W', c);
      toy::weight_gradient(c.memory, c.memory + c.rows * width, c.dw, c.rows);
    });
  }

 private:
  /// The pass with its pointer lists resolved: those are valid during the call only.
  struct call {
    std::size_t rows, first, microbatch;
    float seed;
    float* memory;
    const float *w, *x, *row_in, *dy;
    float *dw, *y, *row_out, *dx;
  };
  [[nodiscard]] call copy(const pass& p) {
    const auto at = [](std::span<void* const> list, std::size_t i) {
      return i < list.size() ? static_cast<float*>(list[i]) : nullptr;
    };
    return {.rows = p.rows,
            .first = p.first_row,
            .microbatch = p.microbatch,
            .seed = p.seed,
            .memory = reinterpret_cast<float*>(p.memory),
            .w = weights != nullptr ? weights : w.data(),
            .x = at(p.input, 0),
            .row_in = at(p.input, 1),
            .dy = at(p.output_gradient, 0),
            .dw = gradient != nullptr ? gradient : dw.data(),
            .y = at(p.output, 0),
            .row_out = at(p.output, 1),
            .dx = at(p.input_gradient, 0)};
  }
  void work(char kind, const call& c) const {
    if (on_work) on_work(kind, c.microbatch);
  }
};

/// The weight gradients of all stages, one set per microbatch, computed without any pipeline.
inline std::vector<std::vector<std::vector<float>>>
toy_reference(const std::vector<std::vector<float>>& w, const toy_batch& batch,
              const std::vector<std::size_t>& rows, float seed) {
  const std::size_t stages = w.size();
  std::vector<std::vector<std::vector<float>>> out(rows.size());
  std::size_t first = 0;
  for (std::size_t k = 0; k < rows.size(); ++k) {
    const std::size_t n = rows[k] * width;
    std::vector<std::vector<float>> x(stages + 1, std::vector<float>(n));
    std::memcpy(x[0].data(), batch.x.data() + first * width, n * sizeof(float));
    for (std::size_t s = 0; s < stages; ++s)
      toy::multiply(x[s].data(), w[s].data(), x[s + 1].data(), rows[k], false);
    std::vector<float> dy(n), g(n);
    out[k].assign(stages, std::vector<float>(width * width, 0.0f));
    for (std::size_t s = stages; s-- > 0;) {
      toy::output_gradient(x[s + 1].data(), s + 1 < stages ? dy.data() : nullptr,
                           batch.target.data() + first * width, seed, g.data(), n);
      toy::weight_gradient(x[s].data(), g.data(), out[k][s].data(), rows[k]);
      toy::multiply(g.data(), w[s].data(), dy.data(), rows[k], true);
    }
    first += rows[k];
  }
  return out;
}

inline std::vector<std::vector<std::vector<float>>>
toy_reference(std::size_t stages, const toy_batch& batch, const std::vector<std::size_t>& rows,
              float seed) {
  std::vector<std::vector<float>> w;
  for (std::size_t s = 0; s < stages; ++s) w.push_back(toy_weights(s));
  return toy_reference(w, batch, rows, seed);
}

/// The sum over microbatches in the order in which the table adds them up for `stage`, `steps`
/// times the same.
inline std::vector<float>
toy_expected(const pipeline::table& t, std::size_t stage,
             const std::vector<std::vector<std::vector<float>>>& by_microbatch, int steps = 1) {
  using pipeline::action_kind;
  std::vector<float> sum(width * width, 0.0f);
  while (steps-- > 0)
    for (const pipeline::action& a : t.of(t.shape.rank_of(stage)))
      if (a.stage == stage &&
          (a.kind == action_kind::backward || a.kind == action_kind::weight_grad))
        for (std::size_t i = 0; i < sum.size(); ++i)
          sum[i] += by_microbatch[a.microbatch][stage][i];
  return sum;
}

} // namespace polyrank::test
