// What communication costs on one machine: a latency and a bandwidth. A plain struct: the probe
// measures it, grad_sync sizes its buckets with it, the pipeline simulator prices transfers with
// it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace polyrank {

/// time(bytes) = alpha + bytes / beta.
struct cost_model {
  double alpha = 25e-6; ///< seconds per message
  double beta = 10e9;   ///< bytes per second on one link, one direction

  /// Seconds to send `bytes` to one peer.
  [[nodiscard]] constexpr double transfer(std::size_t bytes) const noexcept {
    return alpha + static_cast<double>(bytes) / beta;
  }

  /// Seconds of a ring all-reduce of `bytes` over n ranks: 2(n-1) steps of bytes/n.
  [[nodiscard]] constexpr double all_reduce(std::size_t bytes, std::size_t n) const noexcept {
    if (n < 2) return 0;
    const double steps = 2.0 * static_cast<double>(n - 1);
    return steps * alpha + steps / static_cast<double>(n) * static_cast<double>(bytes) / beta;
  }

  /// The smallest bucket whose latency is at most `share` of its all-reduce time:
  /// bytes = (1 - share) / share * alpha * beta * n.
  [[nodiscard]] constexpr std::size_t bucket_bytes(std::size_t n,
                                                   double share = 0.05) const noexcept {
    if (n < 2) return 0;
    const double bytes = (1 - share) / share * alpha * beta * static_cast<double>(n);
    return static_cast<std::size_t>(bytes < 1e18 ? bytes : 1e18);
  }
};

} // namespace polyrank
