// Sharded optimizers on loopback threads: stages x ranks x microbatches x residency x precision.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "zero/zero_cases.hpp"

#include <polyrank/host/loopback.hpp>
#include <polyrank/optim/lion.hpp>
#include <polyrank/optim/sgd.hpp>

#include <atomic>
#include <mutex>
#include <set>

using namespace polyrank;
using namespace polyrank::test;
using host::stream;
using host::loopback::run;
using loop_comm = host::loopback::communicator;

// Catch2 is not made for several threads: one rank at a time may assert.
static std::mutex asserting;
static void assert_on_rank(bool holds, const char* text) {
  const std::lock_guard one_at_a_time(asserting);
  INFO(text);
  REQUIRE(holds);
}
#define RANK_REQUIRE(condition) assert_on_rank((condition), #condition)

namespace {

constexpr adamw::options rates{.lr = 0.01};

template <class Residency>
Residency residency() {
  if constexpr (std::is_same_v<Residency, on_host>)
    return {.fraction = 1, .threads = 2};
  else
    return {};
}

/// Two steps with exact sums; elements that differ from the serial run in fp32, rounded, over all
/// ranks, and how often memory was taken after the construction.
template <class Residency, class O = adamw, class V = float>
std::size_t wrong_with(int n, std::size_t micros, sharded_options o,
                       Residency home = residency<Residency>(),
                       const std::vector<std::size_t>& counts = zero_counts,
                       const typename O::options& hyper = {.lr = 0.01}) {
  const std::size_t blocks = static_cast<std::size_t>(n) * micros;
  const auto expected = rounded_to<V>(serial<O>(counts, hyper, 2, blocks, o.max_norm, gradient_at));
  std::atomic<std::size_t> bad{0};
  o.microbatches = o.blocks > 0 ? 1 : micros;
  run(n, [&](loop_comm& comm) {
    poisoned memory;
    sharded_options mine = o;
    mine.memory = &memory;
    stream s;
    sharded_optimizer<O, loop_comm, V, V, Residency> opt(comm, parameters_of<V>(counts), hyper,
                                                         mine, home);
    const std::size_t taken = memory.taken;
    start(opt, s, comm.rank());
    for (int step = 0; step < 2; ++step) train_step(opt, s, comm.rank(), micros, gradient_at);
    opt.synchronize();
    bad += wrong(opt, expected) + memory.taken - taken;
  });
  return bad;
}

} // namespace

template <class V, class Residency>
static void check_product() {
  const std::vector<std::size_t> counts{0, 1, 4097, 31, 0, 1003};
#if defined(__SANITIZE_THREAD__)
  constexpr std::size_t every = sizeof(V) == sizeof(float) ? 1 : 3; // it is slow
#else
  constexpr std::size_t every = 1;
#endif
  for (const int n : {1, 2, 3, 4, 5, 8})
    for (const std::size_t micros : {1, 2, 4})
      for (const std::size_t stage : {0, 1, 2}) {
        if ((static_cast<std::size_t>(n) + micros + stage) % every != 0) continue;
        INFO("ranks " << n << ", microbatches " << micros << ", stage " << stage);
        const sharded_options o{.stage = stage, .bucket_bytes = 10000, .tail_bytes = 4000};
        REQUIRE(wrong_with<Residency, adamw, V>(n, micros, o, residency<Residency>(), counts) == 0);
      }
}

TEST_CASE("sharded: every stage, number of ranks and of microbatches gives the serial bits",
          "[zero]") {
  check_product<float, on_device>();
  check_product<bf16, on_device>();
  check_product<fp16, on_device>();
}

TEST_CASE("sharded: the same with the state on the host", "[zero]") {
  check_product<float, on_host>();
  check_product<bf16, on_host>();
  check_product<fp16, on_host>();
}

TEST_CASE("sharded: bucket sizes, a part on the host, clipping do not change exact results",
          "[zero]") {
  for (const std::size_t bucket : {std::size_t{1}, std::size_t{300}, std::size_t{1} << 22})
    for (const std::size_t stage : {1, 2}) {
      INFO("bucket " << bucket << ", stage " << stage);
      REQUIRE(wrong_with<on_device>(3, 2, {.stage = stage, .bucket_bytes = bucket, .ring = 1}) ==
              0);
      REQUIRE(wrong_with<on_host>(3, 2, {.stage = stage, .bucket_bytes = bucket},
                                  {.fraction = 0.4, .threads = 1}) == 0);
      REQUIRE(wrong_with<on_host>(
                  2, 1, {.stage = stage, .bucket_bytes = bucket, .clip = clip_policy::none}) == 0);
    }
}

