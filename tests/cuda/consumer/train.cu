// One file, one compiler, one line: nvcc -std=c++20 -I... train.cu -lnccl -lmpi
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/cuda.cuh>
#include <polyrank/cuda/communicator.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/launch/run.hpp>

#include <cstdio>

__global__ void backward(float* gradient, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) gradient[i] = 1;
}

int main(int argc, char** argv) {
  using namespace polyrank;
  return launch::run(argc, argv, [](launch::world& world) {
    if (const std::string why = cuda::unusable(); !why.empty()) {
      std::printf("consumer: host backend, because %s\n", why.c_str());
      return 0;
    }
    cuda::communicator comm = cuda::join(world);
    cuda::stream s;
    buffer<float> w(1000, cuda::device_memory());
    cuda::backend::fill(w.span(), 0.0f, s);
    s.synchronize();
    grad_sync sync(comm, std::vector<parameter<float>>{{"w", w.size(), w.data()}});
    sync.begin(0, 1);
    backward<<<4, 256, 0, s.native()>>>(sync.grad(0), 1000);
    sync.ready(0, s);
    sync.finish(s);
    s.synchronize();
    std::printf("consumer: cuda backend\n");
    return 0;
  });
}
