// A run with a trace of a few steps (flag --trace).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/files.hpp"
#include "train_classifier/training_result.hpp"

#include <polyrank/monitor/trace.hpp>

#include <cstdio>
#include <string>

namespace polyrank::examples {

/// run() with operations of `comm` in `line` too; writes `file`. @collective
/// @throws data_error on rank 0 if it cannot be written
template <class Comm, class Timeline, class Run>
[[nodiscard]] training_result with_trace(Comm& comm, Timeline& line, const std::string& file,
                                         Run run) {
  tracer clocks(comm.control());
  comm.trace(&line);
  training_result result = run();
  comm.trace(nullptr);
  result.trace = clocks.finish(comm.control(), line.collect());
  if (comm.rank() == 0) write_file(file, result.trace->chrome);
  return result;
}

/// "exposed communication 3.1 % of the time (rank 1); ..."
[[nodiscard]] inline std::string describe(const trace_report& r) {
  std::size_t worst = 0;
  for (std::size_t k = 0; k < r.ranks.size(); ++k)
    if (r.ranks[k].exposed * r.ranks[worst].window > r.ranks[worst].exposed * r.ranks[k].window)
      worst = k;
  const exposure& e = r.ranks[worst];
  const double percent = e.window > 0 ? 100 / e.window : 0;
  char text[160];
  std::snprintf(text, sizeof text,
                "communication %.1f %% of the time, exposed %.1f %% (rank %zu, where it is most); "
                "clocks within %.0f us",
                e.communication * percent, e.exposed * percent, worst, r.clock_error);
  return text;
}

} // namespace polyrank::examples
