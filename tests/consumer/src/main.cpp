// A user's program of two translation units: sums the sizes of all shards over the ranks.
// SPDX-License-Identifier: Apache-2.0
#include "shard.hpp"

#include <polyrank/host/mpi_include.hpp>

#include <cstdio>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  unsigned long total = shard_size(10, size, rank);
  MPI_Allreduce(MPI_IN_PLACE, &total, 1, MPI_UNSIGNED_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    std::printf("consumer: polyrank %s, %lu elements\n", POLYRANK_VERSION_STRING, total);
  MPI_Finalize();
  return total == 10 ? 0 : 1;
}
