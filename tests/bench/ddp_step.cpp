// One data-parallel training step of a 4-layer perceptron of about 10 million parameters: forward,
// backward, gradient reduction, AdamW. The peer is ddp_step.py (PyTorch DDP over gloo);
// beside_pytorch.sh runs both and prints the ratio. With several threads a rank (OMP_NUM_THREADS),
// matrix products (OpenBLAS) and the update use all of them, the rest uses one.
//
//     mpirun -n N ddp_step [STEPS] [ROWS]
// SPDX-License-Identifier: Apache-2.0
#include "timing.hpp"
#include "train_classifier/host_ops.hpp"
#include "train_classifier/mlp.hpp"

#include <polyrank/core/partition.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/launch/run.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/zero/cpu_pool.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

using namespace polyrank;
using namespace polyrank::examples;
using bench::median;

extern "C" __attribute__((weak)) void openblas_set_num_threads(int); // another CBLAS has it not

int main(int argc, char** argv) {
  return launch::run(argc, argv, [&](launch::world& world) {
    const int steps = argc > 1 ? std::max(1, std::atoi(argv[1])) : 20;
    const std::size_t rows = argc > 2 ? static_cast<std::size_t>(std::atoi(argv[2])) : 128;
    const char* const asked = std::getenv("OMP_NUM_THREADS");
    const auto threads =
        static_cast<std::size_t>(asked != nullptr ? std::max(1, std::atoi(asked)) : 1);
    const mlp_shape shape{1024, {2048, 2304, 1536}, 10};
    auto comm = world.communicator();
    host::stream s = comm.make_stream();
    host_ops ops;
    mlp<host_ops> model(ops, shape, rows);
    const auto tensors = parameters_of(shape);
    std::vector<float> weights = initial_parameters(shape, 1);
    std::vector<float> state(adamw::state_count * weights.size()), x(rows * shape.inputs, 0.5f);
    std::vector<std::uint8_t> labels(rows, 3);
    std::vector<parameter<float>> parameters;
    for (const tensor& t : tensors)
      parameters.push_back({t.name, t.count(), weights.data() + t.offset, nullptr});
    grad_sync sync(comm, parameters, all_reduce_sum{}, {.leave = gradients_hold::sum});
    const auto weight = [&](std::size_t i) { return weights.data() + tensors[i].offset; };
    float loss = 0, one = 1, product = 0;
    gemm(as::is, as::is, 1, 1, 1, &one, &one, &product); // sets one thread, once
    if (openblas_set_num_threads != nullptr) openblas_set_num_threads(static_cast<int>(threads));
    cpu_pool pool(threads);
    std::vector<double> times, phases[2]; // of a step; forward and backward, the rest
    for (int step = -3; step < steps; ++step) {
      s.synchronize();
      comm.control().barrier(std::chrono::seconds(60));
      const auto start = bench::clock::now();
      ops.mark(s, 0);
      sync.begin(0, 1);
      model.forward(s, weight, x.data(), rows);
      model.loss(s, labels.data(), &loss, rows);
      model.backward(
          s, weight, x.data(), rows, [&](std::size_t i) { return sync.grad(i); },
          [&](std::size_t i) { sync.ready(i, s); });
      ops.mark(s, 1);
      const adamw::hyper hyper = adamw::at({}, static_cast<std::size_t>(step + 4), 1.0f);
      sync.finish(s, [&](std::size_t i) {
        s.enqueue([&, i, scale = sync.grad_scale()] {
          pool.run([&](std::size_t part) {
            const range r = partition(tensors[i].count(), pool.size(), part);
            const std::size_t at = tensors[i].offset + r.begin;
            const std::span<float> all(state);
            apply<adamw>(std::span(weights).subspan(at, r.size()),
                         {sync.grad(i) + r.begin, r.size()},
                         {all.subspan(at, r.size()), all.subspan(weights.size() + at, r.size())},
                         hyper, scale);
          });
        });
      });
      ops.mark(s, 2);
      s.synchronize();
      if (step < 0) continue;
      times.push_back(bench::since(start));
      for (std::size_t k = 0; k < 2; ++k) phases[k].push_back(ops.elapsed(k, k + 1));
    }
    if (world.rank() == 0)
      std::printf(
          "{\"bench\": \"ddp_step\", \"who\": \"polyrank\", \"ranks\": %d, \"parameters\": %zu, "
          "\"rows_per_rank\": %zu, \"threads\": %zu, \"median_ms\": %.2f, \"best_ms\": %.2f, "
          "\"compute_ms\": %.2f, "
          "\"waiting_and_update_ms\": %.2f}\n",
          world.size(), weights.size(), rows, threads, median(times),
          *std::min_element(times.begin(), times.end()), median(phases[0]), median(phases[1]));
    return 0;
  });
}
