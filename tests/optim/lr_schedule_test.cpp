// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/optim/lr_schedule.hpp>

#include <cmath>

using namespace polyrank;

// Pure and constexpr: checked by the compiler.
static_assert(constant_rate{}(123) == 1);
static_assert(warmup_cosine{.warmup = 4, .total = 10}(0) == 0.25);
static_assert(warmup_cosine{.warmup = 4, .total = 10}(3) == 1);
static_assert(warmup_cosine{.warmup = 4, .total = 10}(4) == 1);
static_assert(warmup_cosine{.warmup = 4, .total = 10}(7) == 0.5);
static_assert(warmup_cosine{.warmup = 4, .total = 10}(10) == 0);
static_assert(warmup_cosine{.warmup = 0, .total = 2}(0) == 1);

TEST_CASE("our cosine is the cosine", "[lr_schedule]") {
  for (int i = 0; i <= 1000; ++i) {
    const double x = i / 1000.0;
    REQUIRE(std::fabs(detail::cos_pi(x) - std::cos(3.14159265358979323846 * x)) < 1e-15);
  }
}

TEST_CASE("the rate rises to the peak, falls to zero and stays there", "[lr_schedule]") {
  const warmup_cosine schedule{.warmup = 50, .total = 1070};
  for (std::uint64_t s = 1; s < 50; ++s) REQUIRE(schedule(s) > schedule(s - 1));
  REQUIRE(schedule(49) == 1);
  for (std::uint64_t s = 51; s < 1070; ++s) REQUIRE(schedule(s) < schedule(s - 1));
  REQUIRE(schedule(1069) > 0);
  REQUIRE(schedule(1069) < 1e-5);
  REQUIRE(schedule(5000) == 0);
}

TEST_CASE("a warm-up as long as the run, and a run of no steps, are defined", "[lr_schedule]") {
  const warmup_cosine all{.warmup = 3, .total = 3};
  REQUIRE(all(2) == 1);
  REQUIRE(all(3) == 0);
  REQUIRE(warmup_cosine{.warmup = 0, .total = 0}(0) == 0);
}

TEST_CASE("linear, constant and inverse-square-root schedules meet at the peak", "[lr_schedule]") {
  const warmup_linear linear{.warmup = 4, .total = 12};
  const warmup_constant constant{.warmup = 4};
  const inverse_square_root root{.warmup = 4};
  for (std::uint64_t step = 0; step < 4; ++step) {
    const double rising = static_cast<double>(step + 1) / 4;
    REQUIRE(linear(step) == rising);
    REQUIRE(constant(step) == rising);
    REQUIRE(root(step) == rising);
  }
  REQUIRE(linear(4) == 1);
  REQUIRE(linear(8) == 0.5);
  REQUIRE(linear(12) == 0);
  REQUIRE(linear(100) == 0);
  REQUIRE(constant(1000000) == 1);
  REQUIRE(root(15) == 0.5);
  REQUIRE(inverse_square_root{.warmup = 0}(0) == 1);
  REQUIRE(warmup_linear{.warmup = 0, .total = 1}(0) == 1);
}
