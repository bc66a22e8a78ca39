// What one step of a schedule took: predicted by simulate() or measured by an executor. All
// pictures are drawn from it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/table.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace polyrank::pipeline {

/// One action that ran. Lane 0 is the compute stream.
struct event {
  std::uint32_t rank = 0;
  std::uint32_t lane = 0;
  action what;
  double start = 0;
  double end = 0;
};

struct rank_report {
  double start = 0, end = 0;  ///< of its compute stream
  double busy = 0;            ///< sum of its compute actions
  double exposed = 0;         ///< idle although the producer had ended: only a transfer was missing
  double peak_memory = 0;     ///< activations, W contexts, slots, parameters
  double peak_activation = 0; ///< the first two of these

  /// Idle between its first and its last action, as the zero-bubble papers count.
  [[nodiscard]] double span_bubble() const noexcept { return end - start - busy; }
};

struct report {
  pipeline::shape shape;
  double makespan = 0; ///< first start to last end over all ranks
  std::vector<rank_report> ranks;
  std::vector<event> timeline; ///< per rank in order of start; empty unless asked for

  /// The longest span from a rank's first to its last action: a step's cost where no barrier ends
  /// it.
  [[nodiscard]] double span() const noexcept {
    double longest = 0;
    for (const rank_report& r : ranks) longest = std::max(longest, r.end - r.start);
    return longest;
  }
  /// Share of `cost` (makespan or span()) in which the busiest rank does not compute.
  [[nodiscard]] double bubble_rate(double cost) const noexcept {
    double busy = 0;
    for (const rank_report& r : ranks) busy = std::max(busy, r.busy);
    return cost > 0 ? (cost - busy) / cost : 0;
  }
  [[nodiscard]] double peak_memory() const noexcept {
    double peak = 0;
    for (const rank_report& r : ranks) peak = std::max(peak, r.peak_memory);
    return peak;
  }
  [[nodiscard]] double exposed() const noexcept {
    double worst = 0;
    for (const rank_report& r : ranks) worst = std::max(worst, r.exposed);
    return worst;
  }
};

} // namespace polyrank::pipeline
