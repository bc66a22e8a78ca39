// Consecutive layers of the multi-layer perceptron (mlp.hpp) as a stage of a pipeline, with the
// backward in two halves. Stages send activations after GELU; the last one computes the loss.
//
// Memory of a microbatch: per layer its sum before GELU, over which I writes its gradient, and, but
// for the stage's last layer, its output. W needs all of it.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train_classifier/mlp.hpp"
#include "train_classifier/ops.hpp"

#include <polyrank/backend/buffer.hpp>
#include <polyrank/core/partition.hpp>
#include <polyrank/pipeline/stage.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace polyrank::examples {

/// What all stages of a rank work on in a step; rows of the whole step follow each other.
struct mlp_work {
  const float* x = nullptr;                     ///< for the first stage
  const std::uint8_t* labels = nullptr;         ///< for the last one
  float* losses = nullptr;                      ///< by microbatch: its mean cross entropy
  float *best = nullptr, *confidence = nullptr; ///< by row; set: classify, instead of a loss
};

/// Who owns weights and gradients: one of parallel.hpp, for the tensors of this rank only.
template <class Stream>
struct parallel_weights {
  virtual ~parallel_weights() = default;
  virtual float* weight(std::size_t i, Stream&) = 0;
  virtual float* grad(std::size_t i, Stream&) = 0;
  virtual void begin(double rate) = 0;
  virtual void ready(std::size_t i, Stream&) = 0;
  virtual void update(std::size_t step, double rate, Stream&) = 0;
  virtual void verify(Stream&) = 0;
  virtual void read(Stream&, std::vector<float>& parameters, std::vector<float>& state) = 0;
};

/// `first_tensor` is the first of the stage's tensors among the rank's.
template <classifier_ops Ops>
class mlp_stage {
 public:
  using backend = typename Ops::backend;
  using stream = typename backend::stream;
  using pass = pipeline::pass<stream>;

  mlp_stage(Ops& ops, const mlp_shape& shape, range layers, std::size_t first_tensor,
            std::size_t rows, std::size_t microbatches, const mlp_work& work)
      : ops_(&ops), shape_(&shape), layers_(layers), first_tensor_(first_tensor),
        microbatches_(microbatches), work_(&work) {
    std::size_t widest = 0, largest = 0;
    for (std::size_t l = layers.begin; l < layers.end; ++l) {
      widest = std::max({widest, shape.width_in(l), shape.width_out(l)});
      largest = std::max(largest, shape.width_in(l) * shape.width_out(l));
    }
    delta_ = buffer<float>(rows * widest, backend::memory());
    added_ = buffer<float>(largest, backend::memory());
  }
  /// Before the first pass.
  void use(parallel_weights<stream>& parallel) noexcept { parallel_ = &parallel; }
  [[nodiscard]] range tensors() const noexcept {
    return {first_tensor_, first_tensor_ + 2 * layers_.size()};
  }

  [[nodiscard]] std::vector<pipeline::boundary> inputs() const {
    if (layers_.begin == 0) return {};
    return {{"activation", dtype::f32, shape_->width_in(layers_.begin), true}};
  }
  [[nodiscard]] std::vector<pipeline::boundary> outputs() const {
    if (has_loss()) return {};
    return {{"activation", dtype::f32, shape_->width_out(layers_.end - 1), true}};
  }
  [[nodiscard]] pipeline::stage_bytes bytes(std::size_t rows) const {
    const std::size_t all = place(layers_.end, rows).first * sizeof(float);
    return {.activation = all, .weight_context = all};
  }

  void forward(const pass& p) {
    for (std::size_t l = layers_.begin; l < layers_.end; ++l) {
      const std::size_t in = shape_->width_in(l), out = shape_->width_out(l);
      ops_->linear(p.stream, input(l, p), weight(2 * l, p), weight(2 * l + 1, p), sum(l, p), p.rows,
                   in, out);
      if (l + 1 < shape_->layers())
        ops_->gelu(p.stream, sum(l, p),
                   l + 1 < layers_.end ? output(l, p) : static_cast<float*>(p.output[0]),
                   p.rows * out);
    }
    if (!has_loss()) return;
    float* const logits = sum(layers_.end - 1, p);
    if (work_->best != nullptr) {
      ops_->classify(p.stream, logits, work_->best + p.first_row, work_->confidence + p.first_row,
                     p.rows, shape_->classes);
      return;
    }
    ops_->softmax_cross_entropy(p.stream, logits, work_->labels + p.first_row, logits,
                                work_->losses + p.microbatch, p.rows, shape_->classes);
    // It has left the gradient of the microbatch's mean: make it that of seed * sum.
    backend::scale(std::span<float>(logits, p.rows * shape_->classes),
                   p.seed * static_cast<float>(p.rows), p.stream);
  }

