// Mixed precision: update_mixed on every vector level, stochastic rounding, the norm's fixed tree,
// clipping and skipping, loss scaling.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/core/hash.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/optim/grad_norm.hpp>
#include <polyrank/optim/grad_scale.hpp>
#include <polyrank/optim/lion.hpp>
#include <polyrank/optim/sgd.hpp>
#include <polyrank/optim/update_mixed.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

using namespace polyrank;

namespace {

float noise(std::uint64_t seed, std::size_t i) {
  return static_cast<float>(mix(hash_combine(seed, i)) >> 40) * 0x1p-23f - 1;
}
template <class T>
std::vector<T> noise_vector(std::uint64_t seed, std::size_t n) {
  std::vector<T> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<T>(noise(seed, i));
  return v;
}

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Leaves the master as it is, so that its copy shows the rounding alone.
struct leave_alone {
  static constexpr std::size_t state_count = 0;
  struct options {};
  struct hyper {
    float zero = 0;
  };
  static hyper at(const options&, std::uint64_t, double) noexcept { return {}; }
  template <class T>
  static T update(T p, T g, T*, const hyper& h) noexcept {
    using namespace ieee;
    return sub(p, mul(h.zero, g));
  }
};

/// Everything that an update reads and writes.
template <class O, class G, class V>
struct tensors {
  explicit tensors(std::size_t n)
      : master(noise_vector<float>(1, n)), gradient(noise_vector<G>(2, n)), value(n) {
    for (std::size_t k = 0; k < O::state_count; ++k) {
      planes.push_back(noise_vector<float>(3 + k, n));
      for (float& x : planes.back()) x = std::fabs(x);
    }
  }
  mixed_range<O, G, V> range(std::size_t begin, std::size_t end) {
    mixed_range<O, G, V> r{master, gradient, {}, value};
    for (std::size_t k = 0; k < O::state_count; ++k) r.state[k] = planes[k];
    return r.part(begin, end);
  }
  std::vector<float> master;
  std::vector<G> gradient;
  std::vector<V> value;
  std::vector<std::vector<float>> planes;
};

template <class O, class G, class V>
void check_levels(const typename O::hyper& hyper) {
  for (const std::size_t n : {0, 1, 3, 15, 16, 17, 33, 100}) {
    tensors<O, G, V> expected(n);
    for (std::size_t i = 0; i < n; ++i) { // one element at a time
      float s[O::state_count];
      for (std::size_t k = 0; k < O::state_count; ++k) s[k] = expected.planes[k][i];
      const float p =
          O::update(expected.master[i], ieee::mul(0.125f, static_cast<float>(expected.gradient[i])),
                    s, hyper);
      expected.master[i] = p;
      expected.value[i] = static_cast<V>(p);
      for (std::size_t k = 0; k < O::state_count; ++k) expected.planes[k][i] = s[k];
    }
    for (const simd_level level : all_simd_levels) {
      if (!simd_supported(level)) {
        WARN("skipped, this CPU lacks it: " << std::string(name_of(level)));
        continue;
      }
      tensors<O, G, V> t(n);
      const std::size_t cut = n / 3; // unaligned, in two calls
      update_mixed<O, G, V>(t.range(0, cut), hyper, 0.125f, level);
      update_mixed<O, G, V>(t.range(cut, n), hyper, 0.125f, level);
      REQUIRE(same_bytes(t.master, expected.master));
      REQUIRE(same_bytes(t.value, expected.value));
      for (std::size_t k = 0; k < O::state_count; ++k)
        REQUIRE(same_bytes(t.planes[k], expected.planes[k]));
    }
  }
}

} // namespace

TEST_CASE("update_mixed: every level gives the bits of one element at a time", "[mixed]") {
  const adamw::hyper hyper = adamw::at({.lr = 0.1}, 3);
  check_levels<adamw, float, float>(hyper);
  check_levels<adamw, bf16, bf16>(hyper);
  check_levels<adamw, fp16, fp16>(hyper);
  check_levels<adamw, float, bf16>(hyper);
  check_levels<lion, bf16, float>(lion::at({.lr = 0.1}, 1));
  check_levels<sgd, bf16, bf16>(sgd::at({.lr = 0.1, .momentum = 0.9, .nesterov = true}, 2));
}

