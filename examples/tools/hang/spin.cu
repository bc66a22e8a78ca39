// A kernel that never ends.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

namespace polyrank::examples {
namespace {

__global__ void spin(const volatile int* never) {
  while (*never == 0) {
  }
}

} // namespace

void spin_forever(cudaStream_t s) {
  int* never = nullptr;
  cudaMalloc(&never, sizeof *never);
  cudaMemset(never, 0, sizeof *never);
  cudaDeviceSynchronize();
  spin<<<1, 1, 0, s>>>(never);
}

} // namespace polyrank::examples
