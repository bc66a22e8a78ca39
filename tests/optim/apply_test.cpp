// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/core/hash.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/optim/apply.hpp>
#include <polyrank/optim/lion.hpp>
#include <polyrank/optim/parameter_groups.hpp>
#include <polyrank/optim/sgd.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace polyrank;

namespace {

/// A float in [-1, 1) that depends on (seed, i) alone.
float noise(std::uint64_t seed, std::size_t i) {
  return static_cast<float>(mix(hash_combine(seed, i)) >> 40) * 0x1p-23f - 1;
}

std::vector<float> noise_vector(std::uint64_t seed, std::size_t n) {
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = noise(seed, i);
  return v;
}

bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

/// torch.optim.AdamW in double, as its documentation writes it.
struct adamw_reference {
  adamw::options o;
  double p = 0, m = 0, v = 0;
  void step(double g, double t, double factor = 1) {
    const double lr = o.lr * factor;
    p -= lr * o.weight_decay * p;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(o.beta1, t)), v_hat = v / (1 - std::pow(o.beta2, t));
    p -= lr * m_hat / (std::sqrt(v_hat) + o.eps);
  }
};

/// torch.optim.SGD in double.
struct sgd_reference {
  sgd::options o;
  double p = 0, buffer = 0;
  bool first = true;
  void step(double g) {
    g += o.weight_decay * p;
    if (o.momentum != 0) {
      buffer = first ? g : o.momentum * buffer + (1 - o.dampening) * g;
      g = o.nesterov ? g + o.momentum * buffer : buffer;
    }
    first = false;
    p -= o.lr * g;
  }
};

/// An optimizer of a user who wrote a plain float formula.
struct sign_descent {
  static constexpr std::size_t state_count = 0;
  struct options {
    double lr = 0.25;
  };
  struct hyper {
    float lr;
  };
  static hyper at(const options& o, std::uint64_t, double lr_factor) {
    return {static_cast<float>(o.lr * lr_factor)};
  }
  static float update(float p, float g, float*, const hyper& h) noexcept {
    return g > 0 ? p - h.lr : g < 0 ? p + h.lr : p;
  }
};

static_assert(elementwise_optimizer<adamw>);
static_assert(elementwise_optimizer<sgd>);
static_assert(elementwise_optimizer<sign_descent>);
static_assert(std::same_as<detail::body<adamw>::type, ieee::pack>);
static_assert(std::same_as<detail::body<sign_descent>::type, float>);
static_assert(!elementwise_optimizer<int>);

template <class O>
void check_body_and_tail_agree(const typename O::hyper& hyper, float grad_scale) {
  for (std::size_t length = 0; length <= 67; ++length)
    for (std::size_t offset = 0; offset < 17; ++offset) {
      std::vector<float> p = noise_vector(1, offset + length), g = noise_vector(2, offset + length);
      state_planes<O> state;
      std::vector<std::vector<float>> planes;
      for (std::size_t k = 0; k < O::state_count; ++k) {
        planes.push_back(noise_vector(3 + k, offset + length));
        for (float& x : planes.back()) x = std::fabs(x); // second moments are not negative
      }
      std::vector<float> expected_p = p;
      auto expected_planes = planes;
      for (std::size_t i = offset; i < offset + length; ++i) { // one element at a time
        float s[O::state_count];
        for (std::size_t k = 0; k < O::state_count; ++k) s[k] = expected_planes[k][i];
        expected_p[i] = O::update(p[i], ieee::mul(grad_scale, g[i]), s, hyper);
        for (std::size_t k = 0; k < O::state_count; ++k) expected_planes[k][i] = s[k];
      }
      for (std::size_t k = 0; k < O::state_count; ++k)
        state[k] = std::span(planes[k]).subspan(offset);
      apply<O>(std::span(p).subspan(offset), std::span<const float>(g).subspan(offset), state,
               hyper, grad_scale);
      for (std::size_t i = 0; i < p.size(); ++i) {
        REQUIRE(same_bits(p[i], expected_p[i]));
        for (std::size_t k = 0; k < O::state_count; ++k)
          REQUIRE(same_bits(planes[k][i], expected_planes[k][i]));
      }
    }
}

} // namespace

TEST_CASE("body and tail give the same bits for every length and offset", "[optim]") {
  check_body_and_tail_agree<adamw>(adamw::at({.lr = 2e-3, .weight_decay = 0.1}, 7), 0.3f);
  check_body_and_tail_agree<sgd>(
      sgd::at({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}, 7), 0.3f);
}

TEST_CASE("adamw follows the double reference over many steps", "[optim]") {
  const adamw::options options{.lr = 1e-2, .weight_decay = 0.1};
  std::vector<float> p = noise_vector(1, 37), state(2 * p.size());
  std::vector<adamw_reference> reference(p.size(), {options});
  for (std::size_t i = 0; i < p.size(); ++i) reference[i].p = p[i];
  for (std::uint64_t step = 1; step <= 200; ++step) {
    std::vector<float> g(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      g[i] = noise(100 + step, i) * (i % 3 == 0 ? 1e-3f : 1);
      reference[i].step(0.5 * double(g[i]), double(step));
    }
    apply<adamw>(p, g, planes_of<adamw>(state), adamw::at(options, step), 0.5f);
  }
  for (std::size_t i = 0; i < p.size(); ++i)
    REQUIRE(p[i] == Approx(reference[i].p).epsilon(2e-5).margin(2e-5));
}

