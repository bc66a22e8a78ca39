// The MPI communicator, inside a program that started MPI itself (the test's main).
// SPDX-License-Identifier: Apache-2.0
#include "support/mpi_require.hpp"

#include "host/comm_cases.hpp"

#include <polyrank/launch/world.hpp>

#include <memory>
#include <thread>

using namespace polyrank;
using mpi_comm = host::communicator;
using host::stream;
using launch::world;

TEST_CASE("every collective is right for every size", "[communicator]") {
  world w = world::adopt(MPI_COMM_WORLD);
  mpi_comm comm = w.communicator();
  stream s = comm.make_stream();
  MPI_REQUIRE(MPI_COMM_WORLD, test::check_everything(comm, s) == 0);
}

TEST_CASE("messages are cut where MPI's count would overflow", "[communicator]") {
  // A limit of 1000 bytes stands for 2^31: 100003 elements are hundreds of messages.
  world w = world::adopt(MPI_COMM_WORLD, {.max_message = 1000});
  mpi_comm comm = w.communicator();
  stream s = comm.make_stream();
  MPI_REQUIRE(MPI_COMM_WORLD, test::check_everything(comm, s, {0, 1, 997, 30011}) == 0);
}

TEST_CASE("every tuning gives the same result", "[communicator]") {
  for (const host::tuning t :
       {host::tuning{.small_bytes = 0, .segment_bytes = 64, .lanes = 1},
        host::tuning{.small_bytes = 0, .segment_bytes = 100, .lanes = 3},
        host::tuning{.small_bytes = 1 << 30, .segment_bytes = 4096, .lanes = 2}}) {
    world w = world::adopt(MPI_COMM_WORLD, {.tuning = t});
    mpi_comm comm = w.communicator();
    stream s = comm.make_stream();
    MPI_REQUIRE(MPI_COMM_WORLD, test::check_everything(comm, s, {0, 1, 5, 97, 3001}) == 0);
  }
}

TEST_CASE("all ranks get the same bits of a float sum", "[communicator]") {
  world w = world::adopt(MPI_COMM_WORLD);
  mpi_comm comm = w.communicator();
  stream s = comm.make_stream();
  for (const std::size_t count : {100u, 100003u}) {
    std::vector<float> x(count);
    for (std::size_t i = 0; i < count; ++i)
      x[i] = 1.0f / static_cast<float>(i * 7 + static_cast<std::size_t>(comm.rank()) + 1);
    comm.all_reduce<float>(x, std::span(x), reduce_op::sum, on(s));
    s.synchronize();
    const auto hash = static_cast<std::int64_t>(hash_bytes(x.data(), count * sizeof(float)) >> 1);
    MPI_REQUIRE(MPI_COMM_WORLD, comm.control().all_reduce_max(hash) == hash);
  }
}

TEST_CASE("two communicators and their streams do not disturb each other", "[communicator]") {
  world w = world::adopt(MPI_COMM_WORLD);
  mpi_comm a = w.communicator(), b = w.communicator();
  stream s = a.make_stream(), t = b.make_stream();
  std::vector<float> x(20000, 1), y(20000, 2);
  // Issued in another order on odd ranks: legal, they are two communicators on two streams.
  for (int i = 0; i < 10; ++i) {
    const auto first = [&] { a.all_reduce<float>(x, std::span(x), reduce_op::max, on(s)); };
    const auto second = [&] { b.all_reduce<float>(y, std::span(y), reduce_op::max, on(t)); };
    if (w.rank() % 2 == 0) {
      first();
      second();
    } else {
      second();
      first();
    }
  }
  s.synchronize();
  t.synchronize();
  MPI_REQUIRE(MPI_COMM_WORLD, (x[19999] == 1 && y[19999] == 2));
}

TEST_CASE("split makes groups with their own messages", "[communicator]") {
  world w = world::adopt(MPI_COMM_WORLD);
  mpi_comm comm = w.communicator();
  mpi_comm half = comm.split(comm.rank() % 2, -comm.rank());
  mpi_comm again = half.split(0, half.rank());
  stream s = comm.make_stream();
  MPI_REQUIRE(MPI_COMM_WORLD, test::check_everything(half, s, {3, 20011}) == 0);
  std::vector<std::int32_t> mine{comm.rank()}, all(static_cast<std::size_t>(again.size()));
  again.all_gather<std::int32_t>(mine, std::span(all), on(s));
  s.synchronize();
  bool descending = true;
  for (std::size_t i = 1; i < all.size(); ++i) descending = descending && all[i - 1] == all[i] + 2;
  MPI_REQUIRE(MPI_COMM_WORLD, descending);
  MPI_REQUIRE(MPI_COMM_WORLD, test::check_everything(comm, s, {100}) == 0);
}

