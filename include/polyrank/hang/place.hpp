// Where this process stands in its job, from the launcher's environment: known before MPI starts,
// so that a start-up that hangs can be diagnosed, too. Pure: takes a lookup function like
// std::getenv.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/text.hpp>

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace polyrank::hang {

struct place {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1; ///< among the ranks of this host
  std::string job;                    ///< the same on all ranks of a host at least
};

/// Nothing where no launcher started the process. `parent` (its pid) names the job where the
/// launcher does not.
template <class Lookup>
[[nodiscard]] std::optional<place> find_place(Lookup lookup, int parent) {
  constexpr struct {
    const char *rank, *size, *local_rank, *local_size, *job;
  } launchers[] = {// torchrun first: under srun its ranks have Slurm's variables of their agent
                   {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", nullptr},
                   {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                    "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
                   {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"},
                   {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                    "SLURM_STEP_TASKS_PER_NODE", "SLURM_JOB_ID"}};
  const auto number = [&](const char* name) -> int {
    const char* text = lookup(name);
    if (text == nullptr) return -1;
    const std::string_view digits(text);
    int value = -1;
    const auto [end, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return bad == std::errc{} && end == digits.data() + digits.size() && value >= 0 ? value : -1;
  };
  for (const auto& l : launchers) {
    if (l.job == nullptr && lookup("TORCHELASTIC_RUN_ID") == nullptr) continue;
    place p;
    p.rank = number(l.rank);
    p.size = number(l.size);
    if (p.rank < 0 || p.size <= p.rank) continue;
    p.local_rank = number(l.local_rank);
    p.local_size = number(l.local_size);
    if (p.local_rank < 0) p.local_rank = p.rank;
    if (p.local_size <= p.local_rank) p.local_size = 0; // not told
    const char* job = l.job != nullptr ? lookup(l.job) : nullptr;
    p.job = job != nullptr && *job != '\0' ? job : polyrank::detail::cat("parent", parent);
    if (const char* step = lookup("SLURM_STEP_ID"); step != nullptr && job != nullptr)
      p.job += polyrank::detail::cat('.', step);
    if (p.job.size() > 48) p.job.resize(48);
    for (char& c : p.job)
      if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
            c == '-' || c == '_'))
        c = '-'; // a dot ends the name of the job in file names
    return p;
  }
  return std::nullopt;
}

} // namespace polyrank::hang
