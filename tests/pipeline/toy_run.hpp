// A toy model run as a pipeline on any host communicator, and what is wrong with the results.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pipeline/toy.hpp"

#include <polyrank/pipeline/executor.hpp>
#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/lower.hpp>
#include <polyrank/pipeline/simulate.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace polyrank::test {

/// The stages of one rank.
template <class Stage = toy_stage>
std::vector<Stage> stages_of(const pipeline::table& t, std::size_t rank, const toy_batch& batch) {
  std::vector<Stage> out;
  for (std::size_t c = 0; c < t.shape.chunks; ++c)
    out.emplace_back(t.shape.stage_of(rank, c), t.shape.stages(), batch);
  return out;
}

inline std::size_t total(const std::vector<std::size_t>& rows) {
  std::size_t sum = 0;
  for (const std::size_t r : rows) sum += r;
  return sum;
}

/// Ragged: 1, 2, 3, 1, 2, 3 ... rows.
inline std::vector<std::size_t> ragged(std::size_t m) {
  std::vector<std::size_t> rows;
  for (std::size_t k = 0; k < m; ++k) rows.push_back(1 + k % 3);
  return rows;
}

/// What a run is like beside its table.
struct conditions {
  int steps = 1;
  bool poison = false;
  bool immediate = false;  ///< streams without threads
  bool accumulate = false; ///< gradients of all steps add up
};

/// What differs from the model without a pipeline, on this rank.
struct mistakes {
  int gradients = 0, rows = 0, alive = 0, peaks = 0;
  [[nodiscard]] int all() const { return gradients + rows + alive + peaks; }
  [[nodiscard]] std::string text() const {
    return detail::cat(gradients, " wrong gradients, ", rows, " wrong rows, ", alive, " alive, ",
                       peaks, " wrong peaks");
  }
};

/// Runs table `t` over `comm`. @collective
template <class Transport, class Stage = toy_stage, class Comm>
mistakes run_table(Comm& comm, const pipeline::table& t, conditions how = {}) {
  using namespace pipeline;
  const std::vector<std::size_t> rows = ragged(t.shape.microbatches);
  const toy_batch batch(total(rows));
  const float seed = 1.0f / static_cast<float>(total(rows));
  const auto reference = toy_reference(t.shape.stages(), batch, rows, seed);
  const bool trains = t.has(action_kind::backward) || t.has(action_kind::input_grad);
  const auto r = static_cast<std::size_t>(comm.rank());
  std::vector<Stage> stages = stages_of<Stage>(t, r, batch);
  std::vector<float> seen(total(rows), -1);
  for (toy_stage& s : stages) s.seen = &seen;
  host::stream compute = comm.make_stream();
  Transport link(comm, t.lanes);
  executor run(link, std::span(stages), t, {.rows = rows, .poison = how.poison}, compute);
  for (int step = 0; step < how.steps; ++step) {
    for (Stage& s : stages)
      if (!how.accumulate) compute.enqueue([&s] { s.dw.assign(s.dw.size(), 0.0f); });
    run.step(seed);
  }
  run.synchronize();
  mistakes out;
  for (const toy_stage& s : stages) {
    if (trains && s.dw != toy_expected(t, s.stage, reference, how.accumulate ? how.steps : 1))
      ++out.gradients;
    if (s.stage + 1 == s.stages)
      for (std::size_t i = 0; i < seen.size(); ++i)
        if (seen[i] != static_cast<float>(i)) ++out.rows;
  }
  if (run.live_bytes() != 0) ++out.alive;
  costs c = even_costs(t.shape, 1, 1, 1, 0);
  c.memory = run.memory();
  const rank_report predicted = simulate(t, c).ranks[r];
  if (static_cast<double>(run.peak_bytes()) != predicted.peak_memory ||
      static_cast<double>(run.peak_activation_bytes()) != predicted.peak_activation ||
      run.reserved_bytes() < run.peak_bytes())
    ++out.peaks;
  return out;
}

inline pipeline::table lowered(pipeline::schedule s, std::size_t p, std::size_t m,
                               std::size_t v = 0, pipeline::lower_options o = {},
                               double transfer = 0.05) {
  using namespace pipeline;
  const table t = generate(s, p, m, v == 0 ? default_chunks(s) : v);
  return lower(t, even_costs(t.shape, 1, 1, 1, transfer), o);
}

} // namespace polyrank::test
