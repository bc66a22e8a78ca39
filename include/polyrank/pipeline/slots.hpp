// How many receive buffers a stage needs so that no transfer waits for one on the ideal timeline.
//
// Microbatch k lives in slot k mod K, from the start of its transfer to the end of its last reader.
// K is the widest window of microbatches alive at once; for schedules that keep microbatches in
// order that is the number alive at once, which no assignment can undercut.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace polyrank::pipeline::detail {

/// The smallest window, plus `extra`, at most one slot per microbatch. `order` is scratch space.
[[nodiscard]] inline std::uint32_t slot_window(std::span<const double> acquired,
                                               std::span<const double> released, std::size_t extra,
                                               std::vector<std::size_t>& order) {
  const std::size_t m = acquired.size();
  order.resize(m);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto earlier = [&](std::size_t a, std::size_t b) { return acquired[a] < acquired[b]; };
  if (!std::is_sorted(order.begin(), order.end(), earlier))
    std::stable_sort(order.begin(), order.end(), earlier);
  std::size_t low = 0, high = 0, window = 0; // alive microbatches lie in [low, high]
  bool empty = true;
  for (const std::size_t k : order) {
    const double now = acquired[k];
    const auto dead = [&](std::size_t j) { return acquired[j] > now || released[j] <= now; };
    while (!empty && dead(low)) low == high ? void(empty = true) : void(++low);
    while (!empty && dead(high)) low == high ? void(empty = true) : void(--high);
    low = empty ? k : std::min(low, k), high = empty ? k : std::max(high, k);
    empty = false;
    window = std::max(window, high - low + 1);
  }
  return static_cast<std::uint32_t>(std::min(m, window + extra));
}

} // namespace polyrank::pipeline::detail
