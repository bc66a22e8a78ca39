// Exits with 0 where CUDA can be used, else says why not and exits with 77: skipped.
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/cuda/device.hpp>

#include <cstdio>

int main() {
  const std::string why = polyrank::cuda::unusable();
  if (why.empty()) return 0;
  std::printf("skipped: %s\n", why.c_str());
  return 77;
}
