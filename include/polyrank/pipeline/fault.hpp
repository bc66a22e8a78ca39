// What is wrong with a table: the kind, the place, a sentence, and for a deadlock the cycle.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/table.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace polyrank::pipeline {

enum class fault_kind : std::uint8_t {
  malformed, ///< rows, slots or stage numbers that do not fit the shape
  placement, ///< an action on a rank that does not own its stage
  duplicate, ///< an action that occurs twice
  missing,   ///< an action that does not occur
  order,     ///< an action before what it needs on its own rank
  mispaired, ///< a communicator would pair a send with the wrong receive
  deadlock,  ///< streams that wait for each other
};

/// An action of a table: rank `rank`, `index`-th of its list.
struct step {
  std::size_t rank = 0;
  std::size_t index = 0;
  action what;
};

struct fault {
  fault_kind kind = fault_kind::malformed;
  step at;
  std::string text;
  /// Deadlock: pairs (blocked head, what it waits for); the latter stands behind the next head.
  std::vector<step> cycle;
};

/// "rank 1, action 5 (1B0)".
[[nodiscard]] inline std::string text_of(const step& s) {
  return polyrank::detail::cat("rank ", s.rank, ", action ", s.index, " (", text_of(s.what), ")");
}

} // namespace polyrank::pipeline
