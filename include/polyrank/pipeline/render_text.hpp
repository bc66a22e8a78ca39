// Numbers and names that the SVG and the trace writer share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/report.hpp>

#include <charconv>
#include <string>
#include <string_view>

namespace polyrank::pipeline {

/// A report and what to call it, for pictures of several: predicted over measured.
struct named_report {
  std::string_view name;
  const pipeline::report* data = nullptr;
};

namespace detail {

/// At most `digits` digits after the point, no trailing zeros.
inline void append_fixed(std::string& out, double value, int digits) {
  char text[64];
  const auto end =
      std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, digits).ptr;
  std::string_view kept(text, static_cast<std::size_t>(end - text));
  if (kept.find('.') != kept.npos) {
    while (kept.back() == '0') kept.remove_suffix(1);
    if (kept.back() == '.') kept.remove_suffix(1);
  }
  out += kept == "-0" ? "0" : kept;
}
[[nodiscard]] inline std::string fixed(double value, int digits) {
  std::string out;
  append_fixed(out, value, digits);
  return out;
}

/// For XML and JSON strings alike: names are ours or a user's title.
[[nodiscard]] inline std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (c != '<' && c != '>' && c != '&' && c != '"' && c != '\\' &&
        static_cast<unsigned char>(c) >= 32)
      out += c;
  return out;
}

} // namespace detail

} // namespace polyrank::pipeline
