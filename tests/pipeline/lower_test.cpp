// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "oracle.hpp"

#include <polyrank/core/hash.hpp>
#include <polyrank/pipeline/csv.hpp>
#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/lower.hpp>
#include <polyrank/pipeline/lower_baselines.hpp>
#include <polyrank/pipeline/simulate.hpp>
#include <polyrank/pipeline/validate.hpp>

#include <cmath>
#include <vector>

using namespace polyrank;
using namespace polyrank::pipeline;

namespace {

std::vector<schedule> all_schedules() {
  std::vector<schedule> all(training_schedules.begin(), training_schedules.end());
  all.push_back(schedule::forward_only);
  return all;
}

} // namespace

TEST_CASE("the lowered table of 2 ranks and 2 chunks, written out", "[lower]") {
  const table compute = generate(schedule::interleaved, 2, 2, 2);
  const table t = lower(compute, even_costs(compute.shape, 1, 1, 1, 0.05));
  REQUIRE_FALSE(validate(t));
  REQUIRE(to_csv(t) == "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2RECV_F1,2SEND_F0,2F1,2SEND_F1,"
                       "2RECV_B0,2B0,2SEND_B0,2RECV_B1,2B1,0RECV_B0,2SEND_B1,0B0,0RECV_B1,0B1\n"
                       "1RECV_F0,1F0,1RECV_F1,1SEND_F0,1F1,1SEND_F1,3RECV_F0,3F0,3B0,3RECV_F1,"
                       "3SEND_B0,3F1,3B1,1RECV_B0,3SEND_B1,1B0,1SEND_B0,1RECV_B1,1B1,1SEND_B1\n");
}

TEST_CASE("lowering is free of deadlock for any costs, also zero, one-sided and random ones",
          "[lower]") {
  std::uint64_t seed = 7;
  const auto random = [&seed] { return static_cast<double>((seed = mix(seed)) % 1000) / 100; };
  for (schedule s : all_schedules())
    for (std::size_t p : {1u, 2u, 3u, 5u})
      for (std::size_t m : {1u, 2u, 7u})
        for (int kind = 0; kind < 9; ++kind) {
          const table compute = generate(s, p, m);
          costs c = even_costs(compute.shape, 1, 1, 1, 0);
          if (kind == 1) c = even_costs(compute.shape, 0, 0, 0, 0);
          if (kind == 2) c = even_costs(compute.shape, 0, 0, 0, 1);
          if (kind == 3) c = even_costs(compute.shape, 1, 0, 0, 3);
          if (kind == 4) c = even_costs(compute.shape, 0, 1, 0, 100);
          if (kind == 6) c = even_costs(compute.shape, 1e-9, 1e-9, 1e-9, 1e15);
          if (kind == 7) c = even_costs(compute.shape, 1e15, 0, 1e-9, 1e15);
          if (kind == 8) c.pair_factor = 0;
          if (kind == 5)
            for (stage_costs& x : c.stages)
              x = {random(), random(), random(), random(), random(), random(), random(), random()};
          for (lane_policy lanes : {lane_policy::single, lane_policy::per_channel}) {
            const table t = lower(compute, c, {.lanes = lanes});
            const auto found = validate(t);
            INFO(traits_of(s).name << " p=" << p << " m=" << m << " costs " << kind << "\n"
                                   << to_csv(t));
            REQUIRE((found ? found->text : "valid") == "valid");
            if (s != schedule::forward_only && kind % 2 == 1) REQUIRE(oracle::runs(t));
          }
        }
}

TEST_CASE("recompute, gathers, tied sum, reduction and update are lowered and valid", "[lower]") {
  for (schedule s : training_schedules)
    for (std::size_t p : {1u, 2u, 4u})
      for (std::size_t m : {1u, 5u, 8u})
        for (unsigned mask = 0; mask < 32; ++mask)
          for (lane_policy lanes : {lane_policy::single, lane_policy::per_channel}) {
            const table compute = generate(s, p, m);
            costs c = even_costs(compute.shape, 1, 1, 1, 0.1);
            for (stage_costs& x : c.stages) x.unshard = 0.3, x.reduce = 0.5, x.optimizer = 0.2;
            c.tied_reduce = 0.4;
            const lower_options options{.lanes = lanes,
                                        .recompute = (mask & 1) != 0,
                                        .live_stages = (mask & 2) != 0 ? 2u : 0u,
                                        .tied = (mask & 4) != 0,
                                        .reduce = (mask & 8) != 0,
                                        .optimizer = (mask & 16) != 0};
            const table t = lower(compute, c, options);
            const auto found = validate(t);
            INFO(traits_of(s).name << " p=" << p << " m=" << m << " mask " << mask << "\n"
                                   << to_csv(t));
            REQUIRE((found ? found->text : "valid") == "valid");
            REQUIRE(simulate(t, c).makespan > 0);
            REQUIRE(t.has(action_kind::unshard) == ((mask & 2) != 0));
            REQUIRE(t.has(action_kind::tied_reduce) == ((mask & 4) != 0));
            REQUIRE(t.has(action_kind::reduce) == ((mask & 8) != 0));
            REQUIRE(t.has(action_kind::optimizer) == ((mask & 16) != 0));
          }
}

