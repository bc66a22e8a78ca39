// grad_sync on loopback: ranks are threads, so this suite also runs under ThreadSanitizer.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "data_parallel/sync_cases.hpp"

#include <polyrank/host/loopback.hpp>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include <unistd.h>

using namespace polyrank;
using namespace polyrank::test;
using host::stream;
using host::loopback::run;
using loop_comm = host::loopback::communicator;

namespace {
auto contains(const std::string& text) {
#if __has_include(<catch2/catch_test_macros.hpp>)
  return Catch::Matchers::ContainsSubstring(text);
#else
  return Catch::Contains(text);
#endif
}
} // namespace

TEST_CASE("integer gradients are exact for every N, bucket size, memory and policy",
          "[grad_sync]") {
  for (const int n : {1, 2, 3, 5, 7, 9})
    for (const std::size_t bucket : {std::size_t{1}, std::size_t{600}, std::size_t{1} << 20})
      for (const memory whose :
           {memory::ours, memory::users_contiguous, memory::users_scattered, memory::users_partly})
        for (const std::size_t micros : {1u, 3u}) {
          std::atomic<std::size_t> bad{0};
          run(n, [&](loop_comm& comm) {
            model m(odd_counts, whose);
            grad_sync sync(
                comm, m.parameters, all_reduce_sum{},
                {.bucket_bytes = bucket, .tail_bytes = bucket, .leave = gradients_hold::sum});
            stream s;
            for (int step = 0; step < 2; ++step)
              backward(sync, s, comm.rank(), micros, false, integer_gradient);
            s.synchronize();
            bad += wrong(sync, micros * static_cast<std::size_t>(n), 1.0f, integer_gradient);
          });
          REQUIRE(bad == 0);
        }
}

TEST_CASE("deterministic mode: the same bits for every N", "[grad_sync][deterministic]") {
  for (const std::size_t blocks : {1u, 2u, 8u, 16u}) {
    std::mutex mutex;
    std::set<std::uint64_t> digests;
    for (const int n : {1, 2, 4, 8, 16}) {
      if (static_cast<std::size_t>(n) > blocks) continue;
      for (const std::size_t bucket : {600u, 1u << 20})
        run(n, [&](loop_comm& comm) {
          model m(odd_counts);
          grad_sync sync(
              comm, m.parameters, deterministic{blocks},
              {.bucket_bytes = bucket, .tail_bytes = bucket, .leave = gradients_hold::sum});
          stream s;
          for (int step = 0; step < 2; ++step)
            backward(sync, s, comm.rank(), blocks / static_cast<std::size_t>(n), true,
                     rough_gradient);
          s.synchronize();
          const std::lock_guard lock(mutex);
          digests.insert(digest(sync));
        });
    }
    REQUIRE(digests.size() == 1);
  }
}

TEST_CASE("the deterministic sum is right, not only reproducible", "[grad_sync][deterministic]") {
  for (const int n : {1, 2, 4, 8}) {
    std::atomic<std::size_t> bad{0};
    run(n, [&](loop_comm& comm) {
      model m(odd_counts);
      grad_sync sync(comm, m.parameters, deterministic{8},
                     {.bucket_bytes = 2000, .leave = gradients_hold::sum});
      stream s;
      backward(sync, s, comm.rank(), 8 / static_cast<std::size_t>(n), true, integer_gradient);
      s.synchronize();
      bad += wrong(sync, 8, 1.0f, integer_gradient);
    });
    REQUIRE(bad == 0);
  }
}

TEST_CASE("finish leaves the mean unless asked for the sum", "[grad_sync]") {
  for (const memory whose : {memory::ours, memory::users_scattered})
    for (const int n : {1, 4}) {
      std::atomic<std::size_t> bad{0};
      run(n, [&](loop_comm& comm) {
        model m(odd_counts, whose);
        grad_sync sync(comm, m.parameters);
        stream s;
        backward(sync, s, comm.rank(), 2, false, integer_gradient);
        s.synchronize();
        const auto blocks = static_cast<std::size_t>(2 * n);
        bad += wrong(sync, blocks, 1.0f / static_cast<float>(blocks), integer_gradient);
        if (sync.grad_scale() != 1.0f / static_cast<float>(blocks)) ++bad;
      });
      REQUIRE(bad == 0);
    }
}

