// store_ranks RANK SIZE tcp HOST:PORT | file FOLDER: one rank of a job without MPI. The ranks agree
// over the store, meet in NCCL, and train a step; rank 0 prints the verdict.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/support.hpp"

#include <polyrank/cuda/communicator.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/launch/file_store.hpp>
#include <polyrank/launch/tcp_store.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using namespace polyrank;

namespace {

cuda::control meet(int rank, int size, const std::string& how, const std::string& where) {
  if (how == "tcp")
    return cuda::control(launch::tcp_store(
        {.rank = rank, .size = size, .at = launch::address::parse(where), .key = "store_ranks"}));
  return cuda::control(launch::file_store({.rank = rank, .size = size, .folder = where}));
}

int train(cuda::control line) {
  const int rank = line.rank(), size = line.size();
  const int device = cuda::select_device(line, rank, size, cuda::sharing_allowed());
  cuda::check(cudaSetDevice(device), "cudaSetDevice");
  cuda::communicator comm(line, device);
  std::vector<buffer<float>> values;
  std::vector<parameter<float>> parameters;
  for (const std::size_t n : {std::size_t{1}, std::size_t{997}, std::size_t{30011}}) {
    values.push_back(test::up(std::vector<float>(n, static_cast<float>(rank + 5))));
    parameters.push_back({polyrank::detail::cat("p", n), n, values.back().data()});
  }
  grad_sync sync(comm, parameters, all_reduce_sum{}, {.leave = gradients_hold::sum});
  cuda::stream s;
  sync.begin(0, 1);
  for (std::size_t i = parameters.size(); i-- > 0;) {
    cuda::backend::fill(std::span<float>(sync.grad(i), parameters[i].count),
                        static_cast<float>(rank + 1), s);
    sync.ready(i, s);
  }
  sync.finish(s);
  s.synchronize();
  std::size_t bad = 0;
  const float sum = static_cast<float>(size * (size + 1)) / 2;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (const float x : test::down(std::span<const float>(sync.grad(i), parameters[i].count)))
      bad += x != sum;
    for (const float x : test::down(values[i])) bad += x != 5; // rank 0's
  }
  bool split_refused = false;
  try {
    static_cast<void>(comm.split(0, rank));
  } catch (const usage_error&) {
    split_refused = true;
  }
  const bool ok = line.all_reduce_max(bad == 0 && split_refused ? 0 : 1) == 0;
  if (rank == 0) std::printf("store_ranks: %d ranks without MPI: %s\n", size, ok ? "ok" : "WRONG");
  return ok ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const int rank = std::atoi(argv[1]), size = std::atoi(argv[2]);
  try {
    return train(meet(rank, size, argv[3], argv[4]));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "[rank %d/%d] error: %s\n", rank, size, e.what());
    return 1;
  }
}
