// A multi-layer perceptron: linear layers with GELU between them and softmax cross entropy at the
// end.
//
//     mlp<host_ops> model(ops, {.inputs = 784, .hidden = {256, 128}, .classes = 10}, rows);
//     model.forward(stream, weights, x, rows);
//     model.loss(stream, labels, loss, rows);
//     model.backward(stream, weights, x, rows, grad, [&](std::size_t i) { sync.ready(i, stream);
//     });
//
// It owns activations only. Weights and gradients are pointers of the caller, `weights(i)` and
// `grad(i)` for parameter i, so that whoever communicates decides where gradients lie. Nothing here
// reads memory on the host: all work is enqueued.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train_classifier/ops.hpp"

#include <polyrank/backend/buffer.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/random.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace polyrank::examples {

struct mlp_shape {
  std::size_t inputs = 0;
  std::vector<std::size_t> hidden;
  std::size_t classes = 0;

  [[nodiscard]] std::size_t layers() const noexcept { return hidden.size() + 1; }
  [[nodiscard]] std::size_t width_in(std::size_t layer) const {
    return layer == 0 ? inputs : hidden[layer - 1];
  }
  [[nodiscard]] std::size_t width_out(std::size_t layer) const {
    return layer + 1 == layers() ? classes : hidden[layer];
  }
  /// "784-256-128-10"
  [[nodiscard]] std::string text() const {
    std::string out = detail::cat(inputs);
    for (const std::size_t h : hidden) out += detail::cat("-", h);
    return out + detail::cat("-", classes);
  }
};

/// A parameter of the model: layer l has 2l (weight, [outputs][inputs]) and 2l + 1 (bias).
struct tensor {
  std::string name;
  std::vector<std::size_t> shape;
  std::size_t offset = 0; ///< in the concatenation of all parameters

  [[nodiscard]] std::size_t count() const noexcept {
    std::size_t n = 1;
    for (const std::size_t d : shape) n *= d;
    return n;
  }
};

/// In layout order.
[[nodiscard]] inline std::vector<tensor> parameters_of(const mlp_shape& shape) {
  std::vector<tensor> all;
  std::size_t offset = 0;
  const auto add = [&](std::string name, std::vector<std::size_t> dims) {
    all.push_back({std::move(name), std::move(dims), offset});
    offset += all.back().count();
  };
  for (std::size_t l = 0; l < shape.layers(); ++l) {
    add(detail::cat("layer", l, ".weight"), {shape.width_out(l), shape.width_in(l)});
    add(detail::cat("layer", l, ".bias"), {shape.width_out(l)});
  }
  return all;
}

[[nodiscard]] inline std::size_t parameter_count(const mlp_shape& shape) {
  const auto all = parameters_of(shape);
  return all.back().offset + all.back().count();
}

/// Initial values, a function of (seed, parameter, index) alone: weights and biases are uniform in
/// +-1/sqrt(inputs), as in torch.nn.Linear.
[[nodiscard]] inline std::vector<float> initial_parameters(const mlp_shape& shape,
                                                           std::uint64_t seed) {
  std::vector<float> values(parameter_count(shape));
  const auto all = parameters_of(shape);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const float bound = 1 / std::sqrt(static_cast<float>(shape.width_in(i / 2)));
    for (std::size_t k = 0; k < all[i].count(); ++k)
      values[all[i].offset + k] = bound * (2 * uniform(seed, i, k) - 1);
  }
  return values;
}

template <classifier_ops Ops>
class mlp {
 public:
  using stream = typename Ops::stream;

