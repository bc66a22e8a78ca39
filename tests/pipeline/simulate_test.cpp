// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/pipeline/csv.hpp>
#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/lower.hpp>
#include <polyrank/pipeline/simulate.hpp>
#include <polyrank/pipeline/validate.hpp>

#include <array>
#include <cmath>
#include <vector>

using namespace polyrank;
using namespace polyrank::pipeline;

namespace {

report golden_report(schedule s) {
  const table t = generate(s, 4, 8);
  return simulate(t, even_costs(t.shape, 1, 1, 1, 0));
}

struct golden_numbers {
  schedule name;
  double makespan;
  std::array<double, 4> bubble;
  std::array<double, 4> peak; // in chunks: halves of a rank's microbatch where v = 2
};

} // namespace

TEST_CASE("makespan, bubble and peak of 4 ranks and 8 microbatches", "[simulate]") {
  const std::vector<golden_numbers> all = {
      {schedule::gpipe, 33, {9, 6, 3, 0}, {8, 8, 8, 8}},
      {schedule::one_f_one_b, 33, {9, 6, 3, 0}, {4, 3, 2, 1}},
      {schedule::interleaved, 28.5, {4.5, 3, 1.5, 0}, {11, 9, 7, 5}},
      {schedule::bfs, 28.5, {4.5, 3, 1.5, 0}, {16, 16, 16, 16}},
      {schedule::zb_h1, 27, {3, 2, 1, 0}, {4, 3.5, 3, 2.5}},
      {schedule::zb_h2, 27, {0, 0, 0, 0}, {7, 6, 5, 4}},
      {schedule::zb_v, 25.5, {0, 0, 0, 0}, {8, 8, 8, 8}},
      {schedule::dualpipe_v, 27, {3, 2.5, 2, 1.5}, {9, 9, 9, 9}},
  };
  for (const golden_numbers& g : all) {
    INFO(traits_of(g.name).name);
    const report r = golden_report(g.name);
    CHECK(r.makespan == Approx(g.makespan));
    for (std::size_t rank = 0; rank < 4; ++rank) {
      INFO("rank " << rank);
      CHECK(r.ranks[rank].span_bubble() == Approx(g.bubble[rank]).margin(1e-9));
      CHECK(r.ranks[rank].peak_activation * static_cast<double>(r.shape.chunks) ==
            Approx(g.peak[rank]));
      CHECK(r.ranks[rank].exposed == 0);
    }
  }
}

TEST_CASE("V-Half has half, V-Min about two thirds of the bubble of 1F1B", "[simulate]") {
  for (std::size_t p : {2u, 4u, 6u, 8u, 12u, 16u}) {
    const auto bubble_and_peak = [p](schedule s) {
      const table t = generate(s, p, 4 * p);
      costs c = even_costs(t.shape, 1, 1, 1, 0, 1.0); // an activation lives until its W
      const report r = simulate(t, c);
      double bubble = 0;
      for (const rank_report& rank : r.ranks) bubble = std::max(bubble, rank.span_bubble());
      return std::pair{bubble, r.peak_memory()};
    };
    INFO("p = " << p);
    const double whole = 3.0 * static_cast<double>(p - 1);
    const auto half = bubble_and_peak(schedule::v_half), least = bubble_and_peak(schedule::v_min);
    CHECK(half.first == Approx(whole / 2));
    CHECK(half.second == Approx(static_cast<double>(p / 2 + 1)));
    CHECK(least.first <= 0.75 * whole);
    CHECK(least.second <= static_cast<double>(p / 3 + 2));
  }
  const table t = generate(schedule::v_min, 8, 32);
  const report r = simulate(t, even_costs(t.shape, 1, 1, 1, 0, 1.0));
  CHECK(r.ranks[0].span_bubble() == Approx(13.5));
  CHECK(r.peak_memory() == Approx(4.0));
}

TEST_CASE("bubble rates of the zero-bubble paper's profiled models", "[simulate]") {
  struct model {
    std::size_t p, m;
    double f, b, w, c;
    std::array<double, 5> rate; // 1F1B, interleaved v = 3, ZB-H1, ZB-H2, ZB-V
  };
  const std::vector<model> models = {
      {8, 24, 18.522, 18.086, 9.337, .601, {.2431, .1090, .1585, .1083, .0728}},
      {8, 24, 29.718, 29.444, 19.927, .527, {.2347, .0991, .1323, .0698, .0446}},
      {16, 48, 11.347, 11.248, 8.132, .377, {.2552, .1136, .1397, .0672, .0518}},
      {32, 96, 10.419, 10.207, 7.715, .408, {.2646, .1198, .1421, .0641, .0541}},
      {32, 256, 10.419, 10.207, 7.715, .408, {.1322, .0486, .0585, .0250, .0210}},
  };
  const std::array<std::pair<schedule, std::size_t>, 5> columns = {{{schedule::one_f_one_b, 1},
                                                                    {schedule::interleaved, 3},
                                                                    {schedule::zb_h1, 1},
                                                                    {schedule::zb_h2, 1},
                                                                    {schedule::zb_v, 2}}};
  for (const model& x : models)
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const table t = generate(columns[i].first, x.p, x.m, columns[i].second);
      const report r = simulate(t, even_costs(t.shape, x.f, x.b, x.w, x.c));
      INFO(traits_of(columns[i].first).name << " p=" << x.p << " m=" << x.m);
      CHECK(std::abs(r.bubble_rate(r.span()) - x.rate[i]) <= 1e-4);
    }
}

