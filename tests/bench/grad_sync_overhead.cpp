// What grad_sync costs the host: a loop with it beside the same loop without, one rank, 148 tensors
// of a GPT-2 124M shape; and the layout of 100,000 parameters, also
// sharded over 4,096 ranks. Prints JSON lines.
//     build/bin/grad_sync_overhead
// SPDX-License-Identifier: Apache-2.0
#include "shapes.hpp"
#include "timing.hpp"

#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/hang/flight_recorder.hpp>
#include <polyrank/launch/run.hpp>
#include <polyrank/zero/shard_layout.hpp>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

using namespace polyrank;
using bench::median, bench::milliseconds;

int main(int argc, char** argv) {
  return launch::run(argc, argv, [](launch::world& world) {
    auto comm = world.communicator();
    std::vector<parameter<float>> parameters;
    std::vector<std::vector<float>> values;
    for (const std::size_t n : bench::gpt2_124m()) {
      values.emplace_back(n);
      parameters.push_back({"t" + std::to_string(values.size()), n, values.back().data(), nullptr});
    }
    grad_sync sync(comm, parameters, all_reduce_sum{}, {.leave = gradients_hold::sum});
    host::stream s;
    // Backward: 148 kernels of 140 us each, 20 ms in all, which sleep so that nothing else is
    // timed.
    const auto kernel = [] { std::this_thread::sleep_for(std::chrono::microseconds(140)); };
    std::vector<double> with, without, host_us;
    for (int round = 0; round < 15; ++round) {
      without.push_back(milliseconds([&] {
        for (std::size_t i = parameters.size(); i-- > 0;) s.enqueue(kernel);
        s.synchronize();
      }));
      with.push_back(milliseconds([&] {
        host_us.push_back(1e3 * milliseconds([&] {
                            sync.begin(0, 1);
                            for (std::size_t i = parameters.size(); i-- > 0;) {
                              s.enqueue(kernel);
                              sync.ready(i, s);
                            }
                            sync.finish(s);
                          }));
        s.synchronize();
      }));
    }
    std::printf("{\"bench\": \"grad_sync_overhead\", \"ranks\": %d, \"tensors\": %zu, \"with_ms\": "
                "%.3f, \"without_ms\": %.3f, "
                "\"ratio\": %.4f, \"host_us_per_step\": %.1f}\n",
                world.size(), parameters.size(), median(with), median(without),
                median(with) / median(without), median(host_us));

    std::vector<std::size_t> many(100000);
    for (std::size_t i = 0; i < many.size(); ++i) many[i] = i * 7919 % 100003;
    std::vector<double> layouts, sharded;
    std::size_t buckets = 0, shards = 0;
    for (int round = 0; round < 7; ++round) {
      layouts.push_back(milliseconds([&] { buckets = layout::make(many, 4).buckets().size(); }));
      sharded.push_back(milliseconds(
          [&] { shards = shard_layout::make(many, 4096, 4, {.stage = 2}).buckets().size(); }));
    }
    std::printf("{\"bench\": \"layout\", \"parameters\": %zu, \"buckets\": %zu, \"ms\": %.3f, "
                "\"sharded_over_4096_buckets\": %zu, \"sharded_over_4096_ms\": %.3f}\n",
                many.size(), buckets, median(layouts), shards, median(sharded));

    hang::flight_recorder recorder;
    hang::comm_history history;
    const double recorded = milliseconds([&] {
      for (int i = 0; i < 1000000; ++i) {
        const auto ticket = recorder.enter(
            history,
            {.kind = op_kind::all_reduce, .type = dtype::f32, .count = 1, .tag = "bucket 7"});
        recorder.start(ticket);
        recorder.done(ticket);
      }
    });
    std::printf(
        "{\"bench\": \"flight_recorder\", \"operations\": 1000000, \"ns_per_operation\": %.1f}\n",
        recorded);
    return 0;
  });
}
