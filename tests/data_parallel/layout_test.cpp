// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/core/hash.hpp>
#include <polyrank/data_parallel/layout.hpp>

using namespace polyrank;

namespace {

std::vector<std::size_t> random_counts(std::uint64_t seed) {
  static constexpr std::size_t interesting[] = {0, 1, 2, 3, 63, 64, 65, 997, 4096, 100003};
  std::vector<std::size_t> counts(seed % 23);
  for (auto& c : counts) {
    seed = mix(seed);
    c = interesting[seed % std::size(interesting)];
  }
  return counts;
}

} // namespace

TEST_CASE("every parameter has a place of its own, inside its bucket", "[layout]") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const auto counts = random_counts(seed);
    const layout_options o{.bucket_bytes = std::size_t{1} << (seed % 20),
                           .tail_bytes = seed % 5000,
                           .alignment = 1 + seed % 64};
    const layout l = layout::make(counts, 4, o);
    std::size_t logical = 0, arena = 0, placed = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      REQUIRE(l.slots()[i].count == counts[i]);
      REQUIRE(l.slots()[i].logical_offset == logical);
      logical += counts[i];
    }
    REQUIRE(l.count() == logical);
    for (std::size_t b = 0; b < l.buckets().size(); ++b) {
      const bucket& bucket = l.buckets()[b];
      REQUIRE(bucket.first == placed);
      REQUIRE(bucket.last > bucket.first);
      REQUIRE(bucket.elements.begin >= arena);
      REQUIRE(bucket.elements.begin % o.alignment == 0);
      arena = bucket.elements.begin;
      for (std::size_t k = bucket.first; k < bucket.last; ++k) {
        const slot& s = l.slots()[l.order()[k]];
        REQUIRE(s.bucket == b);
        REQUIRE(s.arena_offset == arena);
        arena += s.count;
      }
      REQUIRE(bucket.elements.end == arena);
      placed = bucket.last;
    }
    REQUIRE(placed == counts.size());
    REQUIRE(l.arena_count() == arena);
  }
}

TEST_CASE("issue order is the reverse of declaration, unless given", "[layout]") {
  const std::vector<std::size_t> counts{10, 20, 30};
  REQUIRE(layout::make(counts, 4).order() == std::vector<std::size_t>{2, 1, 0});
  REQUIRE(layout::make(counts, 4, {.order = {1, 2, 0}}).order() ==
          std::vector<std::size_t>{1, 2, 0});
  REQUIRE_THROWS_WITH(layout::make(counts, 4, {.order = {1, 1, 0}}),
                      "layout: the order is no permutation; 1 is named twice");
  REQUIRE_THROWS_AS(layout::make(counts, 4, {.order = {1, 0}}), usage_error);
  REQUIRE_THROWS_AS(layout::make(counts, 4, {.order = {1, 0, 3}}), usage_error);
}

TEST_CASE("the last bucket is small where the parameters allow it", "[layout]") {
  const std::vector<std::size_t> counts{100, 100, 1000, 1000, 1000};
  const layout l = layout::make(counts, 4, {.bucket_bytes = 8000, .tail_bytes = 800});
  REQUIRE(l.buckets().size() == 3);
  REQUIRE(l.buckets()[0].elements.size() == 2000);
  REQUIRE(l.buckets()[1].elements.size() == 1000);
  REQUIRE(l.buckets()[2].elements.size() == 200);
}

TEST_CASE("the logical index does not depend on bucket size, order or alignment", "[layout]") {
  const auto counts = random_counts(21);
  const layout a = layout::make(counts, 4, {.bucket_bytes = 100});
  const layout b = layout::make(counts, 2, {.bucket_bytes = 1 << 20, .alignment = 4096});
  for (std::size_t i = 0; i < counts.size(); ++i)
    REQUIRE(a.slots()[i].logical_offset == b.slots()[i].logical_offset);
  REQUIRE(a.fingerprint() != b.fingerprint());
  REQUIRE(a.fingerprint() == layout::make(counts, 4, {.bucket_bytes = 100}).fingerprint());
}

TEST_CASE("sizes beyond 32 bits, and sizes that overflow", "[layout]") {
  const std::vector<std::size_t> counts{std::size_t{1} << 33, 5};
  const layout l = layout::make(counts, 2);
  REQUIRE(l.slots()[1].logical_offset == std::size_t{1} << 33);
  REQUIRE(l.count() == (std::size_t{1} << 33) + 5);
  REQUIRE_THROWS_AS(layout::make(std::vector<std::size_t>{~std::size_t{0} / 2}, 8), usage_error);
}

TEST_CASE("no parameters, no buckets", "[layout]") {
  const layout l = layout::make({}, 4);
  REQUIRE(l.buckets().empty());
  REQUIRE(l.arena_count() == 0);
}