TEST_CASE("finish hands out gradients bucket by bucket", "[grad_sync]") {
  std::atomic<std::size_t> bad{0};
  run(3, [&](loop_comm& comm) {
    model m(odd_counts, memory::users_partly);
    grad_sync sync(comm, m.parameters, all_reduce_sum{},
                   {.bucket_bytes = 500, .tail_bytes = 100, .leave = gradients_hold::sum});
    std::vector<std::vector<float>> seen(odd_counts.size());
    stream s;
    for (int step = 0; step < 4; ++step) {
      std::vector<std::size_t> order;
      for (std::size_t micro = 0; micro < 2; ++micro) {
        sync.begin(micro, 2);
        for (std::size_t i = odd_counts.size(); i-- > 0;) {
          if (odd_counts[i] == 0) continue;
          s.enqueue([g = sync.grad(i), i, micro, rank = comm.rank()] {
            for (std::size_t k = 0; k < odd_counts[i]; ++k)
              g[k] = (micro == 0 ? 0 : g[k]) +
                     integer_gradient(i, k, static_cast<std::size_t>(rank) * 2 + micro);
          });
          sync.ready(i, s);
        }
        if (step == 2) // the other finish in between
          sync.finish(s);
        else
          sync.finish(s, [&](std::size_t i) {
            order.push_back(i);
            s.enqueue([&to = seen[i], g = sync.grad(i), i] { to.assign(g, g + odd_counts[i]); });
          });
      }
      s.synchronize();
      bad += wrong(sync, 6, 1.0f, integer_gradient);
      if (step == 2) continue;
      std::vector<std::size_t> expected = sync.layout().order();
      std::erase_if(expected, [](std::size_t i) { return odd_counts[i] == 0; });
      if (order != expected) ++bad;
      for (const std::size_t i : order)
        if (!std::equal(seen[i].begin(), seen[i].end(), sync.grad(i))) ++bad;
    }
  });
  REQUIRE(bad == 0);
}

TEST_CASE("construction broadcasts parameters and buffers from rank 0", "[grad_sync]") {
  std::atomic<int> bad{0};
  run(3, [&](loop_comm& comm) {
    model m({5, 0, 7});
    for (float& v : m.values) v = static_cast<float>(comm.rank() + 1);
    std::array<double, 4> statistics{};
    statistics.fill(comm.rank() + 0.5);
    grad_sync sync(comm, m.parameters, all_reduce_sum{},
                   {.buffers = {std::as_writable_bytes(std::span(statistics))}});
    for (const auto& p : m.parameters)
      for (std::size_t k = 0; k < p.count; ++k)
        if (p.value[k] != 1) ++bad;
    if (statistics[3] != 0.5) ++bad;
  });
  REQUIRE(bad == 0);
}

TEST_CASE("a parameter without a value is refused, unless broadcast is off",
          "[grad_sync][bad_input]") {
  run(2, [](loop_comm& comm) {
    std::vector<parameter<float>> params{{"w", 3, nullptr, nullptr}};
    try {
      grad_sync sync(comm, params);
    } catch (const usage_error& e) {
      if (std::string(e.what()).find("'w' has no value pointer") == std::string::npos) throw;
      grad_sync sync(comm, params, all_reduce_sum{}, {.broadcast = false});
      return;
    }
    throw error("not refused");
  });
}

