// A schedule made to measure: finds an order of F, I and W for given costs and a memory cap.
//
//     tuned best = search_split_backward(shape{.ranks = 8, .microbatches = 24}, costs, 16.0);
//
// One stage per rank, backward split into I and W. Two kinds of candidates, and the best is kept:
//
// Slopes. Rank r does 1 + a (p-1-r) forwards before its first I, and keeps W b r microbatches
// behind. ZB-H1 is (a, b) = (1, 1), ZB-H2 (2, 2). A rank's first I arrives (p-1-r)(F + I + 2c)
// after its first F has ended, so that a = (F + I + 2c) / F leaves no hole before it; and rank p-1
// has to work (p-1)(F + I + 2c) longer than rank 0 after its last I, so that b = (F + I + 2c) / W
// leaves none at the end. The grid goes from (1, 0) to there: what is between pays memory for
// bubble.
//
// Greedy ("Zero Bubble Pipeline Parallelism", arXiv:2401.10241, section 3.1). Every rank decides in
// virtual time, whenever it is free, from what it then knows. It adapts to uneven stages and to
// caps too small for the slopes:
//
//     both F and I are ready    alternate, or prefer I
//     only F is ready           do it if memory allows, unless an I is about to arrive
//     nothing is ready          a W, if it fits into the gap, or always
//     F is out of memory        a W, which gives some back
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/costs.hpp>
#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/simulate.hpp>
#include <polyrank/pipeline/table.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::pipeline {

/// What a step costs: with a barrier at its end (clipping by global norm, a loss-scale flag) the
/// makespan; without one, only the longest span of a rank.
enum class objective : std::uint8_t { makespan, span };

[[nodiscard]] inline double cost_of(const report& r, objective what) noexcept {
  return what == objective::makespan ? r.makespan : r.span();
}

/// A table with its prediction.
struct tuned {
  std::string name;
  pipeline::table table;
  pipeline::report report;
};

namespace detail {

struct search_policy {
  bool tight_warm_up; ///< at most p - r forwards before the first I, else as many as fit in time
  bool prefer_input;  ///< I before F where both are ready, else alternate
  bool fill_always;   ///< a W even if the gap is shorter than it
  double patience;    ///< F is held back if an I arrives within patience * F
};

class greedy_search {
 public:
  greedy_search(const shape& s, const costs& c, double cap, const search_policy& policy)
      : s_(s), c_(c), cap_(cap), policy_(policy), ranks_(s.ranks) {
    for (std::size_t r = 0; r < s.ranks; ++r) {
      ranks_[r].forward_at.assign(s.microbatches, r == 0 ? 0 : unknown);
      ranks_[r].input_at.assign(s.microbatches, unknown);
      ranks_[r].list.reserve(3 * s.microbatches);
      ranks_[r].memory = c.memory[r].parameters;
      events_.push({0, r});
    }
  }

  table run() {
    while (!events_.empty()) {
      const auto [now, r] = events_.top();
      events_.pop();
      if (now >= ranks_[r].free) decide(r, now);
    }
    table t;
    t.shape = s_;
    for (const rank_state& r : ranks_) {
      t.actions.insert(t.actions.end(), r.list.begin(), r.list.end());
      t.row.push_back(t.actions.size());
    }
    return t;
  }

 private:
  static constexpr double unknown = std::numeric_limits<double>::infinity();

  struct rank_state {
    std::size_t forwards = 0, inputs = 0, weights = 0;
    double free = 0, memory = 0;
    bool last_was_forward = false;
    std::vector<double> forward_at, input_at; // arrival of each tensor, once its producer started
    std::vector<action> list;
  };

  void decide(std::size_t r, double now) {
    rank_state& me = ranks_[r];
    const std::size_t m = s_.microbatches;
    const stage_costs& t = c_.stages[r];
    const double forward_at = me.forwards < m ? me.forward_at[me.forwards] : unknown;
    const double input_at = me.inputs < m ? me.input_at[me.inputs] : unknown;
    const bool fits = me.memory + c_.memory[r].activation <= cap_ * (1 + 1e-12);
    const bool warm = me.inputs == 0 && policy_.tight_warm_up && me.forwards >= s_.ranks - r;
    const bool input = input_at <= now, forward = forward_at <= now && fits && !warm;
    const bool owed = me.weights < me.inputs;
    if (input && (!forward || policy_.prefer_input || me.last_was_forward))
      return run(r, now, action_kind::input_grad);
    if (forward && input_at - now >= policy_.patience * t.forward)
      return run(r, now, action_kind::forward);
    if (input) return run(r, now, action_kind::input_grad);
    // Idle, or waiting for the I that is about to arrive.
    double next = input_at;
    if (fits && !warm && forward_at > now) next = std::min(next, forward_at);
    const bool starved = forward_at <= now && !fits;
    if (owed && (starved || policy_.fill_always || next - now >= t.weight_grad))
      return run(r, now, action_kind::weight_grad);
    if (next < unknown) events_.push({next, r});
  }

