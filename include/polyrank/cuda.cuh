// Everything of the CUDA backend for nvcc: the headers of cuda.hpp and the kernels.
//
//     #include <polyrank/cuda.cuh>
//     POLYRANK_INSTANTIATE_CUDA_OPS();
//     POLYRANK_INSTANTIATE_CUDA_OPTIMIZER(polyrank::adamw, float);
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/norm.cuh>
#include <polyrank/cuda/ops.cuh>
#include <polyrank/cuda/optimizer.cuh>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/optim/lion.hpp>
#include <polyrank/optim/sgd.hpp>
#include <polyrank/zero/cuda_ops.cuh>
