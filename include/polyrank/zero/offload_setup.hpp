// What a rank finds out before it takes host memory for offload: whether there is enough, and how
// many threads may update. All ranks judge together.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/hosts.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/launch/cpu_mask.hpp>
#include <polyrank/zero/cpu_pool.hpp>
#include <polyrank/zero/host_limits.hpp>
#include <polyrank/zero/model_text.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

namespace polyrank {

/// Threads for this rank: `asked`, or its share of the CPUs in its mask. `warnings` gets what will
/// be slow.
/// @throws usage_error, on every rank, where one of them cannot have its bytes
/// @collective
template <control_channel Control>
[[nodiscard]] std::size_t set_up_offload(Control& control, std::size_t bytes, std::size_t asked,
                                         std::vector<std::string>& warnings) {
  const std::string host = host_name();
  std::size_t ranks_here = 0;
  for (const std::string& other : control.all_gather(host)) ranks_here += other == host;
  const std::string problem =
      by_rank(control.all_gather(why_not(bytes, ranks_here, read_host_limits())));
  if (!problem.empty()) throw on_every_rank(usage_error("offload: " + problem));
  const auto usable = static_cast<std::size_t>(launch::usable_cpus());
  const std::size_t cpus = std::max<std::size_t>(1, std::thread::hardware_concurrency());
  if (usable == 1 && cpus > ranks_here)
    warnings.push_back(detail::cat("offload: this rank may use 1 of ", cpus,
                                   " CPUs, so updates run on one thread; start with "
                                   "`mpirun --bind-to none ...` (Open MPI binds the ranks of a job "
                                   "of two to one core each)"));
  return asked > 0 ? asked : threads_for(usable, cpus, ranks_here);
}

/// Runs `take` on every rank; where memory runs out on one of them, all learn it.
/// @throws out_of_memory @collective
template <control_channel Control, class Take>
void take_together(Control& control, Take take) {
  std::string mine;
  std::size_t asked = 0;
  try {
    take();
  } catch (const out_of_memory& e) {
    mine = e.what();
    asked = e.bytes_asked();
  }
  const std::string problem = by_rank(control.all_gather(mine));
  if (!problem.empty()) throw on_every_rank(out_of_memory("offload: " + problem, asked));
}

} // namespace polyrank
