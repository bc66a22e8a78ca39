// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "oracle.hpp"

#include <polyrank/core/hash.hpp>
#include <polyrank/pipeline/csv.hpp>
#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/lower.hpp>
#include <polyrank/pipeline/lower_baselines.hpp>
#include <polyrank/pipeline/validate.hpp>

#include <string>
#include <vector>

using namespace polyrank;
using namespace polyrank::pipeline;

namespace {

/// The start of the table of pytorch#172668, completed: 2 ranks, 2 chunks, 2 microbatches, every
/// receive just before its consumer.
constexpr const char* pytorch_172668 =
    "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1,"
    "2RECV_B0,2B0,2SEND_B0,2RECV_B1,2B1,2SEND_B1,0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1,"
    "3B0,3SEND_B0,3B1,3SEND_B1,1RECV_B0,1B0,1SEND_B0,1RECV_B1,1B1,1SEND_B1\n";

std::string fault_of(std::string_view csv, csv_shape expected = {}) {
  const auto found = validate(from_csv(csv, expected));
  return found ? found->text : "valid";
}

} // namespace

TEST_CASE("the table of pytorch#172668 deadlocks on one lane, with its cycle", "[validate]") {
  table t = from_csv(pytorch_172668);
  const auto found = validate(t);
  REQUIRE(found);
  REQUIRE(found->kind == fault_kind::deadlock);
  REQUIRE(found->text == "deadlock: rank 0 0SEND_F1 waits for 1RECV_F1 of rank 1, which stands "
                         "behind 1SEND_F0; rank 1 1SEND_F0 waits for 2RECV_F0 of rank 0, which "
                         "stands behind 0SEND_F1");
  REQUIRE(found->cycle.size() == 4);
  REQUIRE(text_of(found->cycle[0]) == "rank 0, action 3 (0SEND_F1)");
  REQUIRE(text_of(found->cycle[1]) == "rank 1, action 3 (1RECV_F1)");
  REQUIRE(text_of(found->cycle[2]) == "rank 1, action 2 (1SEND_F0)");
  REQUIRE(text_of(found->cycle[3]) == "rank 0, action 4 (2RECV_F0)");

  t.lanes = lane_policy::per_channel;
  REQUIRE_FALSE(validate(t));
  REQUIRE_FALSE(oracle::runs(from_csv(pytorch_172668)));
  REQUIRE(oracle::runs(t));
}

TEST_CASE("receives just before their consumers deadlock on one lane, except in GPipe",
          "[validate]") {
  for (schedule s : training_schedules) {
    table t = lower_late_receive(generate(s, 4, 8));
    INFO(traits_of(s).name);
    const auto found = validate(t);
    REQUIRE(found.has_value() == (s != schedule::gpipe));
    if (found) REQUIRE(found->kind == fault_kind::deadlock);
    t.lanes = lane_policy::per_channel;
    REQUIRE_FALSE(validate(t));
  }
}

TEST_CASE("faults of a rank's own list are named", "[validate]") {
  CHECK(fault_of("0F0,0B0\n1F0,1B0") == "valid");
  CHECK(fault_of("0F0,0I0,0W0\n1F0,1B0") == "valid");
  CHECK(fault_of("0F0\n1F0") == "valid");
  CHECK(fault_of("0B0,0F0\n1F0,1B0") == "rank 0, action 0 (0B0) comes before its forward");
  CHECK(fault_of("0F0,0W0,0I0\n1F0,1B0") ==
        "rank 0, action 1 (0W0) comes before its input gradient");
  CHECK(fault_of("0F0,0B0,0B0\n1F0,1B0") == "rank 0, action 2 (0B0) occurs twice");
  CHECK(fault_of("0F0,0B0,0I0,0W0\n1F0,1B0") == "rank 0, action 2 (0I0) is a second backward");
  CHECK(fault_of("0F0,0I0\n1F0,1B0") == "rank 0 never runs 0W0");
  CHECK(fault_of("0F0\n1F0,1B0") == "rank 0 never runs 0B0");
  CHECK(fault_of("0F0,0B0,0B1\n1F0,1F1,1B0,1B1") ==
        "rank 0, action 2 (0B1) comes before its forward");
  CHECK(fault_of("0F0,0F1,0B0,0B1\n1F0,1B0,1B1,1F1") ==
        "rank 1, action 2 (1B1) comes before its forward");
  CHECK(fault_of("1F0,1B0\n0F0,0B0") == "rank 0, action 0 (1F0) is of stage 1, which rank 1 owns");
  CHECK(fault_of("0F0,0RECOMPUTE0,0B0\n1F0,1B0") == "valid");
  CHECK(fault_of("0RECOMPUTE0,0F0,0B0\n1F0,1B0") ==
        "rank 0, action 0 (0RECOMPUTE0) comes before its forward");
  CHECK(fault_of("0F0,0B0,0RECOMPUTE0\n1F0,1B0") ==
        "rank 0, action 2 (0RECOMPUTE0) comes after its backward");
  CHECK(fault_of("0F0,0REDUCE_GRAD,0B0\n1F0,1B0") ==
        "rank 0, action 1 (0REDUCE_GRAD) comes before the stage's last gradient");
  CHECK(fault_of("0F0,0B0,0REDUCE_GRAD,0OPTIMIZER\n1F0,1B0") == "valid");
  CHECK(fault_of("0F0,0OPTIMIZER,0B0\n1F0,1B0") ==
        "rank 0, action 2 (0B0) comes after the optimizer");
  CHECK(fault_of("0UNSHARD,0F0,0RESHARD,0B0\n1F0,1B0") ==
        "rank 0, action 3 (0B0) runs after RESHARD");
  CHECK(fault_of("0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0\n1F0,1B0") == "valid");
  CHECK(fault_of("0F0,0UNSHARD,0B0\n1F0,1B0") ==
        "rank 0, action 1 (0UNSHARD) comes after the stage's first use");
  CHECK(fault_of("0F0,0RESHARD,0B0\n1F0,1B0") ==
        "rank 0, action 1 (0RESHARD) drops a stage that is not gathered");
  CHECK(fault_of("0UNSHARD,0UNSHARD,0F0,0B0\n1F0,1B0") ==
        "rank 0, action 1 (0UNSHARD) gathers a stage that is gathered");
  CHECK(fault_of("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n1F0,1B0") ==
        "rank 0, action 3 (0REDUCE_GRAD) occurs twice");
}

