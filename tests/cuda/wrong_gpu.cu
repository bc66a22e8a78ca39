// Compiled for compute capability 7.5 alone: on any other GPU the first launch must say what to do.
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/backend/buffer.hpp>
#include <polyrank/cuda.cuh>
#include <polyrank/cuda/backend.hpp>

#include <cstdio>
#include <string>

int main() {
  using namespace polyrank;
  if (cuda::describe(0).major == 7) {
    std::puts("skipped: this GPU can run the code");
    return 77;
  }
  try {
    cuda::stream s;
    buffer<float> x(16, cuda::device_memory());
    cuda::backend::fill(x.span(), 1.0f, s);
    s.synchronize();
  } catch (const cuda::cuda_error& e) {
    std::puts(e.what());
    return std::string(e.what()).find("rebuild with CMAKE_CUDA_ARCHITECTURES") == std::string::npos;
  }
  std::puts("no error");
  return 1;
}
