// Stochastic gradient descent with momentum, with the semantics of torch.optim.SGD.
//
//     sgd::options options{.lr = 0.1, .momentum = 0.9, .weight_decay = 5e-4};
//     apply<sgd>(params, grads, state, sgd::at(options, step, lr_factor), grad_scale);
//
// As in PyTorch (and unlike Sutskever et al. 2013) the learning rate multiplies the whole velocity,
// weight decay is added to the gradient (not decoupled), and the first step takes the gradient
// undamped.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hd.hpp>
#include <polyrank/core/ieee.hpp>
#include <polyrank/optim/optimizer.hpp>

#include <cstddef>
#include <cstdint>

namespace polyrank {

struct sgd {
  /// state[0]: velocity.
  static constexpr std::size_t state_count = 1;

  struct options {
    double lr = 1e-2;
    double momentum = 0;
    double dampening = 0;
    double weight_decay = 0;
    bool nesterov = false; ///< PyTorch allows it only with momentum > 0 and dampening = 0
  };

  struct hyper {
    float lr, weight_decay, momentum;
    float incoming;      ///< 1 - dampening; 1 on the first step
    float from_gradient; ///< the step is from_gradient * g + from_velocity * velocity:
    float from_velocity; ///< (0, 1), with nesterov (1, momentum)
  };

  /// @param step 1 for the first update
  [[nodiscard]] POLYRANK_HD static hyper at(const options& o, std::uint64_t step,
                                double lr_factor = 1) noexcept {
    return {.lr = static_cast<float>(o.lr * lr_factor),
            .weight_decay = static_cast<float>(o.weight_decay),
            .momentum = static_cast<float>(o.momentum),
            .incoming = step <= 1 || o.momentum == 0 ? 1 : static_cast<float>(1 - o.dampening),
            .from_gradient = o.nesterov ? 1.0f : 0.0f,
            .from_velocity = o.nesterov ? static_cast<float>(o.momentum) : 1.0f};
  }

  /// g <- g + wd p
  /// velocity <- momentum velocity + (1 - dampening) g
  /// p <- p - lr velocity, with nesterov p - lr (g + momentum velocity)
  template <class T>
  POLYRANK_HD static T update(T p, T g, T* state, const hyper& h) noexcept {
    using namespace ieee;
    g = add(g, mul(h.weight_decay, p));
    const T velocity = add(mul(h.momentum, state[0]), mul(h.incoming, g));
    state[0] = velocity;
    const T direction = add(mul(h.from_gradient, g), mul(h.from_velocity, velocity));
    return sub(p, mul(h.lr, direction));
  }
};

} // namespace polyrank