template <class V>
static void check_streams() {
  const std::size_t n = 100'003; // long enough to go past the caches
  const adamw::hyper hyper = adamw::at({.lr = 0.1}, 3);
  for (const simd_level level : all_simd_levels) {
    if (!simd_supported(level)) continue;
    tensors<adamw, bf16, V> plain(n), aligned(n);
    std::vector<V> room(n + 64);
    void* start = room.data();
    std::size_t space = room.size() * sizeof(V);
    V* const value = static_cast<V*>(std::align(64, n * sizeof(V), start, space));
    auto unaligned = plain.range(0, n), streamed = aligned.range(0, n);
    streamed.value = {value, n};
    update_mixed<adamw, bf16, V>(unaligned, hyper, 0.125f, level);
    update_mixed<adamw, bf16, V>(streamed, hyper, 0.125f, level);
    REQUIRE(same_bytes(std::vector<V>(value, value + n), plain.value));
    REQUIRE(same_bytes(aligned.master, plain.master));
  }
}

TEST_CASE("update_mixed: values that go past the caches have the same bits", "[mixed]") {
  check_streams<float>();
  check_streams<bf16>();
  check_streams<fp16>();
}

TEST_CASE("16-bit values are rounded as everywhere: ties, overflow, NaN", "[mixed]") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  std::vector<float> wild{0.0f,    -0.0f,      1.00390625f, 1.01171875f, 65519.9f, 65520.0f,
                          3.4e38f, inf,        -inf,        nan,         1e-7f,    6e-8f,
                          -1e-40f, 3.3895e38f, 2049,        2051};
  const auto check = [&]<class V>(V) {
    for (const simd_level level : all_simd_levels) {
      if (!simd_supported(level)) continue;
      std::vector<float> master = wild;
      std::vector<float> zero(wild.size());
      std::vector<V> value(wild.size());
      update_mixed<leave_alone, float, V>({master, zero, {}, value}, {}, 1, level);
      for (std::size_t i = 0; i < wild.size(); ++i) {
        const V expected = static_cast<V>(wild[i]);
        if (std::isnan(wild[i]))
          REQUIRE(std::isnan(static_cast<float>(value[i])));
        else
          REQUIRE(value[i].bits == expected.bits);
      }
    }
  };
  check(bf16{});
  check(fp16{});
}

TEST_CASE("stochastic rounding: right on average, exact where bf16 is, keyed by element",
          "[mixed]") {
  const float x = 1.0f + 0.25f * 0x1p-7f; // a quarter of the way to the next bf16
  std::size_t up = 0;
  for (std::uint64_t i = 0; i < 40000; ++i) {
    const float r = static_cast<float>(stochastic_rounding{.seed = 1, .step = 2}(x, i));
    REQUIRE((r == 1.0f || r == 1.0f + 0x1p-7f));
    up += r > 1 ? 1 : 0;
  }
  REQUIRE(up > 9600); // 10000, six standard deviations are 520
  REQUIRE(up < 10520);
  REQUIRE(static_cast<float>(round_stochastically(-2.5f, 0xffff)) == -2.5f);
  REQUIRE(std::isinf(
      static_cast<float>(round_stochastically(-std::numeric_limits<float>::infinity(), 0xffff))));
  REQUIRE(std::isnan(static_cast<float>(round_stochastically(std::nanf(""), 0xffff))));
  // Rounding a part of the model gives the bits of that part.
  const std::vector<float> masters = noise_vector<float>(9, 100);
  std::vector<bf16> whole(100), part(60);
  const stochastic_rounding rounding{.seed = 7, .step = 3};
  round_all(masters, whole, rounding, 5);
  round_all(std::span(masters).subspan(40), part, rounding, 45);
  for (std::size_t i = 0; i < 60; ++i) REQUIRE(part[i].bits == whole[40 + i].bits);
}

