// The global norm with bits that do not depend on the number of ranks: squares are summed over
// fixed blocks of 4096 elements, and the blocks are folded by a fixed tree.
//
//     blocks          0       1       2       3       4          each block is on one rank
//     fold            0+1     2+3     4                          of its shard
//                     0+1+2+3         4
//                     0+1+2+3+4
//
// Shards are cut at multiples of a block, so who computes a block's sum never changes the sum; the
// sums are shared by an all_reduce in which every other rank adds zero, which is exact. Within a
// block eight accumulators take every eighth element, in fp64: the square of a float is exact
// there, so fused or not, vectorised or not, the bits are the same, and finite gradients never
// overflow.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/dtype.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/partition.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace polyrank {

/// Elements whose squares are summed as one.
inline constexpr std::size_t norm_block = 4096;

/// Sum of squares of at most one block.
template <element G>
[[nodiscard]] double block_squares(const G* from, std::size_t count) noexcept {
  constexpr std::size_t width = 8;
  double sums[width] = {};
  std::size_t i = 0;
  for (; i + width <= count; i += width)
    for (std::size_t k = 0; k < width; ++k) {
      const auto x = static_cast<double>(static_cast<float>(from[i + k]));
      sums[k] += x * x;
    }
  for (; i < count; ++i) {
    const auto x = static_cast<double>(static_cast<float>(from[i]));
    sums[i % width] += x * x;
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

/// out[b] = sum of squares of block b of `from`, which begins at a block boundary.
/// @throws usage_error unless out has one place for each block
template <element G>
void squares_of_blocks(std::span<const G> from, std::span<double> out) {
  expects(out.size() == ceil_div(from.size(), norm_block), "squares_of_blocks: ", from.size(),
          " elements have ", ceil_div(from.size(), norm_block), " blocks, not ", out.size());
  for (std::size_t b = 0; b < out.size(); ++b)
    out[b] = block_squares(from.data() + b * norm_block,
                           std::min(norm_block, from.size() - b * norm_block));
}

/// The sum of all blocks by the tree above; uses `blocks` as scratch.
[[nodiscard]] inline double fold_blocks(std::span<double> blocks) noexcept {
  std::size_t count = blocks.size();
  for (; count > 1; count = ceil_div(count, std::size_t{2}))
    for (std::size_t i = 0; i < ceil_div(count, std::size_t{2}); ++i)
      blocks[i] = 2 * i + 1 < count ? blocks[2 * i] + blocks[2 * i + 1] : blocks[2 * i];
  return count == 0 ? 0 : blocks[0];
}

} // namespace polyrank
