// The memory planner: the paper's table, and that what it says is what is allocated, to the byte.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "zero/zero_cases.hpp"

#include <polyrank/host/loopback.hpp>
#include <polyrank/plan/memory.hpp>
#include <polyrank/zero/offload_setup.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

using namespace polyrank;
using namespace polyrank::test;
using loop_comm = host::loopback::communicator;

namespace {

bool near(double is, double wanted, double tolerance) { return std::abs(is - wanted) <= tolerance; }

/// On every rank: bytes through the allocators, and of adopted ranges, against the plan.
template <class V, class Residency>
std::size_t wrong_plans(int n, const sharded_options& options, const Residency& home,
                        bool adopt = false) {
  std::atomic<std::size_t> wrong{0};
  host::loopback::run(n, [&](loop_comm& comm) {
    poisoned device;
    slab_resource slabs;
    sharded_options o = options;
    o.memory = &device;
    Residency mine = home;
    if constexpr (std::is_same_v<Residency, on_host>) mine.memory = &slabs;
    std::vector<std::vector<V>> own;
    auto parameters = parameters_of<V>(zero_counts);
    std::size_t adopted = 0;
    if (adopt)
      for (auto& p : parameters) {
        p.value = own.emplace_back(p.count + 1).data();
        adopted += p.count * sizeof(V);
        if (o.stage == 2 || o.blocks > 0) continue;
        p.gradient = own.emplace_back(p.count + 1).data();
        adopted += p.count * sizeof(V);
      }
    sharded_optimizer<adamw, loop_comm, V, V, Residency> opt(comm, parameters, {}, o, mine);
    memory_question q{.ranks = n,
                      .rank = comm.rank(),
                      .stage = o.stage,
                      .value = sizeof(V),
                      .gradient = sizeof(V),
                      .microbatches = o.microbatches,
                      .blocks = o.blocks,
                      .bucket_bytes = o.bucket_bytes,
                      .tail_bytes = o.tail_bytes,
                      .adopts_values = adopt,
                      .adopts_gradients = adopt && o.stage < 2 && o.blocks == 0,
                      .on_device = false,
                      .counts_bad = o.count_bad_gradients};
    if constexpr (std::is_same_v<Residency, on_host>) {
      q.offload = true;
      q.fraction = home.fraction;
    }
    const memory_table t = plan_memory(zero_counts, q);
    wrong += t.device() == device.bytes + adopted ? 0 : 1;
    const memory_table used = memory_of(opt.in_use());
    for (std::size_t row = 0; row < t.rows().size(); ++row)
      wrong += t.rows()[row].device == used.rows()[row].device &&
                       t.rows()[row].host == used.rows()[row].host
                   ? 0
                   : 1;
    wrong += opt.plan().device_bytes() == device.bytes ? 0 : 1;
    wrong += t.host() == opt.plan().host_bytes() ? 0 : 1;
    // Slabs have whole pages, no powers of two: at most five of them are a page too large.
    wrong +=
        slabs.bytes() >= t.host() && slabs.bytes() < t.host() + 5 * slab_resource::page ? 0 : 1;
  });
  return wrong;
}

} // namespace

TEST_CASE("the paper's example: 7.5e9 parameters on 64 ranks", "[plan]") {
  const auto b = paper_memory(7.5e9, 64);
  REQUIRE(near(b[0] / 1e9, 120, 0.05));
  REQUIRE(near(b[1] / 1e9, 31.4, 0.05));
  REQUIRE(near(b[2] / 1e9, 16.6, 0.05));
  REQUIRE(near(b[3] / 1e9, 1.875, 0.001));
  const auto four = paper_memory(7.5e9, 4), thousand = paper_memory(7.5e9, 1024);
  REQUIRE(near(four[1] / 1e9, 52.5, 0.05));
  REQUIRE(near(four[2] / 1e9, 41.25, 0.05));
  REQUIRE(near(thousand[1] / 1e9, 30.1, 0.05));
  REQUIRE(near(thousand[2] / 1e9, 15.1, 0.05));
  REQUIRE(near(thousand[3] / 1e9, 0.12, 0.005));
  REQUIRE(paper_traffic(1000, 4, 1) == 1500);
  REQUIRE(paper_traffic(1000, 4, 3) == 2250);
}

