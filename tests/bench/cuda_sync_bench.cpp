// What grad_sync costs: a backward of 148 tensors (GPT-2 124M) and at least 20 ms, with and without
// it. With one rank also with communication forced. Host time and launches of a step, eager and as
// a CUDA graph, with the update (clipped AdamW). JSON lines from rank 0.
//     scripts/gpu_ranks.sh N build/bin/cuda_sync_bench [repetitions] [backward-milliseconds]
// SPDX-License-Identifier: Apache-2.0
#include "cuda/support.hpp"
#include "shapes.hpp"
#include "timing.hpp"

#include <polyrank/cuda/communicator.hpp>
#include <polyrank/cuda/graph.hpp>
#include <polyrank/cuda/norm.hpp>
#include <polyrank/cuda/optimizer.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/launch/run.hpp>
#include <polyrank/optim/adamw.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

using namespace polyrank;
using bench::median;

namespace {

/// 148 kernels, as long as their tensors are large, together `ms` long.
template <class After>
void backward(const std::vector<std::size_t>& shapes, double ms, cuda::stream& s, After after) {
  double total = 0;
  for (const std::size_t n : shapes) total += static_cast<double>(n) + 1e5;
  for (std::size_t i = shapes.size(); i-- > 0;) {
    test::delay(s, std::chrono::microseconds(static_cast<long>(
                       1e3 * ms * (static_cast<double>(shapes[i]) + 1e5) / total)));
    after(i);
  }
}

struct result {
  std::vector<double> step, host;
};

} // namespace

int main(int argc, char** argv) {
  return launch::run(argc, argv, [&](launch::world& world) {
    const int repetitions = argc > 1 ? std::max(3, std::atoi(argv[1])) : 21;
    const double length = argc > 2 ? std::atof(argv[2]) : 20;
    auto comm = cuda::join(world);
    const auto shapes = bench::gpt2_124m();
    std::vector<parameter<float>> parameters;
    for (std::size_t i = 0; i < shapes.size(); ++i)
      parameters.push_back({polyrank::detail::cat("p", i), shapes[i], nullptr, nullptr});
    const std::size_t total = std::accumulate(shapes.begin(), shapes.end(), std::size_t{0}),
                      largest = *std::max_element(shapes.begin(), shapes.end());
    auto p = test::empty<float>(total), m = test::empty<float>(total),
         v = test::empty<float>(total);
    cuda::stream compute;
    for (auto* plane : {&p, &m, &v}) cuda::backend::fill(plane->span(), 0.0f, compute);

    const auto measure = [&](auto step) {
      result r;
      for (int k = -2; k < repetitions; ++k) {
        comm.control().barrier(std::chrono::seconds(30));
        const auto start = bench::clock::now();
        step();
        const double host = bench::since(start);
        compute.synchronize();
        if (k < 0) continue;
        r.host.push_back(host);
        r.step.push_back(bench::since(start));
      }
      return r;
    };
    const auto say = [&](const char* name, const result& r, double plain) {
      if (comm.rank() != 0) return;
      std::printf("{\"bench\": \"%s\", \"ranks\": %d, \"step_ms\": %.3f, \"host_us\": %.0f, "
                  "\"over_plain\": %.4f}\n",
                  name, comm.size(), median(r.step), 1e3 * median(r.host), median(r.step) / plain);
      std::fflush(stdout);
    };

    const result plain = measure([&] { backward(shapes, length, compute, [](std::size_t) {}); });
    const double base = median(plain.step);
    say("backward alone", plain, base);
    for (const bool forced : {false, true}) {
      if (forced && comm.size() > 1) continue;
      grad_sync sync(
          comm, parameters, all_reduce_sum{},
          {.leave = gradients_hold::sum, .broadcast = false, .always_communicate = forced});
      const result with = measure([&] {
        sync.begin(0, 1);
        backward(shapes, length, compute, [&](std::size_t i) { sync.ready(i, compute); });
        sync.finish(compute);
      });
      say(forced ? "with grad_sync, communication forced" : "with grad_sync", with, base);
      if (comm.rank() == 0)
        std::printf("{\"bench\": \"grad_sync plan\", \"buckets\": %zu, \"bytes\": %zu, "
                    "\"window\": %s}\n",
                    sync.layout().buckets().size(), sync.bytes(),
                    sync.registered() ? "true" : "false");

      // The whole step, with gradients that are already there: what is left is our own host work.
      std::vector<cuda::optimizer<adamw>::range> ranges;
      std::vector<std::span<const float>> gradients;
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        ranges.push_back({p.data() + sync.layout().slots()[i].logical_offset,
                          sync.grad(i),
                          {m.data() + sync.layout().slots()[i].logical_offset,
                           v.data() + sync.layout().slots()[i].logical_offset},
                          nullptr,
                          shapes[i]});
        gradients.emplace_back(sync.grad(i), shapes[i]);
        cuda::backend::fill(std::span<float>(sync.grad(i), shapes[i]), 1e-3f, compute);
      }
      cuda::optimizer<adamw> update(ranges);
      const cuda::grad_norm<float> norm(gradients);
      update.set(adamw::at({}, 1), compute);
      const auto step = [&] {
        sync.begin(0, 1);
        for (std::size_t i = shapes.size(); i-- > 0;) sync.ready(i, compute);
        sync.finish(compute);
        norm.run({.scale = sync.grad_scale(), .max_norm = 1}, compute);
        update.step(norm.control(), compute);
      };
      const result eager = measure(step);
      say(forced ? "sync and update, communication forced" : "sync and update", eager,
          median(eager.step));
      const cuda::graph replay = cuda::graph::capture(compute, step);
      say(forced ? "the same as a CUDA graph, communication forced" : "the same as a CUDA graph",
          measure([&] { replay.launch(compute); }), median(eager.step));
      const cuda::graph::counts n = replay.count();
      if (comm.rank() == 0)
        std::printf("{\"bench\": \"launches a step\", \"kernels\": %zu, \"copies\": %zu, "
                    "\"others\": %zu}\n",
                    n.kernels, n.copies, n.others);
    }
    if (comm.size() > 1) { // the last bucket alone, and all gradients at once, for scale
      auto x = test::empty<float>(total);
      const auto reduce = [&](std::size_t n) {
        return measure([&] {
          const auto part = x.span().first(n);
          comm.all_reduce<float>(part, part, reduce_op::sum, on(compute));
        });
      };
      say("one all_reduce of the largest tensor", reduce(largest), base);
      const result all = reduce(total);
      say("one all_reduce of all gradients", all, base);
      if (comm.rank() == 0)
        std::printf("{\"bench\": \"bus bandwidth\", \"gb_per_s\": %.1f}\n",
                    static_cast<double>(total) * 4e-6 * 2 * (comm.size() - 1) / comm.size() /
                        median(all.step));
    }
    return 0;
  });
}
