// Every reduce policy, on 1 to 9 ranks and odd sizes: exact where it promises exactness, within its
// stated bound otherwise. Also: unequal numbers of batches, and ranks of unequal weight.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "data_parallel/sync_cases.hpp"
#include "support/poisoned.hpp"

#include <polyrank/data_parallel/all_to_all_sum.hpp>
#include <polyrank/data_parallel/error_feedback.hpp>
#include <polyrank/data_parallel/hierarchical.hpp>
#include <polyrank/data_parallel/reduce_scatter_sum.hpp>
#include <polyrank/host/loopback.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/optim/apply.hpp>
#include <polyrank/optim/lion.hpp>
#include <polyrank/optim/sgd.hpp>

#include <atomic>

using namespace polyrank;
using namespace polyrank::test;
using host::stream;
using host::loopback::run;
using loop_comm = host::loopback::communicator;

namespace {

/// Small integers, exact in bf16 and in their sums over 9 ranks.
float tiny_integer(std::size_t i, std::size_t k, std::size_t block) {
  return static_cast<float>(mix(i * 31 + k * 7 + block) % 13);
}

/// Runs two steps on n ranks with every bucket size, in memory whose padding is NaN, and counts the
/// wrong elements.
template <class Policy, class Write>
std::size_t wrong_with(int n, Policy policy, Write write) {
  std::atomic<std::size_t> bad{0};
  for (const std::size_t bucket : {std::size_t{1}, std::size_t{600}, std::size_t{1} << 20})
    for (const memory whose : {memory::ours, memory::users_partly})
      run(n, [&](loop_comm& comm) {
        model m(odd_counts, whose);
        poisoned memory;
        grad_sync sync(comm, m.parameters, policy,
                       {.bucket_bytes = bucket,
                        .tail_bytes = bucket,
                        .leave = gradients_hold::sum,
                        .memory = &memory});
        stream s;
        for (int step = 0; step < 2; ++step) backward(sync, s, comm.rank(), 1, false, write);
        s.synchronize();
        bad += wrong(sync, static_cast<std::size_t>(n), 1.0f, write);
      });
  return bad;
}

} // namespace

TEST_CASE("policies on fp32 are exact for integers, 1 to 9 ranks", "[policies]") {
  for (int n = 1; n <= 9; ++n) {
    REQUIRE(wrong_with(n, all_reduce_sum{}, integer_gradient) == 0);
    REQUIRE(wrong_with(n, reduce_scatter_sum{}, integer_gradient) == 0);
    REQUIRE(wrong_with(n, all_to_all_sum<float>{}, integer_gradient) == 0);
  }
}

namespace {

/// Four ranks, as seen by the last: two on each of two machines.
struct two_hosts {
  struct channel {
    [[nodiscard]] static int rank() { return 3; }
    [[nodiscard]] static int size() { return 4; }
    static std::vector<std::string> all_gather(std::string_view mine) {
      return {"node7", "node7", std::string(mine), std::string(mine)};
    }
    static std::int64_t all_reduce_max(std::int64_t x) { return x; }
    static void barrier(std::chrono::nanoseconds) {}
  };
  channel& control() { return channel_; }

 private:
  channel channel_;
};

} // namespace

TEST_CASE("an all-to-all between hosts is refused, unless it is asked for",
          "[policies][bad_input]") {
  two_hosts apart;
  const std::string here = host_name();
  REQUIRE_THROWS_WITH(all_to_all_sum<bf16>{}.check(apart),
                      "all_to_all_sum<bf16>: the ranks are on 2 hosts (node7, " + here +
                          "), and an all-to-all would send far more between them than a ring; use "
                          "hierarchical{inside, across, all_to_all_sum<bf16>{}}, or set "
                          "across_hosts = true where all are in one NVLink domain");
  REQUIRE_NOTHROW(all_to_all_sum<bf16>{.across_hosts = true}.check(apart));
  REQUIRE_THROWS_AS(error_feedback<>{}.check(apart), usage_error);
  REQUIRE_NOTHROW(error_feedback<>{.inner = {.across_hosts = true}}.check(apart));
}

TEST_CASE("policies with 16 bits on the wire are exact for what 16 bits hold", "[policies]") {
  for (int n = 1; n <= 9; ++n) {
    REQUIRE(wrong_with(n, all_to_all_sum<bf16>{}, tiny_integer) == 0);
    REQUIRE(wrong_with(n, all_to_all_sum<fp16>{}, tiny_integer) == 0);
    REQUIRE(wrong_with(n, error_feedback<>{}, tiny_integer) == 0);
  }
}