TEST_CASE("the first adamw step has the size of the learning rate", "[optim]") {
  // Bias corrections cancel: m_hat = g, v_hat = g^2, so p moves by lr * sign(g).
  std::vector<float> p{1, 1, 1}, g{5, -0.01f, 1e-3f}, state(6);
  apply<adamw>(p, g, planes_of<adamw>(state), adamw::at({.lr = 0.1, .weight_decay = 0}, 1));
  REQUIRE(p[0] == Approx(0.9).epsilon(1e-5));
  REQUIRE(p[1] == Approx(1.1).epsilon(1e-5));
  REQUIRE(p[2] == Approx(0.9).epsilon(1e-4));
}

TEST_CASE("adamw's weight decay is decoupled", "[optim]") {
  // With zero gradients only the decay acts, and it leaves no trace in the moments.
  std::vector<float> p{2}, g{0}, state(2);
  apply<adamw>(p, g, planes_of<adamw>(state), adamw::at({.lr = 0.1, .weight_decay = 0.5}, 1));
  REQUIRE(p[0] == Approx(2 * (1 - 0.1 * 0.5)));
  REQUIRE(state == std::vector<float>{0, 0});
}

TEST_CASE("sgd's weight decay enters the velocity", "[optim]") {
  std::vector<float> p{2}, g{0}, state(1);
  apply<sgd>(p, g, planes_of<sgd>(state),
             sgd::at({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.5}, 1));
  REQUIRE(state[0] == 1);
  REQUIRE(p[0] == Approx(1.9));
}

TEST_CASE("sgd follows the double reference in every variant", "[optim]") {
  for (const sgd::options& options :
       {sgd::options{.lr = 0.05}, sgd::options{.lr = 0.05, .weight_decay = 0.1},
        sgd::options{.lr = 0.05, .momentum = 0.9},
        sgd::options{.lr = 0.05, .momentum = 0.9, .dampening = 0.3},
        sgd::options{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}}) {
    std::vector<float> p = noise_vector(1, 21), state(p.size());
    std::vector<sgd_reference> reference(p.size(), {options});
    for (std::size_t i = 0; i < p.size(); ++i) reference[i].p = p[i];
    for (std::uint64_t step = 1; step <= 50; ++step) {
      const std::vector<float> g = noise_vector(100 + step, p.size());
      for (std::size_t i = 0; i < p.size(); ++i) reference[i].step(g[i]);
      apply<sgd>(p, g, planes_of<sgd>(state), sgd::at(options, step));
    }
    for (std::size_t i = 0; i < p.size(); ++i)
      REQUIRE(p[i] == Approx(reference[i].p).epsilon(1e-5).margin(1e-5));
  }
}

TEST_CASE("grad_scale multiplies the gradient first", "[optim]") {
  // Four ranks whose gradients sum to 4 g, scaled by 1/4: powers of two, so the same bits.
  std::vector<float> a = noise_vector(1, 33), b = a, state_a(66), state_b(66);
  const std::vector<float> g = noise_vector(2, 33);
  std::vector<float> sum(g);
  for (float& x : sum) x *= 4;
  const auto hyper = adamw::at({}, 1);
  apply<adamw>(a, g, planes_of<adamw>(state_a), hyper);
  apply<adamw>(b, sum, planes_of<adamw>(state_b), hyper, 0.25f);
  REQUIRE(a == b);
  REQUIRE(state_a == state_b);
}

TEST_CASE("a NaN gradient spoils its own element and no other", "[optim]") {
  std::vector<float> p(40, 1), g(40, 0.5f), state(80);
  g[3] = std::numeric_limits<float>::quiet_NaN();
  g[39] = std::numeric_limits<float>::infinity(); // inf / inf
  apply<adamw>(p, g, planes_of<adamw>(state), adamw::at({}, 1));
  for (std::size_t i = 0; i < p.size(); ++i) REQUIRE(std::isnan(p[i]) == (i == 3 || i == 39));
}

TEST_CASE("a plain float optimizer without state works", "[optim]") {
  std::vector<float> p{0, 0, 0}, g{1, -1, 0};
  apply<sign_descent>(p, g, {}, sign_descent::at({}, 1, 1));
  REQUIRE(p == std::vector<float>{-0.25f, 0.25f, 0});
}

TEST_CASE("zero parameters are no special case, unequal lengths are refused", "[optim]") {
  std::vector<float> none, one(1), two(2);
  apply<adamw>(none, none, planes_of<adamw>(none), adamw::at({}, 1));
  REQUIRE_THROWS_AS(apply<adamw>(one, two, planes_of<adamw>(two), adamw::at({}, 1)), usage_error);
  REQUIRE_THROWS_AS(apply<adamw>(one, one, planes_of<adamw>(none), adamw::at({}, 1)), usage_error);
}

