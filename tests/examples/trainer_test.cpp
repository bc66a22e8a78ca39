// The training loop on loopback ranks: the same code as under mpirun, in one process.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "train_classifier/checkpoint.hpp"
#include "train_classifier/host_ops.hpp"
#include "train_classifier/trainer.hpp"

#include <polyrank/core/random.hpp>
#include <polyrank/host/loopback.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

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

namespace {

/// A folder for one test case.
struct scratch_folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("polyrank_trainer_" + std::to_string(getpid()));
  scratch_folder() { std::filesystem::remove_all(path); }
  ~scratch_folder() { std::filesystem::remove_all(path); }
  /// A copy of `from`, in the place of the last one.
  [[nodiscard]] std::string copy(const std::string& from) const {
    const auto to = path / "copy";
    std::filesystem::remove_all(to);
    std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
    return to.string();
  }
};

} // namespace

TEST_CASE("a run saved on N ranks goes on on M ranks with the same bits", "[trainer][checkpoint]") {
  const scratch_folder scratch;
  config c = small_config();
  c.deterministic = true;
  c.steps = 16;
  const training_result whole = run(2, c);
  for (const int n : {1, 2, 4, 8}) {
    config first = c;
    first.steps = 10;
    first.save_every = 5;
    first.checkpoint = (scratch.path / ("of" + std::to_string(n))).string();
    (void)run(n, first);
    for (const int m : {1, 2, 4, 8}) {
      config second = c;
      second.resume = true;
      second.checkpoint = scratch.copy(first.checkpoint);
      const training_result r = run(m, second);
      INFO(n << " to " << m);
      REQUIRE(r.first_step == 10);
      REQUIRE(r.losses.size() == 6);
      REQUIRE(std::equal(r.losses.begin(), r.losses.end(), whole.losses.begin() + 10));
      REQUIRE(r.digest == whole.digest);
      REQUIRE(r.test.confidence == whole.test.confidence);
    }
  }
}

TEST_CASE("a run goes on at another stage and residency with the same bits",
          "[trainer][checkpoint]") {
  const scratch_folder scratch;
  config c = small_config();
  c.deterministic = true;
  c.steps = 9;
  c.zero = 0;
  const training_result whole = run(2, c);
  struct way {
    int ranks;
    std::optional<std::size_t> zero;
    const char* offload;
  };
  const way ways[] = {{4, 1, "none"}, {2, 2, "host"}, {1, 0, "none"}, {8, 2, "none"},
                      {2, 1, "host"}, {4, 0, "none"}, {2, {}, "none"}};
  config step = c;
  step.checkpoint = (scratch.path / "chain").string();
  std::size_t made = 2;
  for (const way& w : ways) { // each goes on one step from where the one before stopped
    step.zero = w.zero;
    step.offload = w.offload;
    step.steps = made++;
    (void)run(w.ranks, step);
    step.resume = true;
  }
  step.zero = 1;
  step.steps = 9;
  const training_result r = run(2, step);
  REQUIRE(r.first_step == 8);
  REQUIRE(r.digest == whole.digest);
}

TEST_CASE("numbers of ranks that give other bits go on within rounding", "[trainer][checkpoint]") {
  const scratch_folder scratch;
  config c = small_config();
  c.batch = 60;
  c.steps = 20;
  const training_result whole = run(1, c);
  for (const auto& [n, m] : {std::pair{1, 3}, {3, 2}, {5, 4}}) {
    config first = c;
    first.steps = 11;
    first.checkpoint = (scratch.path / std::to_string(n)).string();
    (void)run(n, first);
    config second = c;
    second.checkpoint = first.checkpoint;
    second.resume = true;
    REQUIRE(double(run(m, second).final_loss) == Approx(double(whole.final_loss)).epsilon(1e-5));
  }
}

TEST_CASE("a run that is asked to stop saves at the next step, and goes on",
          "[trainer][checkpoint]") {
  const scratch_folder scratch;
  config c = small_config();
  c.deterministic = true;
  const training_result whole = run(2, c);
  c.checkpoint = (scratch.path / "c").string();
  const dataset data = corner_data();
  std::vector<training_result> stopped(2);
  host::loopback::run(2, [&](host::loopback::communicator& comm) {
    host_ops ops;
    int looks = 0;
    train_options o;
    o.stop = [&] { return comm.rank() == 1 && ++looks == 37; }; // one rank hears it
    stopped[static_cast<std::size_t>(comm.rank())] = train(comm, ops, c, data, o);
  });
  REQUIRE((stopped[0].stopped && stopped[1].stopped));
  REQUIRE(stopped[0].losses.size() == 37);
  c.resume = true;
  const training_result r = run(4, c);
  REQUIRE(r.first_step == 37);
  REQUIRE(r.digest == whole.digest);
  const training_result again = run(1, c); // nothing is left to do
  REQUIRE(again.losses.empty());
  REQUIRE(again.digest == whole.digest);
  REQUIRE(again.final_loss == whole.losses.back());
  REQUIRE(again.final_validation.accuracy == whole.final_validation.accuracy);
}

