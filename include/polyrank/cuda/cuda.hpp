// Everything of the CUDA backend that a plain C++ compiler can include; kernels are in
// <polyrank/cuda.cuh>.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/backend.hpp>
#include <polyrank/cuda/blas.hpp>
#include <polyrank/cuda/communicator.hpp>
#include <polyrank/cuda/graph.hpp>
#include <polyrank/cuda/norm.hpp>
#include <polyrank/cuda/nvtx.hpp>
#include <polyrank/cuda/optimizer.hpp>
#include <polyrank/cuda/timeline.hpp>
