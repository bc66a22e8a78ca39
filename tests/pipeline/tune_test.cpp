// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/pipeline/search.hpp>
#include <polyrank/pipeline/tune.hpp>
#include <polyrank/pipeline/validate.hpp>

using namespace polyrank;
using namespace polyrank::pipeline;

TEST_CASE("the search is no worse than the zero-bubble paper's at the same memory", "[search]") {
  struct model {
    std::size_t p, m;
    double f, b, w, c, once, twice; // bubble rates at p and 2 p activations
  };
  for (model x : {model{8, 24, 18.522, 18.086, 9.337, .601, .1585, .0433},
                  {8, 24, 29.718, 29.444, 19.927, .527, .1323, .0029},
                  {16, 48, 11.347, 11.248, 8.132, .377, .1397, .0066},
                  {32, 96, 10.419, 10.207, 7.715, .408, .1421, .0038},
                  {32, 256, 10.419, 10.207, 7.715, .408, .0585, .0014}}) {
    const shape s{x.p, x.m};
    const costs c = even_costs(s, x.f, x.b, x.w, x.c);
    for (auto [cap, rate] : {std::pair{1.0, x.once}, {2.0, x.twice}}) {
      const double limit = cap * static_cast<double>(x.p);
      const tuned best = search_split_backward(s, c, limit, objective::span);
      INFO("p=" << x.p << " m=" << x.m << " cap " << limit);
      REQUIRE_FALSE(validate(best.table));
      CHECK(best.report.peak_memory() <= limit);
      CHECK(best.report.bubble_rate(best.report.span()) <= rate + 0.002);
    }
  }
}

TEST_CASE("more memory never makes the search slower, and little memory still works", "[search]") {
  const shape s{6, 12};
  costs c = even_costs(s, 1, 1.1, 0.7, 0.05);
  c.stages[0].forward = 1.5, c.stages[5].input_grad = 1.6;
  double last = 1e9;
  for (double cap : {1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 12.0}) {
    const tuned best = search_split_backward(s, c, cap);
    INFO("cap " << cap);
    REQUIRE_FALSE(best.table.actions.empty());
    REQUIRE_FALSE(validate(best.table));
    CHECK(best.report.peak_memory() <= cap * (1 + 1e-9));
    CHECK(best.report.makespan <= last * (1 + 1e-9));
    last = best.report.makespan;
  }
  CHECK(search_split_backward(s, c, 0.9).table.actions.empty());
}

TEST_CASE("tune picks the fastest that fits", "[tune]") {
  tune_request q;
  q.ranks = 4, q.microbatches = {8}, q.chunks = {1, 2};
  q.costs_of = [](const shape& s) { return even_costs(s, 1, 1, 1, 0); };
  q.search = false;
  CHECK(tune(q).name == "zb_v"); // 25.5
  q.memory_cap = 3.5;
  const tuned half = tune(q);
  CHECK(half.name == "v_half");
  CHECK(half.report.peak_memory() <= 3.5);
  q.split_backward = false;
  q.memory_cap = 4;
  CHECK(tune(q).name == "1f1b");
  q.memory_cap = 5.5;
  CHECK(tune(q).name == "interleaved");
  q.microbatches = {8, 32}; // more microbatches, smaller share of bubble
  CHECK(tune(q).table.shape.microbatches == 32);
}

TEST_CASE("a cap that nothing meets is refused with the smallest that works", "[tune]") {
  tune_request q;
  q.ranks = 4, q.microbatches = {8}, q.chunks = {1, 2};
  q.costs_of = [](const shape& s) { return even_costs(s, 1, 1, 1, 0); };
  q.memory_cap = 0.5;
  REQUIRE_THROWS_WITH(tune(q), "no schedule fits into a memory cap of 0.5; the smallest that works "
                               "is 2 (v_min with 8 microbatches)");
  q.memory_cap = -1;
  REQUIRE_THROWS_AS(tune(q), usage_error);
  q.memory_cap = 4, q.microbatches = {};
  REQUIRE_THROWS_AS(tune(q), usage_error);
  q = {};
  REQUIRE_THROWS_AS(tune(q), usage_error);
}
