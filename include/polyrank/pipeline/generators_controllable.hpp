// V-Half and V-Min: a half and a third of 1F1B's activations, by "Pipeline Parallelism with
// Controllable Memory" (Qi et al., arXiv:2405.15362). Both use the V placement.
//
// A microbatch is a building block of four actions per rank: F, f, i, I (capital: chunk 0), placed
// at fixed slots and repeated every six slots. The distance from F to I, f to i is the memory. W
// and w fill the two slots that the block leaves free. Only the order is kept; executing it as
// early as possible squeezes the idle slots out. With F = I = W and half-size chunks:
//
//              bubble                       activations, F to W
//     v_half   half of 1F1B's (even p)      floor(p / 2) + 1
//     v_min    about two thirds             about p / 3 + 1
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/action.hpp>
#include <polyrank/pipeline/shape.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace polyrank::pipeline {

namespace detail {

/// One rank's F, f, i, I in order of their slots: microbatch k's stand at start[.] + 6 k. For one
/// rank the four starts differ mod 6, so no two meet.
class block_order {
 public:
  static constexpr std::size_t period = 6;

  constexpr block_order(std::array<std::size_t, 4> start, std::size_t microbatches) noexcept
      : start_(start), left_(4 * microbatches), m_(microbatches) {
    find();
  }
  [[nodiscard]] constexpr bool done() const noexcept { return left_ == 0; }
  [[nodiscard]] constexpr bool is_forward() const noexcept { return op_ < 2; }
  [[nodiscard]] constexpr std::size_t chunk() const noexcept { return op_ == 1 || op_ == 2; }
  [[nodiscard]] constexpr std::size_t microbatch() const noexcept {
    return (slot_ - start_[op_]) / period;
  }
  [[nodiscard]] constexpr std::size_t slot() const noexcept { return slot_; }
  constexpr void next() noexcept {
    ++slot_;
    if (--left_ > 0) find();
  }

 private:
  constexpr void find() noexcept {
    for (;; ++slot_)
      for (op_ = 0; op_ < 4; ++op_)
        if (slot_ >= start_[op_] && (slot_ - start_[op_]) % period == 0 && microbatch() < m_)
          return;
  }
  std::array<std::size_t, 4> start_;
  std::size_t left_, m_, slot_ = 0, op_ = 0;
};

/// A rank of such a schedule: its block order, and the weight gradients it owes, oldest first.
class block_rank {
 public:
  constexpr block_rank(const shape& s, std::size_t rank, std::array<std::size_t, 4> start)
      : order(start, s.microbatches), stage_{s.stage_of(rank, 0), s.stage_of(rank, 1)} {}

  /// The stage, kind and microbatch of the next F or I.
  [[nodiscard]] constexpr action next() const noexcept {
    return make_action(order.is_forward() ? action_kind::forward : action_kind::input_grad,
                       stage_[order.chunk()], order.microbatch());
  }
  constexpr void advance() {
    if (order.is_forward())
      ++alive;
    else
      owed_.push_back(static_cast<std::uint8_t>(order.chunk()));
    order.next();
  }
  [[nodiscard]] constexpr bool owes() const noexcept { return paid_ < owed_.size(); }
  constexpr action pay() {
    const std::size_t chunk = owed_[paid_++];
    --alive;
    return make_action(action_kind::weight_grad, stage_[chunk], weight_[chunk]++);
  }

  block_order order;
  std::size_t alive = 0; ///< activations between their F and their W

 private:
  std::array<std::size_t, 2> stage_, weight_{};
  std::vector<std::uint8_t> owed_;
  std::size_t paid_ = 0;
};

} // namespace detail

/// A third of 1F1B's activation memory. W goes into the slots that the pattern leaves free.
template <class Sink>
constexpr void v_min(const shape& s, std::size_t rank, Sink&& sink) {
  const std::size_t p = s.ranks, gap = p % 3 == 0 ? 2 : 0;
  detail::block_rank r(s, rank,
                       {rank, 2 * p - rank - 1, 2 * p + gap + rank, 4 * p + gap - rank - 1});
  for (std::size_t slot = 0; !r.order.done(); ++slot) {
    if (slot == r.order.slot()) {
      sink(r.next());
      r.advance();
    } else if (r.owes()) {
      sink(r.pay());
    }
  }
  while (r.owes()) sink(r.pay());
}

/// Half of 1F1B's activation memory and bubble, for all ranks at once: sink(rank, action).
///
/// Here the pattern's free slots are the wrong place for W, because squeezing moves them: they
/// would cost a third more bubble. So the order of F, f, i, I is executed in unit time on all
/// ranks, and a rank does a W where its next action is not ready, or where a forward would exceed
/// the memory that the pattern itself needs.
template <class Sink>
void v_half_all(const shape& s, Sink&& sink) {
  const std::size_t p = s.ranks, m = s.microbatches, last = s.stages() - 1;
  const std::size_t gap = p % 2 == 0 ? 3 : 0, cap = 2 * (p / 2 + 1);
  std::vector<detail::block_rank> ranks;
  ranks.reserve(p);
  for (std::size_t r = 0; r < p; ++r)
    ranks.emplace_back(s, r,
                       std::array<std::size_t, 4>{2 * r, 3 * p - r - 2, 3 * p + gap + 2 * r - 1,
                                                  6 * p + gap - r - 2});
  std::vector<std::uint32_t> forward(s.stages() * m), backward(s.stages() * m); // end, 0: not yet
  for (std::uint32_t now = 1, left = 1; left > 0; ++now) {
    left = 0;
    for (std::size_t r = 0; r < p; ++r) {
      detail::block_rank& rank = ranks[r];
      if (!rank.order.done()) {
        ++left;
        const action a = rank.next();
        const std::size_t cell = a.stage * m + a.microbatch;
        const auto arrived = [now](std::uint32_t end) { return end != 0 && end <= now; };
        const bool is_forward = a.kind == action_kind::forward;
        const bool ready = is_forward
                               ? rank.alive < cap && (a.stage == 0 || arrived(forward[cell - m]))
                           : a.stage == last ? arrived(forward[cell])
                                             : arrived(backward[cell + m]);
        if (ready) {
          (is_forward ? forward : backward)[cell] = now + 1;
          sink(r, a);
          rank.advance();
          continue;
        }
      }
      if (rank.owes()) {
        ++left;
        sink(r, rank.pay());
      }
    }
  }
}

/// Rank `rank` of v_half_all(). Every rank's list depends on all others, so a whole table is as
/// cheap as one rank; generate() makes it that way.
template <class Sink>
void v_half(const shape& s, std::size_t rank, Sink&& sink) {
  v_half_all(s, [&](std::size_t r, const action& a) {
    if (r == rank) sink(a);
  });
}

} // namespace polyrank::pipeline
