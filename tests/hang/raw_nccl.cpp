// raw_nccl ID_FILE FAULT: a program that knows nothing of polyrank. One rank of a job, as the
// launcher's environment says (OMPI_COMM_WORLD_RANK and _SIZE); the NCCL id goes through a file.
// Rank 1 is at fault, in one of the ways below. Used to see what NCCL and the preloaded library
// say.
// SPDX-License-Identifier: Apache-2.0
#include <nccl.h>

#include <cuda_runtime_api.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <unistd.h>

namespace {

int rank_ = 0, size_ = 1;

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

void must(ncclResult_t code, const char* call) {
  if (code == ncclSuccess) return;
  std::fprintf(stderr, "rank %d: %s: %s (%s)\n", rank_, call, ncclGetErrorString(code),
               ncclGetLastError(nullptr));
  std::fflush(nullptr);
  _exit(3);
}
#ifndef RAW_NCCL_WITHOUT_GPU
void must(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "rank %d: %s: %s\n", rank_, call, cudaGetErrorString(code));
  std::fflush(nullptr);
  _exit(4);
}
#endif

ncclUniqueId share_id(const std::string& file) {
  ncclUniqueId id{};
  if (rank_ == 0 && access(file.c_str(), F_OK) != 0) {
    must(ncclGetUniqueId(&id), "ncclGetUniqueId");
    std::FILE* f = std::fopen((file + ".new").c_str(), "wb");
    std::fwrite(&id, sizeof id, 1, f);
    std::fclose(f);
    std::rename((file + ".new").c_str(), file.c_str());
    return id;
  }
  for (std::FILE* f = nullptr;; std::this_thread::sleep_for(std::chrono::milliseconds(20)))
    if ((f = std::fopen(file.c_str(), "rb")) != nullptr) {
      const bool whole = std::fread(&id, sizeof id, 1, f) == 1;
      std::fclose(f);
      if (whole) return id;
    }
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string fault = argv[2];
  rank_ = number("OMPI_COMM_WORLD_RANK", 0);
  size_ = number("OMPI_COMM_WORLD_SIZE", 1);
  const bool here = rank_ == 1;
  constexpr std::size_t count = 1 << 16;
  const auto rest = [] { std::this_thread::sleep_for(std::chrono::hours(1)); };

  float* data = nullptr;
  cudaStream_t stream = nullptr;
#ifndef RAW_NCCL_WITHOUT_GPU
  int devices = 0;
  must(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  must(cudaSetDevice(fault == "device" ? 0 : rank_ % devices), "cudaSetDevice");
  must(cudaStreamCreate(&stream), "cudaStreamCreate");
  must(cudaMalloc(&data, 2 * count * sizeof(float)), "cudaMalloc");
  if (fault == "memory") { // nothing is left for NCCL
    std::size_t free = 0, total = 0;
    for (void* hole = nullptr; cudaMemGetInfo(&free, &total) == cudaSuccess && free > (1u << 20);)
      if (cudaMalloc(&hole, free / 2) != cudaSuccess) break;
    static_cast<void>(cudaGetLastError());
  }
#else
  static float memory[2 * count];
  data = memory;
#endif
  if (here && fault == "missing") rest();
  const ncclUniqueId id = share_id(argv[1]);
  ncclComm_t comm = nullptr;
  must(ncclCommInitRank(&comm, size_, id, rank_), "ncclCommInitRank");

  const auto finish = [&] {
#ifndef RAW_NCCL_WITHOUT_GPU
    for (cudaError_t code; (code = cudaStreamQuery(stream)) != cudaSuccess;) {
      if (code != cudaErrorNotReady) must(code, "cudaStreamQuery");
      ncclResult_t error = ncclSuccess;
      must(ncclCommGetAsyncError(comm, &error), "ncclCommGetAsyncError");
      must(error, "a collective");
      usleep(1000);
    }
#endif
  };
  for (int step = 0; step < 8; ++step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(60)); // it calculates
    const bool now = here && step == 5;
    if (now) {
      std::fprintf(stderr, "fault now\n");
      if (fault == "kill") std::raise(SIGKILL);
      if (fault == "sleep") rest();
      if (fault == "exit") _exit(0);
    }
    if (now && fault == "root")
      must(ncclBroadcast(data, data, count, ncclFloat, 7, comm, stream), "ncclBroadcast");
    if (!(now && fault == "skip"))
      must(ncclAllReduce(data, data,
                         count - 64 * static_cast<std::size_t>(step % 3) -
                             (now && fault == "count" ? 7 : 0),
                         ncclFloat, ncclSum, comm, stream),
           "ncclAllReduce");
    if (step < 3) {
      must(ncclGroupStart(), "ncclGroupStart");
      must(ncclSend(data, 1024, ncclFloat, (rank_ + 1) % size_, comm, stream), "ncclSend");
      must(ncclRecv(data + count, 1024, ncclFloat, (rank_ + size_ - 1) % size_, comm, stream),
           "ncclRecv");
      must(ncclGroupEnd(), "ncclGroupEnd");
    }
    finish();
  }
  must(ncclCommDestroy(comm), "ncclCommDestroy");
  if (rank_ == 0) std::printf("raw_nccl: done\n");
  return 0;
}
