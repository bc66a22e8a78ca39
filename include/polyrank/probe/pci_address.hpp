// The address of a PCI function, domain:bus:device.function: the key by which facts about one
// device from different sources are joined. Indices are not: CUDA_VISIBLE_DEVICES renumbers.
//
//     auto a = parse_pci_address("00000000:3B:00.0");   // NVML writes eight digits, upper case
//     pci_text(*a) == "0000:3b:00.0";                    // sysfs writes four, lower case
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace polyrank::probe {

struct pci_address {
  std::uint32_t domain = 0; ///< 32 bits: hypervisors and VMD number above 0xffff
  std::uint8_t bus = 0, device = 0, function = 0;

  friend constexpr auto operator<=>(const pci_address&, const pci_address&) = default;
};

namespace detail {

/// A hexadecimal number of 1 to `digits` digits that fills `text`.
[[nodiscard]] inline std::optional<std::uint32_t> hex_number(std::string_view text,
                                                             std::size_t digits) noexcept {
  if (text.empty() || text.size() > digits) return std::nullopt;
  std::uint32_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

} // namespace detail

/// Reads "[domain:]bus:device[.function]" in hexadecimal of either case; nothing if it is none.
[[nodiscard]] inline std::optional<pci_address> parse_pci_address(std::string_view text) noexcept {
  const std::size_t last = text.rfind(':');
  if (last == std::string_view::npos || last == 0) return std::nullopt;
  const std::size_t first = text.rfind(':', last - 1);
  const bool has_domain = first != std::string_view::npos;
  const std::string_view domain = has_domain ? text.substr(0, first) : "0";
  const std::string_view bus =
      has_domain ? text.substr(first + 1, last - first - 1) : text.substr(0, last);
  std::string_view device = text.substr(last + 1), function = "0";
  if (const std::size_t dot = device.find('.'); dot != std::string_view::npos) {
    function = device.substr(dot + 1);
    device = device.substr(0, dot);
  }
  const auto d = detail::hex_number(domain, 8), b = detail::hex_number(bus, 2),
             v = detail::hex_number(device, 2), f = detail::hex_number(function, 1);
  if (!d || !b || !v || !f || *v > 0x1f || *f > 7) return std::nullopt;
  return pci_address{*d, static_cast<std::uint8_t>(*b), static_cast<std::uint8_t>(*v),
                     static_cast<std::uint8_t>(*f)};
}

/// As sysfs writes it: "0000:3b:00.0".
[[nodiscard]] inline std::string pci_text(const pci_address& a) {
  const auto hex = [](std::uint32_t value, std::size_t digits) {
    char buffer[8];
    const char* end = std::to_chars(buffer, buffer + sizeof buffer, value, 16).ptr;
    std::string text(static_cast<const char*>(buffer), end);
    return text.size() < digits ? std::string(digits - text.size(), '0') + text : text;
  };
  return hex(a.domain, 4) + ':' + hex(a.bus, 2) + ':' + hex(a.device, 2) + '.' + hex(a.function, 1);
}

} // namespace polyrank::probe
