// What a rank did when: spans of work on its streams, as the timelines of the backends collect them
// (host/timeline.hpp, cuda/timeline.hpp). monitor/trace.hpp merges those of all ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace polyrank {

/// What the time went to. Copies of batches and the like are `other`.
enum class span_kind : std::uint8_t { compute, communication, other };

/// Times are microseconds of this process's steady clock.
struct trace_span {
  std::string name;
  span_kind kind = span_kind::compute;
  std::size_t stream = 0; ///< index of rank_trace::streams
  double begin = 0, end = 0;
};

struct rank_trace {
  std::vector<std::string> streams; ///< names
  std::vector<trace_span> spans;
  std::size_t dropped = 0; ///< spans for which there was no room
};

/// Now, in the time of trace_span.
[[nodiscard]] inline double steady_microseconds() noexcept {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

} // namespace polyrank
