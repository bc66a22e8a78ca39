// Control channels for processes without MPI: over TCP and over a shared folder.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/backend/concepts.hpp>
#include <polyrank/backend/agree.hpp>
#include <polyrank/launch/file_store.hpp>
#include <polyrank/launch/tcp_store.hpp>

#include <atomic>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include <sys/wait.h>

using namespace polyrank;
using namespace std::chrono_literals;
using launch::address;
using launch::file_store;
using launch::tcp_store;

namespace {

/// A port that was free a moment ago.
address free_port() {
  const auto probe = launch::socket::listen({"127.0.0.1", 0});
  return {"127.0.0.1", probe.port()};
}

std::filesystem::path fresh_folder() {
  char name[] = "/tmp/polyrank-store-XXXXXX";
  return std::filesystem::path(mkdtemp(name)) / "job";
}

/// Runs `body(rank)` on threads; returns the texts of what was thrown.
std::vector<std::string> on_threads(int n, const std::function<void(int)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
      }
    });
  for (auto& t : threads) t.join();
  return errors;
}

/// What every control channel must do; true if it does.
template <control_channel Control>
bool works(Control& c) {
  bool ok = true;
  for (int round = 0; round < 5; ++round) {
    const std::string mine(static_cast<std::size_t>(c.rank() * 1000 + round), 'x');
    const auto all = c.all_gather(mine);
    ok = ok && all.size() == static_cast<std::size_t>(c.size());
    for (std::size_t r = 0; ok && r < all.size(); ++r)
      ok = all[r].size() == r * 1000 + static_cast<std::size_t>(round);
    ok = ok && c.all_reduce_max(c.rank() * 7 - 3) == (c.size() - 1) * 7 - 3;
  }
  c.barrier(20s);
  agree(c, "the ranks differ", "same on all");
  return ok;
}

} // namespace

TEST_CASE("addresses are read strictly", "[tcp_store]") {
  REQUIRE(address::parse("node1:29500").text() == "node1:29500");
  REQUIRE(address::parse("::1:80").host == "::1");
  for (const char* bad : {"", "node1", "node1:", ":80", "node1:0", "node1:65536", "node1:x"})
    REQUIRE_THROWS_AS(address::parse(bad), usage_error);
}

TEST_CASE("a TCP store serves 1 to 9 ranks", "[tcp_store]") {
  for (const int n : {1, 2, 3, 9}) {
    const address at = free_port();
    std::atomic<int> good{0};
    const auto errors = on_threads(n, [&](int r) {
      tcp_store c({.rank = r, .size = n, .at = at, .key = "job"});
      if (works(c)) ++good;
    });
    for (const auto& e : errors) REQUIRE(e.empty());
    REQUIRE(good == n);
  }
}

