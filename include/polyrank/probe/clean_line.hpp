// One line of a terminal's output as people paste it: without ANSI codes (also those whose escape
// byte got lost), HTML tags, Markdown quoting and non-breaking spaces. Every character remembers
// its column in the file, so that an error still points there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/source_text.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

struct clean_line {
  std::string text;
  std::vector<std::size_t> columns; ///< of each character of text, and of the end
  std::size_t line = 0;

  [[nodiscard]] place at(std::size_t i) const noexcept {
    return {line, columns.empty() ? 1 : columns[std::min(i, columns.size() - 1)]};
  }
  /// Removes the first n characters.
  void drop(std::size_t n) {
    text.erase(0, n);
    columns.erase(columns.begin(), columns.begin() + static_cast<std::ptrdiff_t>(n));
  }
  /// Where character i stands on a screen with tab stops every 8.
  [[nodiscard]] std::size_t screen_column(std::size_t i) const noexcept {
    std::size_t c = 0;
    for (std::size_t k = 0; k < i && k < text.size(); ++k)
      c = text[k] == '\t' ? (c / 8 + 1) * 8 : c + 1;
    return c;
  }
};

namespace detail {

/// Length of an escape sequence at the start of `s`; 0 if there is none.
[[nodiscard]] inline std::size_t escape_length(std::string_view s) noexcept {
  std::size_t i = 0;
  if (s.starts_with('\x1b'))
    i = 1;
  else if (s.starts_with("^["))
    i = 2;
  if (i > 0 && i < s.size() && s[i] == ']') { // a title, ended by BEL
    const std::size_t end = s.find('\x07', i);
    return end == std::string_view::npos ? i : end + 1;
  }
  if (i > 0 && i < s.size() && s[i] == '(') return std::min(i + 2, s.size()); // a character set
  if (i == s.size() || s[i] != '[') return i == 1 ? 1 : 0;
  const std::size_t digits = ++i;
  while (i < s.size() && ((s[i] >= '0' && s[i] <= '9') || s[i] == ';' || s[i] == '?')) ++i;
  if (i >= s.size()) return 0;
  const bool whole = s[0] != '[';
  // Without its escape byte only "[4m", "[0m", "[1;4m" are taken for codes.
  if (whole ? (s[i] >= '@' && s[i] <= '~') : (s[i] == 'm' && i > digits)) return i + 1;
  return 0;
}

/// Length of an HTML tag such as <pre>, </td>, <span class="x"> at the start of `s`; 0 if there is
/// none.
[[nodiscard]] inline std::size_t tag_length(std::string_view s) noexcept {
  if (!s.starts_with('<')) return 0;
  const std::size_t name = s.starts_with("</") ? 2 : 1;
  if (name >= s.size() || (s[name] | 0x20) < 'a' || (s[name] | 0x20) > 'z') return 0;
  const std::size_t end = s.find_first_of("<>", name);
  return end != std::string_view::npos && s[end] == '>' ? end + 1 : 0;
}

} // namespace detail

[[nodiscard]] inline clean_line clean(std::string_view raw, std::size_t line) {
  clean_line out;
  out.line = line;
  std::size_t i = line == 1 && raw.starts_with("\xef\xbb\xbf") ? 3 : 0;
  const auto keep = [&](char c, std::size_t column) {
    out.text += c;
    out.columns.push_back(column + 1);
  };
  while (i < raw.size()) {
    if (const std::size_t n = detail::escape_length(raw.substr(i)); n > 0) {
      i += n;
    } else if (const std::size_t tag = detail::tag_length(raw.substr(i)); tag > 0) {
      const std::string_view name = raw.substr(i + 1, 2);
      if (name == "td" || name == "th") keep('|', i); // the cells of a table
      i += tag;
    } else if (raw.substr(i).starts_with("\xc2\xa0")) {
      keep(' ', i);
      i += 2;
    } else if (raw.substr(i).starts_with("&nbsp;")) {
      keep(' ', i);
      i += 6;
    } else if (raw[i] == '`' || raw[i] == '\r' || raw.substr(i).starts_with("**")) {
      i += raw[i] == '*' ? 2 : 1;
    } else {
      keep(raw[i], i);
      ++i;
    }
  }
  out.columns.push_back(raw.size() + 1);
  // "> " of a quotation, once or more.
  std::size_t quoted = 0;
  while (quoted < out.text.size() && out.text[quoted] == '>') {
    ++quoted;
    if (quoted < out.text.size() && out.text[quoted] == ' ') ++quoted;
  }
  out.drop(quoted);
  return out;
}

} // namespace polyrank::probe
