// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/hang/flight_recorder.hpp>

#include <cstring>
#include <thread>
#include <vector>

using namespace polyrank;
using namespace polyrank::hang;

namespace {
operation all_reduce_of(std::size_t count, std::string_view tag = {}) {
  return {.kind = op_kind::all_reduce,
          .type = dtype::f32,
          .count = count,
          .tag = tag,
          .site = call_site::here()};
}
} // namespace

TEST_CASE("a record comes back as it was entered", "[flight_recorder]") {
  flight_recorder recorder(4);
  comm_history history{.id = 7};
  const auto ticket = recorder.enter(history, all_reduce_of(std::size_t{1} << 33, "bucket 7"));
  flight_recorder::record r;
  REQUIRE(recorder.read(ticket, r));
  REQUIRE(r.comm == 7);
  REQUIRE(r.seq == 1);
  REQUIRE(r.what.count == std::size_t{1} << 33);
  REQUIRE(r.what.kind == op_kind::all_reduce);
  REQUIRE(r.what.type == dtype::f32);
  REQUIRE(r.what.peer == -1);
  REQUIRE(r.what.tag == "bucket 7");
  REQUIRE(std::strcmp(r.what.site.file, "flight_recorder_test.cpp") == 0);
  REQUIRE(r.entered_ns > 0);
  REQUIRE((r.started_ns == 0 && r.done_ns == 0));
  recorder.start(ticket);
  recorder.done(ticket);
  REQUIRE(recorder.read(ticket, r));
  REQUIRE((r.started_ns >= r.entered_ns && r.done_ns >= r.started_ns));
}

TEST_CASE("the ring keeps the newest records and refuses the overwritten", "[flight_recorder]") {
  flight_recorder recorder(3); // becomes 4
  REQUIRE(recorder.capacity() == 4);
  comm_history history;
  for (std::size_t i = 0; i < 10; ++i) recorder.enter(history, all_reduce_of(i));
  flight_recorder::record r;
  REQUIRE_FALSE(recorder.read(5, r));
  REQUIRE(recorder.read(6, r));
  REQUIRE(r.what.count == 6);
  recorder.done(5); // of an overwritten record: must not stamp its successor
  REQUIRE(recorder.read(9, r));
  REQUIRE(r.done_ns == 0);
}

TEST_CASE("long tags and paths are cut, not overrun", "[flight_recorder]") {
  flight_recorder recorder(1);
  comm_history history;
  const std::string tag(100, 't');
  recorder.enter(history, all_reduce_of(1, tag));
  flight_recorder::record r;
  REQUIRE(recorder.read(0, r));
  REQUIRE(r.what.tag == std::string(23, 't'));
}

TEST_CASE("equal histories have equal chains, any difference shows", "[flight_recorder]") {
  flight_recorder recorder;
  comm_history a, b, c;
  for (std::size_t i = 0; i < 5; ++i) {
    recorder.enter(a, all_reduce_of(i, "a"));
    recorder.enter(b, all_reduce_of(i, "other tag"));
    recorder.enter(c, all_reduce_of(i == 2 ? 99 : i));
  }
  REQUIRE(a.chain == b.chain);
  REQUIRE(a.chain != c.chain);
  operation broadcast{.kind = op_kind::broadcast, .type = dtype::f32, .peer = 0, .count = 4};
  const auto from_0 = broadcast.signature();
  broadcast.peer = 1;
  REQUIRE(from_0 != broadcast.signature());
}

TEST_CASE("the text says what is done, running and not started", "[flight_recorder]") {
  flight_recorder recorder;
  comm_history history;
  const auto a = recorder.enter(history, all_reduce_of(1, "first"));
  const auto b = recorder.enter(history, all_reduce_of(2, "second"));
  recorder.enter(history, all_reduce_of(3, "third"));
  recorder.start(a);
  recorder.done(a);
  recorder.start(b);
  const std::string text = recorder.text();
  REQUIRE(text.find("#1 all_reduce of 1 f32 \"first\" at flight_recorder_test.cpp:") !=
          std::string::npos);
  REQUIRE(text.find("done ") < text.find("running, entered"));
  REQUIRE(text.find("\"third\"") < text.find("not started, entered"));
  REQUIRE(recorder.text(1).find("second") == std::string::npos);
}

TEST_CASE("the ring can live in memory of the caller", "[flight_recorder]") {
  alignas(8) static std::byte storage[8 * 128 + 100]{};
  flight_recorder recorder{std::span<std::byte>(storage)};
  REQUIRE(recorder.capacity() == 8);
  comm_history history;
  recorder.enter(history, all_reduce_of(5));
  bool touched = false;
  for (const std::byte b : storage) touched = touched || b != std::byte{0};
  REQUIRE(touched);
  REQUIRE_THROWS_AS(flight_recorder(std::span<std::byte>(storage, 100)), usage_error);
}

TEST_CASE("many threads may record at once", "[flight_recorder]") {
  flight_recorder recorder(1024);
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      comm_history history{.id = t};
      for (std::size_t i = 0; i < 100; ++i) {
        const auto ticket = recorder.enter(history, all_reduce_of(i));
        recorder.start(ticket);
        recorder.done(ticket);
      }
    });
  for (auto& t : threads) t.join();
  REQUIRE(recorder.size() == 400);
  flight_recorder::record r;
  std::size_t per_comm[4]{};
  for (std::uint64_t i = 0; i < 400; ++i) {
    REQUIRE(recorder.read(i, r));
    REQUIRE(r.done_ns != 0);
    REQUIRE(r.what.count == per_comm[r.comm]++);
  }
}
