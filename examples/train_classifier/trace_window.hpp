// Which steps a trace shows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

namespace polyrank::examples {

/// When the timeline of the ops is on.
struct trace_window {
  std::size_t first = 0, count = 4; ///< steps of this run, from 0

  /// The first steps are slower than the rest, so not those where there are others.
  [[nodiscard]] static trace_window of(std::size_t steps) {
    trace_window w;
    w.first = steps > w.count ? std::min<std::size_t>(20, steps - w.count) : 0;
    return w;
  }
  [[nodiscard]] bool holds(std::size_t step) const noexcept {
    return step >= first && step < first + count;
  }
};

} // namespace polyrank::examples