TEST_CASE("random models: every optimizer is its formula, whatever sizes, ranks and buckets",
          "[zero]") {
  for (std::uint64_t seed = 0; seed < 18; ++seed) {
    std::uint64_t state = seed;
    const auto below = [&state](std::uint64_t n) {
      return static_cast<std::size_t>(mix(++state * 77 + 5) % n);
    };
    constexpr std::size_t special[] = {0, 1, 2, 3, 997, 4095, 4096, 4097, 8191};
    std::vector<std::size_t> counts;
    for (std::size_t k = 1 + below(7); k > 0; --k)
      counts.push_back(below(2) == 0 ? special[below(9)] : below(6000));
    const int n = 1 + static_cast<int>(below(9));
    const std::size_t micros = 1 + below(3);
    const sharded_options o{
        .stage = below(3), .bucket_bytes = 1 + below(40000), .tail_bytes = 1 + below(9000)};
    const on_host home{.fraction = 0.01 + 0.01 * static_cast<double>(below(100)), .threads = 2};
    INFO("seed " << seed << ", ranks " << n << ", microbatches " << micros << ", stage "
                 << o.stage);
    const auto check = [&]<class O>(const typename O::options& hyper) {
      if (seed / 3 % 2 == 0)
        REQUIRE(wrong_with<on_device, O>(n, micros, o, {}, counts, hyper) == 0);
      else
        REQUIRE(wrong_with<on_host, O>(n, micros, o, home, counts, hyper) == 0);
    };
    if (seed % 3 == 0) check.operator()<adamw>({.lr = 0.01, .weight_decay = 0.2});
    if (seed % 3 == 1) check.operator()<sgd>({.lr = 0.01, .momentum = 0.5, .nesterov = true});
    if (seed % 3 == 2) check.operator()<lion>({.lr = 0.01, .weight_decay = 0.1});
  }
}

TEST_CASE("parameter groups: options of their own, with the bits of one rank", "[zero][groups]") {
  parameter_groups<adamw> groups(names_of(parameters_of<float>(zero_counts)), rates);
  groups.split("bare", {.lr = 0.02, .weight_decay = 0}, names_with{{"2", "5", "9"}});
  groups.split("slow", {.lr = 0.001, .beta1 = 0.8, .beta2 = 0.95}, names_with{{"7", "8"}});
  for (const int n : {1, 2, 3}) {
    const auto expected =
        serial<adamw>(zero_counts, groups, 2, static_cast<std::size_t>(n), 0, gradient_at);
    const auto train = [&]<class V, class Residency>(std::size_t stage, V, Residency home) {
      const auto rounded = rounded_to<V>(expected);
      std::atomic<std::size_t> bad{0};
      run(n, [&](loop_comm& comm) {
        poisoned memory;
        stream s;
        sharded_optimizer<adamw, loop_comm, V, V, Residency> opt(
            comm, parameters_of<V>(zero_counts), groups,
            {.stage = stage, .bucket_bytes = 40000, .memory = &memory}, home);
        start(opt, s, comm.rank());
        for (int step = 0; step < 2; ++step) train_step(opt, s, comm.rank(), 1, gradient_at);
        opt.synchronize();
        bad += wrong(opt, rounded);
        if constexpr (std::is_same_v<Residency, on_device>)
          bad += memory.bytes == opt.plan().device_bytes() ? 0 : 1;
      });
      INFO("ranks " << n << ", stage " << stage);
      REQUIRE(bad == 0);
    };
    for (const std::size_t stage : {0, 1, 2}) {
      train(stage, 0.0f, on_device{});
      train(stage, bf16{}, on_device{});
      train(stage, 0.0f, on_host{.fraction = 0.6, .threads = 2});
      train(stage, bf16{}, on_host{.threads = 1});
    }
  }
}

