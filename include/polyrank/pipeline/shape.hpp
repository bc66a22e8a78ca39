// How a model is cut over a pipeline: ranks, microbatches, chunks per rank, and which rank owns a
// stage.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>

#include <cstddef>
#include <cstdint>

namespace polyrank::pipeline {

/// Which rank owns stage s of p ranks.
///
///     loop   0 1 2 3 | 0 1 2 3    every chunk starts again at rank 0
///     vee    0 1 2 3 | 3 2 1 0    the second chunk comes back, so the loss is computed on rank 0
enum class placement : std::uint8_t { loop, vee };

/// p ranks run m microbatches through S = p * v stages. Throughout `pipeline/`: p ranks, m
/// microbatches, v chunks per rank, r a rank, s a stage.
struct shape {
  std::size_t ranks = 1;
  std::size_t microbatches = 1;
  std::size_t chunks = 1;
  placement place = placement::loop;

  [[nodiscard]] constexpr std::size_t stages() const noexcept { return ranks * chunks; }
  [[nodiscard]] constexpr std::size_t chunk_of(std::size_t stage) const noexcept {
    return stage / ranks;
  }
  [[nodiscard]] constexpr std::size_t rank_of(std::size_t stage) const noexcept {
    const std::size_t column = stage % ranks;
    return place == placement::vee && chunk_of(stage) % 2 == 1 ? ranks - 1 - column : column;
  }
  [[nodiscard]] constexpr std::size_t stage_of(std::size_t rank, std::size_t chunk) const noexcept {
    const bool back = place == placement::vee && chunk % 2 == 1;
    return chunk * ranks + (back ? ranks - 1 - rank : rank);
  }
  /// Does the tensor between stage `boundary` and `boundary + 1` travel between ranks?
  [[nodiscard]] constexpr bool crosses(std::size_t boundary) const noexcept {
    return rank_of(boundary) != rank_of(boundary + 1);
  }
  friend constexpr bool operator==(const shape&, const shape&) noexcept = default;
};

inline constexpr std::size_t max_stages = 65535;               ///< a stage number fits 16 bits
inline constexpr std::size_t max_microbatches = 16777215;      ///< 24 bits: far above any real step
inline constexpr std::size_t max_cells = std::size_t{1} << 28; ///< stages * microbatches

/// Throws usage_error unless every number is in its range.
inline void check(const shape& s) {
  expects(s.ranks > 0, "a pipeline needs at least one rank, got 0");
  expects(s.microbatches > 0, "a step needs at least one microbatch, got 0");
  expects(s.chunks > 0, "a rank needs at least one chunk, got 0");
  expects(s.ranks <= max_stages && s.chunks <= max_stages && s.stages() <= max_stages, s.ranks,
          " ranks with ", s.chunks, " chunks are more than ", max_stages, " stages");
  expects(s.microbatches <= max_microbatches, s.microbatches, " microbatches are more than ",
          max_microbatches);
  expects(s.microbatches <= max_cells / s.stages(), s.stages(), " stages with ", s.microbatches,
          " microbatches are more than ", max_cells, " forward passes");
}

/// Layers of each stage when they are split evenly; usage_error where they do not divide.
[[nodiscard]] inline std::size_t layers_per_stage(const shape& s, std::size_t layers) {
  const std::size_t n = s.stages();
  expects(layers > 0 && layers % n == 0, layers, " layers do not divide into ", n, " stages (",
          s.ranks, " ranks with ", s.chunks, " each); the next number that does is ",
          (layers / n + 1) * n);
  return layers / n;
}

} // namespace polyrank::pipeline
