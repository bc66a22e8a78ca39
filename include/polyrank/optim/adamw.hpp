// AdamW: Adam with decoupled weight decay (Loshchilov & Hutter 2019,
// https://arxiv.org/abs/1711.05101), with the semantics of torch.optim.AdamW.
//
//     adamw::options options{.lr = 2e-3};
//     apply<adamw>(params, grads, state, adamw::at(options, step, lr_factor), grad_scale);
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hd.hpp>
#include <polyrank/core/ieee.hpp>
#include <polyrank/optim/optimizer.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace polyrank {

struct adamw {
  /// state[0]: first moment m, state[1]: second moment v.
  static constexpr std::size_t state_count = 2;

  struct options {
    double lr = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay =
        1e-2; ///< decoupled: p shrinks by lr * weight_decay, whatever the gradient
  };

  /// The numbers of one step; bias corrections are folded in, so kernels need no step count.
  struct hyper {
    float keep;      ///< 1 - lr * weight_decay
    float step_size; ///< lr / (1 - beta1^step)
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
    float inv_root; ///< 1 / sqrt(1 - beta2^step)
    float eps;
  };

  /// @param step 1 for the first update
  [[nodiscard]] POLYRANK_HD static hyper at(const options& o, std::uint64_t step,
                                double lr_factor = 1) noexcept {
    const double lr = o.lr * lr_factor, t = static_cast<double>(step);
    return {.keep = static_cast<float>(1 - lr * o.weight_decay),
            .step_size = static_cast<float>(lr / (1 - std::pow(o.beta1, t))),
            .beta1 = static_cast<float>(o.beta1),
            .one_minus_beta1 = static_cast<float>(1 - o.beta1),
            .beta2 = static_cast<float>(o.beta2),
            .one_minus_beta2 = static_cast<float>(1 - o.beta2),
            .inv_root = static_cast<float>(1 / std::sqrt(1 - std::pow(o.beta2, t))),
            .eps = static_cast<float>(o.eps)};
  }

  /// m <- beta1 m + (1 - beta1) g
  /// v <- beta2 v + (1 - beta2) g^2
  /// p <- (1 - lr wd) p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
  template <class T>
  POLYRANK_HD static T update(T p, T g, T* state, const hyper& h) noexcept {
    using namespace ieee;
    const T m = add(mul(h.beta1, state[0]), mul(h.one_minus_beta1, g));
    const T v = add(mul(h.beta2, state[1]), mul(h.one_minus_beta2, mul(g, g)));
    state[0] = m;
    state[1] = v;
    const T denominator = add(mul(h.inv_root, root(v)), h.eps);
    return sub(mul(h.keep, p), mul(h.step_size, div(m, denominator)));
  }
};

} // namespace polyrank