TEST_CASE("ranks with other groups, or without memory, are named on all of them", "[zero]") {
  class refusing final : public std::pmr::memory_resource {
    void* do_allocate(std::size_t n, std::size_t) override {
      throw out_of_memory("page-locked memory", n, 0);
    }
    void do_deallocate(void*, std::size_t, std::size_t) override {}
    [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
      return this == &other;
    }
  };
  const auto some = parameters_of<float>({10, 20});
  run(3, [&](loop_comm& comm) {
    parameter_groups<sgd> groups({"p0", "p1"}, {.lr = 1});
    groups.split("slow", {.lr = 0.1}, names_with{{comm.rank() == 2 ? "p0" : "p1"}});
    std::string refusal;
    try {
      sharded_optimizer<sgd, loop_comm> opt(comm, some, groups);
    } catch (const mismatch_error& e) {
      refusal = e.what();
    }
    RANK_REQUIRE(refusal == "the ranks have different models: rank 0 has parameter 'p0' of 10 in "
                            "group 'rest', rank 2 has parameter 'p0' of 10 in group 'slow'");
    refusal.clear();
    refusing none;
    try {
      sharded_optimizer<sgd, loop_comm, float, float, on_host> opt(
          comm, some, sgd::options{}, {.stage = 0},
          {.threads = 1, .memory = comm.rank() == 1 ? &none : nullptr});
    } catch (const out_of_memory& e) {
      refusal = e.what();
    }
    RANK_REQUIRE(refusal == "offload: rank 1: out of memory: page-locked memory asked for 128 "
                            "bytes, 0 are free");
  });
  run(1, [&](loop_comm& comm) {
    REQUIRE_THROWS_WITH(
        (sharded_optimizer<sgd, loop_comm>(comm, some, parameter_groups<sgd>({"a", "b"}, {}))),
        "sharded_optimizer: the parameter groups have other names than the parameters");
  });
}

TEST_CASE("deterministic: equal bits for stages 0 to 2, 1 to 8 ranks, on device and on host",
          "[zero][deterministic]") {
  std::set<std::uint64_t> digests;
  std::set<double> norms;
  std::mutex lock;
  const auto train = [&]<class Residency>(int n, std::size_t stage, Residency home) {
    run(n, [&](loop_comm& comm) {
      poisoned memory;
      stream s;
      sharded_optimizer<adamw, loop_comm, float, float, Residency> opt(
          comm, parameters_of<float>(zero_counts), rates,
          {.stage = stage, .bucket_bytes = 20000, .blocks = 8, .max_norm = 0.5f, .memory = &memory},
          home);
      start(opt, s, comm.rank());
      for (int step = 0; step < 2; ++step)
        train_step(opt, s, comm.rank(), 8 / static_cast<std::size_t>(n), rough_gradient_at);
      opt.synchronize();
      const double squares = opt.record().squares;
      const std::lock_guard hold(lock);
      digests.insert(digest(opt));
      norms.insert(squares);
    });
  };
  for (const int n : {1, 2, 4, 8})
    for (const std::size_t stage : {0, 1, 2}) {
      train(n, stage, on_device{});
      train(n, stage, on_host{.fraction = 0.6, .threads = 2});
    }
  REQUIRE(digests.size() == 1);
  REQUIRE(norms.size() == 1);
}

TEST_CASE("deterministic: a number of ranks that cannot keep the tree is refused", "[zero]") {
  std::atomic<int> refused{0}; // assertions are not for several threads at once
  run(3, [&](loop_comm& comm) {
    try {
      sharded_optimizer<adamw, loop_comm> opt(comm, parameters_of<float>({10}), rates,
                                              {.blocks = 8});
    } catch (const usage_error&) {
      ++refused;
    }
  });
  REQUIRE(refused == 3);
}

TEST_CASE("the norm of a fixed vector on four shards is sqrt(120)", "[zero][norm]") {
  // 120 = 4 shards x (1 + 4 + 9 + 16); a mean of the shards' norms would be about 5.5.
  const std::vector<std::size_t> counts{4 * norm_block};
  const auto write = [](std::size_t, std::size_t k, std::size_t) {
    return k % norm_block < 4 ? static_cast<float>(k % norm_block + 1) : 0.0f;
  };
  std::set<float> norms;
  std::mutex lock;
  for (const int n : {1, 2, 3, 4, 8})
    for (const std::size_t stage : {0, 1, 2})
      run(n, [&](loop_comm& comm) {
        stream s;
        sharded_optimizer<sgd, loop_comm> opt(comm, parameters_of<float>(counts), {.lr = 1},
                                              {.stage = stage});
        start(opt, s, comm.rank());
        train_step(opt, s, comm.rank(), 1, write);
        const step_record r = opt.record();
        const std::lock_guard hold(lock);
        norms.insert(r.norm);
      });
  REQUIRE(norms.size() == 1);
  REQUIRE(*norms.begin() == static_cast<float>(std::sqrt(120.0)));
}

