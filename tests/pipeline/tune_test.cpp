// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/pipeline/lower.hpp>
#include <polyrank/pipeline/measure.hpp>
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

TEST_CASE("the profile of a run that took the given times gives them back", "[measure]") {
  for (const schedule s : training_schedules) {
    const table compute = generate(s, 3, 7, default_chunks(s));
    const shape& of = compute.shape;
    costs c = even_costs(of, 1, 1, 1, 0);
    for (std::size_t i = 0; i < of.stages(); ++i) {
      const double x = 1 + 0.125 * static_cast<double>(i);
      stage_costs& at = c.stages[i];
      at.forward = x, at.input_grad = 1.5 * x;
      at.weight_grad = traits_of(s).splits_backward ? 0.75 * x : 1.5 * x;
      if (i + 1 < of.stages() && of.crosses(i)) at.transfer = 0.0625 * x;
      at.reduce = 0.5 * x, at.optimizer = 0.25 * x;
    }
    if (s == schedule::dualpipe_v) c.pair_factor = 0.875;
    const table t = lower(compute, c, {.reduce = true, .optimizer = true});
    const costs got = profile(simulate(t, c, {.timeline = true}), c.memory);
    INFO(traits_of(s).name);
    for (std::size_t i = 0; i < of.stages(); ++i) {
      const stage_costs &a = got.stages[i], &b = c.stages[i];
      CHECK(a.forward == Approx(b.forward));
      CHECK(a.input_grad == Approx(b.input_grad));
      CHECK(a.weight_grad == Approx(b.weight_grad));
      CHECK(a.transfer == Approx(b.transfer).margin(1e-9));
      CHECK(a.reduce == Approx(b.reduce));
    }
    CHECK(got.pair_factor == Approx(c.pair_factor));
    CHECK(simulate(t, got).makespan == Approx(simulate(t, c).makespan));
  }
}

TEST_CASE("costs of one cut of a model are those of another", "[tune]") {
  const auto same = [](const costs& a, const costs& b) {
    REQUIRE(a.stages.size() == b.stages.size());
    for (std::size_t i = 0; i < a.stages.size(); ++i) {
      CHECK(a.stages[i].forward == Approx(b.stages[i].forward));
      CHECK(a.stages[i].weight_grad == Approx(b.stages[i].weight_grad));
      CHECK(a.memory[i].activation == Approx(b.memory[i].activation));
      CHECK(a.memory[i].boundary == b.memory[i].boundary);
      CHECK((i + 1 == a.stages.size() || a.stages[i].transfer == b.stages[i].transfer));
    }
  };
  const auto even = [](const shape& s) {
    costs c = even_costs(s, 3, 2, 1, 0.125);
    for (std::size_t i = 1; i < s.stages(); ++i) c.memory[i].boundary = 0.25;
    return c;
  };
  const shape shapes[] = {{2, 8}, {2, 4, 3, placement::loop}, {2, 8, 2, placement::vee}};
  for (const shape& from : shapes)
    for (const shape& to : shapes) same(recut(even(from), from, to), even(to));
  costs c = even(shapes[0]); // two stages of 3 and 9, in six: 1 1 1 3 3 3
  c.stages[1].forward = 9;
  const costs six = recut(c, shapes[0], shapes[1]);
  CHECK(six.stages[2].forward == Approx(1));
  CHECK(six.stages[3].forward == Approx(3));
  CHECK(recut(six, shapes[1], {3, 8}).stages[1].forward == Approx(4)); // 1 + 3
  REQUIRE_THROWS_AS(recut(c, shapes[1], shapes[0]), usage_error);
}
