// Learning-rate schedules: pure functions from a step to a factor in [0, 1] of the peak rate.
//
//     warmup_cosine schedule{.warmup = 50, .total = 1070};
//     auto hyper = adamw::at(options, step + 1, schedule(step)); // step = 0, 1, 2, ...
//
// The cosine is our own polynomial, so that the bits of a run do not depend on the C library.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/ieee.hpp>

#include <cmath>
#include <cstdint>

namespace polyrank {

namespace detail {

/// cos(pi x) for 0 <= x <= 1, within 1e-15: Taylor's series about the nearest of 0 and 1/2.
[[nodiscard]] constexpr double cos_pi(double x) noexcept {
  using ieee::add, ieee::mul, ieee::sub;
  constexpr double pi = 3.14159265358979323846;
  if (x > 0.75) return -cos_pi(sub(1, x));
  const bool sine = x > 0.25; // cos(pi x) = -sin(pi (x - 1/2))
  const double a = mul(pi, sine ? sub(x, 0.5) : x), a2 = mul(a, a);
  double sum = 0;
  for (int n = sine ? 19 : 18; n >= 2; n -= 2) // Horner: 1 - a2 / (n(n-1)) * (...)
    sum = mul(a2 / (n * (n - 1)), sub(1, sum));
  return sine ? mul(-a, sub(1, sum)) : sub(1, sum);
}

} // namespace detail

/// Always the peak rate.
struct constant_rate {
  [[nodiscard]] constexpr double operator()(std::uint64_t /*step*/) const noexcept { return 1; }
};

/// Rises linearly over `warmup` steps (the first step has 1/warmup, step warmup - 1 the peak), then
/// falls along half a cosine that reaches zero at step `total`; zero from there on.
struct warmup_cosine {
  std::uint64_t warmup = 0;
  std::uint64_t total = 1;

  /// @param step 0 for the first update
  [[nodiscard]] constexpr double operator()(std::uint64_t step) const noexcept {
    if (step >= total) return 0;
    if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
    const double progress =
        static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
    return ieee::mul(0.5, ieee::add(1, detail::cos_pi(progress)));
  }
};

/// Rises as warmup_cosine does, then falls linearly and reaches zero at step `total`.
struct warmup_linear {
  std::uint64_t warmup = 0;
  std::uint64_t total = 1;

  [[nodiscard]] constexpr double operator()(std::uint64_t step) const noexcept {
    if (step >= total) return 0;
    if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
    return static_cast<double>(total - step) / static_cast<double>(total - warmup);
  }
};

/// Rises as warmup_cosine does, then stays at the peak.
struct warmup_constant {
  std::uint64_t warmup = 0;

  [[nodiscard]] constexpr double operator()(std::uint64_t step) const noexcept {
    return step < warmup ? static_cast<double>(step + 1) / static_cast<double>(warmup) : 1;
  }
};

/// Rises linearly over `warmup` steps (at least 1), then falls as sqrt(warmup / (step + 1)): needs
/// no end (Vaswani et al. 2017, section 5.3, relative to the peak).
struct inverse_square_root {
  std::uint64_t warmup = 1;

  [[nodiscard]] double operator()(std::uint64_t step) const noexcept {
    const auto peak = static_cast<double>(warmup == 0 ? 1 : warmup),
               at = static_cast<double>(step + 1);
    return at < peak ? at / peak : std::sqrt(peak / at);
  }
};

} // namespace polyrank
