// Adds what NVML knows to a machine that sysfs has described: names, NVLinks, fabric, health,
// P2P. Devices are joined by PCI address.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/finding.hpp>
#include <polyrank/probe/model.hpp>
#include <polyrank/probe/nvml.hpp>
#include <polyrank/probe/source_text.hpp>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank::probe {

/// The health mask of the fabric in words: two bits each, 1 is bad, 2 is good (so 0xaa is healthy);
/// bits 8 to 11 above 1: misconfigured. "ok" if all is well or nothing is said.
[[nodiscard]] inline std::string fabric_health_text(unsigned mask) {
  std::string out;
  constexpr std::string_view names[] = {"degraded bandwidth", "route recovery", "route unhealthy",
                                        "access timeout"};
  for (unsigned i = 0; i < 4; ++i)
    if ((mask >> 2 * i & 3) == 1) out += (out.empty() ? "" : ", ") + std::string(names[i]);
  if ((mask >> 8 & 15) >= 2) out += std::string(out.empty() ? "" : ", ") + "misconfigured";
  return out.empty() ? "ok" : out;
}

/// Reasons for lowered clocks, without idle (1) and the user's own setting (2).
[[nodiscard]] inline std::string throttle_text(unsigned long long bits) {
  std::string out;
  constexpr std::pair<unsigned, std::string_view> reasons[] = {{0x4, "power cap"},
                                                               {0x8, "hardware slowdown"},
                                                               {0x20, "software thermal"},
                                                               {0x40, "hardware thermal"},
                                                               {0x80, "external power brake"}};
  for (const auto& [bit, name] : reasons)
    if ((bits & bit) != 0) out += (out.empty() ? "" : ", ") + std::string(name);
  return out.empty() ? "none" : out;
}

/// The words of `nvidia-smi topo -p2p`.
[[nodiscard]] inline std::string p2p_status_text(int status) {
  constexpr std::string_view words[] = {"OK", "CNS", "GNS", "TNS", "DR", "NS", "U"};
  return std::string(words[status >= 0 && status < 6 ? status : 6]);
}

/// "pid 4711 train, 3072 MiB"; "orphan": its parent has ended, so nobody will stop it; a process
/// that `proc` does not show belongs to another container.
[[nodiscard]] inline std::string process_text(unsigned pid, unsigned long long bytes,
                                              const std::filesystem::path& proc) {
  using polyrank::detail::cat;
  std::string name, parent;
  std::ifstream status(proc / cat(pid) / "status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Name:")) name = trim(std::string_view(line).substr(5));
    if (line.starts_with("PPid:")) parent = trim(std::string_view(line).substr(5));
  }
  constexpr unsigned long long unknown = ~0ULL; // NVML's word in some containers
  return cat("pid ", pid, name.empty() ? " of another container" : " ", name,
             bytes == unknown ? "" : cat(", ", bytes >> 20, " MiB"),
             parent == "1" ? ", orphan" : "");
}

namespace detail {

class nvml_reader {
 public:
  nvml_reader(machine& m, nvml& lib, std::vector<finding>& findings, std::filesystem::path proc)
      : m_(m), lib_(lib), findings_(findings), proc_(std::move(proc)) {}

  void run() {
    m_.driver = lib_.text("nvmlSystemGetDriverVersion");
    const unsigned count = lib_.get<unsigned>("nvmlDeviceGetCount_v2").value_or(0);
    for (unsigned i = 0; i < count && lib_.how() == nvml::state::ready; ++i) {
      const auto device = lib_.get<nvml_abi::handle>("nvmlDeviceGetHandleByIndex_v2", i);
      if (!device) {
        if (lib_.last_result() == nvml_abi::gpu_lost)
          findings_.push_back({"gpu_lost", polyrank::detail::cat("NVML index ", i), -1, m_.host});
        continue;
      }
      one(*device);
    }
    hide_invisible();
    resolve_nvlinks(m_);
    for (const auto& [a, da] : handles_)
      for (const auto& [b, db] : handles_)
        if (a < b) pair(m_.pair(a, b), da, db);
    if (lib_.how() == nvml::state::hung)
      findings_.push_back({"nvml_hung", lib_.hung_in(), -1, m_.host});
  }

 private:
  using handle = nvml_abi::handle;

