// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/hang/analyze.hpp>
#include <polyrank/hang/place.hpp>
#include <polyrank/hang/ring.hpp>
#include <polyrank/hang/signals.hpp>

#include <atomic>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include <sys/wait.h>

using namespace polyrank;
using namespace polyrank::hang;

namespace {

/// A folder that goes away with the test.
struct folder {
  std::string path = "/tmp/polyrank_ring_test_XXXXXX";
  folder() { REQUIRE(::mkdtemp(path.data()) != nullptr); }
  ~folder() { std::filesystem::remove_all(path); }
};

operation some(std::string_view tag) {
  return {.kind = op_kind::all_reduce,
          .type = dtype::f32,
          .count = 7,
          .tag = tag,
          .site = {"a.cpp", 3}};
}

} // namespace

TEST_CASE("a ring can be read by others, is private and goes away", "[ring]") {
  const folder at;
  std::filesystem::path path;
  {
    ring mine({.folder = at.path, .job = "j", .rank = 3, .size = 8, .slots = 5});
    path = mine.path();
    CHECK(path.filename() == "polyrank-j.3.ring");
    CHECK((std::filesystem::status(path).permissions() & std::filesystem::perms::all) ==
          (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
    comm_history comm{.id = 4};
    const int members[] = {1, 3, 5};
    mine.recorder().attach(4, members, 1);
    mine.recorder().done(mine.recorder().enter(comm, some("x")));
    {
      const auto phase = mine.phase(host_state::checkpoint, "save step 9");
      const auto pause = mine.pause("save");
      const mapped_file file = mapped_file::open(path);
      const ring_view v(file.bytes());
      CHECK(v.rank() == 3);
      CHECK(v.size() == 8);
      CHECK(v.job() == "j");
      CHECK(v.pid() == ::getpid());
      CHECK(v.slots() == 8);
      CHECK(v.next() == 1);
      CHECK(v.state() == host_state::checkpoint);
      CHECK(v.text(layout::f_state_text, layout::short_text) == "save step 9");
      CHECK(v.paused(now_ns()));
      record r;
      REQUIRE(v.read(0, r));
      CHECK(r.what.tag == "x");
      const auto comms = v.comms();
      REQUIRE(comms.size() == 1);
      CHECK(comms[0].members == std::vector<int>{1, 3, 5});
      CHECK(comms[0].rank == 1);
      CHECK(state_of(v.pid(), v.at(layout::f_started)) == process_state::running);
      CHECK(state_of(v.pid(), v.at(layout::f_started) + 1) == process_state::dead);
    }
    CHECK_FALSE(mine.view().paused(now_ns()));
    CHECK(mine.view().state() == host_state::init);
  }
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("the last words of a killed process can be read", "[ring]") {
  const folder at;
  const pid_t child = ::fork();
  if (child == 0) {
    ring mine({.folder = at.path, .job = "k", .rank = 0, .size = 1});
    comm_history comm;
    mine.recorder().start(mine.recorder().enter(comm, some("last")));
    mine.fail("about to die");
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFSIGNALED(status));
  const auto files = ring_files(at.path, "k");
  REQUIRE(files.size() == 1);
  const mapped_file file = mapped_file::open(files[0]);
  const ring_view v(file.bytes());
  record r;
  REQUIRE(v.read(0, r));
  CHECK(r.what.tag == "last");
  CHECK(r.started_ns != 0);
  CHECK(v.error() == "about to die");
  CHECK(state_of(v.pid(), v.at(layout::f_started)) == process_state::dead);
}

TEST_CASE("an image holds the newest records and the communicators", "[ring]") {
  const folder at;
  ring mine({.folder = at.path, .rank = 1, .size = 2, .slots = 64});
  comm_history comm{.id = 2};
  const int members[] = {0, 1};
  mine.recorder().attach(2, members, 1);
  for (int i = 0; i < 150; ++i) mine.recorder().enter(comm, some(polyrank::detail::cat("t", i)));
  const auto image = mine.view().image(16, 12345);
  const ring_view v(std::as_bytes(std::span(image)));
  CHECK(v.next() == 150);
  CHECK(v.oldest() == 134);
  record r;
  for (std::uint64_t i = 134; i < 150; ++i) {
    REQUIRE(v.read(i, r));
    CHECK(r.what.tag == polyrank::detail::cat("t", i));
  }
  CHECK(v.at(layout::f_sampled_ns) == 12345);
  CHECK(v.comms().size() == 1);
}

TEST_CASE("bytes that are no ring are refused", "[ring]") {
  const folder at;
  ring mine({.folder = at.path, .rank = 0, .size = 1, .slots = 4});
  std::vector<std::uint64_t> image = mine.view().image(4, 0);
  const auto view = [&] { return ring_view(std::as_bytes(std::span(image))); };
  CHECK_NOTHROW(view());
  SECTION("magic") { image[layout::f_magic] ^= 1; }
  SECTION("version") { image[layout::f_version] = 99; }
  SECTION("too many slots") { image[layout::f_slots] = std::uint64_t{1} << 60; }
  SECTION("no power of two") { image[layout::f_slots] = 3; }
  SECTION("cut") { image.resize(image.size() - 1); }
  SECTION("empty") { image.clear(); }
  CHECK_THROWS_AS(view(), data_error);
}

TEST_CASE("wrong names and folders are refused with a hint", "[ring]") {
  CHECK_THROWS_AS(ring({.job = "../x"}), usage_error);
  CHECK_THROWS_AS(ring({.folder = "/nonexistent"}), data_error);
}

TEST_CASE("the launcher's variables give the place", "[place]") {
  std::map<std::string, std::string> e;
  const auto lookup = [&](const char* n) { return e.contains(n) ? e[n].c_str() : nullptr; };
  CHECK_FALSE(find_place(lookup, 1));
  e = {{"OMPI_COMM_WORLD_RANK", "5"},
       {"OMPI_COMM_WORLD_SIZE", "8"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
       {"PMIX_NAMESPACE", "123@1"}};
  const auto p = find_place(lookup, 1);
  REQUIRE(p);
  CHECK((p->rank == 5 && p->size == 8 && p->local_rank == 1 && p->local_size == 4));
  CHECK(p->job == "123-1");
  e = {{"SLURM_PROCID", "2"},
       {"SLURM_STEP_NUM_TASKS", "4"},
       {"SLURM_JOB_ID", "77"},
       {"SLURM_STEP_ID", "0"}};
  CHECK(find_place(lookup, 1)->job == "77-0");
  e.insert({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}});
  CHECK(find_place(lookup, 1)->rank == 2); // anybody may set RANK
  e.insert({"TORCHELASTIC_RUN_ID", "none"});
  CHECK((find_place(lookup, 7)->rank == 3 && find_place(lookup, 7)->job == "parent7"));
  e = {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}};
  CHECK(find_place(lookup, 99)->job == "parent99");
  e = {{"PMI_RANK", "9"}, {"PMI_SIZE", "4"}};
  CHECK_FALSE(find_place(lookup, 1));
}

// ThreadSanitizer calls handlers later, with a copy of the thread's state.
#ifndef __SANITIZE_THREAD__
TEST_CASE("a thread that knows nothing of a signal passes it on, and does not die of it",
          "[signals]") {
  const pid_t child = ::fork(); // what follows is for good
  if (child == 0) {
    std::atomic<bool> end{false};
    std::thread stranger([&] {
      while (!end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    ::signal(SIGTERM, SIG_DFL); // not Catch's handler, which would stay
    const sigset_t ours = block_signals();
    for (const int round : {1, 2, 3})
      for (const int signal : {SIGUSR1, SIGUSR2, SIGTERM, SIGCONT}) {
        ::kill(::getpid(), signal);
        std::this_thread::sleep_for(std::chrono::milliseconds(2)); // for the stranger to take it
        const timespec time{.tv_sec = 5, .tv_nsec = 0};
        if (::sigtimedwait(&ours, nullptr, &time) != signal) ::_exit(10 * round + signal);
      }
    end = true;
    stranger.join();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif
