// Integer arithmetic of sharding: rounding, and splitting a range over ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

namespace polyrank {

/// ceil(a / b) for b > 0.
[[nodiscard]] constexpr std::size_t ceil_div(std::size_t a, std::size_t b) noexcept {
  return a / b + (a % b != 0 ? 1 : 0);
}

/// The smallest multiple of `unit` (> 0) that is >= a.
[[nodiscard]] constexpr std::size_t round_up(std::size_t a, std::size_t unit) noexcept {
  return ceil_div(a, unit) * unit;
}

/// Elements [begin, end).
struct range {
  std::size_t begin = 0;
  std::size_t end = 0;

  [[nodiscard]] constexpr std::size_t size() const noexcept { return end - begin; }
  [[nodiscard]] constexpr bool empty() const noexcept { return begin == end; }
  friend constexpr bool operator==(range, range) noexcept = default;
};

/// The common part of two ranges; empty (at the larger begin) where they do not meet.
[[nodiscard]] constexpr range intersect(range a, range b) noexcept {
  const std::size_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// Part `index` of `count` elements split as evenly as possible; the first parts are longer.
///
///     partition(10, 4, 0) == {0, 3}   partition(10, 4, 3) == {8, 10}
[[nodiscard]] constexpr range partition(std::size_t count, std::size_t parts,
                                        std::size_t index) noexcept {
  const std::size_t base = count / parts, longer = count % parts;
  const std::size_t begin = index * base + std::min(index, longer);
  return {begin, begin + base + (index < longer ? 1 : 0)};
}

/// Part `index` of `count` elements cut at multiples of `block`: every part has
/// round_up(ceil(count / parts), block) elements but the last ones, which may be short or empty.
[[nodiscard]] constexpr range partition_blocks(std::size_t count, std::size_t parts,
                                               std::size_t index, std::size_t block) noexcept {
  const std::size_t chunk = round_up(ceil_div(count, parts), block);
  return {std::min(count, index * chunk), std::min(count, (index + 1) * chunk)};
}

} // namespace polyrank