TEST_CASE("replicated, sharded and whole tensors in one model: the norm counts each element once",
          "[zero][norm]") {
  std::vector<placement> mix;
  for (std::size_t i = 0; i < zero_counts.size(); ++i)
    mix.push_back({.stage = i % 3, .whole = i % 3 != 0 && i % 4 == 2});
  for (const int n : {1, 2, 3, 5}) {
    INFO("ranks " << n);
    for (const std::size_t micros : {1, 2})
      REQUIRE(wrong_with<on_device>(
                  n, micros, {.placements = mix, .bucket_bytes = 9000, .max_norm = 1e9f}) == 0);
    const float all = [&] {
      float norm = 0;
      run(n, [&](loop_comm& comm) {
        stream s;
        sharded_optimizer<adamw, loop_comm> opt(comm, parameters_of<float>(zero_counts), rates,
                                                {.placements = mix});
        start(opt, s, comm.rank());
        train_step(opt, s, comm.rank(), 1, [](auto...) { return 1.0f; });
        const step_record r = opt.record();
        if (comm.rank() == 0) norm = r.norm;
      });
      return norm;
    }();
    std::size_t total = 0;
    for (const std::size_t c : zero_counts) total += c;
    REQUIRE(std::abs(static_cast<double>(all) / std::sqrt(static_cast<double>(total)) - 1) < 1e-6);
  }
}

TEST_CASE("clipping by the norm: the same as serial within rounding", "[zero][norm]") {
  const auto expected = serial<sgd>(zero_counts, {.lr = 0.5}, 1, 3, 0.25f, gradient_at);
  for (const std::size_t stage : {0, 1, 2})
    run(3, [&](loop_comm& comm) {
      stream s;
      sharded_optimizer<sgd, loop_comm> opt(comm, parameters_of<float>(zero_counts), {.lr = 0.5},
                                            {.stage = stage, .max_norm = 0.25f});
      start(opt, s, comm.rank());
      train_step(opt, s, comm.rank(), 1, gradient_at);
      const step_record r = opt.record();
      opt.synchronize();
      float worst = 0, moved = 0;
      for (std::size_t i = 0; i < expected.size(); ++i)
        for (std::size_t k = 0; k < expected[i].size(); ++k) {
          worst = std::max(worst, std::abs(opt.value(i)[k] - expected[i][k]));
          moved += std::pow(opt.value(i)[k] - initial_value(i, k), 2.0f);
        }
      RANK_REQUIRE(r.clipped == 1);
      RANK_REQUIRE(worst < 1e-6f);
      RANK_REQUIRE(std::abs(std::sqrt(moved) / (0.5f * 0.25f) - 1) < 1e-3f);
    });
}

TEST_CASE("previous_step clips by the norm of the step before", "[zero][norm]") {
  const auto factor_two = [](std::size_t, std::size_t, std::size_t) { return 2.0f; };
  const auto train = [&]<class Residency>(Residency home) {
    run(2, [&](loop_comm& comm) {
      stream s;
      sharded_optimizer<sgd, loop_comm, float, float, Residency> opt(
          comm, parameters_of<float>({10000}), {.lr = 1},
          {.stage = 2, .max_norm = 20, .clip = clip_policy::previous_step}, home);
      start(opt, s, comm.rank());
      train_step(opt, s, comm.rank(), 1, [](auto...) { return 1.0f; }); // norm 100, clipped exactly
      opt.synchronize();
      RANK_REQUIRE(std::abs(opt.value(0)[5] - initial_value(0, 5) + 0.2f) < 1e-6f);
      const float before = opt.value(0)[5];
      train_step(opt, s, comm.rank(), 1, factor_two); // norm 200, clipped as 100 would be
      opt.synchronize();
      RANK_REQUIRE(std::abs(opt.value(0)[5] - before + 0.4f) < 1e-6f);
      RANK_REQUIRE(std::abs(opt.record().norm - 200) < 1e-3f);
    });
  };
  train(on_device{});
  train(on_host{.threads = 2});
}

