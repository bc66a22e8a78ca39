// The training loop on loopback ranks: the same code as under mpirun, in one process.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "train_classifier/checkpoint.hpp"
#include "train_classifier/host_ops.hpp"
#include "train_classifier/trainer.hpp"

#include <polyrank/core/random.hpp>
#include <polyrank/host/loopback.hpp>

#include <cmath>
#include <mutex>
#include <string>
#include <vector>

using namespace polyrank;
using namespace polyrank::examples;

namespace {

/// Pictures of 4x4 pixels that are brighter in the corner of their class, with noise.
labelled_images corners(std::size_t count, std::uint64_t seed) {
  labelled_images set{
      .rows = 4, .columns = 4, .pixels = {}, .labels = {}, .white = 255, .classes = 4};
  for (std::size_t i = 0; i < count; ++i) {
    const auto label = static_cast<std::uint8_t>(mix(hash_combine(seed, i)) % 4);
    for (std::size_t r = 0; r < 4; ++r)
      for (std::size_t c = 0; c < 4; ++c) {
        const bool lit = r / 2 == label / 2u && c / 2 == label % 2u;
        set.pixels.push_back(
            static_cast<std::uint8_t>((lit ? 90 : 20) + 120 * uniform(seed, i, 4 * r + c)));
      }
    set.labels.push_back(label);
  }
  return set;
}

dataset corner_data() {
  dataset d;
  d.name = "corners";
  d.train = corners(515, 1);
  d.validation = corners(67, 2);
  d.test = corners(101, 3);
  d.class_names = {"a", "b", "c", "d"};
  d.mean = 100;
  d.inv_deviation = 0.02f;
  return d;
}

config small_config() {
  config c;
  c.batch = 64;
  c.epochs = 8;
  c.hidden = {13, 7};
  c.learning_rate = 1e-2;
  return c;
}

/// The result of rank 0; all ranks must have the same digest and losses.
training_result run(int ranks, const config& c, std::size_t workers = 1) {
  const dataset data = corner_data();
  std::vector<training_result> results(static_cast<std::size_t>(ranks));
  host::loopback::run(ranks, [&](host::loopback::communicator& comm) {
    host_ops ops;
    results[static_cast<std::size_t>(comm.rank())] =
        train(comm, ops, c, data, {.workers = workers});
  });
  for (const training_result& r : results) {
    REQUIRE(r.digest == results[0].digest);
    REQUIRE(r.losses == results[0].losses);
    REQUIRE(r.test.predicted == results[0].test.predicted);
  }
  return results[0];
}

} // namespace

TEST_CASE("deterministic mode gives the same bits on 1, 2, 4 and 8 ranks", "[trainer]") {
  config c = small_config();
  c.deterministic = true;
  const training_result one = run(1, c);
  for (const int ranks : {2, 4, 8}) {
    const training_result r = run(ranks, c, ranks == 4 ? 0 : 2);
    REQUIRE(r.digest == one.digest);
    REQUIRE(r.losses == one.losses);
    REQUIRE(r.parameters == one.parameters);
    REQUIRE(r.test.confidence == one.test.confidence);
    REQUIRE(r.samples_per_rank * static_cast<std::size_t>(ranks) == one.samples_per_rank);
  }
  c.seed = 2;
  REQUIRE(run(1, c).digest != one.digest);
}

TEST_CASE("other numbers of ranks agree within rounding", "[trainer]") {
  config c = small_config();
  c.batch = 60;
  c.steps = 20;
  const training_result one = run(1, c);
  for (const int ranks : {2, 3, 5}) {
    const training_result r = run(ranks, c);
    REQUIRE(r.losses.size() == 20);
    REQUIRE(double(r.losses.back()) == Approx(double(one.losses.back())).epsilon(1e-5));
  }
}

TEST_CASE("it learns", "[trainer]") {
  const training_result r = run(2, small_config());
  REQUIRE(r.losses.size() == 64);
  REQUIRE(r.losses.back() < 0.3f * r.losses.front());
  REQUIRE(r.test.accuracy > 0.9);
  REQUIRE(r.train.predicted.size() == 515);
  REQUIRE(r.validation.size() == 8); // one look an epoch
  REQUIRE(r.validation.back().second == r.final_validation.accuracy);
}

TEST_CASE("stopping early walks the same curve", "[trainer]") {
  config c = small_config();
  c.deterministic = true;
  const training_result whole = run(2, c);
  c.steps = 13;
  const training_result part = run(4, c);
  REQUIRE(part.losses.size() == 13);
  REQUIRE(std::equal(part.losses.begin(), part.losses.end(), whole.losses.begin()));
  REQUIRE(part.validation.size() == 2); // after epoch 1, and at the end
}

TEST_CASE("a loss that is not finite ends the run on every rank, naming the step", "[trainer]") {
  config c = small_config();
  c.learning_rate = 1e30;
  try {
    (void)run(2, c);
    FAIL("no error");
  } catch (const polyrank::error& e) {
    REQUIRE(std::string(e.what()).find("is not finite") != std::string::npos);
    REQUIRE(e.collective());
  }
}

TEST_CASE("sizes that do not fit are a usage error on every rank", "[trainer]") {
  config c = small_config();
  c.deterministic = true;
  REQUIRE_THROWS_AS(run(3, c), usage_error);
}

TEST_CASE("a failing collective ends the run with its cause", "[trainer]") {
  const dataset data = corner_data();
  const config c = small_config();
  host::loopback::options options;
  options.faults.push_back({.rank = 1, .operation = 20, .what = host::loopback::fault::kind::fail});
  REQUIRE_THROWS_WITH(host::loopback::run(
                          3,
                          [&](host::loopback::communicator& comm) {
                            host_ops ops;
                            config mine = c;
                            mine.batch = 63;
                            (void)train(comm, ops, mine, data);
                          },
                          options),
                      Catch::Contains("injected fault on rank 1"));
}