TEST_CASE("local_only leaves every rank its own gradients", "[policies]") {
  std::atomic<int> bad{0};
  run(3, [&](loop_comm& comm) {
    model m({5});
    grad_sync sync(comm, m.parameters, local_only{}, {.leave = gradients_hold::sum});
    stream s;
    backward(sync, s, comm.rank(), 1, false, integer_gradient);
    s.synchronize();
    if (sync.grad(0)[4] != integer_gradient(0, 4, static_cast<std::size_t>(comm.rank()))) ++bad;
  });
  REQUIRE(bad == 0);
}

TEST_CASE("the error of 16-bit wires stays within the stated bound", "[policies]") {
  std::atomic<std::size_t> bad{0};
  for (const int n : {2, 3, 8})
    run(n, [&](loop_comm& comm) {
      const auto check = [&](auto policy, double u) {
        model m({1009});
        grad_sync sync(comm, m.parameters, policy, {.leave = gradients_hold::sum});
        const auto write = [](std::size_t, std::size_t k, std::size_t r) {
          return std::sin(static_cast<float>(k * 17 + r * 5 + 1));
        };
        stream s;
        backward(sync, s, comm.rank(), 1, false, write);
        s.synchronize();
        for (std::size_t k = 0; k < 1009; ++k) {
          double sum = 0, size = 0;
          for (int r = 0; r < n; ++r) {
            const double x = static_cast<double>(write(0, k, static_cast<std::size_t>(r)));
            sum += x;
            size += std::abs(x);
          }
          const double bound = u * (size + std::abs(sum) + u * size) + n * 0x1p-24 * size;
          if (std::abs(static_cast<double>(sync.grad(0)[k]) - sum) > bound) ++bad;
        }
      };
      check(all_to_all_sum<bf16>{}, 0x1p-8);
      check(all_to_all_sum<fp16>{}, 0x1p-11); // no sine here is small enough to underflow
    });
  REQUIRE(bad == 0);
}

TEST_CASE("small contributions do not vanish in a low-precision sum", "[policies]") {
  // One rank brings 1, seven bring 2^-9: a bf16 ring that adds them one by one rounds each away and
  // keeps 1; the true sum 1 + 7 * 2^-9 rounds to 1 + 2^-6 in bf16.
  std::atomic<int> bad{0};
  run(8, [&](loop_comm& comm) {
    model m({16});
    grad_sync sync(comm, m.parameters, all_to_all_sum<bf16>{}, {.leave = gradients_hold::sum});
    stream s;
    backward(sync, s, comm.rank(), 1, false,
             [](std::size_t, std::size_t, std::size_t r) { return r == 0 ? 1.0f : 0x1p-9f; });
    s.synchronize();
    for (std::size_t k = 0; k < 16; ++k)
      if (sync.grad(0)[k] != 1.0f + 0x1p-6f) ++bad;
  });
  REQUIRE(bad == 0);
}

TEST_CASE("many small contributions: 1 + 511 * 2^-9 over 8 ranks and 64 microbatches",
          "[policies]") {
  // Block 0 brings 1, each of the other 511 brings 2^-9: gradients accumulate in fp32, where the
  // sum is exact; policies with fp32 on the wire keep it, the others stay within their bound.
  constexpr double sum = 1 + 511 * 0x1p-9;
  std::atomic<int> bad{0};
  run(8, [&](loop_comm& comm) {
    loop_comm inside = comm.split(comm.rank() / 4, comm.rank());
    loop_comm across = comm.split(inside.rank(), comm.rank());
    const auto check = [&](auto policy, double u) {
      model m({33});
      grad_sync sync(comm, m.parameters, policy, {.leave = gradients_hold::sum});
      stream s;
      constexpr bool blocks = std::is_same_v<decltype(policy), deterministic>;
      backward(sync, s, comm.rank(), 64, blocks,
               [](std::size_t, std::size_t, std::size_t b) { return b == 0 ? 1.0f : 0x1p-9f; });
      s.synchronize();
      for (std::size_t k = 0; k < 33; ++k)
        if (std::abs(static_cast<double>(sync.grad(0)[k]) - sum) > 2 * u * sum) ++bad;
    };
    check(all_reduce_sum{}, 0);
    check(reduce_scatter_sum{}, 0);
    check(deterministic{512}, 0);
    check(hierarchical{inside, across}, 0);
    check(hierarchical{inside, across, all_to_all_sum<bf16>{}}, 0x1p-8);
    check(all_to_all_sum<float>{}, 0);
    check(all_to_all_sum<bf16>{}, 0x1p-8);
    check(all_to_all_sum<fp16>{}, 0x1p-11);
    check(error_feedback<>{}, 0x1p-8);
  });
  REQUIRE(bad == 0);
}

