// A program that started MPI itself, below MPI_THREAD_MULTIPLE: polyrank serves it on the calling
// thread, refuses worker streams, and leaves MPI running.
// SPDX-License-Identifier: Apache-2.0
#include "host/comm_cases.hpp"

#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/launch/world.hpp>

#include <cstdio>
#include <string>

using namespace polyrank;

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  std::size_t bad = 0;
  {
    launch::world world = launch::world::adopt(MPI_COMM_WORLD);
    auto comm = world.communicator();
    host::stream s = comm.make_stream();
    if (!s.immediate()) ++bad;
    bad += test::check_everything(comm, s, {0, 1, 1009, 30011});
    std::vector<float> x(5, 1.0f);
    grad_sync sync(comm, std::vector<parameter<float>>{{"x", 5, x.data(), nullptr}});
    sync.begin(0, 1);
    s.enqueue([g = sync.grad(0), r = comm.rank()] { std::fill(g, g + 5, static_cast<float>(r)); });
    sync.ready(0, s);
    sync.finish(s);
    s.synchronize();
    if (sync.grad(0)[4] != static_cast<float>(comm.size() - 1) / 2) ++bad;
    host::stream worker;
    try {
      comm.all_reduce<float>(x, std::span(x), reduce_op::sum, on(worker));
      ++bad;
    } catch (const usage_error& e) {
      if (std::string(e.what()).find("comm.make_stream()") == std::string::npos) ++bad;
    }
  }
  int mine = static_cast<int>(bad), sum = -1, rank = 0;
  MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD); // MPI goes on
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Finalize();
  if (rank == 0)
    std::printf("wrong: %d, thread level below multiple: %d\n", sum, level < MPI_THREAD_MULTIPLE);
  return sum == 0 ? 0 : 1;
}
