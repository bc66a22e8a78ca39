// The child in which everything runs that calls CUDA or NCCL: polyrank/probe/gpu_worker.hpp is its
// parent's side.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace polyrank::examples {

/// Answers questions from standard input, one line each, until it ends. @returns the exit code
int run_gpu_worker();

} // namespace polyrank::examples