TEST_CASE("no operation is fused", "[ieee]") {
  // 1 + 2^-12 squared is 1 + 2^-11 + 2^-24: rounding drops the last term, a fused product keeps it.
  volatile float x = 1 + 0x1p-12f, rounded = 1 + 0x1p-11f;
  REQUIRE(ieee::sub(ieee::mul(x, x), rounded) == 0);
  REQUIRE(std::fma(x, x, -rounded) == 0x1p-24f);
}

TEST_CASE("lion follows its formula, with decoupled decay", "[lion]") {
  const lion::options o{.lr = 0.01, .weight_decay = 0.1};
  std::vector<float> params{1, -2, 0.5f, 3}, grads{0.3f, -0.2f, 0, 5}, state(4);
  double p[4] = {1, -2, 0.5, 3}, m[4]{};
  for (std::uint64_t step = 1; step <= 5; ++step) {
    apply<lion>(params, grads, planes_of<lion>(std::span(state)), lion::at(o, step), 0.5f);
    for (std::size_t i = 0; i < 4; ++i) {
      const double g = 0.5 * static_cast<double>(grads[i]), d = o.beta1 * m[i] + (1 - o.beta1) * g;
      p[i] = (1 - o.lr * o.weight_decay) * p[i] - o.lr * (d > 0 ? 1 : d < 0 ? -1 : 0);
      m[i] = o.beta2 * m[i] + (1 - o.beta2) * g;
    }
  }
  for (std::size_t i = 0; i < 4; ++i) {
    REQUIRE(static_cast<double>(params[i]) == Approx(p[i]).epsilon(1e-6));
    REQUIRE(static_cast<double>(state[i]) == Approx(m[i]).epsilon(1e-6));
  }
}

TEST_CASE("lion: body and tail agree, a gradient of NaN is not swallowed", "[lion]") {
  for (std::size_t n = 0; n < 68; ++n) {
    std::vector<float> params = noise_vector(1, n), grads = noise_vector(2, n),
                       state = noise_vector(3, n);
    for (std::size_t i = 0; i < n; i += 5) grads[i] = state[i] = 0;
    std::vector<float> p2 = params, s2 = state;
    const auto h = lion::at({.weight_decay = 0.3}, 1);
    apply<lion>(params, grads, planes_of<lion>(std::span(state)), h, 0.25f);
    apply<lion, float>(p2, grads, planes_of<lion>(std::span(s2)), h, 0.25f);
    for (std::size_t i = 0; i < n; ++i)
      REQUIRE((same_bits(params[i], p2[i]) && same_bits(state[i], s2[i])));
  }
  std::vector<float> params(40, 1.0f), grads(40, std::nanf("")), state(40);
  apply<lion>(params, grads, planes_of<lion>(std::span(state)), lion::at({}, 1));
  for (const float p : params) REQUIRE(std::isnan(p));
}

TEST_CASE("parameter groups: rate, decay and betas of their own, step by step", "[groups]") {
  const std::vector<std::string> names{"wte", "h0.weight", "h0.bias", "norm.weight", "h1.weight"};
  const adamw::options rest{.lr = 1e-2, .weight_decay = 0.1}, bare{.lr = 1e-2, .weight_decay = 0},
      slow{.lr = 1e-3, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.3};
  parameter_groups<adamw> groups(names, rest);
  groups.split("no decay", bare, names_with{{"bias", "norm"}}).split("embedding", slow, [](auto n) {
    return n == "wte";
  });
  REQUIRE(groups.groups()[0].parameters == std::vector<std::size_t>{1, 4});
  REQUIRE(groups.groups()[1].parameters == std::vector<std::size_t>{2, 3});
  const adamw::options* expected[] = {&slow, &rest, &bare, &bare, &rest};
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::vector<float> p = noise_vector(i, 37), g = noise_vector(9 + i, 37), state(2 * 37);
    std::vector<float> q = p, other = state;
    for (std::uint64_t step = 1; step <= 3; ++step) {
      const double factor = 1.0 / static_cast<double>(step);
      groups.at(step, factor);
      apply<adamw>(p, g, planes_of<adamw>(state), groups[i], 0.5f);
      apply<adamw>(q, g, planes_of<adamw>(other), adamw::at(*expected[i], step, factor), 0.5f);
    }
    REQUIRE((p == q && state == other));
  }
}

TEST_CASE("parameter groups that take nothing, or a name twice, are refused", "[groups]") {
  parameter_groups<lion> groups({"w", "bias"}, {});
  REQUIRE_THROWS_WITH(groups.split("no decay", {}, names_with{{"beta"}}),
                      "parameter_groups: group 'no decay' takes none of the 2 parameters that are "
                      "left, such as 'w'");
  groups.split("no decay", {}, names_with{{"bias"}});
  REQUIRE_THROWS_WITH(groups.split("no decay", {}, names_with{{"w"}}),
                      "parameter_groups: there is a group 'no decay' already");
  REQUIRE_THROWS_WITH(groups[2], "parameter_groups: parameter 2 of 2");
}
