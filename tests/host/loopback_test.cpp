// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "host/comm_cases.hpp"

#include <polyrank/host/loopback.hpp>

#include <atomic>
#include <cstring>

using namespace polyrank;
using host::stream;
using loop_comm = host::loopback::communicator;
using host::loopback::fault;
using host::loopback::run;

TEST_CASE("every collective is right for every size and 1 to 9 ranks", "[loopback]") {
  for (const int n : {1, 2, 3, 4, 5, 7, 8, 9}) {
    std::atomic<std::size_t> bad{0};
    run(n, [&](loop_comm& comm) {
      stream s(n % 2 == 0 ? stream::mode::worker : stream::mode::immediate);
      bad += test::check_everything(comm, s, {0, 1, 3, 13, 1009});
    });
    REQUIRE(bad == 0);
  }
}

TEST_CASE("operations run in host order whatever stream they name", "[loopback]") {
  run(3, [](loop_comm& comm) {
    stream a, b;
    std::vector<float> x{1};
    for (int i = 0; i < 20; ++i)
      comm.all_reduce<float>(x, std::span(x), reduce_op::max, on(i % 2 == 0 ? a : b));
    comm.all_reduce<float>(x, std::span(x), reduce_op::sum, on(b));
    comm.all_reduce<float>(x, std::span(x), reduce_op::sum, on(a));
    a.synchronize();
    if (x[0] != 9) throw error("out of order");
  });
}

TEST_CASE("split makes groups ordered by key", "[loopback]") {
  std::atomic<int> bad{0};
  run(5, [&](loop_comm& comm) {
    loop_comm half = comm.split(comm.rank() % 2, -comm.rank());
    stream s;
    std::vector<std::int32_t> mine{comm.rank()}, all(static_cast<std::size_t>(half.size()));
    half.all_gather<std::int32_t>(mine, std::span(all), on(s));
    s.synchronize();
    const std::vector<std::int32_t> expected =
        comm.rank() % 2 == 0 ? std::vector<std::int32_t>{4, 2, 0} : std::vector<std::int32_t>{3, 1};
    if (all != expected) ++bad;
  });
  REQUIRE(bad == 0);
}

TEST_CASE("the control channel gathers words of any length", "[loopback]") {
  std::atomic<int> bad{0};
  run(4, [&](loop_comm& comm) {
    const auto all =
        comm.control().all_gather(std::string(static_cast<std::size_t>(comm.rank()), 'x'));
    for (std::size_t r = 0; r < 4; ++r)
      if (all[r] != std::string(r, 'x')) ++bad;
    if (comm.control().all_reduce_max(comm.rank() * 10) != 30) ++bad;
    comm.control().barrier(std::chrono::seconds(10));
  });
  REQUIRE(bad == 0);
}

TEST_CASE("ranks that issue different operations all get the difference", "[loopback]") {
  std::atomic<int> told{0};
  run(3, [&](loop_comm& comm) {
    stream s;
    std::vector<float> x(comm.rank() == 2 ? 11 : 10);
    comm.all_reduce<float>(x, std::span(x), reduce_op::sum, on(s, "bucket 0"));
    try {
      s.synchronize();
    } catch (const mismatch_error& e) {
      const std::string text = e.what();
      if (e.collective() &&
          text.find("rank 0: all_reduce #1 \"bucket 0\" sum of 10 f32") != std::string::npos &&
          text.find("rank 2") != std::string::npos && text.find("of 11 f32") != std::string::npos)
        ++told;
    }
  });
  REQUIRE(told == 3);
}

TEST_CASE("a dropped operation is a timeout that names the rank", "[loopback][fault]") {
  host::loopback::options o;
  o.timeout = std::chrono::milliseconds(200);
  o.faults = {{.rank = 1, .operation = 2, .what = fault::kind::drop}};
  std::atomic<int> told{0};
  run(
      3,
      [&](loop_comm& comm) {
        stream s;
        std::vector<float> x(4);
        for (int i = 0; i < 2; ++i) comm.all_reduce<float>(x, std::span(x), reduce_op::sum, on(s));
        try {
          s.synchronize();
        } catch (const timeout_error& e) {
          if (std::string(e.what()).find(
                  "all_reduce #2 of communicator 0 timed out: ranks that did not enter it: 1") !=
              std::string::npos)
            ++told;
        }
      },
      o);
  REQUIRE(told == 2);
}