TEST_CASE("gradients may come from several streams, with delays anywhere", "[grad_sync]") {
  std::atomic<std::size_t> bad{0};
  run(3, [&](loop_comm& comm) {
    model m(odd_counts);
    grad_sync sync(comm, m.parameters, all_reduce_sum{},
                   {.bucket_bytes = 500, .leave = gradients_hold::sum});
    std::vector<stream> producers(3);
    stream consumer;
    for (int step = 0; step < 3; ++step) {
      sync.begin(0, 1);
      for (std::size_t i = odd_counts.size(); i-- > 0;) {
        if (odd_counts[i] == 0) continue;
        stream& s = producers[i % 3];
        s.enqueue([g = sync.grad(i), i, rank = comm.rank()] {
          std::this_thread::sleep_for(
              std::chrono::microseconds(mix(i + static_cast<std::size_t>(rank)) % 500));
          for (std::size_t k = 0; k < odd_counts[i]; ++k)
            g[k] = integer_gradient(i, k, static_cast<std::size_t>(rank));
        });
        sync.ready(i, s);
      }
      sync.finish(consumer);
      consumer.synchronize();
      bad += wrong(sync, 3, 1.0f, integer_gradient);
    }
  });
  REQUIRE(bad == 0);
}

TEST_CASE("blocks may come from several streams", "[grad_sync][deterministic]") {
  std::atomic<std::size_t> bad{0};
  run(2, [&](loop_comm& comm) {
    model m(odd_counts);
    grad_sync sync(comm, m.parameters, deterministic{8},
                   {.bucket_bytes = 500, .leave = gradients_hold::sum});
    std::vector<stream> producers(3);
    stream consumer;
    for (int step = 0; step < 2; ++step) {
      for (std::size_t b = 0; b < 4; ++b) {
        sync.begin(b, 4);
        for (std::size_t i = odd_counts.size(); i-- > 0;) {
          if (odd_counts[i] == 0) continue;
          stream& s = producers[i % 3];
          s.enqueue([g = sync.grad(i), i, block = static_cast<std::size_t>(comm.rank()) * 4 + b] {
            std::this_thread::sleep_for(std::chrono::microseconds(mix(i + block) % 100));
            for (std::size_t k = 0; k < odd_counts[i]; ++k) g[k] = integer_gradient(i, k, block);
          });
          sync.ready(i, s);
        }
        sync.finish(consumer);
      }
      consumer.synchronize();
      bad += wrong(sync, 8, 1.0f, integer_gradient);
      for (stream& s : producers) s.synchronize();
    }
  });
  REQUIRE(bad == 0);
}

TEST_CASE("sync_all serves a backward that is one call", "[grad_sync]") {
  std::atomic<std::size_t> bad{0};
  run(2, [&](loop_comm& comm) {
    model m(odd_counts, memory::users_scattered);
    grad_sync sync(comm, m.parameters, all_reduce_sum{}, {.leave = gradients_hold::sum});
    stream s;
    sync.begin(0, 1);
    s.enqueue([&] {
      for (std::size_t i = 0; i < odd_counts.size(); ++i)
        for (std::size_t k = 0; k < odd_counts[i]; ++k)
          m.parameters[i].gradient[k] =
              integer_gradient(i, k, static_cast<std::size_t>(comm.rank()));
    });
    sync.sync_all(s);
    sync.finish(s);
    s.synchronize();
    bad += wrong(sync, 2, 1.0f, integer_gradient);
  });
  REQUIRE(bad == 0);
}

TEST_CASE("an unused parameter counts as zero, on the ranks that do not use it", "[grad_sync]") {
  for (const bool in_blocks : {false, true}) {
    std::atomic<std::size_t> bad{0};
    run(2, [&](loop_comm& comm) {
      const auto check = [&](auto policy) {
        model m({4, 4});
        grad_sync sync(comm, m.parameters, policy, {.leave = gradients_hold::sum});
        stream s;
        for (int step = 0; step < 2; ++step) {
          const std::size_t micros = in_blocks ? 4 : 1;
          for (std::size_t b = 0; b < micros; ++b) {
            sync.begin(b, micros);
            s.enqueue([g = sync.grad(1)] { std::fill(g, g + 4, 1.0f); });
            sync.ready(1, s);
            if (comm.rank() == 0 && b == 0) {
              s.enqueue([g = sync.grad(0)] { std::fill(g, g + 4, 5.0f); });
              sync.ready(0, s);
            } else {
              sync.unused(0, s);
            }
            sync.finish(s);
          }
          s.synchronize();
          if (sync.grad(0)[3] != 5 || sync.grad(1)[3] != static_cast<float>(2 * micros)) ++bad;
        }
      };
      if (in_blocks)
        check(deterministic{8});
      else
        check(all_reduce_sum{});
    });
    REQUIRE(bad == 0);
  }
}

