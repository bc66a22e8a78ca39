// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "golden.hpp"

using namespace polyrank;
using namespace polyrank::pipeline;

// The golden tables hold at compile time.
static_assert(golden::equals(schedule::gpipe, 1,
                             {golden::gpipe_row, golden::gpipe_row, golden::gpipe_row,
                              golden::gpipe_row}));
static_assert(golden::equals(schedule::bfs, 2,
                             {golden::bfs_row, golden::bfs_row, golden::bfs_row, golden::bfs_row}));
static_assert(golden::equals(schedule::one_f_one_b, 1, golden::one_f_one_b));
static_assert(golden::equals(schedule::interleaved, 1, golden::one_f_one_b));
static_assert(golden::equals(schedule::interleaved, 2, golden::interleaved));
static_assert(golden::equals(schedule::zb_h1, 1, golden::zb_h1));
static_assert(golden::equals(schedule::zb_h2, 1, golden::zb_h2));

TEST_CASE("V schedules of 4 ranks and 8 microbatches equal the golden tables", "[generators]") {
  REQUIRE(golden::equals(schedule::zb_v, 2, golden::zb_v));
  REQUIRE(golden::equals(schedule::dualpipe_v, 2, golden::dualpipe_v));
}

TEST_CASE("a stage belongs to one rank, and its chunk leads back to it", "[shape]") {
  for (placement place : {placement::loop, placement::vee})
    for (std::size_t p : {1u, 2u, 5u}) {
      const shape s{p, 1, 2, place};
      for (std::size_t stage = 0; stage < s.stages(); ++stage)
        REQUIRE(s.stage_of(s.rank_of(stage), s.chunk_of(stage)) == stage);
    }
  REQUIRE(shape{4, 1, 2, placement::vee}.rank_of(4) == 3);
  REQUIRE_FALSE(shape{4, 1, 2, placement::vee}.crosses(3));
  REQUIRE(shape{4, 1, 2, placement::loop}.rank_of(4) == 0);
}

TEST_CASE("a shape outside a schedule's domain is refused with the domain", "[generators]") {
  REQUIRE_THROWS_WITH(generate(schedule::one_f_one_b, 4, 0),
                      "a step needs at least one microbatch, got 0");
  REQUIRE_THROWS_WITH(generate(schedule::one_f_one_b, 0, 4),
                      "a pipeline needs at least one rank, got 0");
  REQUIRE_THROWS_WITH(generate(schedule::zb_h1, 4, 8, 2),
                      "zb_h1 takes exactly 1 chunk per rank, got 2");
  REQUIRE_THROWS_WITH(generate(schedule::zb_v, 4, 8, 3),
                      "zb_v takes exactly 2 chunks per rank, got 3");
  REQUIRE_THROWS_AS(generate(schedule::interleaved, 70000, 8, 2), usage_error);
  REQUIRE_THROWS_AS(generate(schedule::gpipe, 65535, 10000000), usage_error);
  REQUIRE_THROWS_AS(generate(schedule::zb_v, shape{4, 8, 2, placement::loop}), usage_error);
  REQUIRE_THROWS_AS(generate(schedule::forward_only, shape{4, 8, 3, placement::vee}), usage_error);
}

TEST_CASE("an unknown schedule is refused with the list of known ones", "[generators]") {
  REQUIRE(schedule_from("1f1b") == schedule::one_f_one_b);
  REQUIRE_THROWS_WITH(schedule_from("zb-v"), Catch::Matchers::Contains("\"zb-v\"") &&
                                                 Catch::Matchers::Contains("zb_v, v_half"));
}

TEST_CASE("layers that the stages do not divide are refused", "[shape]") {
  REQUIRE(layers_per_stage({4, 8, 2}, 32) == 4);
  REQUIRE_THROWS_WITH(
      layers_per_stage({4, 8, 2}, 30),
      "30 layers do not divide into 8 stages (4 ranks with 2 each); the next number that does "
      "is 32");
  REQUIRE_THROWS_AS(layers_per_stage({4, 8, 2}, 0), usage_error);
}
