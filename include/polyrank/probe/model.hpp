// What is known about the topology of one machine: GPUs, NICs, and how each pair is linked. Plain
// values; every reader (files, sysfs, NVML) fills the same ones, and each fact says where it comes
// from.
//
// The PCI class of a pair and its NVLinks are kept apart, because a file can describe one without
// the other: a topology file that is meant for injection says nothing about NVLink, which is not
// the same as "no NVLink".
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/cpu_list.hpp>
#include <polyrank/probe/pci_address.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank::probe {

enum class source : std::uint8_t { none, nvml, cuda, sysfs, file, inferred };
[[nodiscard]] constexpr std::string_view source_text(source s) noexcept {
  constexpr std::string_view names[] = {"none", "nvml", "cuda", "sysfs", "file", "inferred"};
  return names[static_cast<std::size_t>(s)];
}

/// A value, if known, and where it comes from.
template <class T>
struct fact {
  std::optional<T> value;
  source from = source::none;

  fact() = default;
  fact(T known, source where) : value(std::move(known)), from(where) {}
  [[nodiscard]] bool known() const noexcept { return value.has_value(); }
  [[nodiscard]] const T& operator*() const { return *value; }
  [[nodiscard]] T value_or(T otherwise) const { return value.value_or(std::move(otherwise)); }
  /// Keeps what is known already.
  void learn(T news, source where) {
    if (!value) *this = fact(std::move(news), where);
  }
};

/// How a path crosses PCI, in the words of `nvidia-smi topo -m`; the worst last.
enum class path_class : std::uint8_t {
  pix,    ///< at most one PCI bridge (switch)
  pxb,    ///< several bridges, but no host bridge
  phb,    ///< through one host bridge (the CPU)
  node,   ///< through several host bridges of one NUMA node
  sys,    ///< between NUMA nodes
  unknown ///< not described, or hidden behind NVLink
};
[[nodiscard]] constexpr std::string_view path_text(path_class c) noexcept {
  constexpr std::string_view names[] = {"PIX", "PXB", "PHB", "NODE", "SYS", "unknown"};
  return names[static_cast<std::size_t>(c)];
}
/// Also "SOC", the word of drivers before 2017 for SYS.
[[nodiscard]] constexpr std::optional<path_class> parse_path(std::string_view text) noexcept {
  for (std::size_t i = 0; i < 6; ++i)
    if (text == path_text(static_cast<path_class>(i))) return static_cast<path_class>(i);
  if (text == "SOC") return path_class::sys;
  return std::nullopt;
}

/// Links of the NVLink kind (NVLink, xGMI) between two GPUs, or of one GPU.
struct nvlink_count {
  enum class knowledge : std::uint8_t { not_described, unknown, none, some };
  knowledge what = knowledge::not_described;
  int links = 0; ///< with `some`

  [[nodiscard]] static constexpr nvlink_count of(int n) noexcept {
    return {n > 0 ? knowledge::some : knowledge::none, n};
  }
  [[nodiscard]] constexpr bool some() const noexcept { return what == knowledge::some; }
  friend constexpr bool operator==(const nvlink_count&, const nvlink_count&) = default;
};
/// "not described", "unknown", "none", or the number.
[[nodiscard]] inline std::string nvlink_text(nvlink_count n) {
  switch (n.what) {
  case nvlink_count::knowledge::not_described:
    return "not described";
  case nvlink_count::knowledge::unknown:
    return "unknown";
  case nvlink_count::knowledge::none:
    return "none";
  case nvlink_count::knowledge::some:
    break;
  }
  return polyrank::detail::cat(n.links);
}

enum class route : std::uint8_t { unknown, direct, by_switch };
enum class link_family : std::uint8_t { nvlink, xgmi };

/// A PCI link. Zero: not known.
struct pcie_link {
  int generation = 0; ///< 1 ... 7
  int width = 0;      ///< lanes

