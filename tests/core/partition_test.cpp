// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/core/cost_model.hpp>
#include <polyrank/core/partition.hpp>

using namespace polyrank;

TEST_CASE("parts cover the range in order, sizes differ by at most one", "[partition]") {
  for (std::size_t count : {0u, 1u, 2u, 7u, 12u, 97u})
    for (std::size_t parts : {1u, 2u, 3u, 5u, 8u, 13u}) {
      std::size_t next = 0;
      for (std::size_t i = 0; i < parts; ++i) {
        const range r = partition(count, parts, i);
        REQUIRE(r.begin == next);
        REQUIRE((r.size() == count / parts || r.size() == count / parts + 1));
        next = r.end;
      }
      REQUIRE(next == count);
    }
}

TEST_CASE("block parts are cut at multiples of the block", "[partition]") {
  for (std::size_t count : {0u, 1u, 4096u, 4097u, 100003u})
    for (std::size_t parts : {1u, 2u, 3u, 8u}) {
      std::size_t next = 0;
      for (std::size_t i = 0; i < parts; ++i) {
        const range r = partition_blocks(count, parts, i, 4096);
        REQUIRE(r.begin == next);
        REQUIRE((r.begin % 4096 == 0 || r.begin == count));
        next = r.end;
      }
      REQUIRE(next == count);
    }
}

TEST_CASE("ranges intersect", "[partition]") {
  REQUIRE(intersect({0, 10}, {5, 20}) == range{5, 10});
  REQUIRE(intersect({0, 3}, {5, 20}).empty());
}

TEST_CASE("the cost model sizes buckets by its latency share", "[cost_model]") {
  const cost_model m{.alpha = 25e-6, .beta = 350e9};
  const std::size_t bytes = m.bucket_bytes(8);
  REQUIRE(14 * m.alpha / m.all_reduce(bytes, 8) == Approx(0.05).epsilon(1e-6));
  REQUIRE(m.all_reduce(bytes, 1) == 0);
}