TEST_CASE("four plain processes agree over TCP, whoever starts first", "[tcp_store]") {
  const address at = free_port();
  std::vector<pid_t> children;
  for (int r = 0; r < 4; ++r) {
    const pid_t child = fork();
    if (child == 0) {
      int code = 1;
      try {
        std::this_thread::sleep_for(
            std::chrono::milliseconds(r == 0 ? 200 : 0)); // rank 0 comes last
        tcp_store c({.rank = r, .size = 4, .at = at, .key = "job"});
        code = works(c) ? 0 : 2;
      } catch (const std::exception&) {
      }
      _exit(code);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    REQUIRE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  }
}

TEST_CASE("strangers, garbage and other jobs do not get in", "[tcp_store][security]") {
  const address at = free_port();
  std::atomic<bool> stop{false};
  std::thread scanner([&] {
    for (int i = 0; !stop; ++i) try {
        const auto s = launch::socket::connect(at, std::chrono::steady_clock::now() + 50ms);
        const std::string junk(static_cast<std::size_t>(i % 100), '\xff');
        if (i % 4 != 0) ::send(s.native(), junk.data(), junk.size(), MSG_NOSIGNAL);
      } catch (const error&) {
      }
  });
  std::atomic<int> good{0};
  std::string refused;
  const auto errors = on_threads(4, [&](int r) {
    if (r == 3) { // another job's rank 1
      try {
        tcp_store c({.rank = 1, .size = 3, .at = at, .key = "other job", .timeout = 400ms});
      } catch (const timeout_error& e) {
        refused = e.what();
      }
      return;
    }
    if (r == 2) std::this_thread::sleep_for(200ms);
    tcp_store c({.rank = r, .size = 3, .at = at, .key = "job", .timeout = 10s});
    if (works(c)) ++good;
  });
  stop = true;
  scanner.join();
  for (const auto& e : errors) REQUIRE(e.empty());
  REQUIRE(good == 3);
  REQUIRE_FALSE(refused.empty());
}

TEST_CASE("missing ranks and dead peers are named within the deadline", "[tcp_store]") {
  const address at = free_port();
  auto errors = on_threads(2, [&](int r) {
    if (r == 0) {
      tcp_store c({.rank = 0, .size = 4, .at = at, .timeout = 300ms});
    } else {
      tcp_store c({.rank = 2, .size = 4, .at = at, .timeout = 300ms});
      static_cast<void>(c.all_gather("x"));
    }
  });
  REQUIRE(errors[0].find("rank 1, 3 did not connect within 300 ms") != std::string::npos);
  REQUIRE_FALSE(errors[1].empty());

  errors = on_threads(
      1, [&](int) { tcp_store c({.rank = 1, .size = 2, .at = free_port(), .timeout = 200ms}); });
  REQUIRE(errors[0].find("cannot reach 127.0.0.1:") != std::string::npos);
  errors = on_threads(1, [&](int) {
    tcp_store c({.rank = 1, .size = 2, .at = {"no.such.host.invalid", 1}, .timeout = 200ms});
  });
  REQUIRE(errors[0].find("cannot reach no.such.host.invalid:1: ") != std::string::npos);
  REQUIRE(errors[0].find("timed out") == std::string::npos); // but that the name is unknown

  const address again = free_port();
  errors = on_threads(3, [&](int r) {
    tcp_store c({.rank = r, .size = 3, .at = again, .timeout = 400ms});
    if (r == 2) return; // leaves
    c.barrier(400ms);
  });
  REQUIRE(errors[0].find("tcp_store: rank 2") != std::string::npos);
  REQUIRE_FALSE(errors[1].empty());
}

TEST_CASE("a message over the limit is refused, not swallowed", "[tcp_store][security]") {
  const address at = free_port();
  const auto errors = on_threads(2, [&](int r) {
    tcp_store c({.rank = r, .size = 2, .at = at, .timeout = 400ms, .limit = r == 0 ? 100u : 1000u});
    static_cast<void>(c.all_gather(std::string(r == 0 ? 10 : 500, 'x')));
  });
  REQUIRE(errors[0].find("a message of 500 bytes was announced, at most 100 are taken") !=
          std::string::npos);
}

TEST_CASE("a file store serves 1 to 5 ranks and refuses a used folder", "[file_store]") {
  for (const int n : {1, 2, 5}) {
    const auto folder = fresh_folder();
    std::atomic<int> good{0};
    const auto errors = on_threads(n, [&](int r) {
      file_store c({.rank = r, .size = n, .folder = folder});
      if (works(c)) ++good;
    });
    for (const auto& e : errors) REQUIRE(e.empty());
    REQUIRE(good == n);
    REQUIRE_THROWS_AS(file_store({.rank = 0, .size = n, .folder = folder}), usage_error);
    std::filesystem::remove_all(folder.parent_path());
  }
}

TEST_CASE("a file store names who is missing, and a folder it cannot write", "[file_store]") {
  const auto folder = fresh_folder();
  file_store c({.rank = 0, .size = 3, .folder = folder, .timeout = 100ms});
  REQUIRE_THROWS_AS(c.all_gather("x"), timeout_error);
  file_store nowhere({.rank = 0, .size = 1, .folder = "/proc/polyrank"});
  REQUIRE_THROWS_AS(nowhere.all_gather("x"), data_error);
  std::filesystem::remove_all(folder.parent_path());
}
