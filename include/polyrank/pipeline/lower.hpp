// Adds communication to a table of compute actions, in an order that cannot deadlock.
//
//     table t = generate(schedule::zb_v, 4, 8);
//     table u = lower(t, costs);                                    // sends and receives
//     table w = lower(t, costs, {.reduce = true, .optimizer = true});
//
// How. The compute table is executed with unlimited lanes; every transfer gets a key
//
//     (time at which its producer ends, kind, boundary, microbatch)
//
// that is the same on both ends, and every rank issues its transfers in the order of their keys: a
// receive before its consumer, a send after its producer.
//
// Why it cannot deadlock. Draw an edge for everything that can make one action wait for another:
// program order, producer to send, receive to consumer, lane order, the two ends of a transfer, the
// last reader of a slot to the next transfer into it. Compute actions take time, so all these edges
// lead forward in the order (time, then key). A graph whose edges all lead forward has no cycle.
// The costs therefore decide how fast the result is, never whether it runs; wrong costs are safe.
//
// Reductions, tied reductions and gathers get a key in the same order, so one lane can carry them
// all.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/costs.hpp>
#include <polyrank/pipeline/lower_compute.hpp>
#include <polyrank/pipeline/outgoing.hpp>
#include <polyrank/pipeline/slots.hpp>
#include <polyrank/pipeline/table.hpp>
#include <polyrank/pipeline/walk.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace polyrank::pipeline {

struct lower_options {
  lane_policy lanes = lane_policy::single;
  bool recompute = false;      ///< drop activations and run every forward again
  std::size_t live_stages = 0; ///< > 0: gather and drop sharded parameters, at most so many at once
  bool tied = false;           ///< first and last stage share a weight
  bool reduce = false;         ///< sum gradients over replicas, stage by stage as they finish
  bool optimizer = false;      ///< end with the update
  std::size_t extra_slots = 0; ///< receive buffers beyond those that the ideal timeline needs
};

namespace detail {

/// A lane action of one rank before it has its place. It is issued after compute action `after`
/// (none: -1) and before compute action `before` (none: at the end is early enough).
struct lane_entry {
  double time;
  std::uint32_t microbatch;
  std::uint16_t boundary;
  std::uint8_t kind; // of the key: equal on both ends
  action what;
  std::int64_t after, before;

  friend bool operator<(const lane_entry& a, const lane_entry& b) noexcept {
    if (a.time != b.time) return a.time < b.time;
    if (a.kind != b.kind) return a.kind < b.kind;
    if (a.boundary != b.boundary) return a.boundary < b.boundary;
    return a.microbatch < b.microbatch;
  }
};

inline constexpr std::int64_t none = -1;

/// Costs for the keys: a compute action takes time, and no cost is so much larger than another that
/// adding the two would lose the smaller one. Else keys could be equal that must differ.
[[nodiscard]] inline costs key_costs(const costs& c) {
  double largest = 0;
  for (const stage_costs& s : c.stages)
    largest = std::max({largest, s.forward, s.input_grad, s.weight_grad});
  if (largest == 0) largest = 1;
  const auto between = [&](double x, double least) {
    return std::clamp(x, least * largest, 1e3 * largest);
  };
  costs out = c;
  out.pair_factor = std::clamp(c.pair_factor, 0.01, 2.0);
  for (stage_costs& s : out.stages) {
    s.forward = between(s.forward, 1e-6), s.input_grad = between(s.input_grad, 1e-6);
    s.weight_grad = between(s.weight_grad, 1e-6), s.recompute = between(s.recompute, 1e-6);
    s.transfer = between(s.transfer, 0);
  }
  return out;
}

/// When everything runs on unlimited lanes; also the observer of that walk.
struct ideal_times {
  std::vector<double> forward_start, forward_end, backward_start, backward_end; // per cell
  std::vector<double> released;                                                 // last reader's end
  std::vector<double> stage_done;                                               // last gradient
  std::vector<double> end;                                                      // per action

