// The element-wise kernels of the classifier on the GPU; defined in cuda_kernels.cu. Each works on
// device memory, enqueues one launch, and sums in one fixed order: equal blocks give equal bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/dtype.hpp>
#include <polyrank/cuda/stream.hpp>

#include <cstddef>
#include <cstdint>

namespace polyrank::examples::cuda_kernels {

/// y[r][c] += b[c]
void add_bias(cuda::stream& s, float* y, const float* b, std::size_t rows, std::size_t columns);
/// sums[c] = sum over r of y[r][c]
void column_sums(cuda::stream& s, const float* y, float* sums, std::size_t rows,
                 std::size_t columns);
/// a = gelu(z), and dz = da * gelu'(z): the formulas of kernels.hpp
void gelu(cuda::stream& s, const float* z, float* a, std::size_t count);
void gelu_grad(cuda::stream& s, const float* z, const float* da, float* dz, std::size_t count);
/// *loss = mean cross entropy; d_logits = its gradient (may be the logits)
void softmax_cross_entropy(cuda::stream& s, const float* logits, const std::uint8_t* labels,
                           float* d_logits, float* loss, std::size_t rows, std::size_t classes);
/// best[r] = most probable class, confidence[r] = its probability
void classify(cuda::stream& s, const float* logits, float* best, float* confidence,
              std::size_t rows, std::size_t classes);
/// out = T(in * factor), for the matrix units
template <class T>
void shorten(cuda::stream& s, const float* in, T* out, std::size_t count, float factor);
/// The same with a factor in device memory
template <class T>
void narrow(cuda::stream& s, const float* in, T* out, std::size_t count, const float* factor);

} // namespace polyrank::examples::cuda_kernels
