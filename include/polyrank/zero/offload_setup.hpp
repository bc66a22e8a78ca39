// What a rank finds out before it takes host memory for offload: whether there is enough, and how
// many threads may update. All ranks judge together.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/hosts.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/launch/cpu_mask.hpp>
#include <polyrank/zero/cpu_pool.hpp>
#include <polyrank/zero/host_limits.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

namespace polyrank {

/// Threads for this rank: `asked`, or its share of the CPUs in its mask. `locked` says that the
/// `bytes` will be page-locked. `warnings` gets what will be slow, or may fail: CUDA's driver pins
/// pages by its own means, which many systems do not count against `ulimit -l`, so that limit alone
/// refuses nothing (a refusal of the driver names it).
/// @throws usage_error, on every rank, where one of them cannot have its bytes
/// @collective
template <control_channel Control>
[[nodiscard]] std::size_t set_up_offload(Control& control, std::size_t bytes, bool locked,
                                         std::size_t asked, std::vector<std::string>& warnings) {
  const std::string host = host_name();
  std::size_t ranks_here = 0;
  for (const std::string& other : control.all_gather(host)) ranks_here += other == host;
  const host_limits limits = read_host_limits();
  const std::vector<std::string> problems =
      control.all_gather(why_not(bytes, ranks_here, limits, false));
  for (std::size_t r = 0; r < problems.size(); ++r)
    if (!problems[r].empty())
      throw on_every_rank(usage_error(detail::cat("offload: rank ", r, ": ", problems[r])));
  if (const std::string doubt = why_not(bytes, ranks_here, limits, locked); !doubt.empty())
    warnings.push_back("offload: " + doubt);
  const auto usable = static_cast<std::size_t>(launch::usable_cpus());
  const std::size_t cpus = std::max<std::size_t>(1, std::thread::hardware_concurrency());
  if (usable == 1 && cpus > ranks_here)
    warnings.push_back(detail::cat("offload: this rank may use 1 of ", cpus,
                                   " CPUs, so updates run on one thread; start with "
                                   "`mpirun --bind-to none ...` (Open MPI binds the ranks of a job "
                                   "of two to one core each)"));
  return asked > 0 ? asked : threads_for(usable, cpus, ranks_here);
}

} // namespace polyrank
