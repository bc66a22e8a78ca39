// The kernels that main.cpp uses.
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/cuda.cuh>

POLYRANK_INSTANTIATE_CUDA_OPS();
POLYRANK_INSTANTIATE_CUDA_OPTIMIZER(polyrank::adamw, float);