  void run(std::size_t r, double now, action_kind kind) {
    rank_state& me = ranks_[r];
    const stage_memory& b = c_.memory[r];
    std::size_t& k = kind == action_kind::forward      ? me.forwards
                     : kind == action_kind::input_grad ? me.inputs
                                                       : me.weights;
    me.list.push_back(make_action(kind, r, k));
    me.free = now + duration_of(c_.stages[r], kind);
    events_.push({me.free, r});
    if (kind == action_kind::forward) {
      me.memory += b.activation;
      if (r + 1 == s_.ranks)
        me.input_at[k] = me.free;
      else
        announce(r + 1, ranks_[r + 1].forward_at[k], me.free + c_.stages[r].transfer);
    } else if (kind == action_kind::input_grad) {
      me.memory += b.weight_context - b.activation;
      if (r > 0) announce(r - 1, ranks_[r - 1].input_at[k], me.free + c_.stages[r - 1].transfer);
    } else {
      me.memory -= b.weight_context;
    }
    me.last_was_forward = kind == action_kind::forward;
    ++k;
  }
  void announce(std::size_t r, double& arrival, double when) {
    arrival = when;
    events_.push({when, r});
  }

  const shape& s_;
  const costs& c_;
  double cap_;
  search_policy policy_;
  std::vector<rank_state> ranks_;
  std::priority_queue<std::pair<double, std::size_t>, std::vector<std::pair<double, std::size_t>>,
                      std::greater<>>
      events_;
};

/// A table of the slopes family: `warm` and `lag` are the shares of the full slopes (0: ZB-H1's
/// warm-up; 0: no lag), `round` is added before the warm-up is rounded down.
[[nodiscard]] inline table sloped(const shape& s, const costs& c, double cap, double warm,
                                  double lag, double round) {
  double forward = 0, input = 0, weight = 0, transfer = 0;
  for (std::size_t r = 0; r < s.ranks; ++r) {
    const stage_costs& t = c.stages[r];
    forward += t.forward, input += t.input_grad, weight += t.weight_grad;
    if (r + 1 < s.ranks) transfer += t.transfer;
  }
  const auto p = static_cast<double>(s.ranks), m = static_cast<double>(s.microbatches);
  if (s.ranks > 1) transfer *= p / (p - 1); // p - 1 boundaries: like the others, p times the mean
  const double trip = forward + input + 2 * transfer;
  const double a = 1 + warm * (forward > 0 ? std::max(0.0, trip / forward - 1) : 0);
  const double b = lag * (weight > 0 ? trip / weight : 0);
  table t;
  t.shape = s;
  for (std::size_t r = 0; r < s.ranks; ++r) {
    const auto rank = static_cast<double>(r);
    const stage_memory& bytes = c.memory[r];
    const double room = cap - bytes.parameters;
    double forwards = std::min(m, 1 + std::floor(a * (p - 1 - rank) + round));
    double behind = std::min(m, std::floor(b * rank));
    if (bytes.activation > 0)
      forwards = std::min(forwards, std::max(1.0, std::floor(room / bytes.activation)));
    if (bytes.weight_context > 0)
      behind = std::min(behind, std::max(0.0, std::floor((room - forwards * bytes.activation) /
                                                         bytes.weight_context)));
    split_backward(s, r, static_cast<std::size_t>(forwards), static_cast<std::size_t>(behind),
                   [&](const action& x) { t.actions.push_back(x); });
    t.row.push_back(t.actions.size());
  }
  return t;
}

} // namespace detail

/// The best table found for `s` (one chunk per rank) whose peak memory stays within `cap` on every
/// rank; `table` is empty where none does. Simulates about 220 candidates.
[[nodiscard]] inline tuned search_split_backward(const shape& s, const costs& c, double cap,
                                                 objective goal = objective::makespan) {
  check(s);
  check(c, s);
  expects(s.chunks == 1 && s.place == placement::loop,
          "the search makes schedules with 1 chunk per rank, got ", s.chunks);
  tuned best;
  const auto consider = [&](table t) {
    report r = simulate(t, c);
    if (r.peak_memory() > cap * (1 + 1e-9)) return;
    if (best.table.actions.empty() || cost_of(r, goal) < cost_of(best.report, goal) * (1 - 1e-12))
      best = {"zb_search", std::move(t), std::move(r)};
  };
  for (std::size_t a = 0; a <= 8; ++a)
    for (std::size_t b = 0; b <= 10; ++b)
      for (double round : {0.0, 0.5})
        consider(detail::sloped(s, c, cap, static_cast<double>(a) / 8, static_cast<double>(b) / 8,
                                round));
  for (std::size_t r = 0; r < s.ranks; ++r)
    if (c.memory[r].parameters + c.memory[r].activation > cap) return best;
  for (bool tight : {true, false})
    for (bool prefer : {true, false})
      for (bool fill : {true, false})
        for (double patience : {0.0, 0.5, 1.0})
          consider(detail::greedy_search(s, c, cap, {tight, prefer, fill, patience}).run());
  return best;
}

} // namespace polyrank::pipeline
