// Sets of CPU (or NUMA node) numbers, as the kernel writes them: lists "0-63,128-191" and masks
// "000000ff,ffff0000" (32 bits a word, the highest first).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/text.hpp>
#include <polyrank/probe/pci_address.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

/// Sorted, without doubles.
using cpu_list = std::vector<int>;

/// Reads "0-3,8,10-11"; nothing if it is no list of numbers below 65536. Empty text: no CPUs.
[[nodiscard]] inline std::optional<cpu_list> parse_cpu_list(std::string_view text) {
  constexpr int most = 65535;
  cpu_list out;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, comma);
    int low = 0;
    const char* const end = item.data() + item.size();
    auto [p, code] = std::from_chars(item.data(), end, low);
    if (item.empty() || code != std::errc() || low < 0 || low > most) return std::nullopt;
    int high = low;
    if (p != end && *p == '-') {
      const auto [q, second] = std::from_chars(p + 1, end, high);
      if (second != std::errc() || high < low || high > most) return std::nullopt;
      p = q;
    }
    if (p != end) return std::nullopt;
    for (int cpu = low; cpu <= high; ++cpu) out.push_back(cpu);
    if (comma == text.size()) break;
    text.remove_prefix(comma + 1);
    if (text.empty()) return std::nullopt; // a comma at the end
    if (out.size() > 4 * most) return std::nullopt;
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

/// Reads a mask of hexadecimal words, with or without 0x; nothing if it is none, or infinite
/// (hwloc's "0xf...f"). hwloc leaves words that are zero empty: "0x1,,0x10000000".
[[nodiscard]] inline std::optional<cpu_list> parse_cpu_mask(std::string_view text) {
  std::vector<std::uint32_t> words;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::string_view word = text.substr(0, comma);
    if (word.starts_with("0x")) word.remove_prefix(2);
    const bool skipped = comma == 0 && (!words.empty() || text.size() > 1);
    const auto value = skipped ? std::optional<std::uint32_t>(0) : detail::hex_number(word, 8);
    if (!value || words.size() >= 2048) return std::nullopt;
    words.push_back(*value);
    if (comma == text.size()) break;
    text.remove_prefix(comma + 1);
  }
  cpu_list out;
  for (std::size_t w = 0; w < words.size(); ++w)
    for (int bit = 0; bit < 32; ++bit)
      if ((words[words.size() - 1 - w] >> bit & 1) != 0)
        out.push_back(static_cast<int>(w) * 32 + bit);
  return out;
}

/// "0-3,8"; "" for no CPUs.
[[nodiscard]] inline std::string cpu_text(const cpu_list& cpus) {
  std::string out;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t j = i;
    while (j + 1 < cpus.size() && cpus[j + 1] == cpus[j] + 1) ++j;
    if (!out.empty()) out += ',';
    polyrank::detail::append(out, cpus[i]);
    if (j > i) out += polyrank::detail::cat('-', cpus[j]);
    i = j + 1;
  }
  return out;
}

/// CPUs in both sets.
[[nodiscard]] inline cpu_list common_cpus(const cpu_list& a, const cpu_list& b) {
  cpu_list out;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

} // namespace polyrank::probe