  /// The GPU of the machine at an address; made if sysfs did not show it.
  std::size_t at_address(pci_address a) {
    for (std::size_t i = 0; i < m_.gpus.size(); ++i)
      if (m_.gpus[i].address == a) return i;
    gpu g;
    g.address = a;
    g.vendor = {"NVIDIA", source::nvml};
    m_.gpus.push_back(std::move(g));
    for (auto* list : {&m_.nics, &m_.ethernet})
      for (nic& n : *list) n.to_gpus.push_back(path_class::unknown);
    const std::vector<gpu_pair> old = m_.pairs;
    m_.make_pairs();
    for (const gpu_pair& p : old) m_.pair(p.a, p.b) = p;
    return m_.gpus.size() - 1;
  }

  void one(handle d) {
    const auto pci = lib_.get<nvml_abi::pci_info>("nvmlDeviceGetPciInfo_v3", d);
    if (!pci) return;
    const pci_address address{pci->domain, static_cast<std::uint8_t>(pci->bus),
                              static_cast<std::uint8_t>(pci->device), 0};
    const std::size_t index = at_address(address);
    handles_.emplace_back(index, d);
    gpu& g = m_.gpus[index];
    g.uuid = lib_.text("nvmlDeviceGetUUID", d);
    g.model = lib_.text("nvmlDeviceGetName", d);
    capability(g, d);
    const auto number = [&](const char* name) { return lib_.get<unsigned>(name, d); };
    const auto generation = number("nvmlDeviceGetCurrPcieLinkGeneration"),
               width = number("nvmlDeviceGetCurrPcieLinkWidth"),
               most_generation = number("nvmlDeviceGetMaxPcieLinkGeneration"),
               most_width = number("nvmlDeviceGetMaxPcieLinkWidth");
    if (generation && width)
      g.pcie_now = {{static_cast<int>(*generation), static_cast<int>(*width)}, source::nvml};
    if (most_generation && most_width)
      g.pcie_max.learn({static_cast<int>(*most_generation), static_cast<int>(*most_width)},
                       source::nvml);
    if (const auto memory = lib_.get<nvml_abi::memory>("nvmlDeviceGetMemoryInfo", d)) {
      g.memory_total = {static_cast<std::int64_t>(memory->total), source::nvml};
      g.memory_free = {static_cast<std::int64_t>(memory->free), source::nvml};
    }
    links(g, d);
    fabric(g, d);
    health(g, d);
  }

  void capability(gpu& g, handle d) {
    // int nvmlDeviceGetCudaComputeCapability(device, int* high, int* low): two outputs in one pair.
    struct both {
      int high = 0, low = 0;
    };
    using function = int (*)(handle, int*, int*);
    const auto answer =
        lib_.with<both>("nvmlDeviceGetCudaComputeCapability", [d](void* f, both& out) {
          return reinterpret_cast<function>(f)(d, &out.high, &out.low);
        });
    if (answer) g.sm = {answer->high * 10 + answer->low, source::nvml};
  }