TEST_CASE("a gradient that is not finite on one rank: all ranks skip, and know where it was",
          "[zero][scaler]") {
  for (const std::size_t stage : {0, 1, 2})
    for (const float poison : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      std::mutex lock;
      std::set<std::uint64_t> digests;
      run(3, [&](loop_comm& comm) {
        stream s;
        const auto expected = serial<adamw>(zero_counts, rates, 2, 3, 0, gradient_at);
        sharded_optimizer<adamw, loop_comm> opt(
            comm, parameters_of<float>(zero_counts), rates,
            {.stage = stage,
             .bucket_bytes = 20000,
             .scaler = {.enabled = true, .initial = 1, .hysteresis = 1},
             .count_bad_gradients = true});
        start(opt, s, comm.rank());
        train_step(opt, s, comm.rank(), 1, gradient_at);
        RANK_REQUIRE(opt.bad_gradients().empty());
        train_step(opt, s, comm.rank(), 1, [&](std::size_t i, std::size_t k, std::size_t block) {
          return block == 1 && i == 7 && k == 4096 ? poison : gradient_at(i, k, block);
        });
        const step_record r = opt.record();
        const std::string where = opt.bad_gradients();
        train_step(opt, s, comm.rank(), 1, gradient_at);
        const step_record after = opt.record();
        opt.synchronize();
        RANK_REQUIRE(r.skip == 1);
        RANK_REQUIRE(r.applied == 1);
        RANK_REQUIRE(r.skipped == 1);
        RANK_REQUIRE(where == "rank 1: 'p7'");
        RANK_REQUIRE(after.applied == 2); // the bias correction goes on with 2, not 3
        RANK_REQUIRE(wrong(opt, expected) == 0);
        const std::lock_guard hold(lock);
        digests.insert(digest(opt));
      });
      REQUIRE(digests.size() == 1);
    }
}

TEST_CASE("fp16 with the scaler: scaled gradients, overflow lowers the scale on all ranks",
          "[zero][scaler]") {
  run(2, [](loop_comm& comm) {
    stream s;
    sharded_optimizer<sgd, loop_comm, fp16> opt(
        comm, parameters_of<fp16>({5000}), {.lr = 0.125},
        {.stage = 1, .scaler = {.enabled = true, .initial = 131072, .window = 2, .hysteresis = 1}});
    RANK_REQUIRE(opt.warnings().empty());
    start(opt, s, comm.rank());
    const float before = static_cast<float>(opt.value(0)[3]);
    const auto scaled = [&opt](auto...) { return *opt.loss_scale() * 1.0f; };
    train_step(opt, s, comm.rank(), 1, scaled); // 131072 is infinite in fp16
    opt.synchronize();
    RANK_REQUIRE(opt.record().skip == 1);
    RANK_REQUIRE(opt.record().scaler.scale == 65536);
    RANK_REQUIRE(static_cast<float>(opt.value(0)[3]) == before);
    opt.wait_all(s);
    train_step(opt, s, comm.rank(), 1, scaled); // so is 65536
    opt.wait_all(s);
    train_step(opt, s, comm.rank(), 1, scaled);
    const step_record r = opt.record();
    opt.synchronize();
    RANK_REQUIRE(r.skip == 0);
    RANK_REQUIRE(r.applied == 1);
    RANK_REQUIRE(r.norm == static_cast<float>(std::sqrt(5000.0)));
    RANK_REQUIRE(static_cast<float>(opt.value(0)[3]) == static_cast<float>(fp16(before - 0.125f)));
  });
  run(1, [](loop_comm& comm) {
    sharded_optimizer<sgd, loop_comm, fp16> opt(comm, parameters_of<fp16>({5}), {});
    REQUIRE(opt.warnings().size() == 1); // fp16 without a scaler
  });
}