  ideal_times(const table& t, const costs& c) : table_(t), m_(t.shape.microbatches) {
    const std::size_t cells = t.shape.stages() * m_;
    for (auto* v : {&forward_start, &forward_end, &backward_start, &backward_end, &released})
      v->assign(cells, 0);
    stage_done.assign(t.shape.stages(), 0), end.assign(t.actions.size(), 0);
    walker<false, ideal_times> walk(t, c.stages, 0, c.pair_factor, *this);
    if (!walk.run())
      throw data_error("the schedule does not run to its end; validate() says where it stops");
  }
  void compute(std::size_t, std::size_t index, double from, double to, double) noexcept {
    const action& a = table_.actions[index];
    const std::size_t cell = a.stage * m_ + a.microbatch;
    end[index] = to;
    if (a.kind == action_kind::forward) {
      forward_start[cell] = from, forward_end[cell] = released[cell] = to;
    } else if (is_backward(a.kind)) {
      backward_start[cell] = from, backward_end[cell] = to;
    }
    if (a.kind == action_kind::backward || a.kind == action_kind::weight_grad)
      released[cell] = stage_done[a.stage] = to;
  }
  void lane(std::size_t, std::size_t, std::size_t, double, double) noexcept {}

 private:
  const table& table_;
  std::size_t m_;
};

/// Lowers one rank after the other: collects its lane entries, sorts them by key, and merges them
/// with its compute list.
class rank_lowering {
 public:
  rank_lowering(const table& compute, const ideal_times& ideal, const lower_options& options)
      : t_(compute), ideal_(ideal), options_(options), m_(compute.shape.microbatches),
        last_(compute.shape.stages() - 1), finished_(last_ + 1, 0) {}

  void append_to(std::vector<action>& out, std::size_t rank) {
    const std::span<const action> list = t_.of(rank);
    collect(list, t_.row[rank]);
    std::sort(entries_.begin(), entries_.end());
    needed_.assign(list.size(), 0); // how many entries must be issued before action j
    for (std::size_t e = 0; e < entries_.size(); ++e)
      if (entries_[e].before != none) needed_[static_cast<std::size_t>(entries_[e].before)] = e + 1;
    std::size_t next = 0;
    for (std::size_t j = 0; j < list.size(); ++j) {
      if (is_lane(list[j].kind)) continue;         // it is among the entries
      const std::size_t last = j + list[j].joined; // a pair stays together
      while (next < std::max(needed_[j], needed_[last])) out.push_back(entries_[next++].what);
      while (next < entries_.size() && entries_[next].before == none &&
             entries_[next].after < static_cast<std::int64_t>(j))
        out.push_back(entries_[next++].what);
      while (j < last) out.push_back(list[j++]);
      out.push_back(list[j]);
    }
    while (next < entries_.size()) out.push_back(entries_[next++].what);
  }

 private:
  enum key_kind : std::uint8_t { forward_key, backward_key, tied_key, reduce_key, unshard_key };

  void collect(std::span<const action> list, std::size_t row) {
    entries_.clear();
    const shape& s = t_.shape;
    const bool updates = !list.empty() && list.back().kind == action_kind::optimizer;
    const std::int64_t optimizer = updates ? static_cast<std::int64_t>(list.size()) - 1 : none;
    double now = 0;
    for (std::size_t j = 0; j < list.size(); ++j) {
      const action& a = list[j];
      const auto here = static_cast<std::int64_t>(j);
      const std::size_t stage = a.stage, k = a.microbatch, cell = stage * m_ + k;
      const bool below = stage > 0 && s.crosses(stage - 1),
                 above = stage < last_ && s.crosses(stage);
      if (a.kind == action_kind::unshard) {
        add(now, unshard_key, stage, a, here, next_use(list, j));
        continue;
      }
      if (a.kind == action_kind::forward) {
        if (below)
          add(ideal_.forward_end[cell - m_], forward_key, stage - 1,
              make_action(action_kind::recv_forward, stage, k), none, here);
        if (above)
          add(ideal_.forward_end[cell], forward_key, stage,
              make_action(action_kind::send_forward, stage, k), here, none);
      } else if (is_backward(a.kind)) {
        if (above)
          add(ideal_.backward_end[cell + m_], backward_key, stage,
              make_action(action_kind::recv_backward, stage, k), none, here);
        if (below)
          add(ideal_.backward_end[cell], backward_key, stage - 1,
              make_action(action_kind::send_backward, stage, k), here, none);
      }
      now = ideal_.end[row + j];
      if (a.kind == action_kind::backward || a.kind == action_kind::weight_grad)
        if (++finished_[stage] == m_) finish(stage, here, optimizer);
    }
  }
  /// The stage's gradients are complete: the tied sum, then the reduction over replicas.
  void finish(std::size_t stage, std::int64_t here, std::int64_t optimizer) {
    double time = ideal_.stage_done[stage];
    if (options_.tied && (stage == 0 || stage == last_)) {
      time = std::max(ideal_.stage_done.front(), ideal_.stage_done.back());
      add(time, tied_key, stage == 0 ? 0 : 1, make_action(action_kind::tied_reduce, stage), here,
          optimizer);
    }
    if (options_.reduce)
      add(time, reduce_key, stage, make_action(action_kind::reduce, stage), here, optimizer);
  }
  [[nodiscard]] static std::int64_t next_use(std::span<const action> list, std::size_t j) noexcept {
    for (std::size_t n = j + 1; n < list.size(); ++n)
      if (list[n].stage == list[j].stage && !is_lane(list[n].kind))
        return static_cast<std::int64_t>(n);
    return none;
  }
  void add(double time, key_kind kind, std::size_t boundary, const action& a, std::int64_t after,
           std::int64_t before) {
    entries_.push_back(
        {time, a.microbatch, static_cast<std::uint16_t>(boundary), kind, a, after, before});
  }

