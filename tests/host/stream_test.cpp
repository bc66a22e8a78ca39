// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/host/backend.hpp>
#include <polyrank/host/stream.hpp>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

using namespace polyrank;
using host::event;
using host::stream;

namespace {
void nap(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
} // namespace

TEST_CASE("a stream runs its closures in order", "[stream]") {
  for (const auto mode : {stream::mode::worker, stream::mode::immediate}) {
    stream s(mode);
    REQUIRE(s.immediate() == (mode == stream::mode::immediate));
    std::vector<int> seen;
    for (int i = 0; i < 1000; ++i) s.enqueue([&seen, i] { seen.push_back(i); });
    s.synchronize();
    REQUIRE(seen.size() == 1000);
    for (int i = 0; i < 1000; ++i) REQUIRE(seen[static_cast<std::size_t>(i)] == i);
  }
}

TEST_CASE("a worker stream returns before its work has run", "[stream]") {
  stream s;
  std::atomic<bool> go{false}, done{false};
  s.enqueue([&] {
    while (!go) std::this_thread::yield();
    done = true;
  });
  REQUIRE_FALSE(done);
  go = true;
  s.synchronize();
  REQUIRE(done);
}

TEST_CASE("an event orders two streams", "[stream]") {
  stream a, b;
  event e;
  for (int round = 0; round < 200; ++round) {
    int x = 0, y = 0;
    a.enqueue([&] { x = 1; });
    e.record(a);
    b.wait(e);
    b.enqueue([&] { y = x + 1; });
    b.synchronize();
    REQUIRE(y == 2);
  }
}

TEST_CASE("a wait means the point recorded last before it, not a later one", "[stream]") {
  stream a, b;
  event e;
  std::atomic<bool> go{false};
  int x = 0, y = 0;
  a.enqueue([&] { x = 1; });
  e.record(a);
  b.wait(e); // the first point
  a.enqueue([&] {
    while (!go) std::this_thread::yield();
  });
  e.record(a); // the second one is stuck behind `go`
  b.enqueue([&] { y = x; });
  b.synchronize();
  REQUIRE(y == 1);
  REQUIRE_FALSE(e.query());
  go = true;
  e.synchronize();
  REQUIRE(e.query());
}

TEST_CASE("an event that was never recorded holds nobody up", "[stream]") {
  stream s;
  event e;
  REQUIRE(e.query());
  s.wait(e);
  s.synchronize();
  e.synchronize();
}

TEST_CASE("events may go before their points are reached", "[stream]") {
  stream a, b;
  std::atomic<bool> go{false};
  int x = 0;
  a.enqueue([&] {
    while (!go) std::this_thread::yield();
    x = 1;
  });
  {
    event e;
    e.record(a);
    b.wait(e);
    event moved = std::move(e);
    REQUIRE_FALSE(moved.query());
  }
  go = true;
  int y = 0;
  b.enqueue([&] { y = x; });
  b.synchronize();
  REQUIRE(y == 1);
}

TEST_CASE("an exception makes the stream failed and is rethrown at synchronize", "[stream]") {
  for (const auto mode : {stream::mode::worker, stream::mode::immediate}) {
    stream s(mode);
    bool ran = false;
    s.enqueue([] { throw data_error("broken"); });
    s.enqueue([&] { ran = true; });
    REQUIRE_THROWS_WITH(s.synchronize(), "broken");
    REQUIRE_THROWS_AS(s.synchronize(), data_error); // it stays failed
    REQUIRE_FALSE(ran);
  }
}

TEST_CASE("a failure travels along events to the streams that wait", "[stream]") {
  stream a, b, c;
  event e, f;
  bool ran = false;
  a.enqueue([] { throw data_error("broken"); });
  e.record(a);
  b.wait(e);
  b.enqueue([&] { ran = true; });
  f.record(b);
  REQUIRE_THROWS_WITH(f.synchronize(), "broken");
  REQUIRE_THROWS_WITH(b.synchronize(), "broken");
  REQUIRE_FALSE(ran);
  c.enqueue([&] { ran = true; }); // untouched
  c.synchronize();
  REQUIRE(ran);
  event g; // an event is usable again after it carried a failure
  g.record(c);
  g.synchronize();
}

TEST_CASE("destroying a stream runs what is queued", "[stream]") {
  int n = 0;
  {
    stream s;
    for (int i = 0; i < 100; ++i) s.enqueue([&] { ++n; });
  }
  REQUIRE(n == 100);
}

TEST_CASE("a moved stream keeps its work and its identity", "[stream]") {
  stream a;
  const void* id = a.id();
  int n = 0;
  a.enqueue([&] {
    nap(5);
    n = 1;
  });
  stream b = std::move(a);
  REQUIRE(b.id() == id);
  b.synchronize();
  REQUIRE(n == 1);
}

TEST_CASE("several threads may feed one stream", "[stream]") {
  stream s;
  int n = 0;
  std::vector<std::thread> feeders;
  for (int t = 0; t < 4; ++t)
    feeders.emplace_back([&] {
      for (int i = 0; i < 250; ++i) s.enqueue([&] { ++n; });
    });
  for (auto& t : feeders) t.join();
  s.synchronize();
  REQUIRE(n == 1000);
}

TEST_CASE("element-wise operations of the host backend", "[backend]") {
  stream s;
  std::vector<float> a(37), b(37), c(37, -1);
  host::backend::fill(std::span(a), 2.0f, s);
  host::backend::fill(std::span(b), 3.0f, s);
  host::backend::add<float>(a, b, std::span(c), s);
  host::backend::scale(std::span(c), 0.5f, s);
  host::backend::copy<float>(c, std::span(a), s);
  std::uint64_t ha = 0, hb = 0, hc = 0;
  host::backend::hash<float>(a, ha, s);
  host::backend::hash<float>(b, hb, s);
  host::backend::hash<float>(c, hc, s);
  s.synchronize();
  for (const float x : a) REQUIRE(x == 2.5f);
  REQUIRE((ha == hc && ha != hb));
  REQUIRE_THROWS_AS(host::backend::copy<float>(c, std::span(a).first(3), s), usage_error);
  REQUIRE_THROWS_AS(host::backend::add<float>(c, b, std::span(a).first(3), s), usage_error);
}

TEST_CASE("16-bit floats are added in fp32 and rounded once", "[backend]") {
  stream s;
  std::vector<bf16> a(3, bf16(1.0f)), b(3, bf16(0x1p-8f)), c(3);
  host::backend::add<bf16>(a, b, std::span(c), s);
  s.synchronize();
  for (const bf16 x : c) REQUIRE(float(x) == float(bf16(1.0f + 0x1p-8f)));
}
