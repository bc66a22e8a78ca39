// What a rank tells while a schedule runs: which action it is at, for the hang diagnosis, and when
// each one began and ended, for the measured report.
//
// Both are written by the stream that runs the action. On host streams the flight recorder's state
// says "F3 of stage 2" while that forward runs ("sync" while it waits for its input); transfers
// carry the same words as the tag of their operation on every backend. Times come from the
// backend's stopwatch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/hang/ring.hpp>
#include <polyrank/pipeline/action.hpp>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace polyrank::pipeline {

namespace detail {

/// "F3 of stage 2", "F3 of stage 2 to 3", "B3 of stage 2 from 3"; a recorder keeps 23 letters.
[[nodiscard]] inline std::string words_of(const action& a) {
  using polyrank::detail::cat;
  const std::size_t s = a.stage, k = a.microbatch;
  switch (a.kind) {
  case action_kind::send_forward:
    return cat("F", k, " of stage ", s, " to ", s + 1);
  case action_kind::recv_forward:
    return cat("F", k, " of stage ", s, " from ", s - 1);
  case action_kind::send_backward:
    return cat("B", k, " of stage ", s, " to ", s - 1);
  case action_kind::recv_backward:
    return cat("B", k, " of stage ", s, " from ", s + 1);
  default:
    return has_microbatch(a.kind) ? cat(name_of(a.kind), k, " of stage ", s)
                                  : cat(name_of(a.kind), " of stage ", s);
  }
}

} // namespace detail

template <backend B>
class action_watch {
 public:
  using stream = typename B::stream;
  static constexpr bool can_measure = requires { typename B::stopwatch; };

  void prepare(std::size_t actions, hang::ring* ring) { actions_ = actions, ring_ = ring; }

  /// From the next step on, times are taken (or not). A measured step begins with a barrier.
  void measure(bool on) {
    if constexpr (can_measure) {
      measures_ = on;
      if (on) clock_.emplace(2 * actions_);
    }
  }
  [[nodiscard]] bool measures() const noexcept { return measures_; }

  template <class Control>
  void begin(Control& control, stream& s) {
    if constexpr (can_measure)
      if (measures_) {
        s.synchronize();
        control.barrier(std::chrono::minutes(2));
        clock_->start(s);
      }
  }
  /// The rank is about to wait on `s` for what the action needs.
  void wait(std::string_view words, stream& s) { tell(hang::host_state::sync, words, s); }
  /// Action i begins on `s`; `words` empty: it is no work of the rank itself.
  void start(std::size_t i, std::string_view words, stream& s) {
    if (!words.empty()) tell(hang::host_state::compute, words, s);
    if constexpr (can_measure)
      if (measures_) clock_->mark(2 * i, s);
  }
  void stop(std::size_t i, stream& s) {
    if constexpr (can_measure)
      if (measures_) clock_->mark(2 * i + 1, s);
  }
  void end(stream& s) { tell(hang::host_state::compute, {}, s); }
  /// Seconds since the barrier at which action i began or ended, after the step has run.
  [[nodiscard]] double at(std::size_t i, bool end) const {
    if constexpr (can_measure) return clock_->seconds(2 * i + (end ? 1 : 0));
    return 0;
  }
  /// Of the barrier, on this host's steady clock.
  [[nodiscard]] double origin() const {
    if constexpr (can_measure) return clock_->origin();
    return 0;
  }

 private:
  void tell(hang::host_state state, std::string_view words, stream& s) {
    if constexpr (requires { s.enqueue([] {}); })
      if (ring_ != nullptr)
        s.enqueue([ring = ring_, state, words] { ring->state(state, words, {}); });
  }

  struct none {
    explicit none(std::size_t) {}
  };
  template <class X>
  struct stopwatch_of {
    using type = none;
  };
  template <class X>
    requires requires { typename X::stopwatch; }
  struct stopwatch_of<X> {
    using type = typename X::stopwatch;
  };

  std::size_t actions_ = 0;
  hang::ring* ring_ = nullptr;
  bool measures_ = false;
  std::optional<typename stopwatch_of<B>::type> clock_;
};

} // namespace polyrank::pipeline