  friend constexpr bool operator==(const pcie_link&, const pcie_link&) = default;
  [[nodiscard]] constexpr bool known() const noexcept { return generation > 0 && width > 0; }
};
/// "gen4 x16"; "gen4"; "x16"; "".
[[nodiscard]] inline std::string pcie_text(pcie_link l) {
  std::string out;
  if (l.generation > 0) out += polyrank::detail::cat("gen", l.generation);
  if (l.width > 0) out += polyrank::detail::cat(out.empty() ? "x" : " x", l.width);
  return out;
}
/// The generation of a signalling rate: 2.5, 5, 8, 16, 32, 64, 128 GT/s are 1 ... 7; else 0.
[[nodiscard]] constexpr int pcie_generation(double gt_per_s) noexcept {
  constexpr double rates[] = {2.5, 5, 8, 16, 32, 64, 128};
  for (int i = 0; i < 7; ++i)
    if (gt_per_s > rates[i] * 0.95 && gt_per_s < rates[i] * 1.05) return i + 1;
  return 0;
}
/// Bytes per second of the wire in one direction after its line code (8b/10b, 128b/130b, FLIT).
[[nodiscard]] constexpr double pcie_bytes_per_s(pcie_link l) noexcept {
  constexpr double lane[] = {0, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9, 15.125e9};
  return l.generation >= 1 && l.generation <= 7 ? lane[l.generation] * l.width : 0;
}

/// "139.8 GiB".
[[nodiscard]] inline std::string gib_text(std::int64_t bytes) {
  const std::int64_t tenths = (bytes * 10 + (std::int64_t{1} << 29)) >> 30;
  return polyrank::detail::cat(tenths / 10, '.', tenths % 10, " GiB");
}

/// One end of NVLinks as a GPU sees it.
struct nvlink_peer {
  enum class kind : std::uint8_t { gpu, nv_switch, cpu, assumed_switch };
  kind what = kind::gpu;
  std::string address; ///< as the source writes it; a PCI address where there is one
  int links = 0;
};

struct gpu {
  std::string name; ///< "GPU0", the order in which the source lists them
  std::optional<pci_address> address;
  std::string uuid, model;
  fact<std::string> vendor;           ///< "NVIDIA", "AMD", "Intel"
  fact<std::int64_t> numa;            ///< node of the host
  fact<std::int64_t> gpu_numa;        ///< node of the GPU's own memory (Grace Hopper)
  fact<cpu_list> cpus;                ///< local CPUs
  fact<std::int64_t> sm;              ///< compute capability times ten: 90 is 9.0
  fact<std::int64_t> compute_units;   ///< of AMD GPUs
  fact<std::int64_t> rank, dev;       ///< in a file that NCCL wrote
  fact<bool> gpudirect_rdma;          ///< gdr="1" in such a file
  fact<pcie_link> pcie_now, pcie_max; ///< an idle GPU lowers the generation
  fact<pcie_link> pcie_loaded;        ///< read while data is copied: compare this one
  fact<bool> cuda;                    ///< CUDA gives it to this process
  fact<double> pcie_gb_per_s;         ///< where only a rate is given (hwloc)
  fact<std::int64_t> nvlink_present, nvlink_active, nvlink_version, c2c_links;
  std::vector<nvlink_peer> nvlink_peers;
  bool nvlink_described = false; ///< the source says which NVLinks there are, if any
  bool nvlink_uncounted = false; ///< the source shows that there are some, not how many
  link_family family = link_family::nvlink;
  fact<std::string> iommu;        ///< "identity", "DMA", "DMA-FQ": how the kernel maps its accesses
  fact<std::string> fabric_state; ///< "not supported", "not started", "in progress", "completed"
  fact<std::string> fabric_health;
  fact<std::int64_t> ecc_uncorrected;           ///< since the driver was loaded
  fact<std::string> row_remap;                  ///< "ok", "pending", "failed"
  fact<std::string> throttle;                   ///< reasons in force, "none" if there is none
  fact<std::string> mig;                        ///< "on", "off"
  fact<std::string> compute_mode;               ///< "default", "prohibited", "exclusive process"
  fact<std::int64_t> memory_total, memory_free; ///< bytes
  fact<std::int64_t> utilization;               ///< percent of the time with a kernel on the GPU
  fact<std::string> processes; ///< "pid 123 train, 2100 MiB; ..." of compute processes; "none"

  [[nodiscard]] nvlink_count links() const noexcept {
    if (nvlink_active.known()) return nvlink_count::of(static_cast<int>(*nvlink_active));
    if (nvlink_uncounted) return {nvlink_count::knowledge::unknown, 0};
    if (!nvlink_described) return {};
    int sum = 0;
    for (const nvlink_peer& p : nvlink_peers) sum += p.links;
    return nvlink_count::of(sum);
  }
};

