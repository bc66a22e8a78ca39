// What the CUDA runtime says of the GPUs, as the worker's answer to "facts"; joined to the facts of
// sysfs and NVML by PCI address, and judged. Pure.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/finding.hpp>
#include <polyrank/probe/gpu_worker.hpp>
#include <polyrank/probe/model.hpp>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

struct cuda_device {
  pci_address address;
  std::string uuid, name;
  std::int64_t sm = 0, memory = 0;
};
/// What one device may do with the memory of another.
struct cuda_peer {
  std::size_t a = 0, b = 0;
  bool access = false, atomics = false;
  int rank = 0; ///< of its speed; 0 is the fastest
};

struct cuda_facts {
  int driver = 0, runtime = 0; ///< the newest CUDA of the driver; 1000 * major + 10 * minor
  std::string nccl, cublas;    ///< versions that the program is linked with
  std::vector<cuda_device> devices;
  std::vector<cuda_peer> peers;
  std::vector<std::string> libraries; ///< loaded into the worker
};

/// "13.0" of 13000.
[[nodiscard]] inline std::string cuda_version_text(int version) {
  return polyrank::detail::cat(version / 1000, '.', version % 1000 / 10);
}

/// Of a good answer. @throws data_error for a field that does not parse
[[nodiscard]] inline cuda_facts read_cuda_facts(const gpu_answer& a) {
  const auto parts = [](std::string_view text) {
    std::vector<std::string> out;
    for (;;) {
      const std::size_t bar = std::min(text.find('|'), text.size());
      out.emplace_back(text.substr(0, bar));
      if (bar == text.size()) return out;
      text.remove_prefix(bar + 1);
    }
  };
  const auto number = [](const std::string& text) {
    std::int64_t value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size())
      throw data_error(polyrank::detail::cat("GPU worker: \"", text, "\" is no number"));
    return value;
  };
  const auto version = [&a](const char* key) {
    const double value = a.number(key);
    if (!(value >= 0 && value < 1e6))
      throw data_error(polyrank::detail::cat("GPU worker: ", key, " ", value, " is no version"));
    return static_cast<int>(value);
  };
  cuda_facts f;
  f.driver = version("driver");
  f.runtime = version("runtime");
  f.nccl = a.word("nccl");
  f.cublas = a.word("cublas");
  if (const std::string list = a.word("libraries"); !list.empty()) f.libraries = parts(list);
  for (std::size_t i = 0; a.values.contains(polyrank::detail::cat("device", i)); ++i) {
    const auto p = parts(a.word(polyrank::detail::cat("device", i)));
    const auto address = p.size() == 5 ? parse_pci_address(p[0]) : std::nullopt;
    if (!address) throw data_error("GPU worker: a device without a PCI address");
    f.devices.push_back({*address, p[1], p[2], number(p[3]), number(p[4])});
  }
  for (std::size_t i = 0; i < f.devices.size(); ++i)
    for (std::size_t j = i + 1; j < f.devices.size(); ++j) {
      const auto p = parts(a.word(polyrank::detail::cat("peer", i, '.', j)));
      if (p.size() != 3) continue;
      f.peers.push_back(
          {i, j, number(p[0]) != 0, number(p[1]) != 0, static_cast<int>(number(p[2]))});
    }
  return f;
}

/// Adds CUDA's facts to a machine. What NVML has said stays; what it has not comes from here, so
/// that a machine without NVML still tells NVLink from PCIe: access with native atomics is NVLink
/// (its number of links stays unknown), access without is P2P over PCIe.
inline void add_cuda_facts(machine& m, const cuda_facts& f) {
  std::vector<std::optional<std::size_t>> index;
  for (const cuda_device& d : f.devices) {
    index.emplace_back();
    for (std::size_t i = 0; i < m.gpus.size(); ++i)
      if (m.gpus[i].address == d.address) index.back() = i;
    if (!index.back()) {
      m.notes.push_back(polyrank::detail::cat("CUDA sees ", d.name, " at ", pci_text(d.address),
                                              ", which neither sysfs nor NVML shows"));
      continue;
    }
    gpu& g = m.gpus[*index.back()];
    g.cuda = {true, source::cuda};
    if (g.uuid.empty()) g.uuid = d.uuid;
    if (g.model.empty()) g.model = d.name;
    if (g.sm.known() && *g.sm != d.sm)
      m.notes.push_back(polyrank::detail::cat(g.name, ": CUDA says compute capability ", d.sm,
                                              ", NVML ", *g.sm, " (tenths)"));
    g.sm.learn(d.sm, source::cuda);
    g.memory_total.learn(d.memory, source::cuda);
  }
  for (std::size_t i = 0; i < m.gpus.size(); ++i)
    if (!m.gpus[i].cuda.known() && m.gpus[i].vendor.value_or("NVIDIA") == "NVIDIA")
      m.gpus[i].cuda = {false, source::cuda}; // CUDA_VISIBLE_DEVICES, MIG
  for (const cuda_peer& c : f.peers) {
    if (!index[c.a] || !index[c.b] || *index[c.a] == *index[c.b]) continue;
    gpu_pair& p = m.pair(*index[c.a], *index[c.b]);
    p.peer_access = {c.access, source::cuda};
    p.peer_atomics = {c.atomics, source::cuda};
    if (p.from == source::none) p.from = source::cuda;
    if (c.access && p.nvlink.what == nvlink_count::knowledge::not_described)
      p.nvlink =
          c.atomics ? nvlink_count{nvlink_count::knowledge::unknown, 0} : nvlink_count::of(0);
  }
}

/// Why CUDA cannot be used, or not well, from the worker's answer to "facts". `gpu_seen`: NVML
/// gives this process a GPU.
[[nodiscard]] inline std::vector<finding> judge_cuda(const gpu_answer& a, bool gpu_seen,
                                                     const std::string& host) {
  using polyrank::detail::cat;
  if (a.how == gpu_answer::outcome::not_asked) return {};
  if (a.hung()) return {{"cuda_hung", cat("cuInit: ", a.complaint()), -1, host}};
  if (a.good()) return {};
  switch (a.code) {
  case 35: // cudaErrorInsufficientDriver, also where there is no driver at all
    if (!gpu_seen) return {};
    return {{"driver_too_old", a.text, -1, host}};
  case 100: // cudaErrorNoDevice
    if (!gpu_seen) return {};
    break;
  case 802: // cudaErrorSystemNotReady
    return {{"fabric_not_ready", a.text, -1, host}};
  case 803: // cudaErrorSystemDriverMismatch
    return {{"driver_mismatch", a.text, -1, host}};
  default:
    break;
  }
  return {{"cuda_unusable", a.text, -1, host}};
}

} // namespace polyrank::probe
