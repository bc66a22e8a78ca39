// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/core/hash.hpp>
#include <polyrank/data/prefetch_loader.hpp>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace polyrank;

namespace {

using batch = std::vector<int>;

/// A delay that depends on the index, so that workers finish out of order.
void dawdle(std::size_t index) {
  std::this_thread::sleep_for(std::chrono::microseconds(mix(index) % 300));
}

void fill(std::size_t index, batch& b) {
  b.assign(16, static_cast<int>(index));
  dawdle(index);
}

} // namespace

TEST_CASE("batches come in order whatever the workers and the depth", "[prefetch_loader]") {
  for (const std::size_t workers : {0u, 1u, 2u, 4u, 7u})
    for (const std::size_t depth : {1u, 2u, 5u}) {
      prefetch_loader<batch> loader({.workers = workers, .depth = depth}, 50, fill);
      for (int i = 0; i < 50; ++i) {
        REQUIRE(loader.remaining() == std::size_t(50 - i));
        batch b = loader.next();
        REQUIRE(b == batch(16, i));
        if (i % 2 == 0) loader.recycle(std::move(b));
      }
      REQUIRE(loader.remaining() == 0);
      REQUIRE_THROWS_AS(loader.next(), usage_error);
    }
}

TEST_CASE("at most depth batches are ahead of the consumer", "[prefetch_loader]") {
  std::atomic<std::size_t> highest{0};
  prefetch_loader<batch> loader({.workers = 3, .depth = 4}, 40, [&](std::size_t index, batch& b) {
    std::size_t seen = highest.load();
    while (seen < index && !highest.compare_exchange_weak(seen, index)) {
    }
    b.assign(1, static_cast<int>(index));
  });
  for (std::size_t i = 0; i < 40; ++i) {
    dawdle(i);
    REQUIRE(highest.load() < i + 4); // batch i is not handed out yet
    (void)loader.next();
  }
}

TEST_CASE("an exception of a worker arrives at its own batch; the next ones still come",
          "[prefetch_loader]") {
  for (const std::size_t workers : {0u, 1u, 3u}) {
    prefetch_loader<batch> loader({.workers = workers, .depth = 3}, 10,
                                  [](std::size_t index, batch& b) {
                                    fill(index, b);
                                    if (index == 4) throw data_error("row 4 is corrupt");
                                  });
    for (int i = 0; i < 10; ++i) {
      if (i == 4)
        REQUIRE_THROWS_AS(loader.next(), data_error);
      else
        REQUIRE(loader.next() == batch(16, i));
    }
  }
}

TEST_CASE("a loader may be dropped at any time", "[prefetch_loader]") {
  for (int taken = 0; taken < 12; ++taken) {
    prefetch_loader<batch> loader({.workers = 3, .depth = 2}, 12, fill);
    for (int i = 0; i < taken; ++i) REQUIRE(loader.next() == batch(16, i));
  }
  prefetch_loader<batch> nothing({.workers = 2, .depth = 2}, 0, fill);
  REQUIRE(nothing.remaining() == 0);
}

TEST_CASE("recycled memory is used again", "[prefetch_loader]") {
  prefetch_loader<batch> loader({.workers = 0, .depth = 0}, 3,
                                [](std::size_t, batch& b) { b.resize(100); });
  batch b = loader.next();
  const int* memory = b.data();
  loader.recycle(std::move(b));
  REQUIRE(loader.next().data() == memory);
}

TEST_CASE("workers without a queue are refused", "[prefetch_loader]") {
  REQUIRE_THROWS_AS(prefetch_loader<batch>({.workers = 1, .depth = 0}, 1, fill), usage_error);
}

TEST_CASE("workers default to the rank's share of the CPUs", "[prefetch_loader]") {
  STATIC_REQUIRE(default_workers(2, 4) == 1);
  STATIC_REQUIRE(default_workers(64, 8) == 8);
  STATIC_REQUIRE(default_workers(0, 0) == 1);
}
