// Picks the schedule, the chunks per rank and the number of microbatches: the fastest that fits.
//
//     tune_request q;
//     q.ranks = 8, q.microbatches = {32, 64}, q.chunks = {1, 2, 4}, q.memory_cap = 40e9;
//     q.costs_of = [](const shape& s) { return even_costs(s, 1, 1, 1, 0.05); };
//     tuned best = tune(q);          // best.name, best.table, best.report
//
// Compared is the time per microbatch on unlimited lanes; lower() keeps it within a few percent.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/search.hpp>
#include <polyrank/pipeline/simulate.hpp>

#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank::pipeline {

struct tune_request {
  std::size_t ranks = 1;
  std::vector<std::size_t> microbatches{1};
  std::vector<std::size_t> chunks{1, 2};
  std::function<costs(const shape&)> costs_of; ///< the costs of one microbatch on that shape
  double memory_cap = std::numeric_limits<double>::infinity(); ///< per rank, in costs_of's unit
  objective goal = objective::makespan;
  bool split_backward = true; ///< the stages can compute I and W apart
  bool search = true;         ///< also search_split_backward()
};

/// The fastest schedule per microbatch under the cap. usage_error where nothing fits: it names the
/// smallest cap that would do.
[[nodiscard]] inline tuned tune(const tune_request& q) {
  expects(static_cast<bool>(q.costs_of), "tune() needs costs_of");
  expects(!q.microbatches.empty() && !q.chunks.empty(),
          "tune() needs at least one number of microbatches and of chunks");
  expects(q.memory_cap > 0, "the memory cap is ", q.memory_cap, ", it must be above 0");
  tuned best;
  double best_cost = std::numeric_limits<double>::infinity(), least_memory = best_cost;
  std::string least_name;
  const auto consider = [&](std::string_view name, table t, report r) {
    const double memory = r.peak_memory();
    if (memory < least_memory) {
      least_memory = memory;
      least_name = polyrank::detail::cat(name, " with ", t.shape.microbatches, " microbatches");
    }
    const double cost = cost_of(r, q.goal) / static_cast<double>(t.shape.microbatches);
    if (memory > q.memory_cap * (1 + 1e-9) || cost >= best_cost * (1 - 1e-12)) return;
    best_cost = cost;
    best = {std::string(name), std::move(t), std::move(r)};
  };
  for (const std::size_t m : q.microbatches)
    for (const std::size_t v : q.chunks) {
      for (const schedule s : training_schedules) {
        const schedule_traits& t = traits_of(s);
        if (v < t.min_chunks || v > t.max_chunks || (t.splits_backward && !q.split_backward))
          continue;
        table made = generate(s, q.ranks, m, v);
        report r = simulate(made, q.costs_of(made.shape));
        consider(t.name, std::move(made), std::move(r));
      }
      if (v != 1 || !q.search || !q.split_backward) continue;
      const shape s{q.ranks, m, 1, placement::loop};
      tuned found = search_split_backward(s, q.costs_of(s), q.memory_cap, q.goal);
      if (!found.table.actions.empty())
        consider(found.name, std::move(found.table), std::move(found.report));
    }
  expects(!best.table.actions.empty(), "no schedule fits into a memory cap of ", q.memory_cap,
          "; the smallest that works is ", least_memory, " (", least_name, ")");
  return best;
}

} // namespace polyrank::pipeline
