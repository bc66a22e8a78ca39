// polyrank_probe_gpu: started by polyrank_probe, not by people.
// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker.hpp"

#include <cstdio>

#include <unistd.h>

int main(int argc, char**) {
  if (argc == 1 && isatty(0) == 0) return polyrank::examples::run_gpu_worker();
  std::fputs("polyrank_probe_gpu makes the GPU tests of polyrank_probe, which starts it; see "
             "polyrank_probe --help\n",
             stderr);
  return 2;
}