TEST_CASE("a delayed rank changes nothing but time", "[loopback][fault]") {
  host::loopback::options o;
  for (int r = 0; r < 4; ++r)
    for (std::uint64_t k = 1; k < 20; ++k)
      o.faults.push_back(
          {.rank = r,
           .operation = k,
           .what = fault::kind::delay,
           .delay = std::chrono::milliseconds(static_cast<std::uint64_t>(r) * k % 3)});
  std::atomic<std::size_t> bad{0};
  run(
      4,
      [&](loop_comm& comm) {
        stream s;
        bad += test::check_everything(comm, s, {97});
      },
      o);
  REQUIRE(bad == 0);
}

TEST_CASE("a failing rank releases the others with its cause", "[loopback][fault]") {
  host::loopback::options o;
  o.faults = {{.rank = 2, .operation = 3, .what = fault::kind::fail}};
  std::atomic<int> told{0};
  try {
    run(
        4,
        [&](loop_comm& comm) {
          stream s;
          std::vector<float> x(4);
          for (int i = 0; i < 5; ++i)
            comm.all_reduce<float>(x, std::span(x), reduce_op::sum, on(s));
          try {
            s.synchronize();
          } catch (const aborted_error& e) {
            if (e.cause().find("rank 2: all_reduce #3 -> injected fault on rank 2") == 0) ++told;
            throw;
          }
        },
        o);
    FAIL("nothing was thrown");
  } catch (const comm_error& e) { // the first cause, not an aborted_error
    REQUIRE(std::string(e.what()).find("injected fault on rank 2") != std::string::npos);
  }
  REQUIRE(told == 3);
}

TEST_CASE("a message nobody receives is a timeout that names the sender", "[loopback]") {
  host::loopback::options o;
  o.timeout = std::chrono::milliseconds(100);
  REQUIRE_THROWS_WITH(run(
                          2,
                          [&](loop_comm& comm) {
                            stream s;
                            std::vector<float> x(4);
                            if (comm.rank() == 0)
                              comm.exchange({send_to(1, std::span(x))}, on(s, "lost"));
                            s.synchronize();
                          },
                          o),
                      "exchange #1 \"lost\" timed out on rank 0: nobody received");
}

TEST_CASE("a message of another size is a mismatch", "[loopback]") {
  REQUIRE_THROWS_AS(run(2,
                        [&](loop_comm& comm) {
                          stream s;
                          std::vector<float> x(4);
                          if (comm.rank() == 0)
                            comm.exchange({send_to(1, std::span(x))}, on(s));
                          else
                            comm.exchange({receive_from(0, std::span(x).first(3))}, on(s));
                          s.synchronize();
                        }),
                    mismatch_error);
}

TEST_CASE("sizes that do not fit are refused at the call", "[loopback]") {
  run(2, [](loop_comm& comm) {
    stream s;
    std::vector<float> four(4), three(3);
    const auto refused = [](auto call) {
      try {
        call();
      } catch (const usage_error&) {
        return;
      }
      throw error("not refused");
    };
    refused([&] { comm.all_reduce<float>(four, std::span(three), reduce_op::sum, on(s)); });
    refused([&] { comm.reduce_scatter<float>(four, std::span(three), reduce_op::sum, on(s)); });
    refused([&] { comm.all_gather<float>(three, std::span(four), on(s)); });
    refused([&] { comm.all_to_all<float>(three, std::span(three), on(s)); });
    refused([&] { comm.broadcast(std::span(four), 2, on(s)); });
    refused([&] { comm.exchange({send_to(-1, std::span(four))}, on(s)); });
  });
  REQUIRE_THROWS_AS(run(0, [](loop_comm&) {}), usage_error);
}