  const table& t_;
  const ideal_times& ideal_;
  const lower_options& options_;
  std::size_t m_, last_;
  std::vector<std::size_t> finished_; // per stage
  std::vector<lane_entry> entries_;
  std::vector<std::size_t> needed_;
};

/// Slots of every stage from the ideal timeline.
[[nodiscard]] inline std::vector<slot_counts> count_slots(const shape& s, const ideal_times& ideal,
                                                          bool trains, std::size_t extra) {
  const std::size_t m = s.microbatches;
  std::vector<slot_counts> out(s.stages());
  std::vector<std::size_t> scratch;
  const auto row = [m](const std::vector<double>& v, std::size_t stage) {
    return std::span<const double>(v).subspan(stage * m, m);
  };
  for (std::size_t stage = 0; stage < s.stages(); ++stage) {
    const bool below = stage > 0 && s.crosses(stage - 1);
    const bool above = stage + 1 < s.stages() && s.crosses(stage);
    out[stage].activation =
        slot_window(below ? row(ideal.forward_end, stage - 1) : row(ideal.forward_start, stage),
                    row(ideal.released, stage), extra, scratch);
    if (trains && stage + 1 < s.stages())
      out[stage].gradient =
          slot_window(above ? row(ideal.backward_end, stage + 1) : row(ideal.backward_start, stage),
                      row(ideal.released, stage), extra, scratch);
  }
  return out;
}

} // namespace detail

/// Lowers a table of compute actions that validate() accepts. usage_error where the table has
/// communication already or an option cannot be honoured.
[[nodiscard]] inline table lower(const table& compute, const costs& c,
                                 const lower_options& options = {}) {
  check(compute.shape);
  check(c, compute.shape);
  const std::uint32_t kinds = detail::kinds_of(compute);
  const bool trains = detail::has_kind(kinds, action_kind::backward) ||
                      detail::has_kind(kinds, action_kind::input_grad);
  expects((kinds & detail::lane_mask) == 0 && !detail::has_kind(kinds, action_kind::optimizer),
          "lower() wants compute actions only; this table is lowered already");
  expects(trains || (!options.recompute && !options.tied && !options.reduce && !options.optimizer),
          "a forward-only table has no gradients to recompute for, reduce or update with");
  const table extended =
      detail::extend_compute(compute, options.recompute, options.live_stages, options.optimizer);
  const detail::ideal_times ideal(extended, detail::key_costs(c));
  table out;
  out.shape = compute.shape;
  out.lanes = options.lanes;
  out.slots = detail::count_slots(out.shape, ideal, trains, options.extra_slots);
  out.actions.reserve(3 * extended.actions.size());
  detail::rank_lowering ranks(extended, ideal, options);
  for (std::size_t r = 0; r < out.shape.ranks; ++r) {
    ranks.append_to(out.actions, r);
    out.row.push_back(out.actions.size());
  }
  detail::count_outgoing(out);
  return out;
}

} // namespace polyrank::pipeline
