// inject on the GPU, with NCCL.
// SPDX-License-Identifier: Apache-2.0
#include "tools/hang/inject_job.hpp"

#include <polyrank/cuda/communicator.hpp>

namespace polyrank::examples {

void spin_forever(cudaStream_t s); // spin.cu

namespace {

struct cuda_side {
  using communicator = cuda::communicator;
  using stream = cuda::stream;

  static communicator join(launch::world& world) { return cuda::join(world); }
  static std::pmr::memory_resource& memory() { return cuda::device_memory(); }
  static void block(stream& s) { spin_forever(s.native()); }
  template <class Body>
  static void capture(stream& s, Body body) {
    cudaGraph_t graph = nullptr;
    cuda::check(cudaStreamBeginCapture(s.native(), cudaStreamCaptureModeThreadLocal),
                "cudaStreamBeginCapture");
    body();
    cuda::check(cudaStreamEndCapture(s.native(), &graph), "cudaStreamEndCapture");
    cuda::check(cudaGraphInstantiate(&captured, graph, 0), "cudaGraphInstantiate");
    cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  static void replay(stream& s) {
    cuda::check(cudaGraphLaunch(captured, s.native()), "cudaGraphLaunch");
  }

  static inline cudaGraphExec_t captured = nullptr; // until the process ends
};

} // namespace

int run_inject_cuda(int argc, char** argv, const inject_flags& flags) {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const char* ranks = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (rank != nullptr && ranks != nullptr && std::atoi(ranks) > cuda::device_count()) {
    // Several ranks on one GPU, as scripts/gpu_ranks.sh sets it up.
    ::setenv("POLYRANK_SHARE_GPU", "1", 0);
    ::setenv("NCCL_HOSTID", polyrank::detail::cat("polyrank-", rank).c_str(), 0);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    ::setenv("NCCL_IB_DISABLE", "1", 0);
    ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  }
  return launch::run(argc, argv, [&](launch::world& world) {
    if (flags.scenario == "join" && world.rank() == flags.rank) {
      announce();
      sleep_forever();
    }
    return job<cuda_side>(world, flags).run();
  });
}

} // namespace polyrank::examples