namespace {

/// One step of optimizer O after a reduction by `policy`, against the formula on one rank.
template <class O, class Policy>
int wrong_step(loop_comm& comm, Policy policy, const typename O::options& options) {
  const std::vector<std::size_t> counts{5, 1, 66};
  const auto n = static_cast<std::size_t>(comm.size());
  model m(counts);
  for (std::size_t k = 0; k < m.values.size(); ++k) m.values[k] = static_cast<float>(k % 7) - 3;
  const std::vector<float> first = m.values;
  grad_sync sync(comm, m.parameters, policy, {.leave = gradients_hold::sum});
  stream s;
  constexpr bool blocks = std::is_same_v<Policy, deterministic>;
  backward(sync, s, comm.rank(), blocks ? 8 / n : 1, blocks, tiny_integer);
  s.synchronize();
  const std::size_t all = blocks ? 8 : n;
  int bad = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::span<float> p(m.parameters[i].value, counts[i]);
    std::vector<float> state(O::state_count * p.size());
    apply<O>(p, {sync.grad(i), p.size()}, planes_of<O>(state), O::at(options, 1),
             sync.grad_scale());
    for (std::size_t k = 0; k < p.size(); ++k) {
      float sum = 0, zeros[O::state_count + 1] = {};
      for (std::size_t b = 0; b < all; ++b) sum += tiny_integer(i, k, b);
      const float before = first[static_cast<std::size_t>(&p[k] - m.values.data())];
      const float expected = O::update(before, ieee::mul(1.0f / static_cast<float>(all), sum),
                                       zeros, O::at(options, 1));
      if (p[k] != expected || (sum != 0 && expected == before)) ++bad;
    }
  }
  return bad;
}

} // namespace

