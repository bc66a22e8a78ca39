// The side channel between hosts, with strangers at the door; what NCCL's RAS says.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/launch/hang_star.hpp>
#include <polyrank/launch/ras.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace polyrank;
using namespace polyrank::launch;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t hosts = 3;

/// The stars of three hosts with a rank each, in one process; the first two are centres.
struct stars {
  stars() {
    std::vector<launch::socket> doors;
    std::vector<hang_star::member> ranks;
    for (std::size_t h = 0; h < hosts; ++h) {
      doors.push_back(launch::socket::listen({"127.0.0.1", 0}));
      ranks.push_back({"node" + std::to_string(h), {"127.0.0.1", doors.back().port()}});
    }
    door = ranks[0].at;
    for (std::size_t h = 0; h < hosts; ++h) {
      hang_star::setup s{.rank = static_cast<int>(h), .ranks = ranks, .centres = {0, 1}};
      s.key.fill(7);
      s.silence = 1500ms;
      if (h < 2) s.door = std::move(doors[h]);
      all.push_back(std::make_unique<hang_star>(std::move(s)));
    }
  }
  void publish() {
    for (std::size_t h = 0; h < hosts; ++h)
      all[h]->publish({{.rank = static_cast<int>(h),
                        .process = hang::process_state::running,
                        .host = "node" + std::to_string(h),
                        .where = "sleeps"}});
  }
  address door;
  std::vector<std::unique_ptr<hang_star>> all;
};

/// Whether `f` becomes true within three seconds, while all hosts speak.
bool soon(stars& s, const std::function<bool()>& f) {
  for (int i = 0; i < 30; ++i) {
    s.publish();
    if (f()) return true;
    std::this_thread::sleep_for(100ms);
  }
  return false;
}

std::string where_of(hang_star& s, int rank) {
  for (const hang::remote_sample& r : s.others())
    if (r.rank == rank) return r.where;
  return {};
}

} // namespace

TEST_CASE("hosts tell each other through the star, whoever knocks beside them",
          "[hang_star][security]") {
  stars s;
  std::atomic<bool> stop{false};
  std::atomic<int> knocks{0};
  std::thread stranger([&] { // a port scan, garbage, another job's key, a length that is a lie
    hang_key other{};
    const std::string foreign = pack({.host = 2, .code = 80}, other);
    for (int kind = 0; !stop; ++kind) try {
        const auto line = launch::socket::connect(s.door, std::chrono::steady_clock::now() + 100ms);
        const std::string huge(8, '\xff'), garbage = "GET / HTTP/1.1\r\n\r\n";
        switch (kind % 4) {
        case 0:
          break; // goes at once
        case 1:
          static_cast<void>(::send(line.native(), garbage.data(), garbage.size(), MSG_NOSIGNAL));
          break;
        case 2:
          static_cast<void>(::send(line.native(), huge.data(), huge.size(), MSG_NOSIGNAL));
          break;
        default:
          line.send(foreign, std::chrono::steady_clock::now() + 100ms);
        }
        ++knocks;
        std::this_thread::sleep_for(5ms);
      } catch (const error&) { // it was shut in our face
      }
  });
  CHECK(soon(s, [&] { return where_of(*s.all[0], 2) == "sleeps"; }));
  CHECK(s.all[0]->decided() == 0); // the stranger's 80 is no verdict
  CHECK(s.all[0]->in_charge());
  CHECK_FALSE(s.all[2]->cut_off());
  std::thread decision([&] { s.all[0]->decide(82); });
  CHECK(soon(s, [&] { return s.all[1]->decided() == 82 && s.all[2]->decided() == 82; }));
  decision.join();
  stop = true;
  stranger.join();
  CHECK(knocks > 20);
}

namespace {

// As NCCL 2.28 prints it.
constexpr const char* status = R"(NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          1            1          2        2

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         1         2         2   RUNNING  MISMATCH

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

Warnings
========

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different collective operation counts
  1 rank has launched up to operation 6650

)";

/// A server that says `words` to one caller and then closes, or keeps silent.
std::string ask(const std::string& words, bool silent, std::chrono::milliseconds patience) {
  auto door = launch::socket::listen({"127.0.0.1", 0});
  const std::string at = address{"127.0.0.1", door.port()}.text();
  std::thread server([&] {
    const auto line = door.accept(std::chrono::steady_clock::now() + 2s);
    if (silent) std::this_thread::sleep_for(patience + 300ms);
    for (std::size_t sent = 0; line.open() && !silent && sent < words.size();) {
      const ssize_t n =
          ::send(line.native(), words.data() + sent, words.size() - sent, MSG_NOSIGNAL);
      if (n > 0)
        sent += static_cast<std::size_t>(n);
      else if (errno != EAGAIN)
        break;
    }
  });
  const std::string text = ras_status(patience, at);
  server.join();
  return text;
}

} // namespace

TEST_CASE("what NCCL RAS complains of becomes findings", "[ras]") {
  const auto found = ras_findings(status);
  REQUIRE(found.size() == 2);
  CHECK(found[0] == "INCOMPLETE; Missing communicator data from 1 job process; Process 3487984 on "
                    "node 172.16.64.213 managing GPU 5");
  CHECK(found[1].find("#0-0 (cf264af53edbe986) MISMATCH; Communicator ranks have different") == 0);
  CHECK(ras_findings("").empty());
  CHECK(ras_findings("====\n====\nErrors\n\n\n").empty());
  CHECK(ras_findings("Errors\n======\n" + std::string(100, '\n') +
                     "a\x01"
                     "b\n")
            .at(0) == "a?b");
}

TEST_CASE("RAS is asked within a deadline and a bound", "[ras][security]") {
  CHECK(ask(status, false, 2s) == status);
  CHECK(ask(std::string(std::size_t{1} << 20, 'x'), false, 2s).size() <=
        (std::size_t{1} << 18) + 4096);
  const auto begun = std::chrono::steady_clock::now();
  CHECK(ask("", true, 300ms).empty());
  CHECK(ras_status(300ms, "127.0.0.1:1").empty());
  CHECK(ras_status(300ms, "no address").empty());
  CHECK(std::chrono::steady_clock::now() - begun < 3s);
}
