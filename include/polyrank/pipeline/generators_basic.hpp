// Schedules with a whole backward (F and B): GPipe, 1F1B, interleaved 1F1B, looped BFS, forward
// only.
//
// A generator is a pure function of (shape, rank): it calls sink(action) for every action of that
// rank, in order, and keeps no table. It expects a shape that generate() has checked.
//
//     one_f_one_b(shape{.ranks = 4, .microbatches = 8}, 0, [](action a) { ... });
//
// Time above the ideal m * T with a rank's F + B = T and free transfers; peak in microbatches whose
// activations rank r holds:
//
//     gpipe         (p-1) T          m
//     one_f_one_b   (p-1) T          min(m, p-r)
//     interleaved   (p-1) T / v      min(m v, (v-1) N + 2 (p-1-r) + 1) chunks   (m >= p)
//     bfs           (p-1) T / v      m                                          (m >= p)
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/partition.hpp>
#include <polyrank/pipeline/action.hpp>
#include <polyrank/pipeline/shape.hpp>

#include <algorithm>
#include <cstddef>

namespace polyrank::pipeline {

/// All forwards, then all backwards (Huang et al. 2019). Simple, and holds everything.
template <class Sink>
constexpr void gpipe(const shape& s, std::size_t rank, Sink&& sink) {
  for (std::size_t k = 0; k < s.microbatches; ++k) sink(make_action(action_kind::forward, rank, k));
  for (std::size_t k = 0; k < s.microbatches; ++k)
    sink(make_action(action_kind::backward, rank, k));
}

/// One forward, one backward (Narayanan et al. 2019, 2021): the same time as GPipe, but at most p
/// microbatches in flight. Any m, also m < p.
template <class Sink>
constexpr void one_f_one_b(const shape& s, std::size_t rank, Sink&& sink) {
  const std::size_t warm_up = std::min(s.microbatches, s.ranks - 1 - rank);
  for (std::size_t k = 0; k < warm_up; ++k) sink(make_action(action_kind::forward, rank, k));
  for (std::size_t k = warm_up; k < s.microbatches; ++k) {
    sink(make_action(action_kind::forward, rank, k));
    sink(make_action(action_kind::backward, rank, k - warm_up));
  }
  for (std::size_t k = s.microbatches - warm_up; k < s.microbatches; ++k)
    sink(make_action(action_kind::backward, rank, k));
}

namespace detail {

/// Walks (microbatch, chunk) in interleaved order: the microbatches are cut into max(1, m / p)
/// groups of nearly equal size; each group passes through all chunks before the next one starts.
/// Groups that differ by at most one are what makes every m work: a short last group deadlocks.
class interleaved_order {
 public:
  constexpr explicit interleaved_order(const shape& s) noexcept
      : shape_(s), groups_(std::max<std::size_t>(1, s.microbatches / s.ranks)),
        group_(partition(s.microbatches, groups_, 0)), microbatch_(group_.begin) {}

  [[nodiscard]] constexpr std::size_t largest_group() const noexcept {
    return partition(shape_.microbatches, groups_, 0).size();
  }
  [[nodiscard]] constexpr std::size_t microbatch() const noexcept { return microbatch_; }
  [[nodiscard]] constexpr std::size_t chunk() const noexcept { return chunk_; }
  constexpr void next() noexcept {
    if (++microbatch_ < group_.end) return;
    if (++chunk_ == shape_.chunks) {
      chunk_ = 0;
      if (++index_ < groups_) group_ = partition(shape_.microbatches, groups_, index_);
    }
    microbatch_ = group_.begin;
  }

 private:
  shape shape_;
  std::size_t groups_;
  range group_;
  std::size_t microbatch_, chunk_ = 0, index_ = 0;
};

} // namespace detail

/// Interleaved 1F1B (Narayanan et al. 2021): v chunks per rank divide the bubble by v. Here for any
/// m; Megatron wants m divisible by p, PyTorch by m / p. With v = 1 it is 1F1B.
template <class Sink>
constexpr void interleaved(const shape& s, std::size_t rank, Sink&& sink) {
  if (s.chunks == 1) return one_f_one_b(s, rank, sink);
  detail::interleaved_order forward(s), backward(s);
  const auto f = [&] {
    sink(
        make_action(action_kind::forward, s.stage_of(rank, forward.chunk()), forward.microbatch()));
    forward.next();
  };
  const auto b = [&] {
    const std::size_t chunk = s.chunks - 1 - backward.chunk();
    sink(make_action(action_kind::backward, s.stage_of(rank, chunk), backward.microbatch()));
    backward.next();
  };
  const std::size_t total = s.microbatches * s.chunks;
  const std::size_t warm_up =
      std::min(total, 2 * (s.ranks - 1 - rank) + (s.chunks - 1) * forward.largest_group());
  for (std::size_t k = 0; k < warm_up; ++k) f();
  for (std::size_t k = warm_up; k < total; ++k) f(), b();
  for (std::size_t k = 0; k < warm_up; ++k) b();
}

/// Looped breadth-first (Lamy-Poirier 2023): chunk by chunk, so each stage's parameters are
/// gathered once per direction. Interleaved's time, GPipe's memory.
template <class Sink>
constexpr void bfs(const shape& s, std::size_t rank, Sink&& sink) {
  for (std::size_t c = 0; c < s.chunks; ++c)
    for (std::size_t k = 0; k < s.microbatches; ++k)
      sink(make_action(action_kind::forward, s.stage_of(rank, c), k));
  for (std::size_t c = s.chunks; c-- > 0;)
    for (std::size_t k = s.microbatches; k-- > 0;)
      sink(make_action(action_kind::backward, s.stage_of(rank, c), k));
}

/// Evaluation and inference. Loop placement: interleaved order. Vee: microbatch k enters stage s at
/// slot 2k + s; a rank's two stages have different parity, so no two forwards meet.
template <class Sink>
constexpr void forward_only(const shape& s, std::size_t rank, Sink&& sink) {
  if (s.place == placement::loop) {
    detail::interleaved_order order(s);
    for (std::size_t k = 0; k < s.microbatches * s.chunks; ++k, order.next())
      sink(make_action(action_kind::forward, s.stage_of(rank, order.chunk()), order.microbatch()));
    return;
  }
  const std::size_t down = s.stage_of(rank, 0), up = s.stage_of(rank, 1);
  for (std::size_t a = 0, b = 0; b < s.microbatches;)
    if (a < s.microbatches && 2 * a + down < 2 * b + up)
      sink(make_action(action_kind::forward, down, a++));
    else
      sink(make_action(action_kind::forward, up, b++));
}

} // namespace polyrank::pipeline
