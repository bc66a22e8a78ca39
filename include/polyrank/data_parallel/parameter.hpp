// One trainable tensor, as a trainer declares it to grad_sync and to the optimizers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/dtype.hpp>

#include <cstddef>
#include <string>

namespace polyrank {

/// A tensor of `count` elements. `Gradient` is the type of its gradient, `Value` of the tensor
/// itself.
template <element Gradient = float, element Value = Gradient>
struct parameter {
  std::string name;
  std::size_t count = 0;
  Value* value = nullptr;       ///< backend memory; broadcast from rank 0 at start
  Gradient* gradient = nullptr; ///< the trainer's own gradient memory; null: grad_sync provides it
};

} // namespace polyrank
