// Schedules that split the backward: I (input gradient) is what the stage below waits for, W
// (weight gradient) can wait and fills the bubbles. ZB-H1 and ZB-H2 of "Zero Bubble Pipeline
// Parallelism" (Qi et al., arXiv:2401.10241), one stage per rank.
//
// With a rank's costs F, I, W, free transfers, m >= 2p - 1 (H1: m >= p), makespan - m (F + I + W)
// is
//
//     zb_h1   (p-1) max(F + I - W, F, I)      holds (p-r) activations + r contexts of W
//     zb_h2   (p-1) max(F, F + I - 2W)        holds (2p-1-2r) activations + 2r contexts of W
//
// The bubble that a rank sees between its own first and last action is smaller: (p-1)(F + I - 2W)
// for H2, zero where F = I = W. A barrier at the end of the step (norm clipping, an overflow flag)
// makes the makespan the real cost, and then H2 pays twice the memory for H1's time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/action.hpp>
#include <polyrank/pipeline/shape.hpp>

#include <algorithm>
#include <cstddef>

namespace polyrank::pipeline {

namespace detail {

/// `warm_up` forwards; then I, W (`lag` microbatches behind I), F in turn; then what is left of W.
template <class Sink>
constexpr void split_backward(const shape& s, std::size_t rank, std::size_t warm_up,
                              std::size_t lag, Sink&& sink) {
  const std::size_t m = s.microbatches;
  std::size_t forward = 0, weight = 0;
  while (forward < std::min(warm_up, m)) sink(make_action(action_kind::forward, rank, forward++));
  for (std::size_t k = 0; k < m; ++k) {
    sink(make_action(action_kind::input_grad, rank, k));
    if (k >= lag) sink(make_action(action_kind::weight_grad, rank, weight++));
    if (forward < m) sink(make_action(action_kind::forward, rank, forward++));
  }
  while (weight < m) sink(make_action(action_kind::weight_grad, rank, weight++));
}

} // namespace detail

/// A third of 1F1B's bubble at 1F1B's memory.
template <class Sink>
constexpr void zb_h1(const shape& s, std::size_t rank, Sink&& sink) {
  detail::split_backward(s, rank, s.ranks - rank, rank, sink);
}

/// No bubble between a rank's first and last action, at twice 1F1B's memory.
template <class Sink>
constexpr void zb_h2(const shape& s, std::size_t rank, Sink&& sink) {
  detail::split_backward(s, rank, 2 * (s.ranks - rank) - 1, 2 * rank, sink);
}

} // namespace polyrank::pipeline
