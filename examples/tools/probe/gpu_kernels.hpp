// The few kernels of the GPU tests; launched on a stream, defined in gpu_kernels.cu.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hash.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace polyrank::examples::gpu_kernels {

/// Word i of the pattern of a seed.
[[nodiscard]] POLYRANK_HD constexpr std::uint64_t pattern(std::uint64_t seed, std::size_t i) {
  return mix(seed * 0x100000001b3ULL + i);
}
/// Element i of the ramp of a base: exact in fp32, also when summed over thousands of ranks.
[[nodiscard]] POLYRANK_HD constexpr float ramp(float base, std::size_t i) {
  return base + static_cast<float>(i % 7);
}

void fill_pattern(std::uint64_t* out, std::size_t words, std::uint64_t seed, cudaStream_t s);
/// *count += words that are not the pattern's.
void count_pattern_faults(const std::uint64_t* in, std::size_t words, std::uint64_t seed,
                          unsigned long long* count, cudaStream_t s);
/// Values of either sign with magnitudes from 1 to 2, as bf16 or fp16.
void fill_units(std::uint16_t* out, std::size_t n, bool bf16, cudaStream_t s);
/// out[i] = ramp(base, start + i)
void fill_ramp(float* out, std::size_t n, float base, std::size_t start, cudaStream_t s);
/// *count += elements that are not factor * ramp(0, start + i) + base.
void count_ramp_faults(const float* in, std::size_t n, float base, float factor, std::size_t start,
                       unsigned long long* count, cudaStream_t s);

/// a[r][c] = max(0, z[r][c] + bias[c]); without `relu`: the sum.
void add_bias(const float* z, const float* bias, float* a, int rows, int columns, bool relu,
              cudaStream_t s);
/// Softmax cross-entropy of each row: loss[r], and d = (softmax - one_hot(label)) / rows.
void softmax_loss(const float* logits, const int* labels, float* loss, float* d, int rows,
                  int columns, cudaStream_t s);
/// d[i] = a[i] > 0 ? d[i] : 0
void relu_backward(const float* a, float* d, std::size_t n, cudaStream_t s);
/// out[c] = sum of d[.][c]
void sum_rows(const float* d, float* out, int rows, int columns, cudaStream_t s);

} // namespace polyrank::examples::gpu_kernels
