// Host all-reduce against MPI_Allreduce in the same run: interleaved repetitions, medians.
//     mpirun --map-by :OVERSUBSCRIBE --bind-to none -n 4 build/bin/all_reduce_bench [repetitions]
// Rank 0 prints a JSON line per size, then the geometric mean of the ratios (MPI's time / ours;
// more than 1 is faster than MPI).
// SPDX-License-Identifier: Apache-2.0
#include "timing.hpp"

#include <polyrank/launch/run.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

using namespace polyrank;
using bench::median;

namespace {

template <class F>
double seconds(F f) {
  MPI_Barrier(MPI_COMM_WORLD);
  double slowest = 1e-3 * bench::milliseconds(f);
  MPI_Allreduce(MPI_IN_PLACE, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

} // namespace

int main(int argc, char** argv) {
  return launch::run(argc, argv, [&](launch::world& world) {
    const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 15;
    auto comm = world.communicator();
    host::stream s = comm.make_stream();
    double log_sum = 0, worst = 1e9;
    int points = 0;
    for (const std::size_t bytes :
         {std::size_t{4}, std::size_t{4} << 10, std::size_t{64} << 10, std::size_t{1} << 20,
          std::size_t{4} << 20, std::size_t{25} << 20, std::size_t{64} << 20}) {
      const std::size_t count = bytes / sizeof(float);
      std::vector<float> x(count, 1.0f), y(count);
      const int inner = bytes < (1 << 20) ? 20 : 1;
      std::vector<double> ours, theirs;
      for (int r = -1; r < repetitions; ++r) {
        const double a = seconds([&] {
          for (int i = 0; i < inner; ++i)
            comm.all_reduce<float>(x, std::span(y), reduce_op::sum, on(s));
          s.synchronize();
        });
        const double b = seconds([&] {
          for (int i = 0; i < inner; ++i)
            MPI_Allreduce(x.data(), y.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                          MPI_COMM_WORLD);
        });
        if (r < 0) continue; // warm-up
        ours.push_back(a / inner);
        theirs.push_back(b / inner);
      }
      const double ratio = median(theirs) / median(ours);
      const bool target = bytes >= (1 << 20);
      if (target) {
        log_sum += std::log(ratio);
        worst = std::min(worst, ratio);
        ++points;
      }
      if (world.rank() == 0)
        std::printf("{\"bench\": \"all_reduce\", \"ranks\": %d, \"bytes\": %zu, \"polyrank_ms\": "
                    "%.4f, \"mpi_ms\": %.4f, "
                    "\"ratio\": %.3f}\n",
                    world.size(), bytes, median(ours) * 1e3, median(theirs) * 1e3, ratio);
    }
    if (world.rank() == 0)
      std::printf("{\"bench\": \"all_reduce\", \"ranks\": %d, \"sizes\": \"1-64 MiB\", "
                  "\"geometric_mean_ratio\": %.3f, "
                  "\"worst_ratio\": %.3f}\n",
                  world.size(), std::exp(log_sum / points), worst);
    return 0;
  });
}
