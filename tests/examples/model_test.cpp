// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "train_classifier/host_ops.hpp"
#include "train_classifier/mlp.hpp"

#include <polyrank/core/hash.hpp>

#include <cmath>
#include <cstring>
#include <vector>

using namespace polyrank;
using namespace polyrank::examples;

namespace {

std::vector<float> numbers(std::uint64_t seed, std::size_t count, float size = 1) {
  std::vector<float> v(count);
  for (std::size_t i = 0; i < count; ++i) v[i] = size * (2 * uniform(seed, 9, i) - 1);
  return v;
}
std::vector<float> whole_numbers(std::uint64_t seed, std::size_t count) {
  std::vector<float> v = numbers(seed, count, 8.4f);
  for (float& x : v) x = std::round(x);
  return v;
}

/// A model with weights, gradients and one block of data in host memory.
struct bench {
  mlp_shape shape;
  std::size_t rows;
  std::vector<tensor> tensors = parameters_of(shape);
  std::vector<float> weights = initial_parameters(shape, 3),
                     grads = std::vector<float>(weights.size());
  std::vector<float> x = numbers(5, rows* shape.inputs);
  std::vector<std::uint8_t> labels = std::vector<std::uint8_t>(rows);
  host_ops ops;
  host::stream stream;
  mlp<host_ops> model{ops, shape, rows};
  std::vector<std::size_t> ready_order;

  bench(mlp_shape s, std::size_t r) : shape(std::move(s)), rows(r) {
    for (std::size_t i = 0; i < rows; ++i)
      labels[i] = static_cast<std::uint8_t>(mix(i) % shape.classes);
  }
  float forward(const float* input) {
    float loss = 0;
    model.forward(
        stream, [this](std::size_t i) { return weights.data() + tensors[i].offset; }, input, rows);
    model.loss(stream, labels.data(), &loss, rows);
    stream.synchronize();
    return loss;
  }
  float step(const float* input) {
    const float loss = forward(input);
    model.backward(
        stream, [this](std::size_t i) { return weights.data() + tensors[i].offset; }, input, rows,
        [this](std::size_t i) { return grads.data() + tensors[i].offset; },
        [this](std::size_t i) { ready_order.push_back(i); });
    stream.synchronize();
    return loss;
  }
};

/// The loss in double, by the textbook.
double reference_loss(const bench& b, const std::vector<double>& weights) {
  double total = 0;
  for (std::size_t r = 0; r < b.rows; ++r) {
    std::vector<double> a(b.x.begin() + std::ptrdiff_t(r * b.shape.inputs),
                          b.x.begin() + std::ptrdiff_t((r + 1) * b.shape.inputs));
    for (std::size_t l = 0; l < b.shape.layers(); ++l) {
      std::vector<double> z(b.shape.width_out(l));
      for (std::size_t o = 0; o < z.size(); ++o) {
        z[o] = weights[b.tensors[2 * l + 1].offset + o];
        for (std::size_t i = 0; i < a.size(); ++i)
          z[o] += weights[b.tensors[2 * l].offset + o * a.size() + i] * a[i];
        if (l + 1 < b.shape.layers())
          z[o] = 0.5 * z[o] *
                 (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) *
                                (z[o] + 0.044715 * z[o] * z[o] * z[o])));
      }
      a = z;
    }
    double sum = 0;
    for (const double v : a) sum += std::exp(v);
    total += std::log(sum) - a[b.labels[r]];
  }
  return total / double(b.rows);
}

} // namespace

TEST_CASE("our tanh is the tanh", "[kernels]") {
  for (float x = -12; x < 12; x += 0.01f)
    REQUIRE(std::fabs(double(kernels::fast_tanh(x)) - std::tanh(double(x))) < 4e-7);
}

TEST_CASE("gelu and its derivative", "[kernels]") {
  for (float x = -6; x < 6; x += 0.037f) {
    const auto exact = [](double z) {
      return 0.5 * z * (1 + std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z)));
    };
    float value = 0, slope = 0;
    const float one = 1;
    kernels::gelu(&x, &value, 1);
    kernels::gelu_grad(&x, &one, &slope, 1);
    REQUIRE(double(value) == Approx(exact(double(x))).margin(2e-6));
    REQUIRE(double(slope) ==
            Approx((exact(double(x) + 1e-5) - exact(double(x) - 1e-5)) / 2e-5).margin(1e-5));
  }
}

