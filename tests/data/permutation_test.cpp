// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/core/random.hpp>
#include <polyrank/data/permutation.hpp>

#include <cmath>
#include <set>
#include <vector>

using namespace polyrank;

TEST_CASE("philox agrees with the known answers of Random123", "[random]") {
  STATIC_REQUIRE(philox({{0, 0, 0, 0}}, 0, 0) ==
                 random_words{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  STATIC_REQUIRE(philox({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u) ==
                 random_words{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  STATIC_REQUIRE(
      philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0) ==
      random_words{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST_CASE("uniform numbers fill [0, 1) and differ by seed and counter", "[random]") {
  double sum = 0;
  std::set<float> seen;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    const float u = uniform(1, i % 3, i);
    REQUIRE((u >= 0 && u < 1));
    sum += double(u);
    seen.insert(u);
  }
  REQUIRE(sum / 4000 == Approx(0.5).margin(0.02));
  REQUIRE(seen.size() > 3990);
  REQUIRE(uniform(1, 2, 3) != uniform(2, 2, 3));
  REQUIRE(uniform(1, 2, 3) != uniform(1, 3, 2));
}

TEST_CASE("every row appears once, at any size", "[permutation]") {
  for (std::uint64_t n :
       {0u, 1u, 2u, 3u, 4u, 5u, 7u, 16u, 17u, 64u, 65u, 1000u, 1024u, 1797u, 55000u}) {
    std::vector<bool> seen(n);
    const permutation order(n, 42, n);
    REQUIRE(order.size() == n);
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint64_t row = order(i);
      REQUIRE(row < n);
      REQUIRE(!seen[row]);
      seen[row] = true;
    }
    REQUIRE_THROWS_AS(order(n), usage_error);
  }
}

TEST_CASE("seed and epoch each change the order; nothing else does", "[permutation]") {
  const auto head = [](std::uint64_t seed, std::uint64_t epoch) {
    const permutation order(55'000, seed, epoch);
    std::vector<std::uint64_t> rows;
    for (std::uint64_t i = 0; i < 100; ++i) rows.push_back(order(i));
    return rows;
  };
  REQUIRE(head(1, 0) == head(1, 0));
  REQUIRE(head(1, 0) != head(2, 0));
  REQUIRE(head(1, 0) != head(1, 1));
  REQUIRE(head(1, 2) != head(2, 1));
  // A digest of a run rests on these: a change here changes every digest.
  STATIC_REQUIRE(permutation(55'000, 1, 0)(0) == 45361);
  STATIC_REQUIRE(permutation(55'000, 1, 0)(54'999) == 5490);
}

TEST_CASE("rows land everywhere with equal chance", "[permutation]") {
  // Chi-squared over (position, row) cells; 3.7 standard deviations at the seeds given.
  for (const std::uint64_t n : {3u, 5u, 12u, 31u}) {
    const std::uint64_t trials = 20'000;
    std::vector<double> cells(n * n);
    for (std::uint64_t seed = 0; seed < trials; ++seed) {
      const permutation order(n, seed, 3);
      for (std::uint64_t i = 0; i < n; ++i) cells[i * n + order(i)] += 1;
    }
    const double expected = double(trials) / double(n);
    double chi2 = 0;
    for (const double c : cells) chi2 += (c - expected) * (c - expected) / expected;
    const double freedom = double((n - 1) * (n - 1));
    INFO("n=" << n << " chi2=" << chi2 << " degrees of freedom=" << freedom);
    REQUIRE(chi2 < freedom + 3.7 * std::sqrt(2 * freedom));
  }
}

TEST_CASE("neighbours in order are not neighbours in the data", "[permutation]") {
  const permutation order(10'000, 5, 0);
  double sum = 0; // mean |row difference| of random pairs is n / 3
  for (std::uint64_t i = 1; i < 10'000; ++i) {
    const double d = double(order(i)) - double(order(i - 1));
    sum += d < 0 ? -d : d;
  }
  REQUIRE(sum / 9'999 == Approx(10'000 / 3.0).epsilon(0.03));
}
