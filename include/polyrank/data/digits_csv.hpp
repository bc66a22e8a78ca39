// Reader of pictures in CSV form: one picture a line, its pixels, then its label. This is the form
// of the UCI handwritten digits (8x8 pixels of 0 ... 16, label last).
//
//     labelled_images digits = parse_digits_csv(bytes, "digits.csv");
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/data/labelled_images.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace polyrank {

/// What the numbers of a line mean.
struct csv_format {
  std::size_t rows = 8;
  std::size_t columns = 8;
  std::uint8_t white = 16; ///< pixels are 0 ... white
  std::size_t classes = 10;
};

/// Lines end in LF or CRLF, the last one need not; there is no heading and no empty line.
///
/// @param name what to call the file in errors
/// @throws data_error with line and column (both from 1; a column is a comma-separated field)
[[nodiscard]] inline labelled_images parse_digits_csv(std::span<const std::byte> bytes,
                                                      std::string_view name,
                                                      const csv_format& format = {}) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  labelled_images set{.rows = format.rows,
                      .columns = format.columns,
                      .pixels = {},
                      .labels = {},
                      .white = format.white,
                      .classes = format.classes};
  const std::size_t fields = set.features() + 1;
  std::size_t line = 0, column = 0;
  const auto fail = [&](auto... what) {
    throw data_error(detail::cat(name, ":", line, ":", column, ": ", what...));
  };
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view rest = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (rest.ends_with('\r')) rest.remove_suffix(1);
    ++line;
    for (column = 1; column <= fields; ++column) {
      const std::size_t comma = rest.find(',');
      const std::string_view field = rest.substr(0, comma);
      if (comma == rest.npos && column < fields)
        fail("the line has ", column, " fields in place of ", fields);
      if (comma != rest.npos && column == fields)
        fail("the line has more than ", fields, " fields");
      unsigned value = 0;
      const unsigned limit =
          column < fields ? format.white : static_cast<unsigned>(format.classes - 1);
      if (field.empty() || field.size() > 3)
        fail("'", field.substr(0, 20), "' is not a number of 0 ... ", limit);
      for (const char c : field) {
        if (c < '0' || c > '9') fail("'", field, "' is not a number of 0 ... ", limit);
        value = 10 * value + static_cast<unsigned>(c - '0');
      }
      if (value > limit)
        fail(column < fields ? "pixel " : "label ", value, " is more than ", limit);
      (column < fields ? set.pixels : set.labels).push_back(static_cast<std::uint8_t>(value));
      rest.remove_prefix(comma == rest.npos ? rest.size() : comma + 1);
    }
  }
  if (line == 0) throw data_error(detail::cat(name, ": the file is empty"));
  return set;
}

} // namespace polyrank
