// What the flight recorder costs on a GPU: an operation of the NCCL communicator with its two
// stream writes, beside the same without a recorder. One rank, so NCCL itself is a small copy.
// JSON lines.
// SPDX-License-Identifier: Apache-2.0
#include "timing.hpp"

#include <polyrank/backend/buffer.hpp>
#include <polyrank/cuda/communicator.hpp>
#include <polyrank/launch/run.hpp>

#include <algorithm>
#include <cstdio>
#include <vector>

using namespace polyrank;

namespace {

struct cost {
  double host_us, whole_us; ///< until the call returned; until the GPU was done
};

/// Of one operation, or one group of `group` operations: the median of 15 runs of 100.
cost measure(cuda::communicator& comm, cuda::stream& s, std::span<float> x, int group) {
  std::vector<double> host, whole;
  constexpr int runs = 100;
  for (int repeat = 0; repeat < 15; ++repeat) {
    s.synchronize();
    const auto begun = bench::clock::now();
    for (int i = 0; i < runs; ++i) {
      if (group == 1)
        comm.all_reduce<float>(x, x, reduce_op::sum, on(s, "bucket"));
      else
        comm.group(s, [&] {
          for (int g = 0; g < group; ++g)
            comm.all_reduce<float>(x, x, reduce_op::sum, on(s, "bucket"));
        });
    }
    host.push_back(1e3 * bench::since(begun) / runs);
    s.synchronize();
    whole.push_back(1e3 * bench::since(begun) / runs);
  }
  return {bench::median(host), bench::median(whole)};
}

} // namespace

int main(int argc, char** argv) {
  return launch::run(argc, argv, [](launch::world& world) {
    cuda::communicator with = cuda::join(world);
    cuda::communicator without(world.communicator(), with.device());
    for (const auto& w : with.warnings()) std::fprintf(stderr, "warning: %s\n", w.c_str());
    cuda::stream s = with.make_stream();
    buffer<float> x(1024, cuda::device_memory());
    for (const int group : {1, 10}) {
      static_cast<void>(measure(without, s, x.span(), group)); // warm
      const cost a = measure(without, s, x.span(), group), b = measure(with, s, x.span(), group),
                 c = measure(without, s, x.span(), group);
      const double host = b.host_us - (a.host_us + c.host_us) / 2,
                   whole = b.whole_us - (a.whole_us + c.whole_us) / 2;
      std::printf("{\"bench\": \"gpu_stamps\", \"operations_of_a_group\": %d, \"host_us\": %.2f, "
                  "\"host_us_without\": %.2f, \"added_host_us\": %.2f, \"added_total_us\": %.2f, "
                  "\"share_of_60_ms_step_with_30\": %.6f}\n",
                  group, b.host_us, (a.host_us + c.host_us) / 2, host, whole,
                  30 * std::max(host, whole) / 60e3);
    }
    return 0;
  });
}
