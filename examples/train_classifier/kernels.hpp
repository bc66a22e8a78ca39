// The element-wise arithmetic of the classifier, as plain loops. Sums run in one fixed order, so
// equal blocks give equal bits on every rank.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace polyrank::examples::kernels {

/// tanh within 4e-7, by the rational approximation that Eigen uses: the C library's tanh keeps a
/// loop from being vectorised.
[[nodiscard]] inline float fast_tanh(float x) noexcept {
  x = std::min(std::max(x, -7.90531110763549805f), 7.90531110763549805f);
  const float x2 = x * x;
  float p = -2.76076847742355e-16f;
  for (const float c : {2.00018790482477e-13f, -8.60467152213735e-11f, 5.12229709037114e-08f,
                        1.48572235717979e-05f, 6.37261928875436e-04f, 4.89352455891786e-03f})
    p = p * x2 + c;
  float q = 1.19825839466702e-06f;
  for (const float c : {1.18534705686654e-04f, 2.26843463243900e-03f, 4.89352518554385e-03f})
    q = q * x2 + c;
  return x * p / q;
}

inline constexpr float gelu_scale = 0.7978845608028654f; // sqrt(2 / pi)
inline constexpr float gelu_cubic = 0.044715f;

/// a = z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))): Hendrycks & Gimpel, arXiv:1606.08415
inline void gelu(const float* z, float* a, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const float x = z[i];
    a[i] = 0.5f * x * (1 + fast_tanh(gelu_scale * (x + gelu_cubic * x * x * x)));
  }
}

/// dz = da * gelu'(z)
inline void gelu_grad(const float* z, const float* da, float* dz, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const float x = z[i];
    const float t = fast_tanh(gelu_scale * (x + gelu_cubic * x * x * x));
    const float inner = gelu_scale * (1 + 3 * gelu_cubic * x * x);
    dz[i] = da[i] * (0.5f * (1 + t) + 0.5f * x * (1 - t * t) * inner);
  }
}

inline void add_bias(float* y, const float* b, std::size_t rows, std::size_t columns) noexcept {
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns; ++c) y[r * columns + c] += b[c];
}

inline void column_sums(const float* y, float* sums, std::size_t rows,
                        std::size_t columns) noexcept {
  std::fill(sums, sums + columns, 0.0f);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns; ++c) sums[c] += y[r * columns + c];
}

/// Mean over rows of -log softmax(logits)[label]; d_logits = (softmax - one_hot) / rows.
[[nodiscard]] inline float softmax_cross_entropy(const float* logits, const std::uint8_t* labels,
                                                 float* d_logits, std::size_t rows,
                                                 std::size_t classes) noexcept {
  const float weight = 1 / static_cast<float>(rows);
  double total = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    const float* row = logits + r * classes;
    float* out = d_logits + r * classes;
    const float high = *std::max_element(row, row + classes), at_label = row[labels[r]];
    float sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += out[c] = std::exp(row[c] - high);
    total += static_cast<double>(std::log(sum) + high - at_label);
    for (std::size_t c = 0; c < classes; ++c) out[c] = out[c] / sum * weight;
    out[labels[r]] -= weight;
  }
  return static_cast<float>(total / static_cast<double>(rows));
}

inline void classify(const float* logits, float* best, float* confidence, std::size_t rows,
                     std::size_t classes) noexcept {
  for (std::size_t r = 0; r < rows; ++r) {
    const float* row = logits + r * classes;
    const float* high = std::max_element(row, row + classes);
    float sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += std::exp(row[c] - *high);
    best[r] = static_cast<float>(high - row);
    confidence[r] = 1 / sum;
  }
}

} // namespace polyrank::examples::kernels
