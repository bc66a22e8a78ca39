// The test harness under test: hidden cases, each run on purpose by tests/support/CMakeLists.txt.
// SPDX-License-Identifier: Apache-2.0
#include "support/mpi_require.hpp"

#include <chrono>
#include <cstdlib>
#include <thread>

namespace {
int rank_of(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}
} // namespace

TEST_CASE("all ranks agree", "[.][agree]") {
  int sum = 1;
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_REQUIRE(MPI_COMM_WORLD, sum == size);
  MPI_CHECK(MPI_COMM_WORLD, sum > 0);
}

TEST_CASE("one rank fails alone", "[.][lone]") {
  const int rank = rank_of(MPI_COMM_WORLD);
  CHECK(rank != 1);
}

TEST_CASE("one rank's verdict fails all", "[.][verdict]") {
  const int rank = rank_of(MPI_COMM_WORLD);
  MPI_CHECK(MPI_COMM_WORLD, rank != 1);
  int sum = 1;
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_REQUIRE(MPI_COMM_WORLD, rank < 2);
}

TEST_CASE("an exception counts as a failed verdict", "[.][exception]") {
  const auto value = [] {
    if (rank_of(MPI_COMM_WORLD) == 1) {
      throw std::runtime_error("no value here");
    }
    return 3;
  };
  MPI_REQUIRE(MPI_COMM_WORLD, value() == 3);
}

TEST_CASE("one rank never comes", "[.][hang]") {
  if (rank_of(MPI_COMM_WORLD) == 1) {
    std::this_thread::sleep_for(std::chrono::minutes(5));
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("one rank dies", "[.][abort]") {
  if (rank_of(MPI_COMM_WORLD) == 1) {
    std::abort();
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("declared first", "[.][order]") { CHECK(rank_of(MPI_COMM_WORLD) != 0); }
TEST_CASE("and this one second", "[.][order]") { CHECK(rank_of(MPI_COMM_WORLD) != 0); }