TEST_CASE("norm: the same bits however the blocks are spread", "[norm]") {
  const std::vector<float> x = noise_vector<float>(4, 5 * norm_block + 77);
  std::vector<double> all(6);
  squares_of_blocks<float>(x, all);
  std::vector<double> spread(6, 0.0);
  for (const auto& [first, last] : {std::pair{0, 2}, {2, 5}, {5, 6}}) {
    std::vector<double> part(6, 0.0);
    const auto f = static_cast<std::size_t>(first), l = static_cast<std::size_t>(last);
    squares_of_blocks<float>(
        std::span(x).subspan(f * norm_block, std::min(l * norm_block, x.size()) - f * norm_block),
        std::span(part).subspan(f, l - f));
    for (std::size_t b = 0; b < 6; ++b) spread[b] += part[b];
  }
  const double folded = fold_blocks(all);
  REQUIRE(std::bit_cast<std::uint64_t>(folded) ==
          std::bit_cast<std::uint64_t>(fold_blocks(spread)));
  long double exact = 0;
  for (const float v : x) exact += static_cast<long double>(v) * static_cast<long double>(v);
  REQUIRE(std::abs(folded / static_cast<double>(exact) - 1) < 1e-13);
  REQUIRE(fold_blocks(std::span<double>()) == 0);
  REQUIRE_THROWS_AS(squares_of_blocks<float>(x, std::span(all).first(5)), usage_error);
  // Squares that overflow fp32 do not overflow here.
  const std::vector<float> large(10, 3e38f);
  REQUIRE(std::isfinite(block_squares(large.data(), large.size())));
}

TEST_CASE("conclude: clips by norm, not by its square; skips what is not finite", "[norm]") {
  step_record r;
  conclude(r, 120.0, {.mean = 0.5f, .max_norm = 1});
  REQUIRE(r.norm == static_cast<float>(0.5 * std::sqrt(120.0)));
  REQUIRE(r.clipped == 1);
  REQUIRE(std::abs(r.factor / 0.5f * r.norm - 1) < 1e-6f);
  REQUIRE(r.applied == 1);
  conclude(r, 120.0, {.mean = 0.5f, .max_norm = 100});
  REQUIRE(r.factor == 0.5f);
  REQUIRE(r.clipped == 0);
  conclude(r, std::nan(""), {.mean = 0.5f, .max_norm = 1});
  REQUIRE(r.skip == 1);
  REQUIRE(r.applied == 2);
  REQUIRE(r.skipped == 1);
  conclude(r, std::numeric_limits<double>::infinity(), {});
  REQUIRE(r.skip == 1);
  conclude(r, 0, {.max_norm = 1});
  REQUIRE(r.skip == 0);
  REQUIRE(r.factor == 1);
  REQUIRE(factor_from(0, {.mean = 0.5f, .max_norm = 1}) == 0.5f);
  REQUIRE(factor_from(4, {.mean = 0.5f, .max_norm = 1}) == 0.125f);
}

TEST_CASE("loss scaler: falls after hysteresis, rises after a clean window, keeps its bounds",
          "[scaler]") {
  const scaler_options o{
      .enabled = true, .initial = 8, .least = 1, .most = 16, .window = 3, .hysteresis = 2};
  o.check();
  scaler_state s = initial(o);
  REQUIRE(s.scale == 8);
  s = next(s, true, o);
  REQUIRE(s.scale == 8); // patience
  s = next(s, true, o);
  REQUIRE(s.scale == 4);
  for (int i = 0; i < 3; ++i) s = next(s, false, o);
  REQUIRE(s.scale == 8);
  for (int i = 0; i < 9; ++i) s = next(s, false, o);
  REQUIRE(s.scale == 16);
  for (int i = 0; i < 20; ++i) s = next(s, true, o);
  REQUIRE(s.scale == 1);
  REQUIRE(s.at_least > 5);
  s = next(s, false, o);
  REQUIRE(s.at_least == 0);
  REQUIRE_THROWS_AS((scaler_options{.enabled = true, .factor = 1}.check()), usage_error);
  REQUIRE_THROWS_AS((scaler_options{.enabled = true, .initial = 0.5f}.check()), usage_error);
  REQUIRE(next(scaler_state{}, true, {}).scale == 1); // switched off
}