  /// Room for blocks of up to `max_rows` pictures.
  mlp(Ops& ops, mlp_shape shape, std::size_t max_rows)
      : ops_(ops), shape_(std::move(shape)), max_rows_(max_rows) {
    auto& memory = Ops::backend::memory();
    std::size_t widest = 0;
    for (std::size_t l = 0; l < shape_.layers(); ++l) {
      pre_.emplace_back(max_rows * shape_.width_out(l), memory);
      if (l + 1 < shape_.layers()) post_.emplace_back(max_rows * shape_.width_out(l), memory);
      widest = std::max(widest, shape_.width_out(l));
    }
    for (auto& d : delta_) d = buffer<float>(max_rows * widest, memory);
  }

  [[nodiscard]] const mlp_shape& shape() const noexcept { return shape_; }
  /// Of activations and their gradients, for blocks of `rows` pictures.
  [[nodiscard]] static std::size_t bytes_for(const mlp_shape& shape, std::size_t rows) {
    std::size_t values = 0, widest = 0;
    for (std::size_t l = 0; l < shape.layers(); ++l) {
      values += (l + 1 < shape.layers() ? 2 : 1) * shape.width_out(l);
      widest = std::max(widest, shape.width_out(l));
    }
    return (values + 2 * widest) * rows * sizeof(float);
  }
  [[nodiscard]] std::size_t bytes() const noexcept {
    std::size_t sum = delta_[0].size_bytes() + delta_[1].size_bytes();
    for (const auto& b : pre_) sum += b.size_bytes();
    for (const auto& b : post_) sum += b.size_bytes();
    return sum;
  }
  /// [rows][classes], after forward().
  [[nodiscard]] float* logits() const noexcept { return pre_.back().data(); }

  /// Fills logits(). x is [rows][inputs].
  template <class Weights>
  void forward(stream& s, Weights&& weights, const float* x, std::size_t rows) {
    expects(rows <= max_rows_, "mlp: a block of ", rows, " rows, but there is room for ",
            max_rows_);
    for (std::size_t l = 0; l < shape_.layers(); ++l) {
      const std::size_t in = shape_.width_in(l), out = shape_.width_out(l);
      ops_.linear(s, input(l, x), weights(2 * l), weights(2 * l + 1), pre_[l].data(), rows, in,
                  out);
      if (l + 1 < shape_.layers()) ops_.gelu(s, pre_[l].data(), post_[l].data(), rows * out);
    }
  }

  /// *loss = mean cross entropy of the rows of forward(); keeps its gradient for backward().
  void loss(stream& s, const std::uint8_t* labels, float* loss, std::size_t rows) {
    ops_.softmax_cross_entropy(s, logits(), labels, delta_[0].data(), loss, rows, shape_.classes);
  }

  /// Writes (does not add to) every gradient, last layer first, and calls ready(i) right after the
  /// work that wrote gradient i was enqueued.
  template <class Weights, class Gradients, class Ready>
  void backward(stream& s, Weights&& weights, const float* x, std::size_t rows, Gradients&& grad,
                Ready&& ready) {
    float *dy = delta_[0].data(), *dx = delta_[1].data();
    for (std::size_t l = shape_.layers(); l-- > 0;) {
      const std::size_t in = shape_.width_in(l), out = shape_.width_out(l);
      ops_.linear_grad_bias(s, dy, grad(2 * l + 1), rows, out);
      ready(2 * l + 1);
      ops_.linear_grad_weights(s, input(l, x), dy, grad(2 * l), rows, in, out);
      ready(2 * l);
      if (l == 0) break;
      ops_.linear_grad_input(s, dy, weights(2 * l), dx, rows, in, out);
      ops_.gelu_grad(s, pre_[l - 1].data(), dx, dx, rows * in);
      std::swap(dy, dx);
    }
  }

 private:
  [[nodiscard]] const float* input(std::size_t layer, const float* x) const noexcept {
    return layer == 0 ? x : post_[layer - 1].data();
  }

  Ops& ops_;
  mlp_shape shape_;
  std::size_t max_rows_;
  std::vector<buffer<float>> pre_, post_; // before and after GELU
  buffer<float> delta_[2];                // gradients of activations, in turn
};

} // namespace polyrank::examples
