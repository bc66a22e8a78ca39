// Everything one run of the probe knows: the value that is printed, written as JSON and compared.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/cost_model_file.hpp>
#include <polyrank/probe/finding.hpp>
#include <polyrank/probe/gpu_links.hpp>
#include <polyrank/probe/model.hpp>
#include <polyrank/probe/rank_facts.hpp>

#include <optional>
#include <string>
#include <vector>

namespace polyrank::probe {

/// Latency and bandwidth between two ranks, measured one way over the host backend.
struct rank_link {
  int a = 0, b = 0;
  bool same_host = true;
  double seconds = 0;     ///< a small message, one way
  double bytes_per_s = 0; ///< large messages, one way
  bool data_ok = true;    ///< what arrived is what was sent
};

/// One step of the ladder.
struct rung {
  enum class outcome : unsigned char { passed, failed, not_run };
  std::string name;
  outcome how = outcome::not_run;
  std::string text;
  double seconds = 0;
};
[[nodiscard]] constexpr std::string_view outcome_text(rung::outcome o) noexcept {
  return o == rung::outcome::passed ? "ok" : o == rung::outcome::failed ? "FAILED" : "not run";
}

/// Cost models of what has been measured: over NCCL where all ranks have a GPU, else over MPI.
struct link_costs {
  std::optional<cost_model> ring;            ///< of all-reduces
  std::optional<cost_model> inside, between; ///< of transfers within a host, between hosts

  /// All three, what is missing taken from the slowest that is there; nothing if none is.
  [[nodiscard]] std::optional<measured_costs> complete() const {
    const auto slowest = between ? between : inside ? inside : ring;
    if (!slowest) return std::nullopt;
    return measured_costs{ring.value_or(*slowest), inside.value_or(*slowest),
                          between.value_or(*slowest)};
  }
};

struct report {
  std::vector<machine> machines; ///< one per host
  std::vector<rank_facts> ranks;
  std::vector<rank_link> rank_links;
  std::vector<gpu_link> gpu_links;
  std::vector<collective_rate> collectives;
  link_costs costs;
  std::vector<rung> rungs;
  std::vector<finding> findings;
};

} // namespace polyrank::probe