TEST_CASE("a checkpoint of other flags, or in the way, is refused on every rank",
          "[trainer][checkpoint]") {
  const scratch_folder scratch;
  config c = small_config();
  c.steps = 3;
  c.checkpoint = (scratch.path / "c").string();
  (void)run(2, c);
  REQUIRE_THROWS_WITH(run(2, c), Catch::Contains("add --resume to go on with it"));
  c.resume = true;
  config other = c;
  other.seed = 5;
  REQUIRE_THROWS_WITH(run(2, other), Catch::Contains("was made with --seed 1, this run has 5"));
  other = c;
  other.hidden = {13, 9};
  REQUIRE_THROWS_WITH(run(2, other),
                      Catch::Contains("is of another model") && Catch::Contains("'layer1.weight'"));
  other = c;
  other.steps = 2;
  REQUIRE_THROWS_WITH(run(2, other), Catch::Contains("take more --steps"));
}

TEST_CASE("--init takes what fits and leaves a new head", "[trainer][checkpoint]") {
  const scratch_folder scratch;
  std::filesystem::create_directories(scratch.path);
  const mlp_shape shape{16, {13, 7}, 4};
  std::vector<float> values = initial_parameters(shape, 99);
  const std::string file = (scratch.path / "w.safetensors").string();
  save_weights(file, parameters_of(shape), values);
  std::vector<float> mine = initial_parameters(shape, 1);
  REQUIRE(load_weights(file, parameters_of(shape), mine).empty());
  REQUIRE(mine == values);
  const mlp_shape wider{16, {13, 7}, 6};
  std::vector<float> fresh = initial_parameters(wider, 1), start = fresh;
  const std::string text = load_weights(file, parameters_of(wider), fresh);
  REQUIRE_THAT(text, Catch::Contains("'layer2.weight' is [6, 7] in the model, [4, 7] in the file"));
  const std::size_t head = parameters_of(wider)[4].offset;
  REQUIRE(
      std::equal(fresh.begin(), fresh.begin() + static_cast<std::ptrdiff_t>(head), values.begin()));
  REQUIRE(std::equal(fresh.begin() + static_cast<std::ptrdiff_t>(head), fresh.end(),
                     start.begin() + static_cast<std::ptrdiff_t>(head)));
  config c = small_config();
  c.init = file;
  c.steps = 4;
  const training_result a = run(2, c);
  c.init = (scratch.path / "none").string();
  REQUIRE_THROWS_WITH(run(2, c), Catch::Contains("none: cannot open: No such file"));
  c.init.clear();
  REQUIRE(a.digest != run(2, c).digest);
}

namespace {

std::vector<std::string> lines_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// deterministic, until in one step one bit of one gradient comes out wrong, on every rank.
struct one_wrong_bit {
  static constexpr std::string_view name = "one_wrong_bit";
  std::size_t step, element;
  deterministic inner{};
  mutable std::size_t calls = 0;

  [[nodiscard]] std::size_t blocks_per_rank(int ranks) const {
    return inner.blocks_per_rank(ranks);
  }
  [[nodiscard]] std::size_t scratch(std::size_t count, int ranks) const {
    return inner.scratch(count, ranks);
  }
  template <class C>
  void issue(C& comm, std::span<float> data, std::span<float> scratch,
             on<host::stream> where) const {
    inner.issue(comm, data, scratch, where);
    if (++calls == step) where.stream.enqueue([&x = data[element]] { x = -x; });
  }
};

} // namespace

TEST_CASE("digests of a run: the same for every N and ZeRO stage, and they find one wrong bit",
          "[trainer][digests]") {
  const scratch_folder scratch;
  config c = small_config();
  c.deterministic = true;
  c.steps = 7;
  c.digest_every = 1;
  const auto digests = [&](int ranks, std::optional<std::size_t> zero = {}) {
    c.zero = zero;
    c.out = (scratch.path / std::to_string(ranks)).string();
    (void)run(ranks, c);
    return lines_of(c.out + "/digests.csv");
  };
  const std::vector<std::string> right = digests(1);
  REQUIRE(right.size() == 1 + 7 * 6);
  for (const int ranks : {2, 4, 8}) REQUIRE(digests(ranks) == right);
  for (std::string& line : digests(2, 2)) { // gradients are in pieces there
    if (line.starts_with("step")) continue;
    const std::string with = *std::find_if(right.begin(), right.end(), [&](const std::string& r) {
      return r.starts_with(line.substr(0, line.find(",,") + 1));
    });
    REQUIRE(with.substr(with.size() - 33) == line.substr(line.size() - 33));
  }

  // Tensor 3 of 6, layer1.bias, lies behind tensors 5 and 4 in the one bucket.
  const std::size_t before = 4 + 4 * 7;
  c.zero.reset();
  c.out = (scratch.path / "wrong").string();
  const dataset data = corner_data();
  host::loopback::run(2, [&](host::loopback::communicator& comm) {
    using policy = one_wrong_bit;
    host_ops ops;
    trainer<host::loopback::communicator, host_ops,
            replicated<host::loopback::communicator, host_ops, policy>>
        t(comm, ops, c, data, {}, policy{.step = 5, .element = before + 2});
    (void)t.run();
  });
  const std::vector<std::string> wrong = lines_of(c.out + "/digests.csv");
  REQUIRE(wrong.size() == right.size());
  std::vector<std::string> differ;
  for (std::size_t i = 0; i < right.size(); ++i)
    if (right[i] != wrong[i]) differ.push_back(wrong[i].substr(0, wrong[i].find(',', 2)));
  REQUIRE(differ.front() == "5,layer1.bias");
  REQUIRE(differ[1] == "6,layer0.weight"); // nothing else differs in that step, all in the next
}