TEST_CASE("the control channel of MPI", "[communicator]") {
  world w = world::adopt(MPI_COMM_WORLD);
  mpi_comm comm = w.communicator();
  const auto all =
      comm.control().all_gather(std::string(static_cast<std::size_t>(3 * comm.rank()), 'x'));
  bool right = all.size() == static_cast<std::size_t>(comm.size());
  for (std::size_t r = 0; right && r < all.size(); ++r) right = all[r] == std::string(3 * r, 'x');
  MPI_REQUIRE(MPI_COMM_WORLD, right);
  MPI_REQUIRE(MPI_COMM_WORLD, comm.control().all_reduce_max(comm.rank()) == comm.size() - 1);
  comm.control().barrier(std::chrono::seconds(20));
}

TEST_CASE("a barrier that not all reach ends at its deadline", "[communicator]") {
  world w = world::adopt(MPI_COMM_WORLD);
  mpi_comm comm = w.communicator();
  bool timed_out = comm.rank() == 0 || comm.size() == 1;
  if (comm.rank() != 0) {
    try {
      comm.control().barrier(std::chrono::milliseconds(200));
    } catch (const timeout_error&) {
      timed_out = true;
    }
  }
  MPI_REQUIRE(MPI_COMM_WORLD, timed_out);
}

TEST_CASE("one rank aborts: all waiting operations end with its cause, MPI lives on",
          "[communicator][abort]") {
  for (int round = 0; round < 3; ++round) {
    world w = world::adopt(MPI_COMM_WORLD);
    mpi_comm comm = w.communicator();
    stream s = comm.make_stream();
    std::vector<float> x(50000);
    std::string told;
    try {
      if (comm.rank() == comm.size() - 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20 * round));
        comm.abort("rank x: out of patience");
        comm.check();
      } else {
        comm.all_reduce<float>(x, std::span(x), reduce_op::sum, on(s, "never"));
        s.synchronize();
      }
    } catch (const aborted_error& e) {
      told = e.cause();
    }
    MPI_REQUIRE(MPI_COMM_WORLD, told == "rank x: out of patience");
  }
}

TEST_CASE("an adopted world that an exception leaves releases its peers, the caller's MPI goes on",
          "[communicator][abort]") {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  // Large vectors go back to the system when they are freed: MPI must not read them any more.
  for (const std::size_t elements : {50000, 1 << 20, 1 << 20}) {
    std::string told;
    try {
      world w = world::adopt(MPI_COMM_WORLD);
      mpi_comm comm = w.communicator();
      stream s = comm.make_stream();
      std::vector<float> x(elements);
      if (rank == 0) throw data_error("file is gone");
      comm.all_reduce<float>(x, std::span(x), reduce_op::sum, on(s));
      s.synchronize();
    } catch (const error& e) {
      told = e.what();
    }
    MPI_REQUIRE(MPI_COMM_WORLD,
                (rank == 0 ? told == "file is gone"
                           : told.find("aborted: rank 0/") == 0 &&
                                 told.find("left by an exception") != std::string::npos));
  }
  int one = 1, sum = 0, size = 0;
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_REQUIRE(MPI_COMM_WORLD, sum == size);
  world again = world::adopt(MPI_COMM_WORLD); // and polyrank can start anew
  mpi_comm comm = again.communicator();
  stream s = comm.make_stream();
  MPI_REQUIRE(MPI_COMM_WORLD, test::check_everything(comm, s, {1000}) == 0);
}

TEST_CASE("bytes sent are counted", "[communicator]") {
  world w = world::adopt(MPI_COMM_WORLD);
  mpi_comm comm = w.communicator();
  stream s = comm.make_stream();
  const auto before = w.engine().bytes_sent();
  std::vector<float> x(1 << 16);
  comm.all_reduce<float>(x, std::span(x), reduce_op::sum, on(s));
  s.synchronize();
  const auto n = static_cast<std::uint64_t>(comm.size());
  const auto expected = 2 * (n - 1) * ((x.size() + n - 1) / n) * sizeof(float);
  const auto sent = w.engine().bytes_sent() - before;
  MPI_REQUIRE(MPI_COMM_WORLD, (sent <= expected && sent + 2 * n * sizeof(float) * n >= expected));
}

TEST_CASE("the world knows its ranks and hosts", "[world]") {
  world w = world::adopt(MPI_COMM_WORLD);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_REQUIRE(MPI_COMM_WORLD, (w.rank() == rank && w.size() == size));
  MPI_REQUIRE(MPI_COMM_WORLD, (w.local_size() == size && w.local_rank() == rank && w.hosts() == 1));
  MPI_REQUIRE(MPI_COMM_WORLD, !w.owns_mpi());
  MPI_REQUIRE(MPI_COMM_WORLD, !w.host().empty());
}
