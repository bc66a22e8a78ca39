// A small model, forward and backward for one batch, in plain loops in double precision: what the
// GPU's results are compared with.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hash.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace polyrank::examples {

/// Two linear layers with a ReLU between, softmax cross-entropy; matrices row after row.
struct small_model {
  static constexpr int batch = 128, inputs = 256, hidden = 512, classes = 10;
  std::vector<float> x, w1, b1, w2, b2;
  std::vector<int> labels;

  small_model()
      : x(values(1, batch * inputs)), w1(values(2, inputs * hidden, 0.1F)), b1(values(3, hidden)),
        w2(values(4, hidden * classes, 0.1F)), b2(values(5, classes)) {
    for (int r = 0; r < batch; ++r) labels.push_back(r * 7 % classes);
  }

 private:
  static std::vector<float> values(std::uint64_t seed, int n, float scale = 1) {
    std::vector<float> v(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < v.size(); ++i)
      v[i] = scale * (static_cast<float>(mix(seed << 32 | i) >> 40) / 8388608.0F - 1);
    return v;
  }
};

struct small_result {
  double loss = 0;
  std::vector<double> w1, b1, w2, b2; ///< gradients
};

[[nodiscard]] inline small_result run_on_host(const small_model& m) {
  constexpr int B = small_model::batch, I = small_model::inputs, H = small_model::hidden,
                C = small_model::classes;
  const auto size = [](int a, int b) { return static_cast<std::size_t>(a) * b; };
  small_result r;
  std::vector<double> a(size(B, H)), d(size(B, C)), da(size(B, H));
  r.w1.resize(size(I, H)), r.b1.resize(H), r.w2.resize(size(H, C)), r.b2.resize(C);
  for (int n = 0; n < B; ++n) {
    double* const an = &a[size(n, H)];
    std::copy(m.b1.begin(), m.b1.end(), an);
    for (int i = 0; i < I; ++i)
      for (int h = 0; h < H; ++h) an[h] += double{m.x[size(n, I) + i]} * m.w1[size(i, H) + h];
    for (int h = 0; h < H; ++h) an[h] = std::max(an[h], 0.0);
    double z[C], sum = 0;
    for (int c = 0; c < C; ++c) {
      z[c] = m.b2[c];
      for (int h = 0; h < H; ++h) z[c] += an[h] * m.w2[size(h, C) + c];
    }
    const double most = *std::max_element(z, z + C);
    for (const double v : z) sum += std::exp(v - most);
    const int label = m.labels[n];
    r.loss += (std::log(sum) + most - z[label]) / B;
    for (int c = 0; c < C; ++c)
      d[size(n, C) + c] = (std::exp(z[c] - most) / sum - (c == label ? 1 : 0)) / B;
    for (int c = 0; c < C; ++c) {
      const double g = d[size(n, C) + c];
      r.b2[c] += g;
      for (int h = 0; h < H; ++h) {
        r.w2[size(h, C) + c] += an[h] * g;
        if (an[h] > 0) da[size(n, H) + h] += m.w2[size(h, C) + c] * g;
      }
    }
    for (int h = 0; h < H; ++h) r.b1[h] += da[size(n, H) + h];
    for (int i = 0; i < I; ++i)
      for (int h = 0; h < H; ++h)
        r.w1[size(i, H) + h] += double{m.x[size(n, I) + i]} * da[size(n, H) + h];
  }
  return r;
}

} // namespace polyrank::examples