/// Calls f("name", fact) for every fact of a GPU: the list that JSON, table and diff share.
template <class Gpu, class F>
void each_fact(Gpu& g, F&& f) {
  f("vendor", g.vendor);
  f("numa", g.numa);
  f("gpu_numa", g.gpu_numa);
  f("cpus", g.cpus);
  f("sm", g.sm);
  f("compute_units", g.compute_units);
  f("rank", g.rank);
  f("dev", g.dev);
  f("gpudirect_rdma", g.gpudirect_rdma);
  f("pcie_now", g.pcie_now);
  f("pcie_max", g.pcie_max);
  f("pcie_loaded", g.pcie_loaded);
  f("cuda", g.cuda);
  f("pcie_gb_per_s", g.pcie_gb_per_s);
  f("nvlink_present", g.nvlink_present);
  f("nvlink_active", g.nvlink_active);
  f("nvlink_version", g.nvlink_version);
  f("c2c_links", g.c2c_links);
  f("iommu", g.iommu);
  f("fabric_state", g.fabric_state);
  f("fabric_health", g.fabric_health);
  f("ecc_uncorrected", g.ecc_uncorrected);
  f("row_remap", g.row_remap);
  f("throttle", g.throttle);
  f("mig", g.mig);
  f("compute_mode", g.compute_mode);
  f("memory_total", g.memory_total);
  f("memory_free", g.memory_free);
  f("utilization", g.utilization);
  f("processes", g.processes);
}

/// One port of a NIC, as NCCL or the kernel names it.
struct net_port {
  std::string name; ///< "mlx5_0", "eth0"
  int port = 0;
  std::int64_t dev = -1;   ///< NCCL's number
  std::int64_t mbit_s = 0; ///< 0: not known
  std::string guid;
};

struct nic {
  std::string name;  ///< "mlx5_0"; the PCI address where there is no name
  std::string label; ///< "NIC0", where the source numbers them
  bool rdma = true;
  std::optional<pci_address> address;
  std::string model;
  fact<std::int64_t> numa;
  fact<cpu_list> cpus;
  fact<pcie_link> pcie_now;
  std::vector<net_port> ports;
  std::vector<path_class> to_gpus, to_nics; ///< in the order of machine::gpus and ::nics
  std::vector<path_class> to_gpus_nccl;     ///< as NCCL will see it, where that differs; else empty
};

/// Two GPUs, a < b.
struct gpu_pair {
  std::size_t a = 0, b = 0;
  path_class pci = path_class::unknown;
  bool node_or_sys = false; ///< pci is one of NODE and SYS; the source lacks the NUMA node
  path_class pci_nccl = path_class::unknown; ///< as NCCL will see it, where that differs
  nvlink_count nvlink;                       ///< on a switch: the smaller of the two GPUs' totals
  route via = route::unknown;
  link_family family = link_family::nvlink;
  source from = source::none;
  fact<std::string> p2p_read, p2p_write, p2p_atomics, p2p_nvlink; ///< "OK", "NS", "CNS", ...
  fact<bool> peer_access, peer_atomics; ///< what CUDA allows; atomics in both ways mean NVLink
  fact<std::string> nccl;               ///< what NCCL will use: "P2P", "SHM", "NET"
};

/// The best link of a pair: "NV18", "XGMI1", "NV?" where the number is not said (only CUDA's word
/// or a rate tells of the links), or the PCI class.
[[nodiscard]] inline std::string link_text(const gpu_pair& p) {
  const std::string_view family = p.family == link_family::xgmi ? "XGMI" : "NV";
  if (p.nvlink.what == nvlink_count::knowledge::unknown &&
      (p.peer_atomics.value_or(false) || p.via != route::unknown || p.family == link_family::xgmi))
    return polyrank::detail::cat(family, '?');
  if (p.nvlink.some()) return polyrank::detail::cat(family, p.nvlink.links);
  return std::string(path_text(p.pci));
}

struct numa_node {
  int id = 0;
  cpu_list cpus;
};

/// One host.
struct machine {
  std::string host;   ///< or the file it was read from
  std::string format; ///< "live", "NCCL XML", "nvidia-smi topo -m", ...
  std::string cpu_model;
  std::string driver; ///< of the GPUs
  std::vector<numa_node> numa_nodes;
  std::vector<std::string> host_bridges; ///< "0000:00"
  std::vector<gpu> gpus;
  std::vector<nic> nics;                 ///< those that do RDMA, and all that an NCCL file lists
  std::vector<nic> ethernet;             ///< other network functions
  std::vector<gpu_pair> pairs;           ///< (0,1), (0,2), ... (n-2,n-1)
  std::vector<std::string> acs_redirect; ///< bridges above GPUs that send P2P through the root
  std::vector<std::string> notes;        ///< what a reader of the facts should know