TEST_CASE("bf16: masters in fp32 equal the serial run; values are their rounding", "[zero][bf16]") {
  for (const int n : {1, 3})
    for (const std::size_t stage : {0, 1, 2})
      for (const std::size_t micros : {1, 2}) {
        INFO("ranks " << n << ", stage " << stage << ", microbatches " << micros);
        const std::size_t blocks = static_cast<std::size_t>(n) * micros;
        const auto expected =
            rounded_to<bf16>(serial<adamw>(zero_counts, rates, 2, blocks, 0, gradient_at));
        const auto train = [&]<class Residency>(Residency home) {
          std::atomic<std::size_t> bad{0}, states{0};
          run(n, [&](loop_comm& comm) {
            poisoned memory;
            stream s;
            sharded_optimizer<adamw, loop_comm, bf16, bf16, Residency> opt(
                comm, parameters_of<bf16>(zero_counts), rates,
                {.stage = stage, .bucket_bytes = 9000, .microbatches = micros, .memory = &memory},
                home);
            start(opt, s, comm.rank());
            for (int step = 0; step < 2; ++step)
              train_step(opt, s, comm.rank(), micros, gradient_at);
            opt.synchronize();
            bad += wrong(opt, expected);
            opt.for_each_fragment([&](const fragment& f, const auto& shard) {
              states += shard.master.size();
              for (std::size_t k = 0; k < f.count; ++k)
                bad +=
                    static_cast<float>(bf16(shard.master[k])) == expected[f.parameter][f.offset + k]
                        ? 0
                        : 1;
            });
          });
          REQUIRE(bad == 0);
          std::size_t total = 0;
          for (const std::size_t c : zero_counts) total += c;
          REQUIRE(states == (stage == 0 ? static_cast<std::size_t>(n) * total : total));
        };
        train(on_device{});
        train(on_host{.fraction = 0.5, .threads = 2});
      }
}

TEST_CASE("bf16 gradients are summed in fp32: 1 + 2^-9 over 8 ranks and 64 microbatches",
          "[zero][bf16]") {
  // Added up in bf16 the small ones would all be lost.
  const auto write = [](std::size_t, std::size_t, std::size_t block) {
    return block == 0 ? 1.0f : 0x1p-9f;
  };
  for (const std::size_t stage : {0, 1, 2})
    run(8, [&](loop_comm& comm) {
      stream s;
      sharded_optimizer<sgd, loop_comm, bf16> opt(comm, parameters_of<bf16>({100}), {.lr = 0},
                                                  {.stage = stage, .microbatches = 64});
      start(opt, s, comm.rank());
      train_step(opt, s, comm.rank(), 64, write);
      const step_record r = opt.record();
      RANK_REQUIRE(r.squares == 100 * std::pow(1 + 511 * 0x1p-9, 2.0));
    });
}

TEST_CASE("stochastic rounding of values: the same bits for every number of ranks",
          "[zero][bf16]") {
  std::set<std::uint64_t> digests, plain;
  std::mutex lock;
  for (const int n : {1, 2, 3})
    for (const bool stochastic : {true, false}) {
      const auto train = [&]<class Residency>(Residency home) {
        run(n, [&](loop_comm& comm) {
          stream s;
          sharded_optimizer<sgd, loop_comm, bf16, bf16, Residency> opt(
              comm, parameters_of<bf16>(zero_counts), {.lr = 0.001},
              {.stage = 1,
               .stochastic_seed = stochastic ? std::optional<std::uint64_t>(5) : std::nullopt},
              home);
          start(opt, s, comm.rank());
          for (int step = 0; step < 2; ++step)
            train_step(opt, s, comm.rank(), 1, [n](std::size_t i, std::size_t k, std::size_t) {
              return gradient_at(i, k, 0) + static_cast<float>(n - n);
            });
          opt.synchronize();
          const std::lock_guard hold(lock);
          (stochastic ? digests : plain).insert(digest(opt));
        });
      };
      train(on_device{});
      train(on_host{.threads = 2});
    }
  REQUIRE(digests.size() == 1);
  REQUIRE(plain.size() == 1);
  REQUIRE(digests != plain);
}

