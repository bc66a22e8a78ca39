// Measured links of GPUs against what such links usually give, and what follows from it.
//
// Expected rates are what good machines reach with large copies in one direction, below the rate of
// the wire. They come from published measurements: PCIe 12 / 25 / 55 GB/s for generations 3 / 4 / 5
// at 16 lanes (NVIDIA's nvbandwidth for 4, the ml-engineering book for 5; 6 is extrapolated from
// the wire); NVLink per link and direction 18 (compute capability 6), 21 (V100, NVIDIA/nccl#258),
// 23 (A100, nvbandwidth), 22 (H100, H200, ml-engineering), 44 (Blackwell, twice the wire), 12 (the
// bridges of compute capability 8.6).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/cost_model.hpp>
#include <polyrank/probe/finding.hpp>
#include <polyrank/probe/model.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

/// Bytes per second that large pinned copies reach in one direction; 0: not known.
[[nodiscard]] constexpr double usual_pcie(pcie_link l) noexcept {
  constexpr double by_generation[] = {0, 3e9, 6e9, 12e9, 25e9, 55e9, 105e9};
  return l.generation >= 1 && l.generation <= 6 ? by_generation[l.generation] * l.width / 16 : 0;
}

/// The same for `links` NVLinks of a GPU of compute capability `sm` / 10.
[[nodiscard]] constexpr double usual_nvlink(std::int64_t sm, int links) noexcept {
  const double one = sm >= 100  ? 44e9
                     : sm >= 90 ? 22e9
                     : sm == 86 ? 12e9
                     : sm >= 80 ? 23e9
                     : sm >= 70 ? 21e9
                     : sm >= 60 ? 18e9
                                : 0;
  return one * links;
}

/// What a transfer crosses.
enum class transfer_kind : std::uint8_t {
  to_device,   ///< pinned host memory to the GPU
  from_device, ///< and back
  both_ways,   ///< both at once, the sum
  peer,        ///< GPU to GPU, one reading or writing the other's memory
  by_host,     ///< GPU to GPU through host memory
  nccl         ///< rank to rank, as NCCL does it
};
[[nodiscard]] constexpr std::string_view kind_text(transfer_kind k) noexcept {
  constexpr std::string_view names[] = {"host to GPU", "GPU to host", "both ways",
                                        "peer",        "by host",     "NCCL"};
  return names[static_cast<std::size_t>(k)];
}

/// One measured link. The data are verified before anything is timed.
struct gpu_link {
  enum class state : std::uint8_t { ok, corrupt, hung, failed };
  transfer_kind kind = transfer_kind::to_device;
  std::string host;  ///< of a
  std::string a, b;  ///< "GPU0", "rank 3"; b empty: the host
  std::string route; ///< "NV18", "PIX", "gen5 x16", "network"
  state how = state::ok;
  std::string text;       ///< what failed
  double seconds = 0;     ///< of a small message; 0: not measured
  double bytes_per_s = 0; ///< 0: not measured
  double usual = 0;       ///< bytes per second expected; 0: not known
  bool may_be_slow =
      false; ///< through a host bridge or between NUMA nodes: never more than a warning

  [[nodiscard]] double ratio() const noexcept { return usual > 0 ? bytes_per_s / usual : 0; }
  /// "ok", "slow" (below 85 % of the usual rate), "BAD" (below 60 %), "CORRUPT", "HUNG", "failed",
  /// "not judged".
  [[nodiscard]] std::string_view verdict() const noexcept {
    if (how != state::ok)
      return how == state::corrupt ? "CORRUPT" : how == state::hung ? "HUNG" : "failed";
    if (usual <= 0 || bytes_per_s <= 0) return "not judged";
    return ratio() >= 0.85 ? "ok" : ratio() >= 0.6 || may_be_slow ? "slow" : "BAD";
  }
};

