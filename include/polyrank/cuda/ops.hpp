// Kernels that the backend launches: declared here for any compiler, defined in ops.cuh for nvcc.
//
// A program that uses them has one .cu file with the line
//
//     #include <polyrank/cuda.cuh>
//     POLYRANK_INSTANTIATE_CUDA_OPS();
//
// or is compiled by nvcc and includes cuda.cuh where it uses them. Without either the linker names
// the missing launch_... function. Sizes are 64-bit; n = 0 launches nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace polyrank::cuda::detail {

/// out[i] = value
template <class T>
void launch_fill(T* out, std::size_t n, T value, cudaStream_t s);

/// out = a + b; out may be a or b. 16-bit floats are added in fp32 and rounded once.
template <class T>
void launch_add(const T* a, const T* b, T* out, std::size_t n, cudaStream_t s);

/// out[i] *= factor, in fp32
template <class T>
void launch_scale(T* out, std::size_t n, float factor, cudaStream_t s);

/// out[i] = To(in[i]), through fp32
template <class To, class From>
void launch_cast(const From* in, To* out, std::size_t n, cudaStream_t s);

/// *hash += a sum over the words of `data` that depends on their places. Word is std::uint64_t.
template <class Word>
void launch_hash(const void* data, std::size_t bytes, Word* hash, cudaStream_t s);

} // namespace polyrank::cuda::detail