TEST_CASE("a parameter never made ready is named on every rank", "[grad_sync][bad_input]") {
  std::atomic<int> told{0};
  try {
    run(3, [&](loop_comm& comm) {
      model m({10, 20, 30});
      grad_sync sync(comm, m.parameters, all_reduce_sum{}, {.bucket_bytes = 1, .tail_bytes = 1});
      stream s;
      try {
        sync.begin(0, 1);
        for (const std::size_t i : {2u, 1u, 0u})
          if (!(comm.rank() == 1 && i == 1)) sync.ready(i, s);
        sync.finish(s);
        s.synchronize();
      } catch (const error& e) {
        if (std::string(e.what()).find("finish: never made ready (or unused): 'p1'") !=
            std::string::npos)
          ++told;
        throw;
      }
    });
    FAIL("nothing was thrown");
  } catch (const usage_error&) {
  }
  REQUIRE(told == 3);
}

TEST_CASE("misuse is refused with the parameter's name", "[grad_sync][bad_input]") {
  const auto misuse = [](auto how, const std::string& expected) {
    try {
      run(1, [&](loop_comm& comm) {
        model m({4, 4});
        grad_sync sync(comm, m.parameters);
        stream s;
        how(sync, s);
      });
    } catch (const usage_error& e) {
      REQUIRE(std::string(e.what()).find(expected) != std::string::npos);
      return;
    }
    FAIL("not refused: " << expected);
  };
  misuse([](auto& y, auto& s) { y.ready(0, s); }, "ready('p0'): call begin first");
  misuse(
      [](auto& y, auto& s) {
        y.begin(0, 1);
        y.ready(1, s);
        y.ready(1, s);
      },
      "ready('p1'): declared twice in microbatch 0");
  misuse(
      [](auto& y, auto& s) {
        y.begin(0, 1);
        y.ready(7, s);
      },
      "there are 2 parameters");
  misuse([](auto& y, auto&) { y.begin(1, 2); }, "expected microbatch 0");
  misuse([](auto& y, auto&) { y.begin(2, 2); }, "out of range");
  misuse(
      [](auto& y, auto&) {
        y.begin(0, 1);
        y.begin(0, 1);
      },
      "expected finish()");
  misuse([](auto& y, auto& s) { y.finish(s); }, "call begin first");
}

TEST_CASE("different models on two ranks: the first difference is named on all",
          "[grad_sync][bad_input]") {
  std::atomic<int> told{0};
  try {
    run(3, [&](loop_comm& comm) {
      model m(comm.rank() == 2 ? std::vector<std::size_t>{10, 21, 30}
                               : std::vector<std::size_t>{10, 20, 30});
      try {
        grad_sync sync(comm, m.parameters);
      } catch (const mismatch_error& e) {
        if (std::string(e.what()) == "the ranks have different models: rank 0 has parameter 1 'p1' "
                                     "of 20 f32, rank 2 has parameter 1 'p1' of "
                                     "21 f32" &&
            e.collective())
          ++told;
        throw;
      }
    });
    FAIL("nothing was thrown");
  } catch (const mismatch_error&) {
  }
  REQUIRE(told == 3);
}

TEST_CASE("deterministic mode refuses what it cannot honour", "[grad_sync][bad_input]") {
  const auto attempt = [](int n, deterministic policy, memory whose) {
    run(n, [&](loop_comm& comm) {
      model m({4}, whose);
      grad_sync sync(comm, m.parameters, policy);
      stream s;
      sync.begin(0, 1);
    });
  };
  REQUIRE_THROWS_WITH(attempt(3, {8}, memory::ours), contains("3 ranks do not divide 8 blocks"));
  REQUIRE_THROWS_WITH(attempt(2, {12}, memory::ours),
                      contains("12 blocks; the number must be a power of two"));
  REQUIRE_THROWS_WITH(attempt(2, {0}, memory::ours), contains("must be a power of two"));
  REQUIRE_THROWS_WITH(attempt(2, {8}, memory::users_scattered),
                      contains("'p0' brings gradient memory of its own"));
  REQUIRE_THROWS_WITH(attempt(2, {8}, memory::ours), contains("4 blocks per rank"));
}

