// What is wrong with one machine, judged from its facts alone. Pure: the same rules for a live
// machine, a recorded one and a synthetic one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/finding.hpp>
#include <polyrank/probe/model.hpp>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace polyrank::probe {

namespace detail {

inline void judge_gpu(const gpu& g, const machine& m, std::vector<finding>& out) {
  using polyrank::detail::cat;
  const std::string who = g.address ? cat(g.name, " (", pci_text(*g.address), ")") : g.name;
  const auto found = [&](const char* code, const std::string& evidence) {
    out.push_back({code, cat(who, ": ", evidence), -1, m.host});
  };
  if (g.nvlink_present.known() && g.nvlink_active.known() && *g.nvlink_active < *g.nvlink_present)
    found("nvlink_down", cat(*g.nvlink_active, " of ", *g.nvlink_present, " NVLinks are active"));
  const pcie_link now = g.pcie_now.value_or({}), most = g.pcie_max.value_or({});
  if (now.known() && most.known() && now.width < most.width)
    found("pcie_downtrained", cat("runs ", pcie_text(now), ", can do ", pcie_text(most)));
  const std::string fabric = g.fabric_state.value_or("");
  if (fabric == "not started" || fabric == "in progress") {
    const bool alone = std::any_of(m.gpus.begin(), m.gpus.end(), [](const gpu& o) {
      return o.fabric_state.value_or("") == "completed";
    });
    found(alone ? "fabric_lost" : "fabric_not_ready", cat("fabric state: ", fabric));
  }
  if (g.fabric_health.known() && g.fabric_health.value_or("") != "ok")
    found("fabric_unhealthy", *g.fabric_health);
  if (g.ecc_uncorrected.value_or(0) > 0)
    found("ecc_errors", cat(*g.ecc_uncorrected, " uncorrected errors"));
  if (g.row_remap.known() && *g.row_remap != "ok")
    found("row_remap", cat("remapping ", *g.row_remap));
  if (g.throttle.known() && *g.throttle != "none") found("throttled", *g.throttle);
  if (g.mig.value_or("") == "on") found("mig_on", "MIG mode is on");
  if (g.compute_mode.known() && *g.compute_mode != "default")
    found("compute_mode", cat("compute mode: ", *g.compute_mode));
  const bool listed = g.processes.known() && *g.processes != "none";
  if (listed)
    found("gpu_busy", *g.processes);
  else if (g.utilization.value_or(0) >= 20)
    found("gpu_busy", cat(*g.utilization, " % busy, by a process that is hidden from here"));
  const std::int64_t total = g.memory_total.value_or(0),
                     taken = total - g.memory_free.value_or(total);
  if (taken > total / 20 && taken > std::int64_t{2} << 30)
    found("memory_taken", cat(gib_text(taken), " of ", gib_text(total), " in use"));
  if (g.iommu.known() && (*g.iommu).starts_with("DMA") && m.gpus.size() > 1)
    found("iommu_translates", cat("IOMMU group type ", *g.iommu));
  if (!g.numa.known() && g.address && m.format == "live" && m.numa_nodes.size() > 1)
    found("numa_unknown", "no NUMA node");
}

} // namespace detail

/// Findings about GPUs, their links and their NICs.
[[nodiscard]] inline std::vector<finding> judge_machine(const machine& m) {
  using polyrank::detail::cat;
  std::vector<finding> out;
  for (const gpu& g : m.gpus) detail::judge_gpu(g, m, out);
  // The most common number of links is what the machine should have.
  std::map<std::int64_t, int> counts;
  for (const gpu& g : m.gpus)
    if (g.nvlink_active.known() && g.nvlink_active.from != source::inferred)
      ++counts[*g.nvlink_active];
  if (counts.size() > 1) {
    std::string text;
    for (const auto& [links, gpus] : counts)
      text += cat(text.empty() ? "" : ", ", gpus, " with ", links);
    out.push_back({"nvlink_uneven", cat("active NVLinks: ", text), -1, m.host});
  }
  if (!m.acs_redirect.empty() && m.gpus.size() > 1) {
    std::string text;
    for (const std::string& bridge : m.acs_redirect) text += (text.empty() ? "" : ", ") + bridge;
    out.push_back({"acs_redirect", cat("request or completion redirect on ", text), -1, m.host});
  }
  for (const gpu_pair& p : m.pairs)
    if (p.nvlink.some() && ((p.p2p_read.known() && *p.p2p_read != "OK") ||
                            (p.p2p_write.known() && *p.p2p_write != "OK")))
      out.push_back(
          {"p2p_off",
           cat(m.gpus[p.a].name, " and ", m.gpus[p.b].name, ": ", link_text(p), ", P2P read ",
               p.p2p_read.value_or("?"), ", write ", p.p2p_write.value_or("?")),
           -1, m.host});
  return out;
}

} // namespace polyrank::probe
