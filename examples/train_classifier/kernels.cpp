// Compiled with -fno-math-errno -fno-trapping-math: they change no value, but let the loops become
// vector code.
// SPDX-License-Identifier: Apache-2.0
#include "train_classifier/kernels.hpp"

#include <algorithm>
#include <cmath>

namespace polyrank::examples::kernels {

namespace {

// The rational approximation that Eigen uses: the C library's tanh keeps a loop from being
// vectorised.
inline float rational_tanh(float x) noexcept {
  constexpr float limit = 7.90531110763549805f; // tanh is 1 beyond it, in fp32
  x = x < -limit ? -limit : x;
  x = x > limit ? limit : x;
  const float y = x * x;
  const float p = 4.89352455891786e-03f +
                  y * (6.37261928875436e-04f +
                       y * (1.48572235717979e-05f +
                            y * (5.12229709037114e-08f +
                                 y * (-8.60467152213735e-11f +
                                      y * (2.00018790482477e-13f + y * -2.76076847742355e-16f)))));
  const float q =
      4.89352518554385e-03f +
      y * (2.26843463243900e-03f + y * (1.18534705686654e-04f + y * 1.19825839466702e-06f));
  return x * p / q;
}

constexpr float gelu_scale = 0.7978845608028654f; // sqrt(2 / pi)
constexpr float gelu_cubic = 0.044715f;

} // namespace

float fast_tanh(float x) noexcept { return rational_tanh(x); }

void gelu(const float* z, float* a, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const float x = z[i];
    a[i] = 0.5f * x * (1 + rational_tanh(gelu_scale * (x + gelu_cubic * x * x * x)));
  }
}

void gelu_grad(const float* z, const float* da, float* dz, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const float x = z[i];
    const float t = rational_tanh(gelu_scale * (x + gelu_cubic * x * x * x));
    const float inner = gelu_scale * (1 + 3 * gelu_cubic * x * x);
    dz[i] = da[i] * (0.5f * (1 + t) + 0.5f * x * (1 - t * t) * inner);
  }
}

void add_bias(float* y, const float* b, std::size_t rows, std::size_t columns) noexcept {
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns; ++c) y[r * columns + c] += b[c];
}

void column_sums(const float* y, float* sums, std::size_t rows, std::size_t columns) noexcept {
  std::fill(sums, sums + columns, 0.0f);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns; ++c) sums[c] += y[r * columns + c];
}

float softmax_cross_entropy(const float* logits, const std::uint8_t* labels, float* d_logits,
                            std::size_t rows, std::size_t classes) noexcept {
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

void classify(const float* logits, float* best, float* confidence, std::size_t rows,
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
