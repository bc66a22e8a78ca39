// `polyrank_plan schedule`: generates, compares, checks, draws and picks pipeline schedules.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/flags.hpp"

#include <cstddef>
#include <string>

namespace polyrank::examples {

struct schedule_flags {
  common_flags common;
  std::string schedule, validate, costs = "1,1,1,0", lanes, svg, trace, csv, cost_model;
  std::size_t stages = 0, chunks = 0, microbatches = 0, layers = 0, columns = 120;
  std::size_t transfer_bytes = 0, ranks_per_node = 0;
  double memory_cap = 0, weight_memory = 0.5;
  bool compare = false, lower = false;
  /// Whether a flag was given, for flags whose default means something else.
  bool has_memory_cap = false, has_layers = false, has_columns = false, has_chunks = false;
  bool has_stages = false, has_microbatches = false, has_transfer_bytes = false;
  bool has_ranks_per_node = false;
};

/// Adds the subcommand to `app`.
void add_schedule(CLI::App& app, schedule_flags& flags);

/// Runs it. @throws usage_error (exit code 2), data_error (exit code 1)
/// @return 0, or 1 where a validated table is faulty
[[nodiscard]] int run_schedule(const schedule_flags& flags);

} // namespace polyrank::examples