  /// Asking for a link's capability also wakes it, as NCCL does (graph/xml.cc).
  void links(gpu& g, handle d) {
    constexpr unsigned most_links = 36, p2p_supported = 0;
    int present = 0, active = 0;
    bool supported = true;
    for (unsigned l = 0; l < most_links && supported; ++l) {
      const auto can = lib_.get<unsigned>("nvmlDeviceGetNvLinkCapability", d, l, p2p_supported);
      if (!can) {
        supported = false; // beyond the last link, or no NVLink at all
        break;
      }
      if (*can == 0) continue;
      ++present;
      std::optional<unsigned> up;
      if (g.sm.value_or(0) >= 90) up = lib_.field(d, nvml_abi::nvlink_state, l);
      if (!up) up = lib_.get<unsigned>("nvmlDeviceGetNvLinkState", d, l);
      if (up.value_or(0) == 0) continue;
      ++active;
      peer(g, d, l);
    }
    if (lib_.how() != nvml::state::ready) return;
    g.nvlink_described = true;
    g.nvlink_present = {present, source::nvml};
    g.nvlink_active = {active, source::nvml};
    if (active > 0) {
      auto version = lib_.field(d, nvml_abi::nvlink_version, 0);
      if (!version) version = lib_.get<unsigned>("nvmlDeviceGetNvLinkVersion", d, 0U);
      if (version) g.nvlink_version = {static_cast<std::int64_t>(*version), source::nvml};
    }
    if (const auto c2c = lib_.field(d, nvml_abi::c2c_link_count, 0); c2c && *c2c > 0)
      g.c2c_links = {static_cast<std::int64_t>(*c2c), source::nvml};
  }
  void peer(gpu& g, handle d, unsigned l) {
    nvlink_peer p;
    p.links = 1;
    const auto remote = lib_.get<nvml_abi::pci_info>("nvmlDeviceGetNvLinkRemotePciInfo_v2", d, l);
    const auto type = lib_.get<int>("nvmlDeviceGetNvLinkRemoteDeviceType", d, l);
    std::optional<pci_address> address;
    if (remote && remote->domain <= 0xfffffff && remote->bus <= 0xff && remote->device <= 0x1f)
      address = pci_address{remote->domain, static_cast<std::uint8_t>(remote->bus),
                            static_cast<std::uint8_t>(remote->device), 0};
    if (address) p.address = pci_text(*address);
    // 0 GPU, 1 IBM NPU, 2 switch, 255 unknown.
    if (type && *type == 0 && address)
      p.what = nvlink_peer::kind::gpu;
    else if (type && *type == 1)
      p.what = nvlink_peer::kind::cpu;
    else if (type && *type == 2)
      p.what = nvlink_peer::kind::nv_switch;
    else if (address && is_gpu(*address))
      p.what = nvlink_peer::kind::gpu;
    else
      p.what = nvlink_peer::kind::assumed_switch; // hidden, as in a virtual machine
    for (nvlink_peer& known : g.nvlink_peers)
      if (known.what == p.what && known.address == p.address) {
        ++known.links;
        return;
      }
    g.nvlink_peers.push_back(std::move(p));
  }
  [[nodiscard]] bool is_gpu(pci_address a) const {
    return std::any_of(m_.gpus.begin(), m_.gpus.end(),
                       [&](const gpu& g) { return g.address == a; });
  }

  void fabric(gpu& g, handle d) {
    nvml_abi::fabric_info info{};
    info.version = static_cast<unsigned>(sizeof info) | 2U << 24;
    const auto answer = lib_.get_from(info, "nvmlDeviceGetGpuFabricInfoV", d);
    if (!answer || answer->state == 0) return;
    constexpr std::string_view states[] = {"not supported", "not started", "in progress",
                                           "completed"};
    g.fabric_state = {std::string(answer->state < 4 ? states[answer->state] : "unknown"),
                      source::nvml};
    if (answer->state == 3)
      g.fabric_health = {answer->status != 0 ? polyrank::detail::cat(
                                                   "registration failed with code ", answer->status)
                                             : fabric_health_text(answer->health_mask),
                         source::nvml};
  }

  void health(gpu& g, handle d) {
    if (const auto errors = lib_.get<unsigned long long>("nvmlDeviceGetTotalEccErrors", d, 1, 0))
      g.ecc_uncorrected = {static_cast<std::int64_t>(*errors), source::nvml};
    struct rows {
      unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    };
    using function = int (*)(handle, unsigned*, unsigned*, unsigned*, unsigned*);
    const auto remap = lib_.with<rows>("nvmlDeviceGetRemappedRows", [d](void* f, rows& out) {
      return reinterpret_cast<function>(f)(d, &out.corrected, &out.uncorrected, &out.pending,
                                           &out.failed);
    });
    if (remap)
      g.row_remap = {remap->failed != 0    ? "failed"
                     : remap->pending != 0 ? "pending"
                                           : "ok",
                     source::nvml};
    auto why = lib_.get<unsigned long long>("nvmlDeviceGetCurrentClocksEventReasons", d);
    if (!why) why = lib_.get<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons", d);
    if (why) g.throttle = {throttle_text(*why), source::nvml};
    struct mode {
      unsigned now = 0, pending = 0;
    };
    using mig_function = int (*)(handle, unsigned*, unsigned*);
    const auto mig = lib_.with<mode>("nvmlDeviceGetMigMode", [d](void* f, mode& out) {
      return reinterpret_cast<mig_function>(f)(d, &out.now, &out.pending);
    });
    if (mig) g.mig = {mig->now != 0 ? "on" : "off", source::nvml};
    if (const auto compute = lib_.get<int>("nvmlDeviceGetComputeMode", d)) {
      constexpr std::string_view modes[] = {"default", "exclusive thread", "prohibited",
                                            "exclusive process"};
      g.compute_mode = {std::string(*compute >= 0 && *compute < 4 ? modes[*compute] : "unknown"),
                        source::nvml};
    }
    if (const auto busy = lib_.get<nvml_abi::utilization>("nvmlDeviceGetUtilizationRates", d))
      g.utilization = {static_cast<std::int64_t>(busy->gpu), source::nvml};
    if (const auto list = lib_.processes(d)) {
      std::string text;
      for (const nvml_abi::process& p : *list)
        text += (text.empty() ? "" : "; ") + process_text(p.pid, p.used_memory, proc_);
      g.processes = {text.empty() ? "none" : text, source::nvml};
    }
  }