TEST_CASE("bytes through the allocators are the plan's, to the byte", "[plan]") {
  for (const int n : {1, 2, 3, 4, 8})
    for (const std::size_t stage : {0, 1, 2})
      for (const std::size_t micros : {1, 2}) {
        INFO("ranks " << n << ", stage " << stage << ", microbatches " << micros);
        const sharded_options o{
            .stage = stage, .bucket_bytes = 20000, .tail_bytes = 4000, .microbatches = micros};
        REQUIRE(wrong_plans<float>(n, o, on_device{}) == 0);
        sharded_options counting = o;
        counting.count_bad_gradients = true;
        REQUIRE(wrong_plans<bf16>(n, counting, on_device{}) == 0);
        REQUIRE(wrong_plans<float>(n, o, on_host{.fraction = 1, .threads = 1}) == 0);
        REQUIRE(wrong_plans<bf16>(n, o, on_host{.fraction = 0.5, .threads = 1}) == 0);
        REQUIRE(wrong_plans<float>(n, o, on_device{}, true) == 0);
        REQUIRE(wrong_plans<bf16>(n, o, on_host{.fraction = 0.5, .threads = 1}, true) == 0);
        if (8 % n == 0)
          REQUIRE(wrong_plans<float>(n, {.stage = stage, .bucket_bytes = 9000, .blocks = 8},
                                     on_device{}) == 0);
      }
}