TEST_CASE("values that live elsewhere stay there; gradients of the trainer's own are taken",
          "[zero]") {
  for (const int n : {1, 3})
    for (const std::size_t micros : {1, 2}) {
      const auto expected = serial<adamw>(zero_counts, rates, 2,
                                          static_cast<std::size_t>(n) * micros, 0, gradient_at);
      const auto train = [&]<class Residency>(std::size_t stage, Residency home) {
        run(n, [&](loop_comm& comm) {
          std::vector<std::vector<float>> values, gradients;
          auto parameters = parameters_of<float>(zero_counts);
          for (auto& p : parameters) {
            p.value = values.emplace_back(p.count + 1).data();
            p.gradient = stage < 2 ? gradients.emplace_back(p.count + 1).data() : nullptr;
          }
          stream s;
          sharded_optimizer<adamw, loop_comm, float, float, Residency> opt(
              comm, parameters, rates,
              {.stage = stage, .bucket_bytes = 9000, .microbatches = micros}, home);
          start(opt, s, comm.rank());
          for (int step = 0; step < 2; ++step) train_step(opt, s, comm.rank(), micros, gradient_at);
          opt.synchronize();
          RANK_REQUIRE(wrong(opt, expected) == 0);
          for (std::size_t i = 0; i < values.size(); ++i)
            RANK_REQUIRE((zero_counts[i] == 0 || opt.value(i) == values[i].data()));
        });
      };
      for (const std::size_t stage : {0, 1, 2}) {
        train(stage, on_device{});
        train(stage, on_host{.threads = 1});
      }
    }
}

TEST_CASE("replicas of shards: sharded inside, summed across", "[zero][hybrid]") {
  const auto expected = serial<adamw>(zero_counts, rates, 2, 6, 0, gradient_at);
  for (const std::size_t stage : {1, 2})
    run(6, [&](loop_comm& comm) {
      loop_comm inside = comm.split(comm.rank() / 3, comm.rank());
      loop_comm across = comm.split(comm.rank() % 3, comm.rank());
      stream s;
      sharded_optimizer<adamw, loop_comm> opt(inside, parameters_of<float>(zero_counts), rates,
                                              {.stage = stage, .bucket_bytes = 20000}, {}, &across);
      start(opt, s, comm.rank());
      for (int step = 0; step < 2; ++step) train_step(opt, s, comm.rank(), 1, gradient_at);
      opt.synchronize();
      RANK_REQUIRE(wrong(opt, expected) == 0);
    });
}

TEST_CASE("unused parameters count as zero; what was forgotten is named on every rank", "[zero]") {
  for (const std::size_t stage : {0, 1, 2})
    run(2, [&](loop_comm& comm) {
      stream s;
      sharded_optimizer<sgd, loop_comm> opt(comm, parameters_of<float>({5, 5000}), {.lr = 1},
                                            {.stage = stage, .bucket_bytes = 1, .tail_bytes = 1});
      start(opt, s, comm.rank());
      opt.begin(0, 1);
      for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
        if (comm.rank() == 1) {
          opt.unused(i, s);
          continue;
        }
        float* g = opt.grad(i, s);
        s.enqueue([g, i] { std::fill_n(g, i == 0 ? 5 : 5000, 2.0f); });
        opt.ready(i, s);
      }
      opt.finish(s);
      opt.step(s);
      opt.synchronize();
      RANK_REQUIRE(opt.value(1)[4999] == initial_value(1, 4999) - 1);
    });
  run(2, [](loop_comm& comm) {
    stream s;
    sharded_optimizer<sgd, loop_comm> opt(comm, parameters_of<float>({5, 7}), {}, {.stage = 1});
    start(opt, s, comm.rank());
    std::string told;
    try {
      opt.begin(0, 1);
      static_cast<void>(opt.grad(1, s));
      opt.ready(1, s);
      if (comm.rank() == 0) {
        static_cast<void>(opt.grad(0, s));
        opt.ready(0, s);
      }
      opt.finish(s);
      opt.step(s);
      opt.synchronize();
    } catch (const error& e) {
      told = e.what();
    }
    RANK_REQUIRE(told.find("never made ready (or unused): 'p0'") != std::string::npos);
  });
}

TEST_CASE("more ranks than elements: those without a shard take part", "[zero]") {
  for (const std::size_t stage : {0, 1, 2}) {
    REQUIRE(wrong_with<on_device>(8, 1, {.stage = stage}, {}, {3}) == 0);
    REQUIRE(wrong_with<on_host>(8, 2, {.stage = stage}, {.threads = 1}, {1, 0, 1}) == 0);
    REQUIRE(wrong_with<on_device>(5, 1, {.stage = stage}, {}, {0, 0}) == 0); // and none at all
  }
}

