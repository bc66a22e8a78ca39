// How a global step is cut over the ranks. Pure: numbers in, numbers out.
//
//     ordinary       one block per rank, or `accumulate` of them
//     pipeline       --microbatches blocks per replica
//     deterministic  L blocks per step whatever the ranks, L / N of them on each
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train_classifier/config.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/core/partition.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace polyrank::examples {

struct step_plan {
  std::size_t blocks = 1; ///< of a global step
  std::size_t blocks_per_rank = 1;
  std::size_t rows_per_block = 1;
  std::size_t steps_per_epoch = 1;
  std::size_t horizon = 1;  ///< steps at whose end the learning rate is zero
  std::size_t steps = 1;    ///< that will be made
  std::uint64_t warmup = 0; ///< steps in which the rate rises

  [[nodiscard]] std::size_t rows_per_rank() const noexcept {
    return blocks_per_rank * rows_per_block;
  }
};

/// @throws usage_error (the same on every rank) where the numbers do not fit
[[nodiscard]] inline step_plan plan_steps(const config& c, std::size_t ranks,
                                          std::size_t train_count) {
  const auto refuse = [](const auto&... pieces) {
    throw on_every_rank(usage_error(detail::cat(pieces...)));
  };
  step_plan p;
  if (c.deterministic) {
    if (!std::has_single_bit(c.blocks))
      refuse("--blocks ", c.blocks,
             " is no power of two, so the sum of the blocks would depend on the "
             "number of ranks; take ",
             std::bit_floor(c.blocks), " or ", std::bit_ceil(c.blocks));
    if (c.blocks % ranks != 0)
      refuse(ranks, " ranks do not divide --blocks ", c.blocks,
             std::has_single_bit(ranks)
                 ? detail::cat("; take at most ", c.blocks, " ranks, or --blocks ", ranks)
                 : detail::cat("; take a power of two of ranks, at most ", c.blocks));
    if (c.batch % c.blocks != 0)
      refuse("--blocks ", c.blocks, " do not divide --batch ", c.batch, "; take --batch ",
             round_up(c.batch, c.blocks));
    p.blocks = c.blocks;
  } else {
    const bool cut = c.pipeline > 0; // then a group of ranks is one replica of the model
    if (cut) ranks /= c.pipeline;
    p.blocks = ranks * (cut ? c.microbatches : c.accumulate);
    if (cut && c.batch % p.blocks != 0)
      refuse("--microbatches ", c.microbatches, " of ", ranks, " replicas do not divide --batch ",
             c.batch, "; take --batch ", round_up(c.batch, p.blocks));
    if (c.batch % p.blocks != 0)
      refuse(ranks, " ranks", c.accumulate > 1 ? detail::cat(" x --accumulate ", c.accumulate) : "",
             " do not divide --batch ", c.batch, "; take --batch ", round_up(c.batch, p.blocks));
  }
  if (c.batch > train_count)
    refuse("--batch ", c.batch, " is more than the ", train_count, " training pictures");
  p.blocks_per_rank = p.blocks / ranks;
  p.rows_per_block = c.batch / p.blocks;
  p.steps_per_epoch = train_count / c.batch;
  p.horizon = p.steps_per_epoch * c.epochs;
  p.steps = c.steps.value_or(p.horizon);
  if (p.steps > p.horizon)
    refuse("--steps ", p.steps, " is more than the ", p.horizon, " steps of --epochs ", c.epochs,
           ", at whose end the learning rate is zero; take --epochs ",
           ceil_div(p.steps, p.steps_per_epoch));
  p.warmup = std::min<std::uint64_t>(
      p.horizon / 4, static_cast<std::uint64_t>(
                         std::lround(c.warmup_epochs * static_cast<double>(p.steps_per_epoch))));
  return p;
}

} // namespace polyrank::examples
