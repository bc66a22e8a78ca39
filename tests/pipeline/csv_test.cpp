// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/pipeline/csv.hpp>
#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/lower.hpp>

using namespace polyrank;
using namespace polyrank::pipeline;

TEST_CASE("every schedule survives the way through text", "[csv]") {
  for (schedule s : training_schedules)
    for (std::size_t m : {1u, 5u, 8u}) {
      const table t = generate(s, 4, m);
      const costs c = even_costs(t.shape, 1, 1, 1, 0.1);
      const table full = lower(
          t, c,
          {.recompute = true, .live_stages = 2, .tied = true, .reduce = true, .optimizer = true});
      for (const table* original : {&t, &full}) {
        const table back = from_csv(to_csv(*original));
        INFO(traits_of(s).name << " m=" << m);
        REQUIRE(back.actions == original->actions);
        REQUIRE(back.row == original->row);
        REQUIRE(back.shape == original->shape);
      }
    }
}

TEST_CASE("spaces, idle steps, Windows line ends and a missing last line end are read", "[csv]") {
  const table t = from_csv(" 0F0, ,0F1 ,\t0B0,0B1,\r\n,,1F0,1B0,1F1,1B1");
  REQUIRE(t.shape == shape{2, 2, 1});
  REQUIRE(to_csv(t) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  REQUIRE(to_csv(from_csv("0F0,1F0,(0F1;1B0)OVERLAP_F_B,1F1,0B0,1B1,0B1\n\n\n")) ==
          "0F0,1F0,(0F1;1B0)OVERLAP_F_B,1F1,0B0,1B1,0B1\n");
}

TEST_CASE("a fault in the text is found with line and column", "[csv]") {
  const auto says = [](std::string_view text, const char* what, csv_shape expected = {}) {
    INFO(text);
    REQUIRE_THROWS_WITH(from_csv(text, expected), what);
    REQUIRE_THROWS_AS(from_csv(text, expected), data_error);
  };
  says("", "the table has no actions");
  says("\n,,\n", "the table has no actions");
  says("0F0,0X0", "line 1, column 6: \"X\" is no action");
  says("0F0\n1F0 1B0", "line 2, column 5: expected a comma after an action");
  says("0F0,F0", "line 1, column 5: expected an action such as 2F0 or 0SEND_F1");
  says("0F0,0F", "line 1, column 7: F needs a microbatch");
  says("0F0,0REDUCE_GRAD3", "line 1, column 17: REDUCE_GRAD has no microbatch");
  says("0F0,99999F0", "line 1, column 5: the stage is 65535 or more");
  says("0F99999999999999999999", "line 1, column 3: the microbatch is 16777215 or more");
  says("0F0\n1F0,0B0",
       "line 2, column 5: stage 0 stands on line 1 already; a stage belongs to one rank");
  says("(0F1,1B0)OVERLAP_F_B", "line 1, column 5: expected ; between the two actions of a pair");
  says("(0F1;1B0,", "line 1, column 9: expected ) after the two actions of a pair");
  says("(0F1;1B0)JOIN", "line 1, column 10: expected OVERLAP_F_B after a pair");
  says("0F0,(0F1;1F0)OVERLAP_F_B", "line 1, column 5: a pair is a forward and a backward");
  says("0F0,1F0\n2F0", "the table has 3 stages on 2 ranks; every rank needs the same number");
  says("0F9000,7F0", "the table names 8 stages and 9001 microbatches but has only 2 actions");
  says("0F0\n1F0", "the table has 2 lines, one per rank, but there are 3 ranks", {.ranks = 3});
  says("0F0,0F2", "line 1, column 5: microbatch 2, but there are only 2", {.microbatches = 2});
  says("0F0\n5F0", "line 2, column 1: stage 5, but there are only 2", {.ranks = 2, .chunks = 1});
}

TEST_CASE("the V placement is recognised", "[csv]") {
  REQUIRE(from_csv(to_csv(generate(schedule::zb_v, 4, 3))).shape.place == placement::vee);
  REQUIRE(from_csv(to_csv(generate(schedule::interleaved, 4, 3))).shape.place == placement::loop);
}
