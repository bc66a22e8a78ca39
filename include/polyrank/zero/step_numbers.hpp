// What an update of the sharded optimizer reads besides its shard: a block of backend memory with
// the record of the step (optim/grad_scale.hpp) and the numbers that follow from it; further groups
// of parameters have blocks of their own, for numbers only. Blocks are written and read on streams,
// so the host waits for nothing.
//
//     conclude   squares -> control_block.record                 norm, factor, skip
//     prepare    record, update_control -> step_numbers<O>       once a step and group
//     update     step_numbers<O>, shard -> shard
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hd.hpp>
#include <polyrank/optim/grad_scale.hpp>
#include <polyrank/optim/optimizer.hpp>
#include <polyrank/zero/options.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace polyrank {

/// What decides about an update; resolve() turns it into numbers when the update runs.
struct update_control {
  const step_record* record = nullptr; ///< in memory that the update can read
  clip_policy policy = clip_policy::exact;
  grad_scale_terms terms{};
  std::uint64_t step = 1; ///< counted by the host; used where nothing is ever skipped
  double rate = 1;        ///< of the learning-rate schedule
  std::optional<std::uint64_t> stochastic_seed{};
};

/// The numbers of one step for optimizer O.
template <elementwise_optimizer O>
struct step_numbers {
  bool skip = false;
  float factor = 1;       ///< turns summed gradients into clipped means
  std::uint64_t step = 1; ///< t of the bias correction
  typename O::hyper hyper;
};

template <elementwise_optimizer O>
[[nodiscard]] POLYRANK_HD step_numbers<O> resolve(const update_control& c,
                                                  const typename O::options& options) noexcept {
  step_numbers<O> n{.skip = false, .factor = c.terms.mean, .step = c.step, .hyper = {}};
  if (c.policy == clip_policy::exact) {
    n.skip = c.record->skip != 0;
    n.factor = c.record->factor;
    n.step = c.record->applied;
  } else if (c.policy == clip_policy::previous_step) {
    n.factor = factor_from(c.record->norm, c.terms);
  }
  n.hyper = O::at(options, n.step, c.rate);
  return n;
}

/// In backend memory, one for each group of a sharded optimizer; the first has the record.
struct control_block {
  alignas(256) step_record record;
  alignas(256) std::byte numbers[256];

  /// The place of the numbers in a block that may lie in device memory.
  template <elementwise_optimizer O>
  [[nodiscard]] static step_numbers<O>* numbers_of(control_block* block) noexcept {
    static_assert(sizeof(step_numbers<O>) <= sizeof(numbers) &&
                      std::is_trivially_copyable_v<step_numbers<O>>,
                  "the optimizer's hyper is too large for the control block");
    return reinterpret_cast<step_numbers<O>*>(block->numbers);
  }
};
static_assert(sizeof(control_block) == 512);

} // namespace polyrank
