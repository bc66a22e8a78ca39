// Proves that a table runs to its end, or says why it does not.
//
//     if (auto fault = validate(t)) report(fault->text);
//     // deadlock: rank 0 0SEND_F1 waits for 1RECV_F1 of rank 1, which stands behind 1SEND_F0; ...
//
// Two passes over the actions. The census checks what every rank's own list must satisfy: each
// (stage, microbatch) has one F and one B, or one I and one W, on the rank that owns the stage and
// in this order; a transfer stands where its data needs it; reductions and the update come last.
// The walk then executes the table with zero buffering. It is deterministic, so it reaches the end
// exactly where no deadlock is possible, and where it stops the streams' heads wait for each other
// in a cycle. On the way every send meets the receive that a communicator would pair it with, a
// receive waits until its slot is free, and a tied reduction meets its other half.
//
// Rendezvous is the strictest reading of ncclSend and ncclRecv. A table that is refused may still
// run as long as its tensors fit into NCCL's internal buffers, and hang when they grow.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/census.hpp>
#include <polyrank/pipeline/deadlock.hpp>
#include <polyrank/pipeline/fault.hpp>
#include <polyrank/pipeline/walk.hpp>

#include <optional>
#include <string>
#include <vector>

namespace polyrank::pipeline {

namespace detail {

struct unobserved {
  void compute(std::size_t, std::size_t, double, double, double) noexcept {}
  void lane(std::size_t, std::size_t, std::size_t, double, double) noexcept {}
};

template <bool Lanes>
std::optional<fault> walk_to_the_end(const table& t) {
  stage_costs free;
  free.forward = free.input_grad = free.weight_grad = free.recompute = 0;
  const std::vector<stage_costs> costs(t.shape.stages(), free);
  unobserved nobody;
  walker<Lanes, unobserved> walk(t, costs, 0, 1, nobody);
  if (walk.run()) return std::nullopt;
  if (walk.wrong_pair()) return mispaired_fault(t, walk.wrong_pair()->a, walk.wrong_pair()->b);
  return deadlock_fault(t, walk);
}

} // namespace detail

/// The first fault of a table, or nothing. Works for compute tables and for lowered ones.
[[nodiscard]] inline std::optional<fault> validate(const table& t) {
  check(t.shape);
  if (auto found = detail::census(t)) return found;
  const bool lanes = (detail::kinds_of(t) & detail::lane_mask) != 0;
  return lanes ? detail::walk_to_the_end<true>(t) : detail::walk_to_the_end<false>(t);
}

/// Throws data_error with the fault's text.
inline void require_valid(const table& t) {
  if (const auto found = validate(t)) throw data_error(found->text);
}

} // namespace polyrank::pipeline
