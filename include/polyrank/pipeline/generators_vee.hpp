// Schedules for the V placement: rank r owns stages r and 2p-1-r, so that the forward comes back to
// where it started and memory is the same on all ranks. Two chunks per rank.
//
//     zb_v         no bubble at 1F1B's memory          arXiv:2401.10241
//     dualpipe_v   pairs a forward with a backward     DeepSeek DualPipe, its "cut in half" form
//
// ZB-V and DualPipeV are defined for m >= 2p-1 and m >= 2p; below that the schedule is generated
// for the smallest such m and the microbatches that do not exist are left out, which keeps the
// order and so keeps it free of deadlock. Names below: F, I, W are chunk 0, f, i, w chunk 1.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/action.hpp>
#include <polyrank/pipeline/shape.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace polyrank::pipeline {

namespace detail {

/// Counts the next microbatch of each (kind, chunk) and leaves out those that do not exist.
template <class Sink>
class vee_writer {
 public:
  constexpr vee_writer(const shape& s, std::size_t rank, Sink& sink) noexcept
      : stage_{s.stage_of(rank, 0), s.stage_of(rank, 1)}, limit_(s.microbatches), sink_(sink) {}

  [[nodiscard]] constexpr std::size_t forwards(std::size_t c) const noexcept { return forward_[c]; }
  [[nodiscard]] constexpr std::size_t weights(std::size_t c) const noexcept { return weight_[c]; }

  constexpr void forward(std::size_t c) { put(action_kind::forward, c, forward_[c]++); }
  constexpr void backward(std::size_t c) { put(action_kind::backward, c, backward_[c]++); }
  constexpr void weight(std::size_t c) { put(action_kind::weight_grad, c, weight_[c]++); }
  constexpr void input(std::size_t c) { put(action_kind::input_grad, c, backward_[c]++); }
  /// Forward of chunk `f` and whole backward of chunk `b` as one.
  constexpr void pair(std::size_t f, std::size_t b) {
    const std::size_t k = forward_[f]++, j = backward_[b]++;
    put(action_kind::forward, f, k, j < limit_);
    put(action_kind::backward, b, j);
  }
  /// As input(), remembering the W that it owes; pay() does the oldest one owed.
  constexpr void input_later(std::size_t c) {
    owed_.push_back({c, backward_[c]});
    input(c);
  }
  constexpr void pay() {
    const auto [c, k] = owed_[paid_++];
    put(action_kind::weight_grad, c, k);
  }

 private:
  constexpr void put(action_kind kind, std::size_t c, std::size_t k, bool joined = false) {
    if (k < limit_) sink_(make_action(kind, stage_[c], k, joined));
  }
  struct debt {
    std::size_t chunk, microbatch;
  };
  std::array<std::size_t, 2> stage_, forward_{}, backward_{}, weight_{};
  std::size_t limit_;
  std::vector<debt> owed_;
  std::size_t paid_ = 0;
  Sink& sink_;
};

} // namespace detail

/// ZB-V. With F = I = W it costs (p-1) F / 2 above m T, and no rank idles between its first and its
/// last action (m >= 2p-1); every rank holds 2p half-size activations.
template <class Sink>
constexpr void zb_v(const shape& s, std::size_t rank, Sink&& sink) {
  const std::size_t p = s.ranks, m = std::max(s.microbatches, 2 * p - 1);
  detail::vee_writer w(s, rank, sink);
  const auto whole = [&](std::size_t c) { w.forward(c), w.input(c), w.weight(c); };
  for (std::size_t i = 0; i < 2 * (p - rank) - 1; ++i) w.forward(0);
  for (std::size_t i = 0; i < rank; ++i) w.forward(1), w.forward(0);
  for (std::size_t i = 0; i < p - rank; ++i) whole(1);
  while (w.forwards(1) < m) {
    if (w.forwards(0) < m) w.forward(0);
    w.input(0), w.weight(0);
    whole(1);
  }
  for (std::size_t i = 0; i < rank; ++i) w.input(0), w.input(1);
  for (std::size_t i = 0; i < p - rank; ++i) w.input(0), w.weight(0);
  while (w.weights(1) < m) w.weight(1);
  while (w.weights(0) < m) w.weight(0);
}

/// DualPipeV: most forwards run joined with a backward of the other chunk, so that the all-to-all
/// of one can hide behind the other's compute. Holds 2p + 1 half-size activations.
template <class Sink>
constexpr void dualpipe_v(const shape& s, std::size_t rank, Sink&& sink) {
  const std::size_t p = s.ranks, m = std::max(s.microbatches, 2 * p), r = rank;
  detail::vee_writer w(s, rank, sink);
  for (std::size_t i = 0; i < 2 * (p - r - 1); ++i) w.forward(0);
  for (std::size_t i = 0; i < r + 1; ++i) w.forward(0), w.forward(1);
  for (std::size_t i = 0; i < p - r - 1; ++i) w.input_later(1), w.pay(), w.forward(1);
  for (std::size_t i = 0; i < m - 2 * p + r + 1; ++i) {
    if (i == 0 && r == p - 1)
      w.forward(0), w.backward(1); // apart: the backward need not wait for this forward
    else
      w.pair(0, 1);
    w.pair(1, 0);
  }
  for (std::size_t i = 0; i < p - r - 1; ++i) w.backward(1), w.pair(1, 0);
  bool split = false; // the second half of the last backwards leaves its W for the end
  for (std::size_t i = 0; i < r + 1; ++i) {
    split = split || (i == (r + 1) / 2 && r % 2 == 1);
    split ? w.input_later(1) : w.backward(1);
    split = split || i == (r + 1) / 2;
    split ? w.input_later(0) : w.backward(0);
  }
  for (std::size_t i = 0; i < p - r - 1; ++i) w.pay(), w.input_later(0);
  for (std::size_t i = 0; i < r + 1; ++i) w.pay();
}

} // namespace polyrank::pipeline
