// The element-wise arithmetic of the classifier on host memory. Sums run in one fixed order, so
// equal blocks give equal bits on every rank.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace polyrank::examples::kernels {

/// tanh within 4e-7.
[[nodiscard]] float fast_tanh(float x) noexcept;

/// a = z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))): Hendrycks & Gimpel, arXiv:1606.08415
void gelu(const float* z, float* a, std::size_t count) noexcept;

/// dz = da * gelu'(z); dz may be da
void gelu_grad(const float* z, const float* da, float* dz, std::size_t count) noexcept;

/// y[r][c] += b[c]
void add_bias(float* y, const float* b, std::size_t rows, std::size_t columns) noexcept;

/// sums[c] = y[0][c] + y[1][c] + ...
void column_sums(const float* y, float* sums, std::size_t rows, std::size_t columns) noexcept;

/// Mean over rows of -log softmax(logits)[label]; d_logits = (softmax - one_hot) / rows.
[[nodiscard]] float softmax_cross_entropy(const float* logits, const std::uint8_t* labels,
                                          float* d_logits, std::size_t rows,
                                          std::size_t classes) noexcept;

/// best[r] = the class with the highest logit (the first of equals), confidence[r] = its
/// probability
void classify(const float* logits, float* best, float* confidence, std::size_t rows,
              std::size_t classes) noexcept;

} // namespace polyrank::examples::kernels