TEST_CASE("the reduction of a stage follows its last weight gradient and its tied sum", "[lower]") {
  const table compute = generate(schedule::zb_h1, 2, 2);
  const table t = lower(compute, even_costs(compute.shape, 1, 1, 1, 0),
                        {.tied = true, .reduce = true, .optimizer = true});
  const std::string text = to_csv(t);
  REQUIRE(text.find("0W1,0TIED_REDUCE,0REDUCE_GRAD,0OPTIMIZER\n") != std::string::npos);
  REQUIRE(text.find("1W1,1TIED_REDUCE,1REDUCE_GRAD,1OPTIMIZER\n") != std::string::npos);
}

TEST_CASE("no more stages are gathered at once than asked for", "[lower]") {
  for (schedule s : {schedule::interleaved, schedule::bfs})
    for (std::size_t room : {1u, 2u, 3u}) {
      const table compute = generate(s, 2, 4, 4);
      const table t = lower(compute, even_costs(compute.shape, 1, 1, 1, 0), {.live_stages = room});
      REQUIRE_FALSE(validate(t));
      std::size_t gathers = 0;
      for (std::size_t r = 0; r < 2; ++r) {
        std::size_t live = 0;
        for (const action& a : t.of(r)) {
          if (a.kind == action_kind::unshard) ++live, ++gathers;
          if (a.kind == action_kind::reshard) --live;
          REQUIRE(live <= room);
        }
        REQUIRE(live == 0);
      }
      // Breadth first gathers each stage once per direction, the last one only once.
      if (s == schedule::bfs && room == 1) REQUIRE(gathers == 2 * (4 + 3));
    }
  const table pairs = generate(schedule::dualpipe_v, 2, 4);
  REQUIRE_THROWS_AS(lower(pairs, even_costs(pairs.shape, 1, 1, 1, 0), {.live_stages = 1}),
                    usage_error);
}

TEST_CASE("slots stay as few with more microbatches, and follow the schedule's memory", "[lower]") {
  for (schedule s :
       {schedule::one_f_one_b, schedule::zb_h1, schedule::zb_v, schedule::interleaved}) {
    const table few = generate(s, 4, 16), many = generate(s, 4, 64);
    const table a = lower(few, even_costs(few.shape, 1, 1, 1, 0.05));
    const table b = lower(many, even_costs(many.shape, 1, 1, 1, 0.05));
    INFO(traits_of(s).name);
    for (std::size_t stage = 0; stage < a.slots.size(); ++stage) {
      CHECK(a.slots[stage].activation == b.slots[stage].activation);
      CHECK(a.slots[stage].gradient == b.slots[stage].gradient);
    }
  }
  const table c = generate(schedule::one_f_one_b, 4, 16);
  const table t = lower(c, even_costs(c.shape, 1, 1, 1, 0.05));
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(t.slots[r].activation <= 4 - r + 1); // in flight, and one on its way
    CHECK(t.slots[r].gradient == (r < 3 ? 1u : 0u));
  }
  const table g = generate(schedule::gpipe, 4, 16);
  CHECK(lower(g, even_costs(g.shape, 1, 1, 1, 0.05)).slots[1].activation == 16);
}

TEST_CASE("one time-ordered lane is within 3 % of unlimited lanes for m >= p", "[lower]") {
  for (schedule s : training_schedules)
    for (std::size_t p : {2u, 4u, 8u})
      for (std::size_t v : {1u, 2u, 4u})
        for (std::size_t m : {p, 2 * p, 4 * p + 3}) {
          if (v < traits_of(s).min_chunks || v > traits_of(s).max_chunks) continue;
          const table compute = generate(s, p, m, v);
          const costs c = even_costs(compute.shape, 1, 1, 1, 0.05);
          const double ideal = simulate(compute, c).makespan;
          const double lanes =
              simulate(lower(compute, c, {.lanes = lane_policy::per_channel}), c).makespan;
          const double one = simulate(lower(compute, c), c).makespan;
          INFO(traits_of(s).name << " p=" << p << " v=" << v << " m=" << m);
          CHECK(one <= 1.03 * ideal);
          CHECK(lanes <= 1.001 * ideal);
        }
}

TEST_CASE("PyTorch's order, modelled, runs, and is never faster than ours by more than noise",
          "[lower]") {
  for (schedule s : training_schedules) {
    const table compute = generate(s, 8, 16);
    const costs c = even_costs(compute.shape, 1, 1, 1, 0.05);
    const table sweep = lower_sweep(compute);
    REQUIRE_FALSE(validate(sweep));
    const double ours = simulate(lower(compute, c), c).makespan;
    const double theirs = simulate(sweep, c).makespan;
    INFO(traits_of(s).name << " " << theirs / ours);
    CHECK(ours <= 1.005 * theirs);
  }
}

TEST_CASE("what cannot be lowered is refused", "[lower]") {
  const table compute = generate(schedule::one_f_one_b, 2, 2);
  const costs c = even_costs(compute.shape, 1, 1, 1, 0);
  REQUIRE_THROWS_AS(lower(lower(compute, c), c), usage_error);
  const table eval = generate(schedule::forward_only, 2, 2);
  REQUIRE_THROWS_AS(lower(eval, c, {.reduce = true}), usage_error);
  REQUIRE_THROWS_AS(lower(from_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1"), c), data_error);
}
