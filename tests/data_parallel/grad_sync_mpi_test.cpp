// grad_sync under mpirun: a pairwise selection of what the loopback suite covers in full.
// SPDX-License-Identifier: Apache-2.0
#include "support/mpi_require.hpp"

#include "data_parallel/sync_cases.hpp"

#include <polyrank/data_parallel/all_to_all_sum.hpp>
#include <polyrank/data_parallel/error_feedback.hpp>
#include <polyrank/data_parallel/hierarchical.hpp>
#include <polyrank/data_parallel/reduce_scatter_sum.hpp>
#include <polyrank/launch/world.hpp>

using namespace polyrank;
using namespace polyrank::test;
using host::stream;

TEST_CASE("integer gradients equal the serial sum", "[grad_sync]") {
  launch::world world = launch::world::adopt(MPI_COMM_WORLD);
  auto comm = world.communicator();
  const auto n = static_cast<std::size_t>(comm.size());
  const struct {
    memory whose;
    std::size_t bucket, micros;
  } cases[] = {{memory::ours, 1, 1},
               {memory::ours, 1 << 20, 3},
               {memory::users_contiguous, 600, 1},
               {memory::users_partly, 600, 3},
               {memory::users_scattered, 1 << 20, 1}};
  for (const auto& c : cases) {
    model m(odd_counts, c.whose);
    grad_sync sync(
        comm, m.parameters, all_reduce_sum{},
        {.bucket_bytes = c.bucket, .tail_bytes = c.bucket, .leave = gradients_hold::sum});
    stream s = comm.make_stream();
    for (int step = 0; step < 2; ++step)
      backward(sync, s, comm.rank(), c.micros, false, integer_gradient);
    s.synchronize();
    MPI_REQUIRE(MPI_COMM_WORLD, wrong(sync, c.micros * n, 1.0f, integer_gradient) == 0);
  }
}

TEST_CASE("float gradients are within the bound of a serial sum, equal on all ranks",
          "[grad_sync]") {
  launch::world world = launch::world::adopt(MPI_COMM_WORLD);
  auto comm = world.communicator();
  const auto n = static_cast<std::size_t>(comm.size());
  model m({100003, 17, 0, 1});
  grad_sync sync(comm, m.parameters, all_reduce_sum{}, {.leave = gradients_hold::sum});
  stream s = comm.make_stream();
  backward(sync, s, comm.rank(), 1, false, rough_gradient);
  s.synchronize();
  double worst = 0;
  for (std::size_t k = 0; k < 100003; ++k) {
    double sum = 0;
    for (std::size_t r = 0; r < n; ++r) sum += static_cast<double>(rough_gradient(0, k, r));
    worst = std::max(worst,
                     std::abs(static_cast<double>(sync.grad(0)[k]) - sum) / std::max(1e-30, sum));
  }
  MPI_REQUIRE(MPI_COMM_WORLD, worst <= 1e-6); // n - 1 roundings of positive terms
  const auto mine = static_cast<std::int64_t>(digest(sync) >> 1);
  MPI_REQUIRE(MPI_COMM_WORLD, comm.control().all_reduce_max(mine) == mine);
}

TEST_CASE("deterministic mode gives the bits of one rank", "[grad_sync][deterministic]") {
  launch::world world = launch::world::adopt(MPI_COMM_WORLD);
  auto comm = world.communicator();
  const auto n = static_cast<std::size_t>(comm.size());
  if (8 % n != 0) return; // refused: see the loopback suite
  const auto train = [](auto& c, stream& s, std::size_t blocks_here) {
    model m(odd_counts);
    grad_sync sync(c, m.parameters, deterministic{8},
                   {.bucket_bytes = 900, .leave = gradients_hold::sum});
    for (int step = 0; step < 2; ++step)
      backward(sync, s, c.rank(), blocks_here, true, rough_gradient);
    s.synchronize();
    return digest(sync);
  };
  stream s = comm.make_stream();
  auto alone = comm.split(comm.rank(), 0);
  const std::uint64_t serial = train(alone, s, 8), parallel = train(comm, s, 8 / n);
  MPI_REQUIRE(MPI_COMM_WORLD, serial == parallel);
}

