// The kernels that the CUDA tests and benchmarks link, and one that only wastes time.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/support.hpp"

#include <polyrank/cuda.cuh>

POLYRANK_INSTANTIATE_CUDA_OPS();
POLYRANK_INSTANTIATE_CUDA_OPTIMIZER(polyrank::adamw, float);
POLYRANK_INSTANTIATE_CUDA_OPTIMIZER(polyrank::adamw, polyrank::bf16);
POLYRANK_INSTANTIATE_CUDA_OPTIMIZER(polyrank::sgd, float);
POLYRANK_INSTANTIATE_CUDA_ZERO();
POLYRANK_INSTANTIATE_CUDA_ZERO_NUMBERS(polyrank::adamw);
POLYRANK_INSTANTIATE_CUDA_ZERO_NUMBERS(polyrank::sgd);
POLYRANK_INSTANTIATE_CUDA_ZERO_UPDATE(polyrank::adamw, float);
POLYRANK_INSTANTIATE_CUDA_ZERO_UPDATE(polyrank::adamw, polyrank::bf16);
POLYRANK_INSTANTIATE_CUDA_ZERO_UPDATE(polyrank::adamw, polyrank::fp16);
POLYRANK_INSTANTIATE_CUDA_ZERO_UPDATE(polyrank::sgd, float);
POLYRANK_INSTANTIATE_CUDA_ZERO_UPDATE(polyrank::sgd, polyrank::bf16);
POLYRANK_INSTANTIATE_CUDA_ZERO_UPDATE(polyrank::sgd, polyrank::fp16);
POLYRANK_INSTANTIATE_CUDA_NORM(float);
POLYRANK_INSTANTIATE_CUDA_NORM(polyrank::bf16);

namespace polyrank::test {
namespace {

__global__ void spin(unsigned long long nanoseconds) {
  unsigned long long start = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

} // namespace

void delay(cuda::stream& s, std::chrono::microseconds time) {
  spin<<<1, 1, 0, s.native()>>>(static_cast<unsigned long long>(time.count()) * 1000);
  cuda::check(cudaGetLastError(), "kernel launch");
}

} // namespace polyrank::test