TEST_CASE("communication faults are named", "[validate]") {
  CHECK(fault_of("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0") == "valid");
  CHECK(fault_of("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0") == "rank 0 never runs 0SEND_F0");
  CHECK(fault_of("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0") ==
        "rank 1, action 0 (1F0) comes before its RECV_F");
  CHECK(fault_of("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0") ==
        "rank 0, action 0 (0SEND_F0) comes before its forward");
  CHECK(fault_of("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0") ==
        "rank 0, action 2 (0B0) comes before its RECV_B");
  CHECK(fault_of("0F0,0SEND_F0,0SEND_B0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0") ==
        "rank 0, action 2 (0SEND_B0) has no other rank to go to");
  CHECK(fault_of("0F0,0F1,0SEND_F1,0SEND_F0\n1RECV_F0,1F0,1RECV_F1,1F1") ==
        "rank 0, action 2 (0SEND_F1) would be paired with rank 1, action 0 (1RECV_F0): transfers "
        "between two ranks pair up in issue order");
  CHECK(fault_of("0F0,0SEND_F0,0RECV_B0,0B0,0TIED_REDUCE\n1RECV_F0,1F0,1B0,1SEND_B0") ==
        "rank 1 never runs 1TIED_REDUCE");
  CHECK(fault_of("0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0TIED_REDUCE\n"
                 "1RECV_F0,1F0,1B0,1SEND_B0,1TIED_REDUCE") ==
        "rank 0, action 5 (0TIED_REDUCE) comes after the stage's REDUCE_GRAD");
}

TEST_CASE("collectives in another order on one lane are found", "[validate]") {
  // The tied sum stands before a send on one rank, after the matching receive on the other.
  CHECK(fault_of("0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0TIED_REDUCE\n"
                 "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1B1,1TIED_REDUCE,1SEND_B0,1SEND_B1") ==
        "deadlock: rank 0 0RECV_B0 waits for 1SEND_B0 of rank 1, which stands behind 1TIED_REDUCE; "
        "rank 1 1TIED_REDUCE waits for 0TIED_REDUCE of rank 0, which stands behind 0RECV_B0");
}

TEST_CASE("a compute table whose orders contradict each other deadlocks", "[validate]") {
  // Rank 1 wants microbatch 1's backward before microbatch 0's; rank 0 sends F1 only after B0.
  CHECK(fault_of("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1") ==
        "deadlock: rank 0 0B0 waits for 1B0 of rank 1, which stands behind 1F1; rank 1 1F1 waits "
        "for 0F1 of rank 0, which stands behind 0B0");
}

TEST_CASE("too few slots are found where they deadlock", "[validate]") {
  const table compute = generate(schedule::gpipe, 3, 4);
  table t = lower(compute, even_costs(compute.shape, 1, 1, 1, 0.05));
  REQUIRE_FALSE(validate(t));
  t.slots[1].activation = 2;
  const auto found = validate(t);
  REQUIRE(found);
  REQUIRE(found->kind == fault_kind::deadlock);
  REQUIRE_FALSE(oracle::runs(t));
  t.slots[1].activation = 0;
  REQUIRE(validate(t)->text == "rank 1, action 0 (1RECV_F0) has no slot to receive into");
  t.slots.pop_back();
  REQUIRE(validate(t)->text == "slots are given for 2 of 3 stages");
}

