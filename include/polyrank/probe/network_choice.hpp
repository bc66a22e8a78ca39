// Which interface NCCL would take for its sockets, by its rules: NCCL_SOCKET_IFNAME is a list of
// prefixes, "=" makes it exact, "^" excludes; unset, it prefers ib*, then anything but docker* and
// lo, then docker*, then lo (NCCL's misc/socket.cc and its environment documentation).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/rank_facts.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

namespace detail {

[[nodiscard]] inline bool listed(std::string_view name, std::string_view list, bool exact) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string_view item = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    if (!item.empty() && (exact ? name == item : name.starts_with(item))) return true;
  }
  return false;
}

} // namespace detail

/// The index of the interface, or nothing where none fits. Only interfaces that are up and have an
/// address are considered.
[[nodiscard]] inline std::optional<std::size_t>
choose_interface(const std::vector<net_interface>& all, std::string_view spec) {
  const auto first = [&](auto fits) -> std::optional<std::size_t> {
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].up && !all[i].address.empty() && fits(all[i])) return i;
    return std::nullopt;
  };
  if (!spec.empty()) {
    const bool exclude = spec.starts_with('^');
    if (exclude) spec.remove_prefix(1);
    const bool exact = spec.starts_with('=');
    if (exact) spec.remove_prefix(1);
    return first(
        [&](const net_interface& i) { return detail::listed(i.name, spec, exact) != exclude; });
  }
  if (const auto ib = first([](const net_interface& i) { return i.name.starts_with("ib"); }))
    return ib;
  if (const auto other = first([](const net_interface& i) {
        return !i.name.starts_with("docker") && !i.loopback && i.name != "lo";
      }))
    return other;
  if (const auto docker =
          first([](const net_interface& i) { return i.name.starts_with("docker"); }))
    return docker;
  return first([](const net_interface&) { return true; });
}

} // namespace polyrank::probe
