// Builds short messages without iostreams or std::format (absent in g++ 12).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>

namespace polyrank::detail {

inline void append(std::string& out, std::string_view piece) { out += piece; }
inline void append(std::string& out, char piece) { out += piece; }

/// A template, so that a string literal does not convert to bool.
template <std::same_as<bool> Bool>
void append(std::string& out, Bool piece) {
  out += piece ? "true" : "false";
}

template <class Number>
  requires(std::is_arithmetic_v<Number> && !std::same_as<Number, char> &&
           !std::same_as<Number, bool>)
void append(std::string& out, Number piece) {
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof digits, piece).ptr;
  out.append(digits, end);
}

/// Concatenates strings, characters, booleans and numbers (shortest round-trip form).
template <class... Pieces>
[[nodiscard]] std::string cat(const Pieces&... pieces) {
  std::string out;
  (append(out, pieces), ...);
  return out;
}

} // namespace polyrank::detail
