// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/data/sampler.hpp>

#include <string>
#include <vector>

using namespace polyrank;

TEST_CASE("an epoch visits every row of its full batches once, and drops the rest", "[sampler]") {
  const sampler rows({.count = 103, .global_batch = 12, .seed = 7});
  REQUIRE(rows.steps_per_epoch() == 8);
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int> seen(103);
    for (std::size_t step = epoch * 8; step < (epoch + 1) * 8; ++step) {
      REQUIRE(rows.epoch(step) == epoch);
      for (std::size_t i = 0; i < 12; ++i) ++seen[rows.row(step, i)];
    }
    int visited = 0;
    for (const int n : seen) {
      REQUIRE(n <= 1);
      visited += n;
    }
    REQUIRE(visited == 96);
  }
}

TEST_CASE("shards of 1, 2, 4 and 8 ranks join to the same global batch", "[sampler]") {
  const sampler rows({.count = 1000, .global_batch = 64, .seed = 7});
  for (const std::size_t step : {0u, 3u, 15u, 40u}) {
    std::vector<std::uint64_t> expected;
    for (std::size_t i = 0; i < 64; ++i) expected.push_back(rows.row(step, i));
    for (const std::size_t ranks : {1u, 2u, 4u, 8u, 64u}) {
      std::vector<std::uint64_t> joined;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const range mine = rows.shard(rank, ranks);
        REQUIRE(mine.size() == 64 / ranks);
        for (std::size_t i = mine.begin; i < mine.end; ++i) joined.push_back(rows.row(step, i));
      }
      REQUIRE(joined == expected);
    }
  }
}

TEST_CASE("a batch that the ranks do not divide is refused with the numbers", "[sampler]") {
  const sampler rows({.count = 1000, .global_batch = 64, .seed = 7});
  try {
    (void)rows.shard(0, 3);
    FAIL("no error");
  } catch (const usage_error& e) {
    REQUIRE(
        std::string(e.what()) ==
        "sampler: 3 ranks do not divide the global batch of 64; take a multiple of 3, such as 66");
  }
  REQUIRE_THROWS_AS(rows.shard(4, 4), usage_error);
  REQUIRE_THROWS_AS(rows.row(0, 64), usage_error);
  REQUIRE_THROWS_AS(sampler({.count = 10, .global_batch = 11}), usage_error);
  REQUIRE_THROWS_AS(sampler({.count = 10, .global_batch = 0}), usage_error);
}

TEST_CASE("evaluation covers every row; shards may be uneven or empty", "[sampler]") {
  std::size_t next = 0;
  for (std::size_t rank = 0; rank < 7; ++rank) {
    const range mine = evaluation_shard(10, rank, 7);
    REQUIRE(mine.begin == next);
    next = mine.end;
  }
  REQUIRE(next == 10);
  REQUIRE(evaluation_shard(2, 3, 4).empty());
}