  void backward_input(const pass& p) {
    const float* above =
        p.output_gradient.empty() ? nullptr : static_cast<const float*>(p.output_gradient[0]);
    for (std::size_t l = layers_.end; l-- > layers_.begin;) {
      const std::size_t in = shape_->width_in(l), out = shape_->width_out(l);
      if (l + 1 < shape_->layers())
        ops_->gelu_grad(p.stream, sum(l, p), above, sum(l, p), p.rows * out);
      float* const below = l > layers_.begin ? delta_.data()
                           : l > 0           ? static_cast<float*>(p.input_gradient[0])
                                             : nullptr;
      if (below != nullptr)
        ops_->linear_grad_input(p.stream, sum(l, p), weight(2 * l, p), below, p.rows, in, out);
      above = below;
    }
  }

  void backward_weight(const pass& p) {
    const bool first = done_++ % microbatches_ == 0;
    for (std::size_t l = layers_.end; l-- > layers_.begin;) {
      const std::size_t in = shape_->width_in(l), out = shape_->width_out(l);
      add(2 * l + 1, out, first, p,
          [&](float* db) { ops_->linear_grad_bias(p.stream, sum(l, p), db, p.rows, out); });
      add(2 * l, in * out, first, p, [&](float* dw) {
        ops_->linear_grad_weights(p.stream, input(l, p), sum(l, p), dw, p.rows, in, out);
      });
    }
  }

 private:
  [[nodiscard]] bool has_loss() const noexcept { return layers_.end == shape_->layers(); }

  /// Where layer l's sum and output begin, in floats; for l == end: the total.
  [[nodiscard]] std::pair<std::size_t, std::size_t> place(std::size_t l, std::size_t rows) const {
    std::size_t at = 0, second = 0;
    for (std::size_t k = layers_.begin; k <= l; ++k) {
      second = k < layers_.end ? at + rows * shape_->width_out(k) : at;
      if (k == l) break;
      at = second + (k + 1 < layers_.end ? rows * shape_->width_out(k) : 0);
    }
    return {at, second};
  }
  [[nodiscard]] float* sum(std::size_t l, const pass& p) const {
    return reinterpret_cast<float*>(p.memory) + place(l, p.rows).first;
  }
  [[nodiscard]] float* output(std::size_t l, const pass& p) const {
    return reinterpret_cast<float*>(p.memory) + place(l, p.rows).second;
  }
  [[nodiscard]] const float* input(std::size_t l, const pass& p) const {
    if (l > layers_.begin) return output(l - 1, p);
    return l == 0 ? work_->x + p.first_row * shape_->inputs : static_cast<const float*>(p.input[0]);
  }
  [[nodiscard]] std::size_t local(std::size_t tensor) const {
    return first_tensor_ + tensor - 2 * layers_.begin;
  }
  [[nodiscard]] const float* weight(std::size_t tensor, const pass& p) const {
    return parallel_->weight(local(tensor), p.stream);
  }
  /// gradient (+)= what `write` writes
  template <class Write>
  void add(std::size_t tensor, std::size_t count, bool first, const pass& p, Write write) {
    float* const sum = parallel_->grad(local(tensor), p.stream);
    if (first) return write(sum);
    write(added_.data());
    const std::span<float> total(sum, count);
    backend::template add<float>(total, added_.span().first(count), total, p.stream);
  }

  Ops* ops_;
  const mlp_shape* shape_;
  range layers_;
  std::size_t first_tensor_, microbatches_, done_ = 0;
  const mlp_work* work_;
  parallel_weights<stream>* parallel_ = nullptr;
  buffer<float> delta_, added_;
};

} // namespace polyrank::examples
