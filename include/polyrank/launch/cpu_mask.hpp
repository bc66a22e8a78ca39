// Which CPUs this process may run on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/text.hpp>

#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace polyrank::launch {

/// CPUs in the affinity mask of the calling thread.
[[nodiscard]] inline int usable_cpus() noexcept {
#if defined(__linux__)
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) return CPU_COUNT(&mask);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

/// Empty if the mask leaves room for compute, streams and the progress engine; else a warning.
/// Open MPI binds each of up to two ranks to one core unless told otherwise.
[[nodiscard]] inline std::string cpu_mask_warning(int cpus, int cpus_of_host) {
  if (cpus > 1 || cpus_of_host < 2) return {};
  return detail::cat("this rank may use ", cpus, " of ", cpus_of_host,
                     " CPUs, so its threads take turns; start with `mpirun --bind-to none ...` "
                     "(Open MPI binds 2 ranks "
                     "to one core each by default)");
}

} // namespace polyrank::launch