/// What a copy between two GPUs of `m` should reach, and by which route.
inline void expect_pair(gpu_link& l, const machine& m, std::size_t a, std::size_t b) {
  const gpu_pair& p = m.pair(a, b);
  l.route = link_text(p);
  if (p.nvlink.some() && p.family == link_family::nvlink) {
    l.usual = usual_nvlink(m.gpus[a].sm.value_or(0), p.nvlink.links);
    return;
  }
  if (p.nvlink.what == nvlink_count::knowledge::unknown) return;
  l.usual = std::min(usual_pcie(m.gpus[a].pcie_max.value_or({})),
                     usual_pcie(m.gpus[b].pcie_max.value_or({})));
  l.may_be_slow = p.pci != path_class::pix && p.pci != path_class::pxb;
}

/// Findings about measured links.
[[nodiscard]] inline std::vector<finding> judge_gpu_links(const std::vector<gpu_link>& links) {
  using polyrank::detail::cat;
  std::vector<finding> out;
  for (const gpu_link& l : links) {
    const bool pair = !l.b.empty();
    const std::string who = cat(pair ? cat(l.a, " - ", l.b) : l.a, " (", kind_text(l.kind),
                                l.route.empty() ? "" : ", ", l.route, ")");
    const auto found = [&](const char* code, const std::string& evidence) {
      out.push_back({code, cat(who, ": ", evidence), -1, l.host});
    };
    switch (l.how) {
    case gpu_link::state::corrupt:
      found(pair ? "p2p_corrupt" : "host_copy_corrupt", l.text.empty() ? "data changed" : l.text);
      continue;
    case gpu_link::state::hung:
      found(pair ? "p2p_hung" : "gpu_test_hung", l.text);
      continue;
    case gpu_link::state::failed:
      found(l.kind == transfer_kind::nccl ? "nccl_failed" : "gpu_test_failed", l.text);
      continue;
    case gpu_link::state::ok:
      break;
    }
    const std::string_view verdict = l.verdict();
    if (verdict == "slow" || verdict == "BAD")
      found(verdict == "BAD" ? "link_bad" : "link_slow",
            cat(std::round(l.bytes_per_s / 1e8) / 10, " GB/s, usual are ", l.usual / 1e9, " (",
                std::round(l.ratio() * 100), " %)"));
  }
  return out;
}

/// One collective operation of all ranks.
struct collective_rate {
  std::string name; ///< "all_reduce"
  int ranks = 0;
  std::size_t bytes = 0; ///< of the whole buffer, as nccl-tests counts them
  double seconds = 0;    ///< 0: verified, not timed
  bool data_ok = true;

  /// What algbw is multiplied with to compare with the bandwidth of a link (nccl-tests,
  /// doc/PERFORMANCE.md).
  [[nodiscard]] static double bus_factor(std::string_view name, int n) noexcept {
    if (n < 2) return 1;
    const double share = static_cast<double>(n - 1) / n;
    return name == "all_reduce" ? 2 * share : name == "broadcast" ? 1 : share;
  }
  [[nodiscard]] double algbw() const noexcept {
    return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  }
  [[nodiscard]] double busbw() const noexcept { return algbw() * bus_factor(name, ranks); }
};

/// The cost model of a ring that fits measured all-reduces best: least squares of the relative
/// error of time = 2(n-1) alpha + 2(n-1)/n bytes/beta. Nothing with fewer than two sizes.
[[nodiscard]] inline std::optional<cost_model> fit_ring(const std::vector<collective_rate>& rates) {
  double xx = 0, xy = 0, yy = 0, x1 = 0, y1 = 0;
  int sizes = 0;
  for (const collective_rate& r : rates) {
    if (r.name != "all_reduce" || r.seconds <= 0 || r.ranks < 2) continue;
    const double steps = 2.0 * (r.ranks - 1);
    const double x = steps / r.seconds,
                 y = steps / r.ranks * static_cast<double>(r.bytes) / r.seconds;
    xx += x * x, xy += x * y, yy += y * y, x1 += x, y1 += y;
    ++sizes;
  }
  const double det = xx * yy - xy * xy;
  if (sizes < 2 || det <= 0) return std::nullopt;
  double alpha = (yy * x1 - xy * y1) / det, inverse = (xx * y1 - xy * x1) / det;
  if (inverse <= 0) return std::nullopt; // larger messages took no longer: no model
  if (alpha < 0) {
    alpha = 0;
    inverse = y1 / yy;
  }
  return cost_model{alpha, 1 / inverse};
}

} // namespace polyrank::probe
