// What a step really took, as the same report that simulate() makes, and the costs in it.
//
//     run.watch().measure(true);
//     run.step(seed);
//     run.synchronize();
//     report real = measured(run);                                  // of all ranks, @collective
//     costs c = profile(real, run.memory());                        // seconds per stage and kind
//     report planned = simulate(run.table(), c, {.timeline = true});
//     named_report both[] = {{"planned", &planned}, {"measured", &real}};
//     write_file("step.svg", svg(both));                            // one over the other
//
// What was measured picks the next schedule; other shapes take their share of the times (costs.hpp):
//
//     tune_request q;
//     q.ranks = 4, q.microbatches = {16}, q.chunks = {1, 2};
//     q.costs_of = [&](const shape& s) { return recut(c, real.shape, s); };
//     tuned next = tune(q);
//
// Times are seconds. Clocks: ranks of one host share theirs; those of others are set by the barrier
// with which a measured step begins.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/costs.hpp>
#include <polyrank/pipeline/report.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <unistd.h>

namespace polyrank::pipeline {

namespace detail {

/// The median; 0 of nothing.
[[nodiscard]] inline double median(std::vector<double> x) {
  if (x.empty()) return 0;
  const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  return *middle;
}

/// Events by rank and action.
class event_index {
 public:
  explicit event_index(const report& r) {
    for (const event& e : r.timeline) by_[key(e.what)] = &e;
  }
  [[nodiscard]] const event* find(action_kind kind, std::size_t stage, std::size_t k) const {
    const auto at = by_.find(key(make_action(kind, stage, k)));
    return at == by_.end() ? nullptr : at->second;
  }

 private:
  using key_type = std::tuple<action_kind, std::uint16_t, std::uint32_t>;
  static key_type key(const action& a) { return {a.kind, a.stage, a.microbatch}; }
  std::map<key_type, const event*> by_;
};

/// Starts, ends, busy and exposed times from the timeline.
inline void summarise(report& r) {
  const event_index all(r);
  std::vector<bool> begun(r.ranks.size());
  double first = 0, last = 0;
  bool any = false, second = false;
  for (const event& e : r.timeline) {
    first = any ? std::min(first, e.start) : e.start, last = any ? std::max(last, e.end) : e.end;
    any = true;
    if (e.lane != 0) continue;
    rank_report& rank = r.ranks[e.rank];
    if (!begun[e.rank]) rank.start = rank.end = e.start;
    begun[e.rank] = true;
    // Idle although the producer had ended.
    const std::size_t s = e.what.stage, k = e.what.microbatch;
    const event* producer = nullptr;
    if (e.what.kind == action_kind::forward && s > 0 && r.shape.crosses(s - 1)) {
      producer = all.find(action_kind::forward, s - 1, k);
    } else if ((e.what.kind == action_kind::backward || e.what.kind == action_kind::input_grad) &&
               s + 1 < r.shape.stages() && r.shape.crosses(s)) {
      producer = all.find(action_kind::backward, s + 1, k);
      if (producer == nullptr) producer = all.find(action_kind::input_grad, s + 1, k);
    }
    if (producer != nullptr)
      rank.exposed += std::max(0.0, e.start - std::max(rank.end, producer->end));
    if (!second) rank.busy += e.end - e.start;
    second = e.what.joined != 0;
    rank.end = std::max(rank.end, e.end);
  }
  r.makespan = last - first;
}

} // namespace detail

/// The last measured step of all ranks, the same on each. Call it after synchronize(). usage_error
/// unless watch().measure(true) came before the step. @collective
template <class Executor>
[[nodiscard]] report measured(Executor& run) {
  expects(run.watch().measures(), "measured(): call watch().measure(true) before the step");
  const table& t = run.table();
  std::string mine(64, '\0'); // the host's name, then numbers
  static_cast<void>(::gethostname(mine.data(), 63));
  const auto add = [&mine](double x) { mine.append(reinterpret_cast<const char*>(&x), sizeof x); };
  add(run.watch().origin());
  add(static_cast<double>(run.peak_bytes()));
  add(static_cast<double>(run.peak_activation_bytes()));
  for (std::size_t i = 0; i < t.of(run.rank()).size(); ++i)
    add(run.watch().at(i, false)), add(run.watch().at(i, true));
  const std::vector<std::string> all = run.link().control().all_gather(mine);
  const bool one_host = std::all_of(all.begin(), all.end(), [&](const std::string& a) {
    return std::strcmp(a.c_str(), all[0].c_str()) == 0;
  });
  report out;
  out.shape = t.shape;
  out.ranks.resize(t.shape.ranks);
  const auto number_of = [&all](std::size_t r, std::size_t i) {
    double x = 0;
    std::memcpy(&x, all[r].data() + 64 + i * sizeof x, sizeof x);
    return x;
  };
  double zero = number_of(0, 0); // when the first rank left the barrier
  for (std::size_t r = 1; r < t.shape.ranks; ++r) zero = std::min(zero, number_of(r, 0));
  for (std::size_t r = 0; r < t.shape.ranks; ++r) {
    const auto number = [&](std::size_t i) { return number_of(r, i); };
    const double shift = one_host ? number(0) - zero : 0;
    out.ranks[r].peak_memory = number(1);
    out.ranks[r].peak_activation = number(2);
    const std::span<const action> list = t.of(r);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::size_t lane = lane_of(t.shape, t.lanes, r, list[i]);
      out.timeline.push_back({static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(lane),
                              list[i], shift + number(3 + 2 * i), shift + number(4 + 2 * i)});
      if (i == 0 || list[i - 1].joined == 0) continue;
      // A pair is one piece of work if the stage made it one.
      event &f = out.timeline[out.timeline.size() - 2], &b = out.timeline.back();
      if (b.start < f.end)
        b.start = f.start, f.end = b.end;
      else
        f.what.joined = 0;
    }
  }
  std::stable_sort(out.timeline.begin(), out.timeline.end(), [](const event& a, const event& b) {
    return a.rank != b.rank ? a.rank < b.rank : a.start < b.start;
  });
  detail::summarise(out);
  return out;
}

