// A program that started MPI itself, below MPI_THREAD_MULTIPLE: polyrank serves it on the calling
// thread, refuses worker streams, and leaves MPI running, its error handler as it was. Then MPI is
// finalised while a world is alive (with argument `multiple`: one whose engine is a thread): its
// operations fail with the reason, and no new world can be had.
// SPDX-License-Identifier: Apache-2.0
#include "host/comm_cases.hpp"

#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/launch/world.hpp>

#include <cstdio>
#include <string>

using namespace polyrank;

namespace {

void on_error(MPI_Comm*, int*, ...) {}

/// Whether `f` throws an E whose text has `text` in it.
template <class E, class F>
bool throws(F f, const char* text) {
  try {
    f();
  } catch (const E& e) {
    return std::string(e.what()).find(text) != std::string::npos;
  }
  return false;
}

} // namespace

int main(int argc, char** argv) {
  const bool multiple = argc > 1 && std::string(argv[1]) == "multiple";
  std::size_t bad = 0;
  const auto adopt = [] { return launch::world::adopt(MPI_COMM_WORLD); };
  if (!throws<usage_error>(adopt, "MPI is not initialised")) ++bad;
  int level = 0;
  MPI_Init_thread(&argc, &argv, multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED, &level);
  MPI_Errhandler handler, after;
  MPI_Comm_create_errhandler(on_error, &handler);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
  if (!multiple) {
    launch::world world = adopt();
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
    if (!throws<usage_error>(
            [&] { comm.all_reduce<float>(x, std::span(x), reduce_op::sum, on(worker)); },
            "comm.make_stream()"))
      ++bad;
  }
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
  if (after != handler) ++bad;
  int mine = static_cast<int>(bad), sum = -1, rank = 0;
  MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD); // MPI goes on
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int late = 0; // mistakes after MPI has gone, on this rank
  {
    launch::world outlives = adopt();
    auto comm = outlives.communicator();
    host::stream s = comm.make_stream();
    MPI_Finalize();
    const auto use = [&] {
      std::vector<float> x(5);
      comm.all_reduce<float>(x, std::span(x), reduce_op::sum, on(s));
      s.synchronize();
    };
    if (!throws<aborted_error>(use, "MPI_Finalize was called while this world was alive")) ++late;
  }
  if (!throws<usage_error>(adopt, "MPI is finalised already")) ++late;
  if (rank == 0)
    std::printf("wrong: %d, thread level below multiple: %d\n", sum, level < MPI_THREAD_MULTIPLE);
  return sum == 0 && late == 0 ? 0 : 1;
}
