// `polyrank_plan memory`: gigabytes per rank at each ZeRO stage, and what fits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/flags.hpp"

#include <cstddef>
#include <string>

namespace polyrank::examples {

struct memory_flags {
  common_flags common;
  double parameters = 0;
  std::size_t ranks = 1, ranks_per_host = 8, microbatches = 1, blocks = 0, states = 2;
  std::size_t bucket_mib = 25;
  std::string precision = "bf16", offload = "none";
  double fraction = 1, device_gb = 0, activations_gb = 0, other_gb = 1;
};

/// Adds the subcommand to `app`; returns it.
CLI::App* add_memory(CLI::App& app, memory_flags& flags);

/// Runs it. @throws usage_error (exit code 2)
[[nodiscard]] int run_memory(const memory_flags& flags);

} // namespace polyrank::examples