/// The median times of a measured report as costs. Where backwards were not split, each half gets
/// half; a transfer counts from when both ends were ready; pair_factor from the pairs.
[[nodiscard]] inline costs profile(const report& r, std::vector<stage_memory> memory) {
  const detail::event_index all(r);
  costs out{std::vector<stage_costs>(r.shape.stages()), std::move(memory)};
  std::vector<std::array<std::vector<double>, action_kinds>> took(r.shape.stages());
  std::vector<std::vector<double>> transfers(r.shape.stages());
  std::vector<std::pair<const event*, const event*>> pairs;
  const event* before = nullptr;
  for (const event& e : r.timeline) {
    const bool second =
        before != nullptr && before->what.joined != 0 && before->rank == e.rank && e.lane == 0;
    if (second) pairs.emplace_back(before, &e);
    if (e.what.joined == 0 && !second)
      took[e.what.stage][static_cast<std::size_t>(e.what.kind)].push_back(e.end - e.start);
    if (e.lane == 0) before = &e;
    const bool forward = e.what.kind == action_kind::recv_forward;
    if (!is_recv(e.what.kind)) continue;
    const std::size_t s = e.what.stage;
    const event* sent = forward ? all.find(action_kind::send_forward, s - 1, e.what.microbatch)
                                : all.find(action_kind::send_backward, s + 1, e.what.microbatch);
    if (sent != nullptr)
      transfers[forward ? s - 1 : s].push_back(
          std::max(0.0, e.end - std::max(e.start, sent->start)));
  }
  for (std::size_t s = 0; s < out.stages.size(); ++s) {
    const auto time = [&](action_kind k) {
      return detail::median(took[s][static_cast<std::size_t>(k)]);
    };
    stage_costs& c = out.stages[s];
    c.forward = time(action_kind::forward);
    c.recompute = time(action_kind::recompute);
    c.input_grad = time(action_kind::input_grad), c.weight_grad = time(action_kind::weight_grad);
    if (c.input_grad == 0 && c.weight_grad == 0)
      c.input_grad = c.weight_grad = time(action_kind::backward) / 2;
    c.transfer = detail::median(transfers[s]);
    c.unshard = time(action_kind::unshard), c.reduce = time(action_kind::reduce);
    c.optimizer = time(action_kind::optimizer);
  }
  std::vector<double> factors;
  for (const auto& [f, b] : pairs) {
    const stage_costs &cf = out.stages[f->what.stage], &cb = out.stages[b->what.stage];
    const double apart = cf.forward + cb.input_grad + cb.weight_grad;
    if (apart > 0) factors.push_back((b->end - f->start) / apart);
  }
  if (!factors.empty()) out.pair_factor = detail::median(factors);
  return out;
}

} // namespace polyrank::pipeline
