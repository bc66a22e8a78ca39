// SPDX-License-Identifier: Apache-2.0
#include "hang/fake_job.hpp"
#include "support/catch.hpp"

#include <polyrank/hang/report.hpp>

#include <chrono>
#include <random>
#include <thread>

using namespace polyrank;
using namespace polyrank::hang;
using polyrank::test::all_reduce_of;
using polyrank::test::fake_job;
using polyrank::test::fake_rank;
using polyrank::test::send_of;
using until = fake_rank::until;

namespace {
bool has(const std::string& text, std::string_view part) {
  INFO(text << "\n   lacks: " << part);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}
} // namespace

TEST_CASE("a job that moves is not accused", "[analyze]") {
  fake_job job(4);
  for (std::size_t i = 0; i < 200; ++i) job.all(all_reduce_of(100 + i % 3, "b")); // the ring wraps
  CHECK(job.judge().code == verdict_code::none);
  job.run(0, all_reduce_of(7, "next"), until::started); // ahead by one, and young
  CHECK(job.judge(1).code == verdict_code::none);
}

TEST_CASE("a rank that never entered is named, with its last operation and its state",
          "[analyze]") {
  fake_job job(8, 64, 4);
  job.all(all_reduce_of(5, "bucket 6", 77));
  for (const int r : {0, 1, 2, 4, 5, 6, 7})
    job.run(r, all_reduce_of(6553600, "bucket 7", 88), until::started);
  job.at(3).state(host_state::mpi, 1);
  const verdict v = job.judge();
  CHECK(v.code == verdict_code::never_entered);
  CHECK(v.suspects == std::vector<int>{3});
  CHECK(v.certain);
  has(v.headline,
      "HANG verdict NEVER_ENTERED (confidence high): comm 0 all_reduce #2 \"bucket 7\" f32 "
      "x 6553600 at train.cpp:88: 7/8 ranks entered 30.0 s ago; rank 3 (node1 pid 1003) did not");
  has(v.headline, "its last: all_reduce #1 \"bucket 6\" f32 x 5 at train.cpp:77 done 30.0 s ago");
  has(v.headline, "host state MPI for 31.0 s");
  CHECK(v.waits.size() == 7);
  CHECK(job.judge(30, {.deadline_ns = 10'000'000'000, .second_look = false}).certain == false);
  CHECK(job.judge(9).code == verdict_code::none);
}

TEST_CASE("a stopped process is named even if it has entered", "[analyze]") {
  fake_job job(4);
  job.all(all_reduce_of(5, "b"), until::started);
  job.at(1).process(process_state::stopped);
  const verdict v = job.judge();
  CHECK(v.code == verdict_code::never_entered);
  CHECK(v.suspects == std::vector<int>{1});
  has(v.headline, "stopped");
}

TEST_CASE("the root of a chain of waits is named, not its victims", "[analyze]") {
  fake_job job(4);
  for (const int r : {1, 2, 3})
    job.run(r, send_of(100, r - 1, direction::receive, "activations"), until::started);
  const verdict v = job.judge();
  CHECK(v.code == verdict_code::never_entered);
  CHECK(v.suspects == std::vector<int>{0});
}

TEST_CASE("a minority that is ahead is suspected; an even split is a tie", "[analyze]") {
  fake_job job(4);
  job.all(all_reduce_of(5, "a"));
  job.run(2, all_reduce_of(6, "one too many"), until::started);
  verdict v = job.judge();
  CHECK(v.code == verdict_code::never_entered);
  CHECK(v.suspects == std::vector<int>{2});
  has(v.headline, "rank 2 is the minority");
  job.run(3, all_reduce_of(6, "one too many"), until::started);
  v = job.judge();
  CHECK(v.tie);
  has(v.headline, "A tie");
}

TEST_CASE("different count, type, operator, root or kind is a mismatch, found without a hang",
          "[analyze]") {
  operation odd = all_reduce_of(8, "b", 12);
  std::string part;
  SECTION("count") { odd.count = 9, part = "x 9 at train.cpp:12"; }
  SECTION("type") { odd.type = dtype::bf16, part = "bf16"; }
  SECTION("operator") { odd.op = reduce_op::max, part = "max"; }
  SECTION("kind") { odd.kind = op_kind::all_gather, part = "all_gather"; }
  SECTION("root") { odd.kind = op_kind::broadcast, odd.peer = 1, part = "root 1"; }
  fake_job job(4);
  job.all(all_reduce_of(3, "a"));
  for (const int r : {0, 1, 3}) job.run(r, all_reduce_of(8, "b", 11));
  job.run(2, odd);
  job.all(all_reduce_of(4, "c"));
  const verdict v = job.judge(0);
  CHECK(v.code == verdict_code::mismatch);
  CHECK(v.suspects == std::vector<int>{2});
  CHECK(v.operation.seq == 2);
  has(v.headline, part);
  has(v.headline, "on rank 2 (node1 pid 1002)");
}

TEST_CASE("two ranks that disagree are a tie", "[analyze]") {
  fake_job job(2);
  job.run(0, all_reduce_of(3, "a"));
  job.run(1, all_reduce_of(4, "a"));
  const verdict v = job.judge(0);
  CHECK(v.code == verdict_code::mismatch);
  CHECK(v.tie);
  CHECK(v.suspects == std::vector<int>{0, 1});
  has(v.headline, "either side may be wrong");
}

TEST_CASE("a difference that the rings have forgotten still shows", "[analyze]") {
  fake_job job(3, 8);
  job.run(0, all_reduce_of(3, "a"));
  job.run(1, all_reduce_of(3, "a"));
  job.run(2, all_reduce_of(4, "a"));
  for (int i = 0; i < 20; ++i) job.all(all_reduce_of(5, "b"));
  const verdict v = job.judge(0);
  CHECK(v.code == verdict_code::mismatch);
  CHECK(v.suspects == std::vector<int>{2});
  has(v.headline, "differ before #");
}

TEST_CASE("a skipped operation is told from a different one", "[analyze]") {
  fake_job job(4);
  for (const std::size_t c : {10u, 20u, 30u, 40u})
    for (int r = 0; r < 4; ++r)
      if (r != 1 || c != 20) job.run(r, all_reduce_of(c, "b" + std::to_string(c)));
  const verdict v = job.judge(0);
  CHECK(v.code == verdict_code::never_entered);
  CHECK(v.suspects == std::vector<int>{1});
  has(v.headline, "\"b20\"");
  has(v.headline, "skipped it");
}

TEST_CASE("two operations in the other order on one communicator", "[analyze]") {
  fake_job job(4);
  for (int r = 0; r < 4; ++r) {
    job.run(r, all_reduce_of(r == 3 ? 20 : 10, "b"));
    job.run(r, all_reduce_of(r == 3 ? 10 : 20, "b"));
  }
  const verdict v = job.judge(0);
  CHECK(v.code == verdict_code::mismatch);
  has(v.headline, "different orders");
}

TEST_CASE("another order on two communicators is an inversion with both call sites", "[analyze]") {
  fake_job job(4);
  const auto other = job.attach(1);
  for (int r = 0; r < 4; ++r) {
    const auto a = [&](until u) { job.run(r, all_reduce_of(10, "first", 100), u); };
    const auto b = [&](until u) {
      job.at(r).run(*other[static_cast<std::size_t>(r)], all_reduce_of(10, "second", 200), u);
    };
    if (r == 2)
      b(until::started), a(until::issued);
    else
      a(until::started), b(until::issued);
  }
  const verdict v = job.judge();
  CHECK(v.code == verdict_code::order_inversion);
  CHECK(v.suspects == std::vector<int>{0, 2});
  has(v.headline, "train.cpp:100");
  has(v.headline, "train.cpp:200");
}

TEST_CASE("sends that wait for each other are a circle", "[analyze]") {
  fake_job job(4);
  SECTION("two ranks") {
    job.run(0, send_of(1 << 20, 1, direction::send, "x"), until::started);
    job.run(1, send_of(1 << 20, 0, direction::send, "x"), until::started);
    const verdict v = job.judge();
    CHECK(v.code == verdict_code::p2p_cycle);
    CHECK(v.suspects == std::vector<int>{0, 1});
    has(v.headline, "send to 1");
  }
  SECTION("a ring") {
    for (int r = 0; r < 4; ++r)
      job.run(r, send_of(9, (r + 1) % 4, direction::send, "x"), until::started);
    const verdict v = job.judge();
    CHECK(v.code == verdict_code::p2p_cycle);
    CHECK(v.suspects.size() == 4);
  }
  SECTION("a send and its receive are none") {
    job.run(0, send_of(9, 1, direction::send, "x"), until::started);
    job.run(1, send_of(9, 0, direction::receive, "x"), until::started);
    CHECK(job.judge().code == verdict_code::transport);
  }
}

TEST_CASE("issued but not started is a blocked stream", "[analyze]") {
  fake_job job(4);
  for (const int r : {0, 1, 2}) job.run(r, all_reduce_of(1, "b"), until::started);
  job.run(3, all_reduce_of(1, "b"), until::issued);
  const verdict v = job.judge();
  CHECK(v.code == verdict_code::gpu_blocked);
  CHECK(v.suspects == std::vector<int>{3});
}

TEST_CASE("all are in and nothing moves: the transport", "[analyze]") {
  fake_job job(4, 64, 2);
  job.all(all_reduce_of(1, "b"), until::started);
  CHECK(job.judge().code == verdict_code::transport);
  job.at(2).process(process_state::unreachable);
  job.at(3).process(process_state::unreachable);
  const verdict v = job.judge();
  CHECK(v.code == verdict_code::transport);
  CHECK(v.suspects == std::vector<int>{2, 3});
  has(v.headline, "host node2 (ranks 2 and 3) dead or unreachable");
  has(report_text(v), "--exclude=node2");
}

TEST_CASE("a dead rank is told at once, with its last words", "[analyze]") {
  fake_job job(4, 64, 2);
  job.all(all_reduce_of(1, "a"));
  for (const int r : {0, 1, 3}) job.run(r, all_reduce_of(1, "b", 55), until::started);
  job.at(2).process(process_state::dead);
  job.at(2).error("out of memory: activations");
  const verdict v = job.judge(0);
  CHECK(v.code == verdict_code::rank_dead);
  CHECK(v.suspects == std::vector<int>{2});
  has(v.headline, "all_reduce #2 \"b\" f32 x 1 at train.cpp:55");
  has(v.headline, "its last words: \"out of memory: activations\"");
  has(report_text(v), "--exclude=node2");
  CHECK(exit_code(v.code) == 80);
}

TEST_CASE(
    "a dead rank is missed first where it never came, though NCCL's error ended that on the others",
    "[analyze]") {
  fake_job job(4);
  job.all(all_reduce_of(1, "a"));
  job.at(2).process(process_state::dead);
  for (const int r : {0, 1, 3}) job.run(r, all_reduce_of(1, "b"));
  has(job.judge(0).headline, "all_reduce #2 \"b\""); // nobody waits any more
  for (const int r : {0, 3}) job.run(r, all_reduce_of(1, "c"), until::started);
  const verdict v = job.judge(0);
  CHECK(v.has_operation);
  has(v.headline, "all_reduce #2 \"b\"");
  has(v.headline, "ranks 0, 1 and 3 wait for rank 2");
}

TEST_CASE("what a dead rank had issued and not finished is missed before what it never came to",
          "[analyze]") {
  fake_job job(4);
  job.all(all_reduce_of(1, "a"));
  job.all(all_reduce_of(1, "b"), until::started);
  job.at(2).process(process_state::dead);
  for (const int r : {0, 1, 3}) job.run(r, all_reduce_of(1, "c"), until::issued);
  has(job.judge(0).headline, "all_reduce #2 \"b\"");
}

TEST_CASE("a rank that went to finalise while others wait has left", "[analyze]") {
  fake_job job(4);
  for (const int r : {0, 1, 3}) job.run(r, all_reduce_of(1, "b"), until::started);
  job.at(2).life(life::leaving);
  CHECK(job.judge(0).code == verdict_code::none); // a moment: it may be on its way
  const verdict v = job.judge(2);
  CHECK(v.code == verdict_code::rank_dead);
  has(v.headline, "left the program");
  // Where NCCL's error has ended what the others waited in.
  fake_job aborted(4);
  aborted.at(2).life(life::leaving);
  aborted.at(2).state(host_state::exit, 1);
  CHECK(aborted.judge(0).code == verdict_code::none);
  for (const int r : {0, 1, 3}) aborted.run(r, all_reduce_of(1, "b"));
  has(aborted.judge(0).headline, "\"b\" f32 x 1 at train.cpp:10: ranks 0, 1 and 3 wait for rank 2");
  has(aborted.judge(0).headline, "left the program");
}

TEST_CASE("a start-up that does not end names who is missing", "[analyze]") {
  fake_job job(4);
  for (auto& r : job.ranks) r->life(life::starting);
  std::vector<sample> three;
  for (const int r : {0, 1, 3}) three.push_back(job.at(r).look(30));
  const verdict v = analyze(three, {.deadline_ns = 10'000'000'000, .world = 4});
  CHECK(v.code == verdict_code::init_timeout);
  CHECK(v.suspects == std::vector<int>{2});
  has(v.headline, "3/4 ranks are in MPI_Init for 30.0 s; rank 2 has not come to it");
}

TEST_CASE("before MPI has started a host names its own missing rank, and is patient about others'",
          "[analyze]") {
  fake_job job(4);
  for (auto& r : job.ranks) r->life(life::starting);
  std::vector<sample> here{job.at(0).look(11)};
  const circumstances c{.deadline_ns = 10'000'000'000, .complete = false};
  CHECK(analyze(here, c).code == verdict_code::none);
  here = {job.at(0).look(14)};
  verdict v = analyze(here, c);
  CHECK(v.code == verdict_code::init_timeout);
  has(v.headline, "nobody of this host is missing");
  here = {job.at(0).look(11), {.rank = 1, .where = "pid 77 sleeps in poll", .host = "node1"}};
  v = analyze(here, c);
  CHECK(v.code == verdict_code::init_timeout);
  CHECK(v.suspects == std::vector<int>{1});
  has(v.headline, "rank 1 (node1) has not come to it (pid 77 sleeps in poll)");
}

TEST_CASE("a communicator that cannot be made names who does not come", "[analyze]") {
  fake_job job(3);
  for (const int r : {0, 2}) job.at(r).state(host_state::init, 1);
  verdict v = job.judge(30);
  CHECK(v.code == verdict_code::init_timeout);
  CHECK(v.suspects == std::vector<int>{1});
  has(v.headline, "2/3 ranks wait for 31.0 s to make a communicator");
  CHECK(job.judge(5).code == verdict_code::none);
  job.at(1).state(host_state::init, 1); // now all are in it, which may take its time
  CHECK(job.judge(30).code == verdict_code::none);
  CHECK(job.judge(80).code == verdict_code::init_timeout);
}

namespace {
/// Rank `r` has entered `what` on a GPU that is at `started` and `done` of lane `at`.
void on_gpu(fake_job& job, int r, const operation& what, std::size_t at, std::uint64_t number) {
  job.at(r).recorder().enter(*job.comms[static_cast<std::size_t>(r)], what, at, number);
}
void lane_is(fake_job& job, int r, std::size_t at, std::uint64_t started, std::uint64_t done,
             std::uint64_t replays = 0) {
  word* w = job.at(r).recorder().lane_at(at);
  hang::detail::set(w[lane::started], started);
  hang::detail::set(w[lane::done], done);
  hang::detail::set(w[lane::replays], replays);
  hang::detail::set(w[lane::moved_ns], now_ns());
}
} // namespace

TEST_CASE("a GPU that does not come to an operation blocks it", "[analyze][gpu]") {
  fake_job job(3);
  for (int r = 0; r < 3; ++r) {
    const std::size_t at = job.at(r).recorder().take_lane(lane::of_stream);
    on_gpu(job, r, all_reduce_of(1, "a"), at, 1);
    on_gpu(job, r, all_reduce_of(2, "b"), at, 2);
    lane_is(job, r, at, 1, 1);
  }
  CHECK(job.judge(5).code == verdict_code::none);
  for (const int r : {0, 2}) lane_is(job, r, 0, 2, 1);
  verdict v = job.judge(30);
  CHECK(v.code == verdict_code::gpu_blocked);
  CHECK(v.suspects == std::vector<int>{1});
  has(v.headline, "\"b\"");
  for (int r = 0; r < 3; ++r) lane_is(job, r, 0, 2, 2);
  CHECK(job.judge(30).code == verdict_code::none);
  // Given back, the lane may serve another communicator: old records stay done.
  for (int r = 0; r < 3; ++r) {
    job.at(r).recorder().give_lane(0);
    CHECK(job.at(r).recorder().take_lane(lane::of_stream) == 0);
  }
  CHECK(job.judge(30).code == verdict_code::none);
}

TEST_CASE("a rank that stops replaying a graph is told by its replays", "[analyze][gpu]") {
  fake_job job(3);
  for (int r = 0; r < 3; ++r) {
    const std::size_t at = job.at(r).recorder().take_lane(lane::of_graph);
    on_gpu(job, r, all_reduce_of(1, "a"), at, 1);
    on_gpu(job, r, all_reduce_of(2, "b"), at, 2);
  }
  CHECK(job.judge(30).code == verdict_code::none); // captured, never launched
  for (int r = 0; r < 3; ++r) lane_is(job, r, 0, 2, 2, 5);
  CHECK(job.judge(30).code == verdict_code::none); // at rest after five replays
  for (const int r : {0, 1}) lane_is(job, r, 0, 1, 0, 6);
  const verdict v = job.judge(30);
  CHECK(v.code == verdict_code::never_entered);
  CHECK(v.suspects == std::vector<int>{2});
  has(v.headline, "\"a\" f32 x 1, replay 6 of its graph");
}

TEST_CASE("what followed the last time tells a skip while the others wait", "[analyze]") {
  fake_job job(3);
  for (const char* tag : {"a", "b", "a"}) job.all(all_reduce_of(tag[0], tag));
  for (const int r : {0, 1}) job.run(r, all_reduce_of('b', "b"), until::started);
  job.run(2, all_reduce_of('a', "a"), until::started);
  const verdict v = job.judge(0);
  CHECK(v.code == verdict_code::never_entered);
  CHECK(v.suspects == std::vector<int>{2});
  has(v.headline, "skipped it and went on");
}

TEST_CASE("a declared wait that does not end, with all operations done", "[analyze]") {
  fake_job job(4);
  job.all(all_reduce_of(1, "b"));
  for (const int r : {0, 1, 3}) job.at(r).state(host_state::mpi, 1);
  const verdict v = job.judge();
  CHECK(v.code == verdict_code::host);
  CHECK(v.suspects == std::vector<int>{2});
}

TEST_CASE("a pause holds the deadline", "[analyze]") {
  fake_job job(4);
  for (const int r : {0, 1, 3}) job.run(r, all_reduce_of(1, "b"), until::started);
  job.at(2).put(layout::f_pauses, 1);
  job.at(2).put(layout::f_pause_until_ns, now_ns() + 100'000'000'000);
  CHECK(job.judge(30).code == verdict_code::none);
  CHECK(job.judge(101).code == verdict_code::never_entered); // beyond its limit
}

TEST_CASE("a rank that is always last is a straggler, and the job goes on", "[analyze]") {
  fake_job job(3);
  for (int step = 0; step < 10; ++step) {
    job.run(0, all_reduce_of(1, "b"), until::started);
    job.run(1, all_reduce_of(1, "b"), until::started);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    job.run(2, all_reduce_of(1, "b"));
    // The others are done when the last one is: their records are the newest.
    for (const int r : {0, 1}) {
      const ring_view v(job.at(r).bytes());
      auto* words = reinterpret_cast<word*>(const_cast<std::byte*>(job.at(r).bytes().data()));
      words[layout::header_words + 4 * comm_entry::words + (v.next() - 1) * record::words + 6] =
          now_ns();
    }
  }
  const verdict v = job.judge(0);
  CHECK(v.code == verdict_code::straggler);
  CHECK(v.suspects == std::vector<int>{2});
  CHECK_FALSE(v.hang());
  CHECK(exit_code(v.code) == 0);
}

TEST_CASE("groups of one split share an id and are kept apart", "[analyze]") {
  fake_job job(4);
  std::vector<comm_history*> half;
  for (int r = 0; r < 4; ++r)
    half.push_back(
        &job.at(r).attach(5, r % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3}));
  for (int r = 0; r < 4; ++r) // other sizes in the two groups: no mismatch
    job.at(r).run(*half[static_cast<std::size_t>(r)], all_reduce_of(r % 2 == 0 ? 10 : 20, "half"));
  CHECK(job.judge().code == verdict_code::none);
  job.at(1).run(*half[1], all_reduce_of(20, "half"), until::started);
  const verdict v = job.judge();
  CHECK(v.code == verdict_code::never_entered);
  CHECK(v.suspects == std::vector<int>{3});
}

TEST_CASE("a fork after start-up is a finding", "[analyze]") {
  fake_job job(2);
  job.at(1).put(layout::f_forks, 1);
  const verdict v = job.judge();
  CHECK(v.code == verdict_code::none);
  REQUIRE(v.findings.size() == 1);
  has(v.findings[0], "rank 1 (node1 pid 1001) has 1 child");
}

TEST_CASE("every class has a name, an exit code of its own range and an advice", "[verdict]") {
  for (std::size_t i = 0; i < verdict_classes.size(); ++i) {
    const verdict_class& c = verdict_classes[i];
    CHECK(static_cast<std::size_t>(c.code) == i);
    CHECK((c.exit_code == 0 || (c.exit_code >= 80 && c.exit_code <= 88)));
    CHECK_FALSE(c.name.empty());
    if (i != 0) CHECK_FALSE(c.advice.empty());
  }
}

TEST_CASE("report, JSON and picture hold the verdict", "[report]") {
  fake_job job(4);
  for (const int r : {0, 1, 3}) job.run(r, all_reduce_of(1, "say \"<hi>\""), until::started);
  const verdict v = job.judge();
  has(report_text(v), "> rank 2 (node1 pid 1002)");
  has(report_text(v), "see: https://github.com/");
  has(report_json(v), "\"verdict\": \"NEVER_ENTERED\", \"exit_code\": 82");
  has(report_json(v), "\"suspects\": [2]");
  has(report_json(v), "say \\\"<hi>\\\"");
  has(report_svg(v), "&lt;hi&gt;");
  has(report_svg(v), "#d33");
}

TEST_CASE("one fault among many ranks is found whatever the rank, step and kind",
          "[analyze][property]") {
  std::mt19937 random(7);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int run = 0; run < 300; ++run) {
    const int n = 3 + pick(14), bad = pick(n), steps = 5 + pick(100), kind = pick(3);
    fake_job job(n, 32);
    for (int s = 0; s < steps; ++s)
      job.all(all_reduce_of(static_cast<std::size_t>(1 + s % 7), "b"));
    for (int r = 0; r < n; ++r) {
      if (r != bad)
        job.run(r, all_reduce_of(1000, "at fault"), until::started);
      else if (kind == 0)
        job.run(r, all_reduce_of(999, "at fault"), until::started);
      else if (kind == 1)
        job.run(r, all_reduce_of(1000, "at fault"), until::issued);
    }
    const verdict v = job.judge();
    INFO("run " << run << ": " << v.headline);
    CHECK(v.code == (kind == 0   ? verdict_code::mismatch
                     : kind == 1 ? verdict_code::gpu_blocked
                                 : verdict_code::never_entered));
    REQUIRE(v.suspects == std::vector<int>{bad});
    // The order in which the samples come is of no account.
    std::vector<sample> samples;
    for (const auto& r : job.ranks) samples.push_back(r->look(30));
    std::shuffle(samples.begin(), samples.end(), random);
    CHECK(analyze(samples, {.deadline_ns = 10'000'000'000}).suspects == v.suspects);
  }
}