TEST_CASE("a tied weight, declared once: the gradients of its uses are added before ready",
          "[zero]") {
  const auto expected = serial<adamw>({5003}, rates, 2, 2, 0, [](auto i, auto k, auto b) {
    return gradient_at(i, k, b) + gradient_at(i + 1, k, b);
  });
  for (const std::size_t stage : {0, 1, 2}) {
    std::atomic<std::size_t> bad{0};
    run(2, [&](loop_comm& comm) {
      stream s, other;
      sharded_optimizer<adamw, loop_comm> opt(comm, parameters_of<float>({5003}), rates,
                                              {.stage = stage});
      start(opt, s, comm.rank());
      for (int step = 0; step < 2; ++step) {
        opt.begin(0, 1);
        opt.wait_param(0, s);
        float* g = opt.grad(0, s);
        const auto block = static_cast<std::size_t>(comm.rank());
        s.enqueue([=] { // the embedding's use, then the head's on another stream
          for (std::size_t k = 0; k < 5003; ++k) g[k] = gradient_at(0, k, block);
        });
        host::event written;
        written.record(s);
        other.wait(written);
        other.enqueue([=] {
          for (std::size_t k = 0; k < 5003; ++k) g[k] += gradient_at(1, k, block);
        });
        opt.ready(0, other);
        opt.finish(s);
        opt.step(s);
      }
      opt.synchronize();
      bad += wrong(opt, expected);
    });
    REQUIRE(bad == 0);
  }
}

TEST_CASE("bad input is refused with the reason", "[zero]") {
  run(1, [](loop_comm& comm) {
    const auto refusal = [&](sharded_options o, std::vector<parameter<float>> p) -> std::string {
      try {
        sharded_optimizer<adamw, loop_comm> opt(comm, std::move(p), rates, o);
      } catch (const usage_error& e) {
        return e.what();
      }
      return "accepted";
    };
    const auto has = [](const std::string& text, const char* part) {
      INFO(text);
      REQUIRE(text.find(part) != std::string::npos);
    };
    const auto some = parameters_of<float>({10, 20});
    has(refusal({.stage = 3}, some), "stage 3 shards the parameters themselves");
    has(refusal({.stage = 7}, some), "ZeRO stage 7: there are 0");
    has(refusal({.placements = {{.stage = 0, .whole = true}, {}}}, some),
        "marked whole at stage 0");
    has(refusal({.placements = {{}}}, some), "1 placements for 2 parameters");
    has(refusal({.max_norm = 1, .clip = clip_policy::none}, some), "clips nothing");
    has(refusal({.clip = clip_policy::none, .scaler = {.enabled = true}}, some),
        "clip_policy::exact");
    has(refusal({.stochastic_seed = 1}, some), "stochastic rounding is for values in bf16");
    has(refusal({.blocks = 6}, some), "must be a power of two");
    std::vector<float> own(10);
    auto adopted = some;
    adopted[0].gradient = own.data();
    has(refusal({.stage = 2}, adopted), "stage 2 keeps gradients only until they are reduced");
    auto half = some;
    half[0].value = own.data();
    has(refusal({}, half), "'p1' has no value pointer");
    auto tied = some; // a weight with two names would be updated by two states
    for (auto& p : tied) p.value = own.data();
    has(refusal({}, tied), "parameters 'p0' and 'p1' share memory: a tied weight is one parameter");
    auto tied_gradients = some;
    for (auto& p : tied_gradients) p.gradient = own.data();
    has(refusal({}, tied_gradients), "share memory");
    REQUIRE_THROWS_AS((sharded_optimizer<adamw, loop_comm, float, float, on_host>(
                          comm, some, rates, {}, {.fraction = 0})),
                      usage_error);

    stream s;
    sharded_optimizer<adamw, loop_comm> opt(
        comm, some, rates, {.stage = 2, .bucket_bytes = 1, .tail_bytes = 1, .ring = 1});
    REQUIRE_THROWS_AS(opt.begin(0, 1), usage_error); // before load_values
  });
  run(1, [](loop_comm& comm) {
    stream s;
    sharded_optimizer<adamw, loop_comm> opt(
        comm, parameters_of<float>({10, 20}), rates,
        {.stage = 2, .bucket_bytes = 1, .tail_bytes = 1, .ring = 1});
    opt.load_values(s);
    opt.begin(0, 1);
    static_cast<void>(opt.grad(1, s));
    REQUIRE_THROWS_AS(opt.grad(0, s), usage_error); // a ring of one holds one open bucket
  });
}
