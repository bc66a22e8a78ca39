// Lion (Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2): the sign
// of a momentum, half the state of AdamW. Its learning rate is usually 3 to 10 times smaller and
// its weight decay as much larger.
//
//     lion::options options{.lr = 1e-4, .weight_decay = 0.1};
//     apply<lion>(params, grads, planes_of<lion>(state), lion::at(options, step, factor),
//     grad_scale);
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hd.hpp>
#include <polyrank/core/ieee.hpp>
#include <polyrank/optim/optimizer.hpp>

#include <cstddef>
#include <cstdint>

namespace polyrank {

struct lion {
  /// state[0]: momentum.
  static constexpr std::size_t state_count = 1;

  struct options {
    double lr = 1e-4;
    double beta1 = 0.9;  ///< weight of the momentum in the direction
    double beta2 = 0.99; ///< decay of the momentum
    double weight_decay = 0;
  };

  struct hyper {
    float lr, decay; ///< decay = 1 - lr * weight_decay
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
  };

  /// The step does not matter: there is no bias correction.
  [[nodiscard]] POLYRANK_HD static hyper at(const options& o, std::uint64_t /*step*/,
                                double lr_factor = 1) noexcept {
    const double lr = o.lr * lr_factor;
    return {.lr = static_cast<float>(lr),
            .decay = static_cast<float>(1 - lr * o.weight_decay),
            .beta1 = static_cast<float>(o.beta1),
            .one_minus_beta1 = static_cast<float>(1 - o.beta1),
            .beta2 = static_cast<float>(o.beta2),
            .one_minus_beta2 = static_cast<float>(1 - o.beta2)};
  }

  /// p <- (1 - lr wd) p - lr sign(beta1 m + (1 - beta1) g)
  /// m <- beta2 m + (1 - beta2) g
  template <class T>
  POLYRANK_HD static T update(T p, T g, T* state, const hyper& h) noexcept {
    using namespace ieee;
    const T direction = sign(add(mul(h.beta1, state[0]), mul(h.one_minus_beta1, g)));
    state[0] = add(mul(h.beta2, state[0]), mul(h.one_minus_beta2, g));
    return sub(mul(h.decay, p), mul(h.lr, direction));
  }
};

} // namespace polyrank