TEST_CASE("every policy is exact for what its wire holds", "[policies]") {
  launch::world world = launch::world::adopt(MPI_COMM_WORLD);
  auto comm = world.communicator();
  const auto n = static_cast<std::size_t>(comm.size());
  stream s = comm.make_stream();
  const auto tiny = [](std::size_t i, std::size_t k, std::size_t block) {
    return static_cast<float>(mix(i * 31 + k * 7 + block) % 13);
  };
  const auto exact = [&](auto policy, std::size_t bucket, memory whose) {
    model m(odd_counts, whose);
    grad_sync sync(comm, m.parameters, policy,
                   {.bucket_bytes = bucket, .tail_bytes = bucket, .leave = gradients_hold::sum});
    for (int step = 0; step < 2; ++step) backward(sync, s, comm.rank(), 1, false, tiny);
    s.synchronize();
    return wrong(sync, n, 1.0f, tiny) == 0;
  };
  MPI_REQUIRE(MPI_COMM_WORLD, exact(reduce_scatter_sum{}, 600, memory::ours));
  MPI_REQUIRE(MPI_COMM_WORLD, exact(all_to_all_sum<float>{}, 1, memory::users_partly));
  MPI_REQUIRE(MPI_COMM_WORLD, exact(all_to_all_sum<bf16>{}, 1 << 20, memory::ours));
  MPI_REQUIRE(MPI_COMM_WORLD, exact(all_to_all_sum<fp16>{}, 600, memory::users_scattered));
  MPI_REQUIRE(MPI_COMM_WORLD, exact(error_feedback<>{}, 600, memory::users_partly));
  const int inside = comm.size() % 2 == 0 ? 2 : 1;
  auto host = comm.split(comm.rank() / inside, comm.rank());
  auto across = comm.split(host.rank(), comm.rank());
  MPI_REQUIRE(MPI_COMM_WORLD, exact(hierarchical{host, across}, 600, memory::ours));
  MPI_REQUIRE(MPI_COMM_WORLD,
              exact(hierarchical{host, across, all_to_all_sum<bf16>{}}, 600, memory::users_partly));
}

TEST_CASE("a parameter that one rank forgets is named on every rank", "[grad_sync][bad_input]") {
  std::string told;
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  try {
    launch::world world = launch::world::adopt(MPI_COMM_WORLD);
    auto comm = world.communicator();
    model m({50000, 50000});
    grad_sync sync(comm, m.parameters, all_reduce_sum{}, {.bucket_bytes = 1, .tail_bytes = 1});
    stream s = comm.make_stream();
    sync.begin(0, 1);
    sync.ready(1, s);
    if (comm.rank() != size - 1) sync.ready(0, s);
    sync.finish(s);
    s.synchronize();
  } catch (const error& e) {
    told = e.what();
  }
  MPI_REQUIRE(MPI_COMM_WORLD, told.find("never made ready (or unused): 'p0'") != std::string::npos);
}

TEST_CASE("different models are refused on every rank with the first difference",
          "[grad_sync][bad_input]") {
  launch::world world = launch::world::adopt(MPI_COMM_WORLD);
  auto comm = world.communicator();
  if (comm.size() == 1) return;
  model m(comm.rank() == 1 ? std::vector<std::size_t>{5, 6} : std::vector<std::size_t>{5, 7});
  std::string told;
  try {
    grad_sync sync(comm, m.parameters);
  } catch (const mismatch_error& e) {
    told = e.what();
  }
  MPI_REQUIRE(
      MPI_COMM_WORLD,
      told == "the ranks have different models: rank 0 has parameter 1 'p1' of 7 f32, rank 1 has "
              "parameter 1 'p1' of 6 f32");
}

TEST_CASE("verify_replicas finds a flipped bit", "[grad_sync][verify]") {
  launch::world world = launch::world::adopt(MPI_COMM_WORLD);
  auto comm = world.communicator();
  if (comm.size() == 1) return;
  model m({10, 20});
  stream s = comm.make_stream();
  grad_sync sync(comm, m.parameters);
  sync.verify_replicas(s);
  if (comm.rank() == comm.size() - 1) m.parameters[1].value[3] = -0.0f;
  std::string told;
  try {
    sync.verify_replicas(s);
  } catch (const mismatch_error& e) {
    told = e.what();
  }
  MPI_REQUIRE(MPI_COMM_WORLD,
              told == "replicas differ: parameter 'p1' has other bits than on rank 0 on rank " +
                          std::to_string(comm.size() - 1));
}
