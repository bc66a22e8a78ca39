// Places in a text and the error that names one. A parser of this folder either understands a file
// or refuses it with file, line and column; it never guesses.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

/// Both count from 1; a column is a byte of the line as it stands in the file.
struct place {
  std::size_t line = 1, column = 1;
};

/// In place of the line of what a text does not hold.
inline constexpr std::size_t no_line = static_cast<std::size_t>(-1);

/// Throws data_error "name:line:column: what".
template <class... Pieces>
[[noreturn]] void refuse(std::string_view name, place at, const Pieces&... what) {
  throw data_error(polyrank::detail::cat(name, ':', at.line, ':', at.column, ": ",
                                         polyrank::detail::cat(what...)));
}

/// The largest file that the parsers look at.
inline constexpr std::size_t max_text_bytes = std::size_t{64} << 20;

/// The lines of `text`, without their ends ("\n" or "\r\n").
[[nodiscard]] inline std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    out.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

[[nodiscard]] constexpr bool is_blank(char c) noexcept {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}
[[nodiscard]] constexpr std::string_view trim(std::string_view text) noexcept {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

} // namespace polyrank::probe