TEST_CASE("a table that does not fit its shape is malformed", "[validate]") {
  table t = generate(schedule::one_f_one_b, 2, 2);
  t.actions[0].stage = 7;
  REQUIRE(validate(t)->kind == fault_kind::malformed);
  t = generate(schedule::one_f_one_b, 2, 2);
  t.actions[0].microbatch = 9;
  REQUIRE(validate(t)->kind == fault_kind::malformed);
  t = generate(schedule::one_f_one_b, 2, 2);
  t.actions[0].kind = static_cast<action_kind>(77);
  REQUIRE(validate(t)->kind == fault_kind::malformed);
  t = generate(schedule::one_f_one_b, 2, 2);
  t.actions[0].joined = 1; // F0 with F1
  REQUIRE(validate(t)->kind == fault_kind::malformed);
  t = generate(schedule::one_f_one_b, 2, 2);
  t.row.pop_back();
  REQUIRE(validate(t)->kind == fault_kind::malformed);
  REQUIRE_THROWS_AS(require_valid(t), data_error);
}

// Mutations: whatever is done to a good table, validate() and the oracle agree on the result.

namespace {

struct tally {
  std::size_t tried = 0, broken = 0;
};

void judge(const table& t, tally& count) {
  ++count.tried;
  const bool runs = oracle::runs(t);
  if (!runs) ++count.broken;
  const auto found = validate(t);
  if (found.has_value() == runs) {
    INFO(to_csv(t) << (found ? found->text : "valid"));
    REQUIRE(found.has_value() != runs);
  }
}

} // namespace

TEST_CASE("every mutation that breaks a table is caught, and no other", "[validate][mutation]") {
  tally swaps, drops, moves;
  std::uint64_t seed = 1;
  const auto pick = [&seed](std::size_t n) {
    return static_cast<std::size_t>((seed = mix(seed)) % n);
  };
  for (schedule s : training_schedules)
    for (auto [p, m] : {std::pair<std::size_t, std::size_t>{2, 2}, {3, 4}, {4, 6}})
      for (lane_policy lanes : {lane_policy::single, lane_policy::per_channel}) {
        const table compute = generate(s, p, m);
        const table good =
            lower(compute, even_costs(compute.shape, 1, 1, 1, 0.05), {.lanes = lanes});
        judge(good, swaps);
        std::vector<std::pair<std::size_t, std::size_t>> comms; // rank, position
        for (std::size_t r = 0; r < p; ++r)
          for (std::size_t i = good.row[r]; i < good.row[r + 1]; ++i)
            if (is_transfer(good.actions[i].kind)) comms.push_back({r, i});
        for (int round = 0; round < 100; ++round) {
          const auto [r, i] = comms[pick(comms.size())];
          // Swap with another communication of the same rank, often the next one.
          std::size_t j = i;
          while (j == i || comms[j].first != r) {
            j = pick(comms.size());
            if (round % 2 == 0)
              for (j = 0; j < comms.size(); ++j)
                if (comms[j].first == r && comms[j].second > i) break;
            if (j == comms.size()) j = pick(comms.size());
            if (comms[j].first == r && comms[j].second != i) break;
            j = i;
          }
          table t = good;
          std::swap(t.actions[i], t.actions[comms[j].second]);
          judge(t, swaps);
          // Drop one.
          t = good;
          t.actions.erase(t.actions.begin() + static_cast<std::ptrdiff_t>(i));
          for (std::size_t q = r + 1; q <= p; ++q) --t.row[q];
          judge(t, drops);
          // Move it to another rank.
          t = good;
          const std::size_t to = (r + 1 + pick(p - 1)) % p;
          const action moved = t.actions[i];
          t.actions.erase(t.actions.begin() + static_cast<std::ptrdiff_t>(i));
          for (std::size_t q = r + 1; q <= p; ++q) --t.row[q];
          const std::size_t at = t.row[to] + pick(t.row[to + 1] - t.row[to] + 1);
          t.actions.insert(t.actions.begin() + static_cast<std::ptrdiff_t>(at), moved);
          for (std::size_t q = to + 1; q <= p; ++q) ++t.row[q];
          judge(t, moves);
        }
      }
  REQUIRE(drops.broken == drops.tried);
  REQUIRE(moves.broken == moves.tried);
  REQUIRE(swaps.broken > swaps.tried / 4); // some swaps are harmless
  REQUIRE(swaps.broken < swaps.tried);
}

TEST_CASE("swapping any two actions of a small table: validate() and the oracle agree",
          "[validate][mutation]") {
  tally count;
  for (schedule s : {schedule::one_f_one_b, schedule::interleaved, schedule::zb_h1, schedule::zb_v})
    for (lane_policy lanes : {lane_policy::single, lane_policy::per_channel}) {
      const table compute = generate(s, 2, 3);
      const table good = lower(compute, even_costs(compute.shape, 1, 1, 1, 0.05), {.lanes = lanes});
      for (std::size_t r = 0; r < 2; ++r)
        for (std::size_t i = good.row[r]; i < good.row[r + 1]; ++i)
          for (std::size_t j = i + 1; j < good.row[r + 1]; ++j) {
            table t = good;
            std::swap(t.actions[i], t.actions[j]);
            judge(t, count);
          }
    }
  REQUIRE(count.broken > 0);
  REQUIRE(count.broken < count.tried);
}
