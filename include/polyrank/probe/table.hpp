// The topology of a machine as text for people: GPUs, the matrix of links, NICs, notes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/finding.hpp>
#include <polyrank/probe/model.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

namespace detail {

/// Columns padded to their widest cell; no blanks at line ends.
[[nodiscard]] inline std::string columns_text(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (widths.size() <= i) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += row[i] + std::string(widths[i] + 2 - row[i].size(), ' ');
    while (line.ends_with(' ')) line.pop_back();
    out += line + '\n';
  }
  return out;
}

[[nodiscard]] inline std::string nearest_text(const machine& m, std::size_t g) {
  std::string out;
  for (const std::size_t n : nearest_nics(m, g)) out += (out.empty() ? "" : " ") + m.nics[n].name;
  const auto near_ones = nearest_nics(m, g);
  if (!near_ones.empty())
    out += polyrank::detail::cat(" (", path_text(m.nics[near_ones[0]].to_gpus[g]), ")");
  return out.empty() ? "-" : out;
}

} // namespace detail

/// The picture of one machine in text.
[[nodiscard]] inline std::string topology_text(const machine& m) {
  using polyrank::detail::cat;
  std::string out =
      cat(m.host, " (", m.format, ")", m.cpu_model.empty() ? "" : "  ", m.cpu_model, '\n');
  for (const numa_node& n : m.numa_nodes)
    out += cat("NUMA node ", n.id < 0 ? std::string("?") : cat(n.id), ": ",
               n.cpus.empty() ? std::string("CPUs not described") : cat("CPUs ", cpu_text(n.cpus)),
               '\n');
  if (m.gpus.empty()) {
    out += "no GPU\n";
  } else {
    std::vector<std::vector<std::string>> rows{
        {"", "address", "NUMA", "CPUs", "PCIe", "NVLinks", "nearest NIC", "model"}};
    for (std::size_t i = 0; i < m.gpus.size(); ++i) {
      const gpu& g = m.gpus[i];
      std::string pcie = pcie_text(g.pcie_now.value_or({}));
      if (g.pcie_max.known()) pcie += cat(" (max ", pcie_text(*g.pcie_max), ")");
      if (g.pcie_gb_per_s.known()) pcie = cat(*g.pcie_gb_per_s, " GB/s");
      std::string links = nvlink_text(g.links());
      if (g.nvlink_present.known()) links += cat('/', *g.nvlink_present);
      rows.push_back({g.name, g.address ? pci_text(*g.address) : "-",
                      g.numa.known() ? cat(*g.numa) : "-", g.cpus.known() ? cpu_text(*g.cpus) : "-",
                      pcie.empty() ? "-" : pcie, links, detail::nearest_text(m, i), g.model});
    }
    out += '\n' + detail::columns_text(rows);
  }
  if (m.gpus.size() > 1 && m.gpus.size() <= 32) {
    std::vector<std::vector<std::string>> rows(1);
    rows[0].emplace_back();
    for (const gpu& g : m.gpus) rows[0].push_back(g.name);
    for (std::size_t a = 0; a < m.gpus.size(); ++a) {
      rows.push_back({m.gpus[a].name});
      for (std::size_t b = 0; b < m.gpus.size(); ++b) {
        if (a == b) {
          rows.back().emplace_back("X");
          continue;
        }
        const gpu_pair& p = m.pair(a, b);
        std::string cell = link_text(p);
        if (p.node_or_sys && cell == path_text(p.pci)) cell = "NODE|SYS";
        if (p.p2p_read.known() && p.p2p_read.from == source::file) cell = *p.p2p_read;
        rows.back().push_back(cell == "unknown" ? "?" : cell);
      }
    }
    out += '\n' + detail::columns_text(rows);
    int switched = 0, direct = 0;
    for (const gpu_pair& p : m.pairs) {
      switched += p.via == route::by_switch ? 1 : 0;
      direct += p.via == route::direct ? 1 : 0;
    }
    if (switched > 0)
      out += "NV# through a switch: the number is the GPU's total, shared by all pairs\n";
    if (direct > 0) out += "NV#, XGMI# direct: the links belong to the pair\n";
  }
  if (!m.nics.empty() || !m.ethernet.empty()) {
    std::vector<std::vector<std::string>> rows{{"NIC", "address", "NUMA", "ports", "model"}};
    for (const auto* list : {&m.nics, &m.ethernet})
      for (const nic& n : *list) {
        std::string ports;
        for (const net_port& p : n.ports) {
          ports += (ports.empty() ? "" : " ") + p.name;
          if (p.mbit_s > 0) ports += cat(" (", p.mbit_s / 1000, " Gbit/s)");
        }
        rows.push_back({n.name, n.address ? pci_text(*n.address) : "-",
                        n.numa.known() ? cat(*n.numa) : "-", ports.empty() ? "-" : ports, n.model});
      }
    out += '\n' + detail::columns_text(rows);
  }
  for (const std::string& note : m.notes) out += "note: " + note + '\n';
  return out;
}

/// Findings, failures first: each kind once, with all its evidence (of 1024 ranks the first eight),
/// advice and reference.
[[nodiscard]] inline std::string findings_text(const std::vector<finding>& findings) {
  using polyrank::detail::cat;
  if (findings.empty()) return "no findings\n";
  constexpr std::size_t most = 8;
  std::vector<std::string_view> codes; // in the order in which they came
  for (const finding& f : findings)
    if (std::find(codes.begin(), codes.end(), f.code) == codes.end()) codes.push_back(f.code);
  std::stable_sort(codes.begin(), codes.end(), [](std::string_view a, std::string_view b) {
    return find_kind(a).level() > find_kind(b).level();
  });
  std::string out;
  for (const std::string_view code : codes) {
    const finding_kind& k = find_kind(code);
    out += cat(k.level() == severity::failure ? "FAIL  " : "warn  ", code, ": ", k.title, '\n');
    std::size_t seen = 0;
    for (const finding& f : findings)
      if (f.code == code && !f.evidence.empty() && seen++ < most)
        out += cat("      seen: ", f.host.empty() ? "" : f.host + ": ", f.evidence, '\n');
    if (seen > most) out += cat("            and ", seen - most, " more\n");
    out +=
        cat("      do:   ", k.advice, k.cured_by_reset ? " (only a reset or reboot cures it)" : "",
            "\n      see:  ", k.reference, '\n');
  }
  return out;
}

} // namespace polyrank::probe
