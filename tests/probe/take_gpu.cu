// take_gpu GIB [idle]: takes memory of GPU 0 and, unless idle, keeps it busy; prints "ready" and
// its pid, then goes on until somebody ends it.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include <unistd.h>

__global__ void work(unsigned char* memory, unsigned long long cycles) {
  const long long start = clock64();
  while (static_cast<unsigned long long>(clock64() - start) < cycles) memory[threadIdx.x] += 1;
}

int main(int argc, char** argv) {
  const double gib = argc > 1 ? std::atof(argv[1]) : 1;
  unsigned char* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<std::size_t>(gib * (1 << 30))) != cudaSuccess) {
    std::fputs("take_gpu: no memory\n", stderr);
    return 1;
  }
  std::printf("ready %d\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  for (;;) {
    if (argc > 2) {
      sleep(1);
      continue;
    }
    work<<<1, 32>>>(memory, 100'000'000);
    if (cudaDeviceSynchronize() != cudaSuccess) return 1;
  }
}