TEST_CASE("products of whole numbers are exact in every orientation", "[gemm]") {
  for (const auto [m, n, k] :
       {std::array<std::size_t, 3>{1, 1, 1}, {3, 5, 7}, {64, 10, 128}, {33, 17, 1}, {4, 3, 0}})
    for (const as op_a : {as::is, as::transposed})
      for (const as op_b : {as::is, as::transposed}) {
        const std::vector<float> a = whole_numbers(1, m * k), b = whole_numbers(2, k * n);
        std::vector<float> c(m * n, std::nanf("")),
            expected(m * n); // C is overwritten, not added to
        for (std::size_t i = 0; i < m; ++i)
          for (std::size_t j = 0; j < n; ++j)
            for (std::size_t p = 0; p < k; ++p)
              expected[i * n + j] += (op_a == as::is ? a[i * k + p] : a[p * m + i]) *
                                     (op_b == as::is ? b[p * n + j] : b[j * k + p]);
        gemm(op_a, op_b, m, n, k, a.data(), b.data(), c.data());
        REQUIRE(c == expected);
      }
}

TEST_CASE("gradients agree with differences of the loss", "[mlp]") {
  for (const mlp_shape& shape :
       {mlp_shape{6, {5, 4}, 3}, mlp_shape{6, {}, 3}, mlp_shape{2, {7}, 10}}) {
    bench b(shape, 5);
    const float loss = b.step(b.x.data());
    std::vector<double> w(b.weights.begin(), b.weights.end());
    REQUIRE(double(loss) == Approx(reference_loss(b, w)).epsilon(1e-5));
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double h = 1e-5, keep = w[i];
      w[i] = keep + h;
      const double above = reference_loss(b, w);
      w[i] = keep - h;
      const double below = reference_loss(b, w);
      w[i] = keep;
      INFO("parameter " << i);
      REQUIRE(double(b.grads[i]) == Approx((above - below) / (2 * h)).epsilon(1e-3).margin(2e-6));
    }
  }
}

TEST_CASE("each gradient is made ready once, the last layer first", "[mlp]") {
  bench b({6, {5, 4}, 3}, 5);
  b.step(b.x.data());
  REQUIRE(b.ready_order == std::vector<std::size_t>{5, 4, 3, 2, 1, 0});
}

TEST_CASE("a block gives the same bits wherever its memory lies", "[mlp]") {
  // Stands for: on whichever rank it is computed.
  const mlp_shape shape{784, {256, 128}, 10};
  bench b(shape, 64);
  b.step(b.x.data());
  const std::vector<float> first = b.grads;
  for (const std::size_t shift : {1u, 3u, 784u}) {
    bench other(shape, 64);
    std::vector<float> moved(shift + b.x.size());
    std::memcpy(moved.data() + shift, b.x.data(), b.x.size() * sizeof(float));
    other.step(moved.data() + shift);
    REQUIRE(std::memcmp(other.grads.data(), first.data(), first.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("initial weights depend on seed, layer and index", "[mlp]") {
  const mlp_shape shape{8, {4}, 2};
  REQUIRE(initial_parameters(shape, 1) == initial_parameters(shape, 1));
  REQUIRE(initial_parameters(shape, 1) != initial_parameters(shape, 2));
  const auto w = initial_parameters(shape, 1);
  const auto tensors = parameters_of(shape);
  REQUIRE(w[tensors[0].offset] / std::sqrt(4.0f) != w[tensors[2].offset] / std::sqrt(8.0f));
  for (std::size_t i = 0; i < tensors[0].count(); ++i)
    REQUIRE(std::fabs(w[i]) <= 1 / std::sqrt(8.0f));
  REQUIRE(tensors[2].name == "layer1.weight");
  REQUIRE(parameter_count(shape) == 8 * 4 + 4 + 4 * 2 + 2);
}

TEST_CASE("a block larger than the model has room for is refused", "[mlp]") {
  bench b({6, {5}, 3}, 5);
  REQUIRE_THROWS_AS(b.model.forward(
                        b.stream, [&](std::size_t) { return b.weights.data(); }, b.x.data(), 6),
                    usage_error);
}

TEST_CASE("classify finds the best class and its probability", "[kernels]") {
  const std::vector<float> logits{0, std::log(3.0f), 0, 5, 5, -100};
  float best[2], confidence[2];
  kernels::classify(logits.data(), best, confidence, 2, 3);
  REQUIRE(best[0] == 1);
  REQUIRE(confidence[0] == Approx(0.6));
  REQUIRE(best[1] == 0); // the first of equals
  REQUIRE(confidence[1] == Approx(0.5));
}
