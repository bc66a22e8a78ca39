// Every schedule at every p <= 8, v <= 4, m <= 40: valid before and after lowering, on one lane and
// on many, and the published formulas hold inside their domains.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/lower.hpp>
#include <polyrank/pipeline/simulate.hpp>
#include <polyrank/pipeline/validate.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

using namespace polyrank;
using namespace polyrank::pipeline;

namespace {

struct formula {
  std::optional<double> extra; ///< makespan - m T
  std::optional<double> peak0; ///< activation peak of rank 0, of rank r below
};

double number(std::size_t n) { return static_cast<double>(n); }

/// makespan - m T for a rank's costs F, I, W and free transfers, where a formula is known.
std::optional<double> extra_time(schedule s, const shape& at, double f, double i, double w) {
  const double p1 = number(at.ranks - 1), v = number(at.chunks), t = f + i + w;
  const std::size_t p = at.ranks, m = at.microbatches;
  const bool equal = f == i && i == w;
  switch (s) {
  case schedule::gpipe:
  case schedule::one_f_one_b:
    return p1 * t;
  case schedule::interleaved:
  case schedule::bfs:
    return m >= p ? std::optional(p1 * t / v) : std::nullopt;
  case schedule::zb_h1:
    return m >= p ? std::optional(p1 * std::max({f + i - w, f, i})) : std::nullopt;
  case schedule::zb_h2:
    return m >= 2 * p - 1 ? std::optional(p1 * std::max(f, f + i - 2 * w)) : std::nullopt;
  case schedule::zb_v:
    return equal && m >= 2 * p - 1 ? std::optional(p1 * f / 2) : std::nullopt;
  case schedule::v_half:
    return equal && p % 2 == 0 && m >= p ? std::optional(p1 * t / 2) : std::nullopt;
  case schedule::dualpipe_v: // chunk costs: half a rank's
    return equal && m >= 2 * p ? std::optional(p1 * (t + (i + w) - 3 * w) / 2) : std::nullopt;
  default:
    return std::nullopt;
  }
}

/// Peak of rank r in rank-microbatches, with a context of half an activation.
std::optional<double> peak(schedule s, const shape& at, std::size_t r) {
  const std::size_t p = at.ranks, m = at.microbatches, v = at.chunks;
  switch (s) {
  case schedule::gpipe:
  case schedule::bfs:
    return number(m);
  case schedule::one_f_one_b:
    return number(std::min(m, p - r));
  case schedule::interleaved: {
    if (v == 1) return number(std::min(m, p - r));
    const std::size_t groups = std::max<std::size_t>(1, m / p), largest = ceil_div(m, groups);
    return number(std::min(m * v, (v - 1) * largest + 2 * (p - 1 - r) + 1)) / number(v);
  }
  case schedule::zb_h1:
    return m >= p ? std::optional(number(p - r) + number(r) / 2) : std::nullopt;
  case schedule::zb_h2:
    return m >= 2 * p - 1 ? std::optional(number(2 * (p - r) - 1) + number(r)) : std::nullopt;
  case schedule::zb_v:
    return m >= 2 * p - 1 ? std::optional(number(p)) : std::nullopt;
  case schedule::dualpipe_v:
    return m >= 2 * p ? std::optional(number(p) + 0.5) : std::nullopt;
  default:
    return std::nullopt;
  }
}

std::string sweep(std::size_t p) {
  for (std::size_t n = 0; n < schedules.size(); ++n) {
    const auto s = static_cast<schedule>(n);
    const schedule_traits& traits = traits_of(s);
    for (std::size_t v = traits.min_chunks; v <= std::min<std::size_t>(4, traits.max_chunks); ++v)
      for (std::size_t m = 1; m <= 40; ++m) {
        const table t = generate(s, p, m, v);
        const std::string what =
            polyrank::detail::cat(traits.name, " p=", p, " v=", v, " m=", m, ": ");
        if (const auto found = validate(t)) return what + found->text;
        const costs c = even_costs(t.shape, 1, 1, 1, 0);
        const report r = simulate(t, c);
        const double whole = 3 * number(m);
        if (const auto extra = extra_time(s, t.shape, 1, 1, 1))
          if (std::abs(r.makespan - whole - *extra) > 1e-9)
            return what + "makespan " + std::to_string(r.makespan) + ", formula " +
                   std::to_string(whole + *extra);
        for (std::size_t rank = 0; rank < p; ++rank) {
          if (const auto most = peak(s, t.shape, rank))
            if (std::abs(r.ranks[rank].peak_memory - *most) > 1e-9)
              return what + "peak of rank " + std::to_string(rank) + " " +
                     std::to_string(r.ranks[rank].peak_memory) + ", formula " +
                     std::to_string(*most);
          if (s == schedule::zb_v && m >= 2 * p - 1 && r.ranks[rank].span_bubble() > 1e-9)
            return what + "a bubble inside the span";
        }
        for (lane_policy lanes : {lane_policy::single, lane_policy::per_channel}) {
          const costs slow = even_costs(t.shape, 1, 1, 1, 0.05);
          const table full = lower(t, slow, {.lanes = lanes});
          if (const auto found = validate(full)) return what + "lowered: " + found->text;
        }
      }
  }
  return "";
}

} // namespace

TEST_CASE("all schedules, p <= 4", "[sweep]") {
  for (std::size_t p = 1; p <= 4; ++p) REQUIRE(sweep(p) == "");
}
TEST_CASE("all schedules, p = 5", "[sweep]") { REQUIRE(sweep(5) == ""); }
TEST_CASE("all schedules, p = 6", "[sweep]") { REQUIRE(sweep(6) == ""); }
TEST_CASE("all schedules, p = 7", "[sweep]") { REQUIRE(sweep(7) == ""); }
TEST_CASE("all schedules, p = 8", "[sweep]") { REQUIRE(sweep(8) == ""); }

TEST_CASE("makespan formulas with unequal costs", "[sweep]") {
  struct triple {
    double f, i, w;
  };
  for (triple x : {triple{1, 1, 0.5}, {1, 1.2, 0.8}, {2, 1, 1}, {1, 2, 1}, {1, 1, 1.5}})
    for (schedule s : {schedule::gpipe, schedule::one_f_one_b, schedule::interleaved, schedule::bfs,
                       schedule::zb_h1, schedule::zb_h2})
      for (std::size_t p : {1u, 2u, 4u, 7u})
        for (std::size_t m : {p, 2 * p, 40ul}) {
          const table t = generate(s, p, m);
          const report r = simulate(t, even_costs(t.shape, x.f, x.i, x.w, 0));
          const auto extra = extra_time(s, t.shape, x.f, x.i, x.w);
          INFO(traits_of(s).name << " p=" << p << " m=" << m << " F=" << x.f << " I=" << x.i
                                 << " W=" << x.w);
          if (extra) CHECK(r.makespan == Approx(number(m) * (x.f + x.i + x.w) + *extra));
        }
}

TEST_CASE("forward only keeps every rank busy once it has started", "[sweep]") {
  for (placement place : {placement::loop, placement::vee})
    for (std::size_t p : {1u, 2u, 4u, 5u})
      for (std::size_t m : {1u, 3u, 16u}) {
        const table t = generate(schedule::forward_only, shape{p, m, 2, place});
        REQUIRE_FALSE(validate(t));
        const costs c = even_costs(t.shape, 1, 1, 1, 0);
        REQUIRE_FALSE(validate(lower(t, c)));
        const report r = simulate(t, c);
        if (m >= p) CHECK(r.makespan <= number(m) + number(2 * p - 1) / 2);
      }
}
