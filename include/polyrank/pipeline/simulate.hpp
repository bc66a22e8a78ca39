// Predicts a step: when every action runs, where ranks idle, what memory they need.
//
//     report r = simulate(generate(schedule::zb_v, 4, 8), even_costs(shape, 1, 1, 1, 0.05));
//     r.makespan; r.ranks[0].span_bubble(); r.ranks[0].peak_memory;
//
// Time is the longest path through the table (walk.hpp). Memory needs no times: a rank's compute
// stream allocates and frees in issue order, so its peak is a running sum over its list.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/costs.hpp>
#include <polyrank/pipeline/report.hpp>
#include <polyrank/pipeline/walk.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace polyrank::pipeline {

struct simulate_options {
  double noise = 0; ///< every action takes (1 +- noise) times its cost, drawn by (seed, action)
  std::uint64_t seed = 0;
  bool timeline = false; ///< keep every event, for pictures
};

namespace detail {

class recorder {
 public:
  recorder(const table& t, report& out, bool timeline)
      : t_(t), out_(out), timeline_(timeline), started_(t.shape.ranks, 0) {}

  void compute(std::size_t r, std::size_t index, double start, double end, double sent) {
    rank_report& rank = out_.ranks[r];
    const bool second = index > t_.row[r] && t_.actions[index - 1].joined != 0;
    if (started_[r] == 0) started_[r] = 1, rank.start = rank.end = start;
    rank.exposed += std::max(0.0, start - std::max(rank.end, sent));
    if (!second) rank.busy += end - start;
    rank.end = end;
    if (timeline_) add(r, 0, index, start, end);
  }
  void lane(std::size_t r, std::size_t lane, std::size_t index, double start, double end) {
    last_ = std::max(last_, end);
    if (timeline_) add(r, lane, index, start, end);
  }
  [[nodiscard]] double last_lane_end() const noexcept { return last_; }

 private:
  void add(std::size_t r, std::size_t lane, std::size_t index, double start, double end) {
    out_.timeline.push_back({static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(lane),
                             t_.actions[index], start, end});
  }
  const table& t_;
  report& out_;
  bool timeline_;
  double last_ = 0;
  std::vector<std::uint8_t> started_;
};

/// All slots of stage s: what comes in and what goes out, on both sides.
[[nodiscard]] inline double slot_memory(const table& t, const costs& c, std::size_t s) {
  const slot_counts& n = t.slots[s];
  double sum =
      c.memory[s].boundary * n.activation + c.memory[s].boundary_gradient * n.input_gradient;
  if (s + 1 < t.shape.stages()) {
    const stage_memory& above = c.memory[s + 1];
    sum += above.boundary * (n.output + n.scratch) + above.boundary_gradient * n.gradient;
  }
  return sum;
}

/// Peak of the running sum over every rank's list.
inline void measure_memory(const table& t, const costs& c, report& out) {
  const std::uint32_t kinds = kinds_of(t);
  const std::size_t m = t.shape.microbatches;
  const bool trains =
      has_kind(kinds, action_kind::backward) || has_kind(kinds, action_kind::input_grad);
  std::vector<bool> dropped; // activations that a RECOMPUTE brings back
  if (has_kind(kinds, action_kind::recompute)) {
    dropped.resize(t.shape.stages() * m);
    for (const action& a : t.actions)
      if (a.kind == action_kind::recompute) dropped[a.stage * m + a.microbatch] = true;
  }
  std::vector<bool> gathered(t.shape.stages());
  if (has_kind(kinds, action_kind::unshard))
    for (const action& a : t.actions)
      if (a.kind == action_kind::unshard) gathered[a.stage] = true;

  for (std::size_t r = 0; r < t.shape.ranks; ++r) {
    double fixed = 0, now = 0, peak = 0, activation = 0, peak_activation = 0;
    for (std::size_t chunk = 0; chunk < t.shape.chunks; ++chunk) {
      const std::size_t s = t.shape.stage_of(r, chunk);
      if (!gathered[s]) fixed += c.memory[s].parameters;
      if (!t.slots.empty()) fixed += slot_memory(t, c, s);
    }
    const auto hold = [&](double bytes) {
      activation += bytes, now += bytes;
      peak_activation = std::max(peak_activation, activation);
    };
    for (const action& a : t.of(r)) {
      const stage_memory& b = c.memory[a.stage];
      switch (a.kind) {
      case action_kind::forward:
        if (!trains) {
          peak_activation = std::max(peak_activation, activation + b.activation);
          peak = std::max(peak, now + b.activation); // gone when it ends
        } else if (!dropped.empty() && dropped[a.stage * m + a.microbatch]) {
          peak = std::max(peak, now + b.activation);
          peak_activation = std::max(peak_activation, activation + b.activation);
          hold(b.checkpoint);
        } else {
          hold(b.activation);
        }
        break;
      case action_kind::recompute:
        hold(b.activation - b.checkpoint);
        break;
      case action_kind::backward:
        hold(-b.activation);
        break;
      case action_kind::input_grad:
        hold(b.weight_context - b.activation);
        break;
      case action_kind::weight_grad:
        hold(-b.weight_context);
        break;
      case action_kind::unshard:
        now += b.parameters;
        break;
      case action_kind::reshard:
        now -= b.parameters;
        break;
      default:
        break;
      }
      peak = std::max(peak, now);
    }
    out.ranks[r].peak_activation = peak_activation;
    out.ranks[r].peak_memory = fixed + peak;
  }
}

template <bool Lanes>
void simulate_walk(const table& t, const costs& c, const simulate_options& options, report& out) {
  recorder seen(t, out, options.timeline);
  walker<Lanes, recorder> walk(t, c.stages, c.tied_reduce, c.pair_factor, seen, options.noise,
                               options.seed);
  if (!walk.run())
    throw data_error("the schedule does not run to its end; validate() says where it stops");
  double first = out.ranks.front().start, last = seen.last_lane_end();
  for (const rank_report& r : out.ranks)
    first = std::min(first, r.start), last = std::max(last, r.end);
  out.makespan = last - first;
}

} // namespace detail

/// Runs a valid table in virtual time. With transfers in it, the lanes count; without, a tensor is
/// under way for the transfer time and nothing else holds it up. usage_error on bad costs,
/// data_error where the table blocks.
[[nodiscard]] inline report simulate(const table& t, const costs& c,
                                     const simulate_options& options = {}) {
  check(t.shape);
  check(c, t.shape);
  expects(options.noise >= 0 && options.noise <= 1, "noise is ", options.noise,
          ", it must be from 0 to 1");
  report out;
  out.shape = t.shape;
  out.ranks.resize(t.shape.ranks);
  if (options.timeline) out.timeline.reserve(t.actions.size());
  if ((detail::kinds_of(t) & detail::lane_mask) != 0)
    detail::simulate_walk<true>(t, c, options, out);
  else
    detail::simulate_walk<false>(t, c, options, out);
  detail::measure_memory(t, c, out);
  if (options.timeline)
    std::stable_sort(out.timeline.begin(), out.timeline.end(), [](const event& a, const event& b) {
      return a.rank != b.rank ? a.rank < b.rank : a.start < b.start;
    });
  return out;
}

} // namespace polyrank::pipeline