TEST_CASE("verify_replicas names the first tensor that drifts, and the rank",
          "[grad_sync][verify]") {
  std::atomic<int> told{0};
  try {
    run(3, [&](loop_comm& comm) {
      model m({10, 20, 30});
      grad_sync sync(comm, m.parameters);
      stream s;
      sync.verify_replicas(s);
      if (comm.rank() == 1) m.parameters[1].value[7] = 1e-30f;
      if (comm.rank() == 2) m.parameters[2].value[7] = 1e-30f;
      for (int step = 1; step < 3; ++step) sync.verify_replicas(s, 4); // calls 2 and 3: not yet
      try {
        sync.verify_replicas(s, 4);
      } catch (const mismatch_error& e) {
        if (std::string(e.what()) ==
            "replicas differ: parameter 'p1' has other bits than on rank 0 on rank 1")
          ++told;
        throw;
      }
    });
    FAIL("nothing was thrown");
  } catch (const mismatch_error&) {
  }
  REQUIRE(told == 3);
}

namespace {

/// Counts allocations and knows when they are forbidden.
struct watched_resource : std::pmr::memory_resource {
  std::atomic<std::size_t> live{0}, calls{0};
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    live += bytes;
    ++calls;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    live -= bytes;
    std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

/// A user's own policy in ten lines: everybody sends to everybody and adds in rank order.
struct gather_and_add {
  static constexpr std::string_view name = "gather_and_add";
  static std::size_t blocks_per_rank(int) { return 0; }
  static std::size_t scratch(std::size_t count, int ranks) {
    return count * static_cast<std::size_t>(ranks);
  }
  template <class C, element G>
  void issue(C& comm, std::span<G> data, std::span<G> scratch,
             on<typename C::backend::stream> where) const {
    const auto n = static_cast<std::size_t>(comm.size());
    comm.template all_gather<G>(data, scratch.first(n * data.size()), where);
    C::backend::template copy<G>(scratch.first(data.size()), data, where.stream);
    for (std::size_t r = 1; r < n; ++r)
      C::backend::template add<G>(data, scratch.subspan(r * data.size(), data.size()), data,
                                  where.stream);
  }
};

} // namespace

TEST_CASE("memory is exactly arena, levels and scratch, and none of it after construction",
          "[grad_sync]") {
  run(2, [](loop_comm& comm) {
    const auto check = [&](auto policy, std::size_t micros, std::size_t arenas, bool overwrite) {
      watched_resource memory;
      {
        model m({1000, 640});
        grad_sync sync(comm, m.parameters, policy, {.bucket_bytes = 1 << 20, .memory = &memory});
        const std::size_t expected = arenas * 1640 * sizeof(float);
        if (sync.bytes() != expected || memory.live != expected)
          throw error("other size than stated");
        const std::size_t calls = memory.calls;
        stream s;
        for (int step = 0; step < 3; ++step)
          backward(sync, s, comm.rank(), micros, overwrite, integer_gradient);
        s.synchronize();
        if (memory.calls != calls) throw error("allocated after construction");
      }
      if (memory.live != 0) throw error("leaked");
    };
    check(all_reduce_sum{}, 1, 1, false);
    check(deterministic{8}, 4, 1 + 2 + 1, true); // blocks, two levels, scratch: log2(8) + 1 arenas
    watched_resource none;
    model m({1000, 640}, memory::users_contiguous);
    grad_sync sync(comm, m.parameters, all_reduce_sum{},
                   {.bucket_bytes = 1 << 20, .memory = &none});
    if (none.calls != 0) throw error("adopted contiguous gradients need no memory");
  });
}

TEST_CASE("a policy of one's own", "[grad_sync]") {
  std::atomic<std::size_t> bad{0};
  run(5, [&](loop_comm& comm) {
    model m(odd_counts);
    grad_sync sync(comm, m.parameters, gather_and_add{},
                   {.bucket_bytes = 900, .leave = gradients_hold::sum});
    stream s;
    backward(sync, s, comm.rank(), 1, false, integer_gradient);
    s.synchronize();
    bad += wrong(sync, 5, 1.0f, integer_gradient);
  });
  REQUIRE(bad == 0);
}

TEST_CASE("buckets leave in index order, whatever is ready first", "[grad_sync]") {
  // Each rank declares in another order; if issue order followed it, the ranks would mix up
  // buckets.
  std::atomic<std::size_t> bad{0};
  run(4, [&](loop_comm& comm) {
    model m({100, 200, 300, 400});
    grad_sync sync(comm, m.parameters, all_reduce_sum{},
                   {.bucket_bytes = 1, .tail_bytes = 1, .leave = gradients_hold::sum});
    stream s;
    sync.begin(0, 1);
    for (std::size_t j = 0; j < 4; ++j) {
      const std::size_t i = (j + static_cast<std::size_t>(comm.rank())) % 4;
      s.enqueue([g = sync.grad(i), n = m.parameters[i].count] { std::fill(g, g + n, 1.0f); });
      sync.ready(i, s);
    }
    sync.finish(s);
    s.synchronize();
    for (std::size_t i = 0; i < 4; ++i)
      if (sync.grad(i)[99] != 4) ++bad;
  });
  REQUIRE(bad == 0);
}

TEST_CASE("one rank alone needs no communication, but can be made to", "[grad_sync]") {
  run(1, [](loop_comm& comm) {
    for (const bool always : {false, true}) {
      model m(odd_counts, memory::users_scattered);
      grad_sync sync(comm, m.parameters, all_reduce_sum{}, {.always_communicate = always});
      stream s;
      backward(sync, s, 0, 2, false, integer_gradient);
      s.synchronize();
      if (wrong(sync, 2, 0.5f, integer_gradient) != 0) throw error("wrong gradients");
    }
  });
}

TEST_CASE("buckets are sized by the cost model of POLYRANK_COST_MODEL, or of the options",
          "[grad_sync]") {
  const std::string file =
      (std::filesystem::temp_directory_path() / detail::cat("polyrank-costs-", getpid())).string();
  const auto write = [&](const std::string& text) { std::ofstream(file) << text; };
  const std::vector<std::size_t> counts(48, 100'000); // 18 MiB
  const auto buckets = [&](std::optional<cost_model> own) {
    std::atomic<std::size_t> most{0};
    run(2, [&](loop_comm& comm) {
      model m(counts);
      const grad_sync sync(comm, m.parameters, all_reduce_sum{}, {.cost = own});
      most = sync.layout().buckets().size();
    });
    return most.load();
  };
  setenv("POLYRANK_COST_MODEL", file.c_str(), 1);
  write(cost_model_text({{1e-9, 1e9}, {}, {}})); // no latency: as small as may be
  const std::size_t many = buckets({});
  write(cost_model_text({{1, 1e9}, {}, {}}));
  const std::size_t few = buckets({});
  CHECK(many > few + 4);
  CHECK(buckets(cost_model{1e-9, 1e9}) == many); // what the program says comes first
  write("nonsense");
  std::atomic<int> refused{0};
  CHECK_THROWS_AS(run(2,
                      [&](loop_comm& comm) {
                        model m(counts);
                        try {
                          grad_sync sync(comm, m.parameters);
                        } catch (const data_error& e) {
                          refused += std::string(e.what()).starts_with("POLYRANK_COST_MODEL: ");
                          throw;
                        }
                      }),
                  data_error);
  CHECK(refused == 2); // on every rank
  unsetenv("POLYRANK_COST_MODEL");
  std::filesystem::remove(file);
}