TEST_CASE("the plan of a large model is near the formula", "[plan]") {
  const auto counts = even_counts(1'000'000'000);
  const auto per_parameter = [&](std::size_t stage, int ranks) {
    return static_cast<double>(plan_memory(counts, {.ranks = ranks, .stage = stage}).device()) /
           1e9;
  };
  // bf16: fp32 sums of the shard are extra, 4/N; ring buffers, padding and blocks below 4 %.
  REQUIRE(near(per_parameter(0, 8), 2 + 2 + 4 + 12, 0.3));
  REQUIRE(near(per_parameter(1, 8), 2 + 2 + (4 + 12) / 8.0, 0.3));
  REQUIRE(near(per_parameter(2, 8), 2 + (4 + 12) / 8.0, 0.3));
  const memory_table host = plan_memory(counts, {.ranks = 8, .stage = 2, .offload = true});
  REQUIRE(near(static_cast<double>(host.host()) / 1e9, (12 + 2 + 2) / 8.0, 0.1));
  REQUIRE(near(static_cast<double>(host.device()) / 1e9, 2 + 4 / 8.0, 0.3));
  // Deterministic mode gives up the saving of stage 2.
  REQUIRE(plan_memory(counts, {.ranks = 8, .stage = 2, .blocks = 8}).device() >
          plan_memory(counts, {.ranks = 8, .stage = 2}).device() + 3'000'000'000u);
  REQUIRE_THROWS_AS(plan_memory(counts, {.ranks = 8, .stage = 3}), usage_error);
  REQUIRE_THROWS_AS(plan_memory(counts, {.ranks = 3, .blocks = 8}), usage_error);
}

TEST_CASE("host limits: control group and locked memory are named", "[plan]") {
  REQUIRE(parse_available("MemTotal: 9 kB\nMemAvailable:    1024 kB\n") == 1u << 20);
  REQUIRE(parse_available("nothing") == host_limits::none);
  REQUIRE(parse_bytes("4096\n") == 4096);
  REQUIRE(parse_bytes("max\n") == host_limits::none);
  REQUIRE(parse_bytes("9223372036854771712\n") == host_limits::none);
  const host_limits l{.available = 100u << 20,
                      .cgroup_limit = 50u << 20,
                      .cgroup_used = 20u << 20,
                      .memlock = 8u << 20};
  REQUIRE(l.free() == 30u << 20);
  REQUIRE(why_not(10u << 20, 3, l).empty());
  const std::string group = why_not(11u << 20, 3, l);
  REQUIRE(group.find("3 ranks of this host need 11 MiB each") != std::string::npos);
  REQUIRE(group.find("control group") != std::string::npos);
  REQUIRE(about_memlock(8u << 20, l).empty());
  REQUIRE(about_memlock((8u << 20) + 1, l).find("`ulimit -l` is 8 MiB") == 0);
  REQUIRE(read_host_limits().free() > 0);
}

TEST_CASE("offload that a host cannot hold is refused on every rank, before memory is taken",
          "[plan]") {
  std::atomic<int> refused{0};
  host::loopback::run(2, [&](loop_comm& comm) {
    std::vector<std::string> warnings;
    const std::size_t bytes = comm.rank() == 1 ? std::size_t{1} << 60 : 1;
    try {
      static_cast<void>(set_up_offload(comm.control(), bytes, 0, warnings));
    } catch (const usage_error& e) {
      const std::string text = e.what();
      refused += text.find("offload: rank 1: 2 ranks of this host need") != std::string::npos &&
                         text.find("lower the fraction") != std::string::npos
                     ? 1
                     : 0;
    }
  });
  REQUIRE(refused == 2);
}

TEST_CASE("advice for too little memory comes in one order, as far as it applies", "[plan]") {
  const auto position = [](const std::vector<std::string>& all, const char* what) {
    std::size_t at = 0;
    while (at < all.size() && all[at].find(what) == std::string::npos) ++at;
    return at;
  };
  const auto all = what_to_try({.ranks = 4, .stage = 1, .value = 4, .gradient = 4});
  std::size_t last = 0;
  for (const char* what : {"other processes", "--batch", "inputs", "--precision", "--accumulate",
                           "recompute", "--offload", "--zero 2", "more ranks"}) {
    INFO(what);
    const std::size_t at = position(all, what);
    REQUIRE(at < all.size());
    REQUIRE(at == last++);
  }
  const auto less = what_to_try({.ranks = 1, .stage = 2, .value = 2, .offload = true});
  for (const char* what : {"--precision", "--offload", "--zero", "more ranks"})
    REQUIRE(position(less, what) == less.size());
}

TEST_CASE("a pool gives out every element once", "[plan]") {
  for (const std::size_t threads : {1, 2, 3, 7}) {
    cpu_pool pool(threads);
    for (const std::size_t count : {0, 1, 16383, 16384, 100'003, 1 << 20}) {
      std::vector<std::uint8_t> times(count);
      pool.share(count, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) ++times[i];
      });
      INFO(threads << " threads, " << count << " elements");
      REQUIRE(std::count(times.begin(), times.end(), 1) == static_cast<std::ptrdiff_t>(count));
    }
  }
}

TEST_CASE("threads for updates: the mask where ranks are bound, else a share", "[plan]") {
  REQUIRE(threads_for(16, 16, 1) == 16);
  REQUIRE(threads_for(16, 16, 4) == 4);
  REQUIRE(threads_for(1, 16, 2) == 1);
  REQUIRE(threads_for(4, 16, 2) == 4);
  REQUIRE(threads_for(2, 2, 8) == 1);
  REQUIRE(threads_for(0, 0, 0) == 1);
#if defined(__linux__)
  // As mpirun binds the ranks of a job of two.
  std::vector<std::string> warnings;
  std::size_t threads = 0;
  host::loopback::run(1, [&](loop_comm& comm) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0) // of this thread
      threads = set_up_offload(comm.control(), 1, 0, warnings);
  });
  REQUIRE(threads == 1);
  if (std::thread::hardware_concurrency() > 1) {
    REQUIRE(warnings.size() == 1);
    REQUIRE(warnings[0].find("may use 1 of") != std::string::npos);
    REQUIRE(warnings[0].find("mpirun --bind-to none") != std::string::npos);
  }
#endif
}
