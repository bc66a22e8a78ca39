// Registered windows on NCCL ranks: all have one or none, and the sums are the same.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/ranks.hpp"

using namespace polyrank;
using namespace polyrank::test;

namespace {

std::size_t wrong_sums(cuda::communicator& comm, const grad_sync_options& o, bool* registered,
                       memory whose = memory::ours) {
  model m(whose, comm.rank());
  grad_sync sync(comm, m.parameters, all_reduce_sum{}, o);
  *registered = sync.registered();
  const auto n = static_cast<std::size_t>(comm.size());
  return wrong(step(sync, comm, 1, false, integer_gradient), n, integer_gradient);
}

std::size_t times_said(const cuda::communicator& comm, const std::string& text) {
  std::size_t count = 0;
  for (const std::string& w : comm.warnings()) count += w.find(text) != std::string::npos;
  return count;
}

} // namespace

TEST_CASE("the arena of grad_sync is a window on all ranks") {
  auto& comm = shared_comm();
  bool registered = false;
  const grad_sync_options o{.bucket_bytes = 4096, .leave = gradients_hold::sum};
  MPI_REQUIRE(MPI_COMM_WORLD, wrong_sums(comm, o, &registered) == 0);
  const bool possible = comm.size() > 1 && cuda::loaded_nccl() >= NCCL_VERSION(2, 27, 0);
  MPI_REQUIRE(MPI_COMM_WORLD, registered == possible);
  MPI_REQUIRE(MPI_COMM_WORLD, times_said(comm, "no NCCL windows") == 0);
}

TEST_CASE("one rank that refuses a window: none has one, which is said once") {
  auto& comm = shared_comm();
  if (comm.size() == 1) return;
  const int last = comm.size() - 1;
  for (int repeat = 0; repeat < 2; ++repeat) {
    bool registered = true;
    const grad_sync_options o{
        .bucket_bytes = 4096, .leave = gradients_hold::sum, .window = comm.rank() != last};
    MPI_REQUIRE(MPI_COMM_WORLD, wrong_sums(comm, o, &registered) == 0);
    MPI_REQUIRE(MPI_COMM_WORLD, !registered);
  }
  const std::string said =
      polyrank::detail::cat("no NCCL windows: rank ", last, ": it was told not to");
  MPI_REQUIRE(MPI_COMM_WORLD, times_said(comm, said) == 1);
}

TEST_CASE("ranks that all do without a window have nothing to say") {
  auto& comm = shared_comm();
  const std::size_t before = comm.warnings().size();
  bool registered = true;
  const grad_sync_options o{.leave = gradients_hold::sum, .window = false};
  MPI_REQUIRE(MPI_COMM_WORLD, wrong_sums(comm, o, &registered) == 0);
  MPI_REQUIRE(MPI_COMM_WORLD, !registered);
  MPI_REQUIRE(MPI_COMM_WORLD, comm.warnings().size() == before);
}

TEST_CASE("a rank whose gradients need less of the arena keeps all from a window") {
  auto& comm = shared_comm();
  if (comm.size() == 1) return;
  bool registered = true;
  const grad_sync_options o{.bucket_bytes = 1, // each parameter is a bucket, in place where it can
                            .tail_bytes = 1,
                            .leave = gradients_hold::sum};
  MPI_REQUIRE(MPI_COMM_WORLD, wrong_sums(comm, o, &registered,
                                         comm.rank() == 0 ? memory::users : memory::ours) == 0);
  MPI_REQUIRE(MPI_COMM_WORLD, !registered);
  MPI_REQUIRE(MPI_COMM_WORLD, times_said(comm, "rank 0 registers 0 bytes, rank 1 ") == 1);
}

TEST_CASE("windows come and go without a trace") {
  auto& comm = shared_comm();
  std::size_t before = 0, after = 0, total = 0;
  for (int k = 0; k < 101; ++k) {
    buffer<float> arena(100'000, cuda::window_memory());
    const cuda::window w = comm.register_window(arena.data(), arena.size_bytes());
    MPI_REQUIRE(MPI_COMM_WORLD, w.registered() == (comm.size() > 1));
    if (k == 0) cuda::check(cudaMemGetInfo(&before, &total), "cudaMemGetInfo");
  }
  cuda::check(cudaMemGetInfo(&after, &total), "cudaMemGetInfo");
  // 100 arenas of 2 MiB; other ranks on this GPU allocate at times, too.
  MPI_REQUIRE(MPI_COMM_WORLD, after + (std::size_t{64} << 20) > before);
}
