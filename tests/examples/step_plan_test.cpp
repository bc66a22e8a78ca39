// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "train_classifier/fit.hpp"
#include "train_classifier/step_plan.hpp"

#include <string>

using namespace polyrank;
using namespace polyrank::examples;

namespace {

std::string refusal(const config& c, std::size_t ranks, std::size_t count = 55'000) {
  try {
    (void)plan_steps(c, ranks, count);
  } catch (const usage_error& e) {
    REQUIRE(e.collective()); // one rank speaks for all
    return e.what();
  }
  return "accepted";
}

config recipe() {
  config c;
  settle(c, "somewhere", 55'000);
  return c;
}

} // namespace

TEST_CASE("the recipe on 1, 2, 4 and 8 ranks", "[step_plan]") {
  for (const std::size_t ranks : {1u, 2u, 4u, 8u}) {
    config c = recipe();
    const step_plan p = plan_steps(c, ranks, 55'000);
    REQUIRE(p.steps_per_epoch == 107);
    REQUIRE(p.horizon == 1070);
    REQUIRE(p.steps == 1070);
    REQUIRE(p.blocks == ranks);
    REQUIRE(p.rows_per_rank() == 512 / ranks);
    c.deterministic = true;
    const step_plan d = plan_steps(c, ranks, 55'000);
    REQUIRE(d.blocks == 8);
    REQUIRE(d.blocks_per_rank == 8 / ranks);
    REQUIRE(d.rows_per_block == 64); // the same on any number of ranks
    REQUIRE(d.rows_per_rank() == 512 / ranks);
  }
}

TEST_CASE("the learning-rate horizon comes from the epochs, not from the steps", "[step_plan]") {
  config c = recipe();
  const step_plan whole = plan_steps(c, 4, 55'000);
  c.steps = 50;
  const step_plan part = plan_steps(c, 4, 55'000);
  REQUIRE(part.steps == 50);
  REQUIRE(part.horizon == whole.horizon);
  REQUIRE(part.warmup == whole.warmup);
}

TEST_CASE("numbers that do not fit are refused, with the numbers", "[step_plan]") {
  config c = recipe();
  REQUIRE(refusal(c, 3) == "3 ranks do not divide --batch 512; take --batch 513");
  c.steps = 1071;
  REQUIRE(refusal(c, 2) ==
          "--steps 1071 is more than the 1070 steps of --epochs 10, at whose end the "
          "learning rate is zero; take --epochs 11");
  c = recipe();
  REQUIRE(refusal(c, 2, 500) == "--batch 512 is more than the 500 training pictures");
  c.deterministic = true;
  REQUIRE(refusal(c, 3).find("3 ranks do not divide --blocks 8") == 0);
  REQUIRE(refusal(c, 16).find("16 ranks do not divide --blocks 8") == 0);
  c.blocks = 12;
  REQUIRE(refusal(c, 2) ==
          "--blocks 12 is no power of two, so the sum of the blocks would depend on the "
          "number of ranks; take 8 or 16");
  c.blocks = 8;
  c.batch = 100;
  REQUIRE(refusal(c, 2) == "--blocks 8 do not divide --batch 100; take --batch 104");
}

TEST_CASE("a small data set gets a small batch, unless one is asked for", "[step_plan]") {
  config c;
  settle(c, "d", 1259);
  REQUIRE(c.batch == 64);
  c.batch = 128;
  settle(c, "d", 1259);
  REQUIRE(c.batch == 128);
}

TEST_CASE("--fit doubles until something does not fit, and forecasts where it must", "[fit]") {
  // 100 MiB, and 10 for each picture of a micro-batch.
  std::size_t run = 0, said = 0;
  const auto attempt = [&run](std::size_t m) {
    ++run;
    return fit_trial{.micro_batch = m, .bytes = (100 + 10 * m) << 20};
  };
  const auto say = [&said](const fit_trial&) { ++said; };
  const auto limit = [](std::size_t mib) { return mib << 20; };

  fit_result r = fit_micro_batch(1000, limit(200), true, attempt, say);
  REQUIRE(r.best == 8); // 180 MiB; 16 would take 260
  REQUIRE(run == 4);
  REQUIRE(said == 5);
  REQUIRE_FALSE(r.trials.back().run);
  REQUIRE(r.trials.back().bytes == limit(260));
  REQUIRE(fit_text(r.trials.back()) ==
          "fit      micro-batch 16 does not: would take about 260.0 MiB, the limit is 200.0");

  run = 0;
  r = fit_micro_batch(1000, limit(200), false, attempt, say); // a GPU: it is tried
  REQUIRE(r.best == 8);
  REQUIRE(run == 5);
  REQUIRE(r.trials.back().why == "takes 260.0 MiB, the limit is 200.0");

  REQUIRE(fit_micro_batch(5, limit(900), true, attempt, say).best == 4); // no more pictures
  REQUIRE(fit_micro_batch(8, limit(50), true, attempt, say).best == 0);
  r = fit_micro_batch(
      8, limit(900), false,
      [&](std::size_t m) {
        fit_trial t = attempt(m);
        if (m == 4) t.why = "out of memory";
        return t;
      },
      say);
  REQUIRE(r.best == 2);
  REQUIRE(r.trials.size() == 3);
}

TEST_CASE("--fit: memory that grows from step to step does not fit", "[fit]") {
  REQUIRE(growth(std::size_t{100} << 20, std::size_t{110} << 20).empty());
  REQUIRE(growth(std::size_t{100} << 20, std::size_t{120} << 20) ==
          "grows: 100.0 MiB after step 5, 120.0 after step 20");
  REQUIRE(growth(std::size_t{1000} << 20, std::size_t{1040} << 20).empty());
}