TEST_CASE("an overlapped pair takes pair_factor times its parts", "[simulate]") {
  const table t = generate(schedule::dualpipe_v, 4, 8);
  costs c = even_costs(t.shape, 1, 1, 1, 0);
  const double apart = simulate(t, c).makespan;
  c.pair_factor = 0.8;
  const report r = simulate(t, c);
  CHECK(r.makespan < apart);
  CHECK(r.makespan > 0.8 * apart);
}

TEST_CASE("exposed communication is the idle time that faster links would remove", "[simulate]") {
  // Two ranks, one microbatch: rank 1 waits for F, rank 0 for the gradient, 0.5 each.
  const table t = from_csv("0F0,0B0\n1F0,1B0\n");
  const costs c = even_costs(t.shape, 1, 1, 1, 0.5);
  const report r = simulate(t, c);
  CHECK(r.makespan == Approx(7));
  CHECK(r.ranks[0].exposed == Approx(0.5));
  CHECK(r.ranks[1].exposed == Approx(0)); // its first action does not count as idle
  CHECK(r.ranks[0].span_bubble() == Approx(4));
  const report lowered = simulate(lower(t, c), c);
  CHECK(lowered.makespan == Approx(7));
  CHECK(lowered.ranks[0].exposed == Approx(0.5));
}

TEST_CASE("noise is drawn by seed and action, and stays in its bounds", "[simulate]") {
  const table t = generate(schedule::zb_h1, 4, 8);
  const costs c = even_costs(t.shape, 1, 1, 1, 0.1);
  const double calm = simulate(t, c).makespan;
  const double one = simulate(t, c, {.noise = 0.2, .seed = 1}).makespan;
  CHECK(one == simulate(t, c, {.noise = 0.2, .seed = 1}).makespan);
  CHECK(one != simulate(t, c, {.noise = 0.2, .seed = 2}).makespan);
  CHECK(one >= 0.8 * calm);
  CHECK(one <= 1.2 * calm);
  REQUIRE_THROWS_AS(simulate(t, c, {.noise = -0.1}), usage_error);
  REQUIRE_THROWS_AS(simulate(t, c, {.noise = std::nan("")}), usage_error);
}

TEST_CASE("recompute trades activations for time", "[simulate]") {
  const table t = generate(schedule::one_f_one_b, 4, 8);
  costs c = even_costs(t.shape, 1, 1, 1, 0);
  for (stage_memory& b : c.memory) b.checkpoint = 0.1;
  const report whole = simulate(t, c);
  const report again = simulate(lower(t, c, {.recompute = true}), c);
  CHECK(whole.ranks[0].peak_activation == Approx(4));
  CHECK(again.ranks[0].peak_activation == Approx(3 * 0.1 + 1)); // one is whole, three are not
  CHECK(again.makespan > whole.makespan);
  // The last rank's backward follows its forward at once: nothing to recompute.
  CHECK(again.ranks[3].busy == Approx(whole.ranks[3].busy));
}

TEST_CASE("parameters and slots count as memory", "[simulate]") {
  const table t = generate(schedule::bfs, 2, 4, 4);
  costs c = even_costs(t.shape, 1, 1, 1, 0);
  for (stage_memory& b : c.memory) b.parameters = 10;
  CHECK(simulate(t, c).ranks[0].peak_memory == Approx(40 + 4));
  const report gathered = simulate(lower(t, c, {.live_stages = 1}), c);
  CHECK(gathered.ranks[0].peak_memory == Approx(10 + 4));
  for (stage_memory& b : c.memory) b.boundary = 1, b.boundary_gradient = 0.5;
  const table full = lower(t, c);
  double slots = 0;
  for (std::size_t v = 0; v < 4; ++v) {
    const slot_counts& n = full.slots[full.shape.stage_of(0, v)];
    slots += n.activation + n.output + 0.5 * (n.gradient + n.input_gradient);
  }
  CHECK(simulate(full, c).ranks[0].peak_memory == Approx(40 + 4 + slots));
  CHECK(simulate(full, c).ranks[0].peak_activation == Approx(4));
}

TEST_CASE("links inside and between nodes price the transfers", "[simulate]") {
  const shape s{4, 1, 2, placement::loop};
  costs c = even_costs(s, 1, 1, 1, 0);
  price_transfers(c, s, {.alpha = 0, .beta = 100}, {.alpha = 1, .beta = 10}, 2, 50);
  CHECK(c.stages[0].transfer == Approx(0.5)); // ranks 0 -> 1
  CHECK(c.stages[1].transfer == Approx(6));   // ranks 1 -> 2
  CHECK(c.stages[3].transfer == Approx(6));   // ranks 3 -> 0
  REQUIRE_THROWS_AS(price_transfers(c, s, {}, {}, 0, 50), usage_error);
}

TEST_CASE("bad costs are refused by name", "[simulate]") {
  const table t = generate(schedule::one_f_one_b, 2, 2);
  costs c = even_costs(t.shape, 1, 1, 1, 0);
  c.stages[1].forward = -1;
  REQUIRE_THROWS_WITH(simulate(t, c),
                      "the forward time of stage 1 is -1, it must be from 0 to 1e15");
  c = even_costs(t.shape, 1, std::nan(""), 1, 0);
  REQUIRE_THROWS_AS(simulate(t, c), usage_error);
  c = even_costs(t.shape, 1, 1e300, 1, 0);
  REQUIRE_THROWS_AS(simulate(t, c), usage_error);
  c = even_costs(t.shape, 1, 1, 1, 0);
  c.stages.pop_back();
  REQUIRE_THROWS_AS(simulate(t, c), usage_error);
  REQUIRE_THROWS_AS(
      simulate(from_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1"), even_costs(t.shape, 1, 1, 1, 0)),
      data_error);
}
