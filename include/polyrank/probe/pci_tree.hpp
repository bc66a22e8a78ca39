// The tree of PCI bridges and devices, and the class of the path between two devices in it. All
// sources that show a tree (NCCL XML, hwloc, lspci, sysfs) build this one.
//
// Two shapes have to be told apart. A real tree shows a switch as an upstream port with downstream
// ports beneath it; NCCL's files show a switch as one node. So the number of switches on a path is
// counted differently.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/model.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace polyrank::probe {

struct pci_node {
  enum class kind : std::uint8_t { host_bridge, bridge, device };
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  kind what = kind::device;
  std::size_t parent = none; ///< none for a host bridge
  std::optional<int> numa;   ///< of a host bridge
  std::uint64_t ids = 0;     ///< vendor, device, subsystem vendor, subsystem device: 16 bits each
};

struct pci_tree {
  enum class shape : std::uint8_t { ports, switches };

  shape how = shape::ports;
  bool across_is_sys = false; ///< different host bridges are different NUMA nodes (NCCL's `<cpu>`)
  std::vector<pci_node> nodes;

  std::size_t add(pci_node n) {
    nodes.push_back(n);
    return nodes.size() - 1;
  }
  /// The NUMA node of the host bridge above a device, if known.
  [[nodiscard]] std::optional<int> numa_of(std::size_t i) const {
    while (nodes[i].parent != pci_node::none) i = nodes[i].parent;
    return nodes[i].numa;
  }
};

namespace detail {

/// NCCL merges the two levels in which Broadcom's Gen4 and Gen5 switches present themselves
/// (ncclTopoFlattenBcmSwitches in its graph/topo.cc): 0 for other bridges, else the generation.
[[nodiscard]] constexpr int broadcom_generation(std::uint64_t ids, std::uint64_t level) noexcept {
  const std::uint64_t masked = ids & 0xfffffffffffff000ULL;
  if (masked == 0x1000c0101000a000ULL) return 4;
  if (masked == (0x1000c03010000000ULL | level * 0x1000)) return 5;
  return 0;
}

[[nodiscard]] inline bool merged_into_parent(const pci_tree& t, std::size_t bridge) noexcept {
  const std::size_t parent = t.nodes[bridge].parent;
  if (parent == pci_node::none || t.nodes[parent].what != pci_node::kind::bridge) return false;
  const int generation = broadcom_generation(t.nodes[parent].ids, 0);
  return generation != 0 && broadcom_generation(t.nodes[bridge].ids, 1) == generation;
}

} // namespace detail

/// A path, and what keeps it from being known.
struct tree_path {
  path_class what = path_class::unknown;
  bool node_or_sys = false;
};

/// The path between two devices of a tree. `for_nccl` counts switches as NCCL does after it has
/// merged two-level Broadcom switches.
[[nodiscard]] inline tree_path path_between(const pci_tree& t, std::size_t a, std::size_t b,
                                            bool for_nccl = false) {
  const auto ancestors = [&](std::size_t i) {
    std::vector<std::size_t> out;
    for (i = t.nodes[i].parent; i != pci_node::none; i = t.nodes[i].parent) out.push_back(i);
    return out;
  };
  const std::vector<std::size_t> up_a = ancestors(a), up_b = ancestors(b);
  std::size_t ka = 0, kb = up_b.size();
  for (; ka < up_a.size(); ++ka) {
    kb = static_cast<std::size_t>(std::find(up_b.begin(), up_b.end(), up_a[ka]) - up_b.begin());
    if (kb < up_b.size()) break;
  }
  if (ka == up_a.size()) { // no common ancestor: different host bridges
    if (t.across_is_sys) return {path_class::sys, false};
    const auto numa_of = [&](const std::vector<std::size_t>& up) -> std::optional<int> {
      return up.empty() ? std::nullopt : t.nodes[up.back()].numa;
    };
    const auto na = numa_of(up_a), nb = numa_of(up_b);
    if (!na || !nb) return {path_class::unknown, true};
    return {*na == *nb ? path_class::node : path_class::sys, false};
  }
  if (t.nodes[up_a[ka]].what == pci_node::kind::host_bridge) return {path_class::phb, false};
  const auto count = [&](const std::vector<std::size_t>& up, std::size_t k) {
    if (t.how == pci_tree::shape::ports) return k / 2; // downstream port, or port + further switch
    std::size_t n = 0;
    for (std::size_t i = 0; i < k; ++i)
      if (!for_nccl || !detail::merged_into_parent(t, up[i])) ++n;
    return n;
  };
  const std::size_t switches = 1 + count(up_a, ka) + count(up_b, kb);
  return {switches == 1 ? path_class::pix : path_class::pxb, false};
}

/// Fills the PCI classes of all pairs and NICs of `m` from the tree; `gpus`, `nics` and `ethernet`
/// are the nodes of the machine's devices, in order.
inline void relate(machine& m, const pci_tree& t, const std::vector<std::size_t>& gpus,
                   std::vector<std::size_t> nics, std::vector<std::size_t> ethernet, source from) {
  for (nic& n : m.ethernet) n.rdma = false;
  if (m.nics.empty()) { // without RDMA, NCCL takes sockets over these
    m.nics.swap(m.ethernet);
    nics.swap(ethernet);
    for (std::size_t i = 0; i < m.nics.size(); ++i)
      m.nics[i].label = polyrank::detail::cat("NIC", i);
  }
  if (m.pairs.empty()) m.make_pairs();
  for (gpu_pair& p : m.pairs) {
    const tree_path path = path_between(t, gpus[p.a], gpus[p.b]);
    p.pci = path.what;
    p.node_or_sys = path.node_or_sys;
    p.from = from;
    if (const path_class seen = path_between(t, gpus[p.a], gpus[p.b], true).what; seen != p.pci)
      p.pci_nccl = seen;
  }
  const auto rows = [&](std::vector<nic>& all, const std::vector<std::size_t>& at) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      nic& n = all[i];
      std::vector<path_class> seen;
      for (const std::size_t g : gpus) {
        n.to_gpus.push_back(path_between(t, at[i], g).what);
        seen.push_back(path_between(t, at[i], g, true).what);
      }
      if (seen != n.to_gpus) n.to_gpus_nccl = seen;
      for (const std::size_t other : nics)
        n.to_nics.push_back(other == at[i] ? path_class::pix : path_between(t, at[i], other).what);
    }
  };
  rows(m.nics, nics);
  rows(m.ethernet, ethernet);
}

} // namespace polyrank::probe
