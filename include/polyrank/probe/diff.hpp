// What changed between two descriptions of a machine: "what is different since it worked".
//
// GPUs and NICs are matched by UUID, then PCI address, then name; facts that only one side knows
// are no change, and facts that move all the time (free memory, processes, throttling) are left
// out.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/model.hpp>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

/// One difference, as a line of text.
struct change {
  std::string where;         ///< "GPU3 (0000:5b:00.0)", "GPU0-GPU1"
  std::string what;          ///< "numa", "link"
  std::string before, after; ///< "" where it was or is not there
};

namespace detail {

[[nodiscard]] inline std::string fact_text(const std::string& v) { return v; }
[[nodiscard]] inline std::string fact_text(std::int64_t v) { return polyrank::detail::cat(v); }
[[nodiscard]] inline std::string fact_text(double v) { return polyrank::detail::cat(v); }
[[nodiscard]] inline std::string fact_text(bool v) { return v ? "yes" : "no"; }
[[nodiscard]] inline std::string fact_text(const cpu_list& v) { return cpu_text(v); }
[[nodiscard]] inline std::string fact_text(pcie_link v) { return pcie_text(v); }

template <class Device>
[[nodiscard]] std::string device_text(const Device& d) {
  return d.address ? polyrank::detail::cat(d.name, " (", pci_text(*d.address), ")") : d.name;
}

/// The index in `list` of the device that is `d`, by the best key that both have.
template <class Device>
[[nodiscard]] std::optional<std::size_t> same_device(const Device& d,
                                                     const std::vector<Device>& list) {
  if constexpr (requires { d.uuid; })
    for (std::size_t i = 0; i < list.size(); ++i)
      if (!d.uuid.empty() && list[i].uuid == d.uuid) return i;
  for (std::size_t i = 0; i < list.size(); ++i)
    if (d.address && list[i].address == d.address) return i;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const bool keyed = d.address && list[i].address;
    if (!keyed && list[i].name == d.name) return i;
  }
  return std::nullopt;
}

} // namespace detail

/// Differences from `before` to `after`.
[[nodiscard]] inline std::vector<change> compare(const machine& before, const machine& after) {
  std::vector<change> out;
  std::map<std::size_t, std::size_t> moved; // GPU before -> GPU after
  for (std::size_t i = 0; i < before.gpus.size(); ++i) {
    const gpu& old = before.gpus[i];
    const std::string who = detail::device_text(old);
    const auto found = detail::same_device(old, after.gpus);
    if (!found) {
      out.push_back({who, "GPU", "present", ""});
      continue;
    }
    moved[i] = *found;
    const gpu& now = after.gpus[*found];
    if (old.address && now.address && old.address != now.address)
      out.push_back({who, "PCI address", pci_text(*old.address), pci_text(*now.address)});
    if (!old.model.empty() && !now.model.empty() && old.model != now.model)
      out.push_back({who, "model", old.model, now.model});
    std::map<std::string, std::string> facts;
    const std::string_view moving[] = {"memory_free", "processes", "throttle", "utilization",
                                       "pcie_loaded", "rank",      "dev"};
    each_fact(now, [&](const char* name, const auto& f) {
      if (f.known()) facts[name] = detail::fact_text(*f);
    });
    each_fact(old, [&](const char* name, const auto& f) {
      if (!f.known() || std::find(std::begin(moving), std::end(moving), name) != std::end(moving))
        return;
      const auto other = facts.find(name);
      if (other != facts.end() && other->second != detail::fact_text(*f))
        out.push_back({who, name, detail::fact_text(*f), other->second});
    });
  }
  for (const gpu& now : after.gpus)
    if (!detail::same_device(now, before.gpus))
      out.push_back({detail::device_text(now), "GPU", "", "present"});
  for (const gpu_pair& old : before.pairs) {
    if (!moved.contains(old.a) || !moved.contains(old.b)) continue;
    const gpu_pair& now = after.pair(moved[old.a], moved[old.b]);
    const std::string who = before.gpus[old.a].name + '-' + before.gpus[old.b].name;
    using k = nvlink_count::knowledge;
    const auto known = [](nvlink_count n) { return n.what == k::some || n.what == k::none; };
    if (known(old.nvlink) && known(now.nvlink) && old.nvlink != now.nvlink)
      out.push_back({who, "NVLinks", nvlink_text(old.nvlink), nvlink_text(now.nvlink)});
    if (old.pci != path_class::unknown && now.pci != path_class::unknown && old.pci != now.pci)
      out.push_back(
          {who, "PCI path", std::string(path_text(old.pci)), std::string(path_text(now.pci))});
    const auto status = [&](const char* name, const fact<std::string>& x,
                            const fact<std::string>& y) {
      if (x.known() && y.known() && *x != *y) out.push_back({who, name, *x, *y});
    };
    status("P2P read", old.p2p_read, now.p2p_read);
    status("P2P write", old.p2p_write, now.p2p_write);
    status("what NCCL uses", old.nccl, now.nccl);
  }
  for (const nic& old : before.nics) {
    const auto found = detail::same_device(old, after.nics);
    if (!found) {
      out.push_back({detail::device_text(old), "NIC", "present", ""});
      continue;
    }
    const nic& now = after.nics[*found];
    for (const auto& [was, is] : moved) {
      if (was >= old.to_gpus.size() || is >= now.to_gpus.size()) continue;
      const path_class x = old.to_gpus[was], y = now.to_gpus[is];
      if (x != path_class::unknown && y != path_class::unknown && x != y)
        out.push_back({old.name + '-' + before.gpus[was].name, "PCI path",
                       std::string(path_text(x)), std::string(path_text(y))});
    }
  }
  for (const nic& now : after.nics)
    if (!detail::same_device(now, before.nics))
      out.push_back({detail::device_text(now), "NIC", "", "present"});
  return out;
}

/// "GPU3 (0000:5b:00.0): nvlink_active 18 -> 17"; "" where nothing changed.
[[nodiscard]] inline std::string changes_text(const std::vector<change>& changes) {
  std::string out;
  for (const change& c : changes)
    out += polyrank::detail::cat(c.where, ": ", c.what, ' ', c.before.empty() ? "absent" : c.before,
                                 " -> ", c.after.empty() ? "gone" : c.after, '\n');
  return out;
}

} // namespace polyrank::probe
