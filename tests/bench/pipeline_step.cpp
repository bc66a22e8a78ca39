// A training step of a perceptron cut over the ranks of mpirun, with real matrix products; the peer
// is pipeline_step.py (torch.distributed.pipelining over gloo). One JSON object.
//
//     mpirun -n P pipeline_step [SCHEDULE] [MICROBATCHES] [ROWS] [STEPS]
//
// 8 layers of 1024 x 1024 with GELU, cross entropy, AdamW; ROWS (default 32) per microbatch.
// "predicted_over_measured": the makespan that simulate() makes of the profiled times of one step,
// over that step's.
// SPDX-License-Identifier: Apache-2.0
#include "train_classifier/host_ops.hpp"
#include "train_classifier/mlp_stage.hpp"

#include <polyrank/launch/run.hpp>
#include <polyrank/pipeline/executor.hpp>
#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/lower.hpp>
#include <polyrank/pipeline/measure.hpp>
#include <polyrank/pipeline/simulate.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using namespace polyrank;
using namespace polyrank::examples;
using host::stream;

namespace {

constexpr std::size_t width = 1024, layers = 8;

/// Weights, gradients and AdamW state of this rank.
struct plain_weights final : parallel_weights<stream> {
  std::vector<std::vector<float>> w, g, m, v;
  explicit plain_weights(std::size_t stages_layers) {
    for (std::size_t l = 0; l < stages_layers; ++l)
      for (const std::size_t n : {width * width, width}) {
        w.emplace_back(n), g.emplace_back(n), m.emplace_back(n), v.emplace_back(n);
        for (std::size_t i = 0; i < n; ++i) w.back()[i] = (uniform(7, l, i) - 0.5f) / 16;
      }
  }
  float* weight(std::size_t i, stream&) override { return w[i].data(); }
  float* grad(std::size_t i, stream&) override { return g[i].data(); }
  void begin(double) override {}
  void ready(std::size_t, stream&) override {}
  void update(std::size_t step, double rate, stream& s) override {
    host_ops ops;
    for (std::size_t i = 0; i < w.size(); ++i)
      ops.update<adamw>(s, w[i], g[i], {std::span(m[i]), std::span(v[i])},
                        adamw::at({.lr = 1e-3}, step + 1, rate), 1.0f);
  }
  void verify(stream&) override {}
  void read(stream&, std::vector<float>&, std::vector<float>&) override {}
};

} // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "1f1b";
  const auto number = [&](int i, std::size_t otherwise) {
    return argc > i ? static_cast<std::size_t>(std::atoi(argv[i])) : otherwise;
  };
  const std::size_t m = number(2, 8), rows = number(3, 32), steps = number(4, 10);
  return launch::run(argc, argv, [&](launch::world& world) {
    auto comm = world.communicator();
    const auto r = static_cast<std::size_t>(comm.rank()), p = static_cast<std::size_t>(comm.size());
    const mlp_shape shape{width, std::vector<std::size_t>(layers - 1, width), width};
    const pipeline::table compute = pipeline::generate(pipeline::schedule_from(name), p, m);
    const pipeline::table t = pipeline::lower(
        compute, pipeline::even_costs(compute.shape, 1, 1, 1, 0.02), {.optimizer = true});
    host_ops ops;
    const std::vector<float> x(m * rows * width, 0.5f);
    const std::vector<std::uint8_t> labels(m * rows, 3);
    std::vector<float> losses(m);
    const mlp_work work{.x = x.data(), .labels = labels.data(), .losses = losses.data()};
    std::vector<mlp_stage<host_ops>> stages;
    std::size_t mine = 0;
    for (std::size_t c = 0; c < t.shape.chunks; ++c) {
      const range l = partition(layers, t.shape.stages(), t.shape.stage_of(r, c));
      stages.emplace_back(ops, shape, l, 2 * mine, rows, m, work);
      mine += l.size();
    }
    plain_weights weights(mine);
    for (auto& s : stages) s.use(weights);
    stream main = comm.make_stream();
    pipeline::peer_transport link(comm);
    std::size_t step = 0;
    pipeline::executor run(
        link, std::span(stages), t,
        {.rows = {rows}, .hooks = {.optimizer = [&](stream& s) { weights.update(step, 1, s); }}},
        main);
    std::vector<double> ms;
    for (; step < steps + 2; ++step) {
      comm.control().barrier(std::chrono::minutes(1));
      const auto start = std::chrono::steady_clock::now();
      run.step(1 / static_cast<float>(m * rows));
      run.synchronize();
      comm.control().barrier(std::chrono::minutes(1));
      if (step >= 2)
        ms.push_back(
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                .count());
    }
    run.watch().measure(true);
    std::vector<double> ratios;
    for (int round = 0; round < 5; ++round, ++step) {
      run.step(1 / static_cast<float>(m * rows));
      run.synchronize();
      const pipeline::report real = pipeline::measured(run);
      ratios.push_back(pipeline::simulate(t, pipeline::profile(real, run.memory())).makespan /
                       real.makespan);
    }
    std::sort(ms.begin(), ms.end());
    std::sort(ratios.begin(), ratios.end());
    if (r == 0)
      std::printf(
          "{\"bench\": \"pipeline_step\", \"who\": \"polyrank\", \"schedule\": \"%s\", \"p\": %zu, "
          "\"m\": %zu, \"rows\": %zu, \"median_ms\": %.2f, \"best_ms\": %.2f, "
          "\"predicted_over_measured\": %.3f}\n",
          name.c_str(), p, m, rows, ms[ms.size() / 2], ms[0], ratios[ratios.size() / 2]);
    return 0;
  });
}