TEST_CASE("one step of every optimizer behind every policy is the closed form", "[policies]") {
  std::atomic<int> bad{0};
  run(4, [&](loop_comm& comm) {
    loop_comm inside = comm.split(comm.rank() / 2, comm.rank());
    loop_comm across = comm.split(inside.rank(), comm.rank());
    const auto with = [&](auto policy) {
      bad += wrong_step<adamw>(comm, policy, {.lr = 0.1, .weight_decay = 0.01});
      bad += wrong_step<sgd>(comm, policy, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
      bad += wrong_step<lion>(comm, policy, {.lr = 0.1, .weight_decay = 0.01});
    };
    with(all_reduce_sum{});
    with(reduce_scatter_sum{});
    with(deterministic{8});
    with(hierarchical{inside, across});
    with(hierarchical{inside, across, all_to_all_sum<bf16>{}});
    with(all_to_all_sum<bf16>{});
    with(all_to_all_sum<fp16>{});
    with(error_feedback<>{});
  });
  REQUIRE(bad == 0);
}

TEST_CASE("a tied tensor that is declared twice is refused by both names",
          "[policies][bad_input]") {
  run(2, [](loop_comm& comm) {
    std::vector<float> values(20), gradients(20);
    for (const std::size_t shift : {0u, 5u, 9u}) {
      std::vector<parameter<float>> tied{{"wte", 10, values.data(), gradients.data()},
                                         {"norm", 0, nullptr, gradients.data() + 3},
                                         {"head", 10, values.data(), gradients.data() + shift}};
      try {
        grad_sync sync(comm, tied);
      } catch (const usage_error& e) {
        if (std::string(e.what()).find("the gradients of 'wte' and 'head' overlap") !=
            std::string::npos)
          continue;
        throw;
      }
      throw error("not refused");
    }
    std::vector<parameter<float>> apart{{"wte", 10, values.data(), gradients.data()},
                                        {"head", 10, values.data(), gradients.data() + 10}};
    grad_sync sync(comm, apart);
  });
}

TEST_CASE("error feedback delivers late what rounding took away", "[policies]") {
  // 1 + 2^-10 is 1 in bf16. After 64 steps the sum of what was delivered is right to one rounding;
  // without feedback 2^-4 would be missing from each rank.
  std::atomic<int> bad{0};
  run(4, [&](loop_comm& comm) {
    const auto delivered = [&](auto policy) {
      model m({70});
      grad_sync sync(comm, m.parameters, policy,
                     {.bucket_bytes = 100, .leave = gradients_hold::sum});
      stream s;
      double sum = 0;
      for (int step = 0; step < 64; ++step) {
        backward(sync, s, comm.rank(), 1, false,
                 [](std::size_t, std::size_t, std::size_t) { return 1.0f + 0x1p-10f; });
        s.synchronize();
        sum += static_cast<double>(sync.grad(0)[69]);
      }
      return sum;
    };
    const double expected = 64 * 4 * (1 + 0x1p-10);
    if (std::abs(delivered(error_feedback<>{}) - expected) > 4 * 0x1p-7) ++bad;
    if (std::abs(delivered(all_to_all_sum<bf16>{}) - expected) < 0.2)
      ++bad; // the difference is real
  });
  REQUIRE(bad == 0);
}

TEST_CASE("hierarchical sums over hosts of equal size, and refuses others", "[policies]") {
  for (const auto& [n, per_host] :
       {std::pair{1, 1}, {2, 2}, {3, 1}, {4, 2}, {5, 5}, {6, 3}, {6, 2}, {7, 1}, {8, 4}, {9, 3}}) {
    std::atomic<std::size_t> bad{0};
    run(n, [&, per_host = per_host](loop_comm& comm) {
      loop_comm inside = comm.split(comm.rank() / per_host, comm.rank());
      loop_comm across = comm.split(inside.rank(), comm.rank());
      const auto sum = [&](auto policy) {
        model m(odd_counts);
        grad_sync sync(comm, m.parameters, policy,
                       {.bucket_bytes = 700, .leave = gradients_hold::sum});
        stream s;
        backward(sync, s, comm.rank(), 1, false, tiny_integer);
        s.synchronize();
        bad += wrong(sync, static_cast<std::size_t>(comm.size()), 1.0f, tiny_integer);
      };
      sum(hierarchical{inside, across});
      sum(hierarchical{inside, across, all_to_all_sum<bf16>{}});
    });
    REQUIRE(bad == 0);
  }
  REQUIRE_THROWS_AS(run(3,
                        [](loop_comm& comm) {
                          loop_comm inside =
                              comm.split(comm.rank() / 2, comm.rank()); // 2 + 1 ranks
                          loop_comm across = comm.split(inside.rank(), comm.rank());
                          model m({4});
                          grad_sync sync(comm, m.parameters, hierarchical{inside, across});
                        }),
                    error);
}

TEST_CASE("two gradient types in one model: a grad_sync for each", "[dtypes]") {
  // Layers alternate between fp32 and bf16 gradients; each rank finishes them in an order of its
  // own, so each type has its own communicator.
  std::atomic<int> bad{0};
  for (const int n : {1, 3, 4})
    run(n, [&](loop_comm& comm) {
      loop_comm second = comm.split(0, comm.rank());
      const std::vector<std::size_t> counts{65, 1, 0, 997};
      std::vector<float> values(2048);
      std::vector<parameter<float>> wide;
      std::vector<parameter<bf16, float>> narrow; // fp32 values, bf16 gradients
      for (std::size_t i = 0; i < counts.size(); ++i) {
        wide.push_back({"w" + std::to_string(i), counts[i], values.data(), nullptr});
        narrow.push_back({"n" + std::to_string(i), counts[i], values.data() + 1024, nullptr});
      }
      grad_sync in_fp32(comm, wide, all_reduce_sum{}, {.bucket_bytes = 300});
      grad_sync in_bf16(second, narrow, all_reduce_sum{}, {.bucket_bytes = 300});
      stream s;
      for (int step = 0; step < 2; ++step) {
        in_fp32.begin(0, 1);
        in_bf16.begin(0, 1);
        const auto produce = [&](auto& sync, std::size_t i, float factor) {
          if (counts[i] == 0) return;
          s.enqueue([g = sync.grad(i), count = counts[i], i, factor, r = comm.rank()] {
            for (std::size_t k = 0; k < count; ++k)
              g[k] = static_cast<std::remove_cvref_t<decltype(*g)>>(
                  factor * tiny_integer(i, k, static_cast<std::size_t>(r)));
          });
          sync.ready(i, s);
        };
        for (std::size_t j = 0; j < counts.size(); ++j) {
          const std::size_t i = (j + static_cast<std::size_t>(comm.rank())) % counts.size();
          if (comm.rank() % 2 == 0) produce(in_bf16, i, 2);
          produce(in_fp32, i, 1);
          if (comm.rank() % 2 != 0) produce(in_bf16, i, 2);
        }
        in_fp32.finish(s);
        in_bf16.finish(s);
        s.synchronize();
        const float scale = in_fp32.grad_scale();
        for (std::size_t i = 0; i < counts.size(); ++i)
          for (std::size_t k = 0; k < counts[i]; ++k) {
            float sum = 0;
            for (int r = 0; r < n; ++r) sum += tiny_integer(i, k, static_cast<std::size_t>(r));
            if (in_fp32.grad(i)[k] != sum * scale) ++bad;
            // The sum is exact in bf16; its product with the scale is rounded once.
            if (static_cast<float>(in_bf16.grad(i)[k]) !=
                static_cast<float>(static_cast<bf16>(2 * sum * scale)))
              ++bad;
          }
      }
    });
  REQUIRE(bad == 0);
}

TEST_CASE("ranks with unequal numbers of batches: the mean is over those that have one", "[join]") {
  for (const gradients_hold leave : {gradients_hold::mean, gradients_hold::sum}) {
    std::atomic<int> bad{0};
    run(3, [&](loop_comm& comm) {
      model m({64, 0, 5}, comm.rank() == 1 ? memory::users_scattered : memory::ours);
      grad_sync sync(comm, m.parameters, all_reduce_sum{}, {.bucket_bytes = 100, .leave = leave});
      stream s;
      for (int epoch = 0; epoch < 2; ++epoch) {
        const std::size_t mine =
            comm.rank() == 2 ? 0 : static_cast<std::size_t>(2 - comm.rank()); // 2, 1, 0
        const std::size_t steps = sync.join(mine);
        if (steps != 2) ++bad;
        for (std::size_t step = 0; step < steps; ++step) {
          if (step < mine)
            for (std::size_t micro = 0; micro < 2; ++micro) {
              sync.begin(micro, 2);
              for (const std::size_t i : {2u, 0u}) {
                s.enqueue([g = sync.grad(i), n = m.parameters[i].count, micro, r = comm.rank()] {
                  for (std::size_t k = 0; k < n; ++k)
                    g[k] = (micro == 0 ? 0 : g[k]) + static_cast<float>(r + 1);
                });
                sync.ready(i, s);
              }
              sync.finish(s);
            }
          else
            sync.absent(2, s);
          s.synchronize();
          // Step 0: ranks 0 and 1, two microbatches of 1 and 2. Step 1: rank 0 alone.
          const float sum = step == 0 ? 6.0f : 2.0f, scale = step == 0 ? 0.25f : 0.5f;
          const float expected = leave == gradients_hold::sum ? sum : sum * scale;
          if (sync.grad(0)[63] != expected || sync.grad(2)[4] != expected ||
              sync.grad_scale() != scale)
            ++bad;
        }
      }
    });
    REQUIRE(bad == 0);
  }
}

TEST_CASE("join is refused where it cannot be honoured", "[join][bad_input]") {
  const auto refused = [](auto body) {
    try {
      run(1, body);
    } catch (const usage_error&) {
      return true;
    }
    return false;
  };
  REQUIRE(refused([](loop_comm& comm) {
    model m({4});
    grad_sync sync(comm, m.parameters, deterministic{8});
    static_cast<void>(sync.join(3));
  }));
  REQUIRE(refused([](loop_comm& comm) { // absent without join
    model m({4});
    grad_sync sync(comm, m.parameters);
    stream s;
    sync.absent(1, s);
  }));
  REQUIRE(refused([](loop_comm& comm) { // a batch more than said
    model m({4});
    grad_sync sync(comm, m.parameters);
    static_cast<void>(sync.join(0));
    sync.begin(0, 1);
  }));
}

TEST_CASE("ranks weigh in the mean as they are told to", "[weights]") {
  std::atomic<int> bad{0};
  run(3, [&](loop_comm& comm) {
    for (const memory whose : {memory::ours, memory::users_contiguous, memory::users_scattered}) {
      model m({64, 5}, whose);
      const auto r = static_cast<float>(comm.rank());
      grad_sync sync(comm, m.parameters, all_reduce_sum{}, {.weight = r + 1}); // 1, 2, 3
      stream s;
      backward(sync, s, comm.rank(), 1, false, [](std::size_t, std::size_t, std::size_t rank) {
        return static_cast<float>(rank) * 6;
      });
      s.synchronize();
      if (std::abs(sync.grad(0)[63] - (0 * 1 + 6 * 2 + 12 * 3) / 6.0f) > 1e-6f) ++bad;
      if (sync.grad_scale() != 1.0f / 6) ++bad;
    }
    for (const float weight : {0.0f, -1.0f, std::nanf("")}) try {
        model m({4});
        grad_sync sync(comm, m.parameters, all_reduce_sum{}, {.weight = weight});
        ++bad;
      } catch (const usage_error&) {
      }
  });
  REQUIRE(bad == 0);
}