  void pair(gpu_pair& p, handle a, handle b) {
    if (lib_.how() != nvml::state::ready) return;
    if (p.pci == path_class::unknown && !p.node_or_sys)
      if (const auto level = lib_.get<int>("nvmlDeviceGetTopologyCommonAncestor", a, b)) {
        constexpr path_class by_ten[] = {path_class::pix, path_class::pix,  path_class::pxb,
                                         path_class::phb, path_class::node, path_class::sys};
        if (*level >= 0 && *level <= 50) p.pci = by_ten[*level / 10];
      }
    if (p.nvlink.what != nvlink_count::knowledge::not_described || p.from == source::none)
      p.from = source::nvml;
    const auto status = [&](fact<std::string>& f, int which) {
      if (const auto s = lib_.get<int>("nvmlDeviceGetP2PStatus", a, b, which))
        f = {p2p_status_text(*s), source::nvml};
    };
    status(p.p2p_read, 0);
    status(p.p2p_write, 1);
    status(p.p2p_nvlink, 2);
    status(p.p2p_atomics, 3);
  }

  /// In a container sysfs shows GPUs that the driver does not give us.
  void hide_invisible() {
    if (lib_.how() != nvml::state::ready || handles_.empty()) return;
    std::set<std::size_t> visible;
    for (const auto& [i, d] : handles_) visible.insert(i);
    if (visible.size() == m_.gpus.size()) {
      number();
      return;
    }
    machine kept = m_;
    kept.gpus.clear();
    std::vector<std::size_t> old;
    for (std::size_t i = 0; i < m_.gpus.size(); ++i)
      if (visible.contains(i) || m_.gpus[i].vendor.value_or("") != "NVIDIA") {
        old.push_back(i);
        kept.gpus.push_back(m_.gpus[i]);
      }
    kept.make_pairs();
    for (gpu_pair& p : kept.pairs) {
      const std::size_t a = p.a, b = p.b;
      p = m_.pair(old[a], old[b]);
      p.a = a;
      p.b = b;
    }
    for (auto* list : {&kept.nics, &kept.ethernet})
      for (nic& n : *list) {
        std::vector<path_class> row;
        for (const std::size_t i : old)
          if (i < n.to_gpus.size()) row.push_back(n.to_gpus[i]);
        n.to_gpus = std::move(row);
      }
    kept.notes.push_back(
        polyrank::detail::cat(m_.gpus.size() - kept.gpus.size(),
                              " more GPUs are on the PCI bus, but not given to this process"));
    for (auto& [i, d] : handles_)
      i = static_cast<std::size_t>(std::find(old.begin(), old.end(), i) - old.begin());
    m_ = std::move(kept);
    number();
  }
  void number() {
    for (std::size_t i = 0; i < m_.gpus.size(); ++i)
      m_.gpus[i].name = polyrank::detail::cat("GPU", i);
  }

  machine& m_;
  nvml& lib_;
  std::vector<finding>& findings_;
  std::filesystem::path proc_;
  std::vector<std::pair<std::size_t, handle>> handles_;
};

} // namespace detail

/// Adds NVML's facts to `m`. Findings: a hung call, a lost GPU. `proc`: where processes are looked
/// up.
inline void read_nvml(machine& m, nvml& lib, std::vector<finding>& findings,
                      const std::filesystem::path& proc = "/proc") {
  detail::nvml_reader(m, lib, findings, proc).run();
}

} // namespace polyrank::probe
