// Weights and gradients in 16 bits for a network that computes in fp32: weights are widened when
// new ones have come, gradients are rounded when they leave, multiplied by the loss scale.
//
//     narrow_copies<Ops, bf16> copies(ops, tensors);
//     const float* w = copies.weight(i, opt, stream);      // of this step
//     float* g = copies.grad(i);                           // written by backward ...
//     copies.leave(i, opt, stream);                        // ... and handed to the optimizer
//     copies.stale();                                      // after an update
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train_classifier/mlp.hpp"
#include "train_classifier/ops.hpp"

#include <polyrank/backend/buffer.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace polyrank::examples {

template <classifier_ops Ops, element V>
class narrow_copies {
 public:
  using backend = typename Ops::backend;
  using stream = typename Ops::stream;

  narrow_copies(Ops& ops, const std::vector<tensor>& tensors)
      : ops_(ops), tensors_(tensors),
        weights_(tensors.back().offset + tensors.back().count(), backend::memory()),
        gradients_(weights_.size(), backend::memory()), fresh_(tensors.size(), false) {}

  template <class Optimizer>
  [[nodiscard]] float* weight(std::size_t i, const Optimizer& opt, stream& s) {
    const std::span<float> wide = weights_.span().subspan(tensors_[i].offset, tensors_[i].count());
    if (!fresh_[i]) {
      opt.wait_param(i, s);
      backend::template cast<float, V>(std::span<const V>(opt.value(i), wide.size()), wide, s);
      fresh_[i] = true;
    }
    return wide.data();
  }
  [[nodiscard]] float* grad(std::size_t i) const noexcept {
    return gradients_.data() + tensors_[i].offset;
  }
  template <class Optimizer>
  void leave(std::size_t i, Optimizer& opt, stream& s) {
    ops_.narrow(s, grad(i), opt.grad(i, s), tensors_[i].count(), opt.loss_scale());
    opt.ready(i, s);
  }
  /// The optimizer has, or will have, other weights.
  void stale() { fresh_.assign(fresh_.size(), false); }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return weights_.size_bytes() + gradients_.size_bytes();
  }

 private:
  Ops& ops_;
  const std::vector<tensor>& tensors_;
  buffer<float> weights_, gradients_;
  std::vector<bool> fresh_;
};

} // namespace polyrank::examples