  /// The pair of two different GPUs, in either order. Pairs must be complete.
  [[nodiscard]] gpu_pair& pair(std::size_t a, std::size_t b) {
    if (a > b) std::swap(a, b);
    const std::size_t n = gpus.size();
    return pairs[a * n - a * (a + 1) / 2 + b - a - 1];
  }
  [[nodiscard]] const gpu_pair& pair(std::size_t a, std::size_t b) const {
    return const_cast<machine*>(this)->pair(a, b);
  }
  /// Makes all pairs of the GPUs, nothing known yet.
  void make_pairs() {
    pairs.clear();
    for (std::size_t a = 0; a < gpus.size(); ++a)
      for (std::size_t b = a + 1; b < gpus.size(); ++b) {
        pairs.emplace_back();
        pairs.back().a = a;
        pairs.back().b = b;
      }
  }
};

/// Links per pair, from the peers that each GPU lists.
inline void resolve_nvlinks(machine& m) {
  const auto to = [&](const gpu& from, const gpu& other) {
    int links = 0;
    for (const nvlink_peer& p : from.nvlink_peers)
      if (p.what == nvlink_peer::kind::gpu && other.address &&
          p.address == pci_text(*other.address))
        links += p.links;
    return links;
  };
  const auto to_switch = [](const gpu& g) {
    int links = 0;
    for (const nvlink_peer& p : g.nvlink_peers)
      if (p.what == nvlink_peer::kind::nv_switch || p.what == nvlink_peer::kind::assumed_switch)
        links += p.links;
    return links;
  };
  for (gpu_pair& p : m.pairs) {
    const gpu &a = m.gpus[p.a], &b = m.gpus[p.b];
    p.family = a.family;
    const int ab = to(a, b), ba = to(b, a);
    const int shared = std::min(to_switch(a), to_switch(b));
    if (ab > 0 || ba > 0) {
      if (a.nvlink_described && b.nvlink_described && ab != ba)
        m.notes.push_back(polyrank::detail::cat(a.name, " lists ", ab, " links to ", b.name,
                                                ", which lists ", ba, " back"));
      p.nvlink = nvlink_count::of(ab > 0 && ba > 0 ? std::min(ab, ba) : std::max(ab, ba));
      p.via = route::direct;
    } else if (shared > 0) {
      p.nvlink = nvlink_count::of(shared);
      p.via = route::by_switch;
    } else if (a.nvlink_described && b.nvlink_described) {
      p.nvlink = nvlink_count::of(0);
    }
  }
}

/// NICs with the best path to a GPU, by index.
[[nodiscard]] inline std::vector<std::size_t> nearest_nics(const machine& m, std::size_t g) {
  path_class best = path_class::unknown;
  for (const nic& n : m.nics)
    if (g < n.to_gpus.size()) best = std::min(best, n.to_gpus[g]);
  std::vector<std::size_t> out;
  if (best == path_class::unknown) return out;
  for (std::size_t i = 0; i < m.nics.size(); ++i)
    if (g < m.nics[i].to_gpus.size() && m.nics[i].to_gpus[g] == best) out.push_back(i);
  return out;
}

/// A GPU that has more links than any chip has, or sees every other through one total, is on a
/// switch: `NV18` to each of seven peers cannot be 126 links (18 is the most up to Blackwell).
/// Decides `via` for pairs where the source gives only counts; two GPUs with more than four links
/// could be either, so they stay unknown.
inline void infer_route(machine& m) {
  constexpr int most_links = 18;
  std::vector<int> sums(m.gpus.size()), peers(m.gpus.size());
  for (const gpu_pair& p : m.pairs)
    if (p.nvlink.some())
      for (const std::size_t g : {p.a, p.b}) {
        sums[g] += p.nvlink.links;
        ++peers[g];
      }
  for (gpu_pair& p : m.pairs) {
    if (!p.nvlink.some() || p.via != route::unknown) continue;
    if (sums[p.a] > most_links)
      p.via = route::by_switch;
    else if (peers[p.a] > 1 || m.gpus.size() > 2 || p.nvlink.links <= 4)
      p.via = route::direct;
  }
}

} // namespace polyrank::probe
