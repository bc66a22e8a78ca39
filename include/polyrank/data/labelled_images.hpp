// Small grey pictures with a class each, as they come out of the readers of this folder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace polyrank {

/// `labels.size()` pictures of rows x columns pixels, one after the other, each in row-major order.
struct labelled_images {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<std::uint8_t> pixels; ///< 0 (background) ... white
  std::vector<std::uint8_t> labels; ///< 0 ... classes - 1
  std::uint8_t white = 255;         ///< the largest pixel value of the format
  std::size_t classes = 10;

  [[nodiscard]] std::size_t count() const noexcept { return labels.size(); }
  [[nodiscard]] std::size_t features() const noexcept { return rows * columns; }
  [[nodiscard]] std::span<const std::uint8_t> picture(std::size_t i) const noexcept {
    return std::span(pixels).subspan(i * features(), features());
  }
};

/// Pictures [begin, end) as a set of their own.
[[nodiscard]] inline labelled_images slice(const labelled_images& from, std::size_t begin,
                                           std::size_t end) {
  labelled_images part{.rows = from.rows,
                       .columns = from.columns,
                       .pixels = {},
                       .labels = {},
                       .white = from.white,
                       .classes = from.classes};
  const auto at = [](const std::vector<std::uint8_t>& v, std::size_t i) {
    return v.begin() + static_cast<std::ptrdiff_t>(i);
  };
  part.pixels.assign(at(from.pixels, begin * from.features()),
                     at(from.pixels, end * from.features()));
  part.labels.assign(at(from.labels, begin), at(from.labels, end));
  return part;
}

} // namespace polyrank
