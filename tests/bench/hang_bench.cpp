// What the diagnosis costs: an operation of the recorder, a look of the watchdog, a verdict on many
// ranks. JSON lines.
//     hang_bench [--small]
// SPDX-License-Identifier: Apache-2.0
#include "timing.hpp"

#include <polyrank/hang/analyze.hpp>
#include <polyrank/hang/ring.hpp>
#include <polyrank/hang/watchdog.hpp>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include <time.h>

using namespace polyrank;
using namespace polyrank::hang;

namespace {

/// CPU time of this thread, so that a busy machine does not count.
double cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double seconds_since(bench::clock::time_point t) { return 1e-3 * bench::since(t); }

operation bucket(std::size_t i) {
  return {.kind = op_kind::all_reduce,
          .type = dtype::f32,
          .count = 1000 + i % 30,
          .tag = "bucket 7",
          .site = {"/src/app/train.cpp", 88}};
}

/// enter + start + done, beside the three readings of the clock in them.
void recorder_cost(std::size_t n) {
  ring r({.folder = "/dev/shm", .job = "bench", .rank = 0, .size = 1});
  comm_history comm{.id = 1};
  std::vector<double> with, clock;
  for (int repeat = 0; repeat < 7; ++repeat) {
    double begun = cpu_seconds();
    for (std::size_t i = 0; i < n; ++i) {
      const auto ticket = r.recorder().enter(comm, bucket(i));
      r.recorder().start(ticket);
      r.recorder().done(ticket);
    }
    with.push_back((cpu_seconds() - begun) / static_cast<double>(n) * 1e9);
    begun = cpu_seconds();
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += now_ns();
    clock.push_back((cpu_seconds() - begun) / static_cast<double>(n) * 1e9 + (sum == 1 ? 1 : 0));
  }
  std::printf(
      "{\"bench\": \"recorder\", \"ns_per_operation\": %.1f, \"ns_of_its_3_clock_readings\": "
      "%.1f, \"share_of_60_ms_step_with_30_operations\": %.7f}\n",
      bench::median(with), 3 * bench::median(clock), bench::median(with) * 30 / 60e6);
}

/// `ranks` rings of `slots` records, the last rank one operation behind.
void verdict_time(int ranks, std::size_t slots) {
  // One ring's bytes serve many ranks, but each reads its own copy: memory traffic is real.
  std::vector<std::unique_ptr<word[]>> memory;
  std::vector<sample> samples;
  std::vector<int> everyone;
  for (int i = 0; i < ranks; ++i) everyone.push_back(i);
  const std::size_t words = layout::total_words(slots, 1);
  for (int i = 0; i < ranks; ++i) {
    memory.emplace_back(new word[words]);
    word* w = memory.back().get();
    if (i > 0 && i + 1 < ranks) {
      std::memcpy(static_cast<void*>(w), static_cast<const void*>(memory[0].get()), words * 8);
    } else {
      for (std::size_t k = 0; k < words; ++k) hang::detail::set(w[k], 0);
      hang::detail::set(w[layout::f_magic], layout::magic);
      hang::detail::set(w[layout::f_version], layout::version);
      hang::detail::set(w[layout::f_size], static_cast<std::uint64_t>(ranks));
      hang::detail::set(w[layout::f_slots], slots);
      hang::detail::set(w[layout::f_comm_slots], 1);
      hang::detail::set(w[layout::f_life], static_cast<std::uint64_t>(life::running));
      word* table = w + layout::header_words;
      flight_recorder recorder(std::span<word>(table + comm_entry::words, slots * record::words),
                               w[layout::f_next], w[layout::f_comms],
                               std::span<word>(table, comm_entry::words), w);
      comm_history comm;
      recorder.attach(0, everyone, 0);
      for (std::size_t k = 0; k < slots + 10; ++k) {
        const auto ticket = recorder.enter(comm, bucket(k));
        recorder.start(ticket);
        recorder.done(ticket);
      }
      if (i == 0) recorder.start(recorder.enter(comm, bucket(7)));
    }
    hang::detail::set(w[layout::f_rank], static_cast<std::uint64_t>(i));
    sample s{.rank = i};
    s.ring = ring_view({reinterpret_cast<const std::byte*>(w), words * 8});
    s.now = now_ns() + 60'000'000'000;
    samples.push_back(std::move(s));
  }
  const auto begun = bench::clock::now();
  const verdict v = analyze(samples, {.deadline_ns = 30'000'000'000});
  const double time = seconds_since(begun);
  std::printf("{\"bench\": \"analyze\", \"ranks\": %d, \"records\": %zu, \"seconds\": %.3f, "
              "\"verdict\": \"%s\", \"right\": %s}\n",
              ranks, slots, time, std::string(name_of(v.code)).c_str(),
              v.suspects == std::vector<int>{ranks - 1} ? "true" : "false");
}

/// CPU time of the process while a leader watches `ranks` rings.
void watchdog_share(int ranks, double seconds) {
  char folder[] = "/tmp/polyrank_hang_bench_XXXXXX";
  if (::mkdtemp(folder) == nullptr) return;
  {
    std::vector<std::unique_ptr<ring>> rings;
    std::vector<comm_history> comms(static_cast<std::size_t>(ranks));
    std::vector<int> everyone;
    for (int i = 0; i < ranks; ++i) everyone.push_back(i);
    for (int i = 0; i < ranks; ++i) {
      rings.push_back(std::make_unique<ring>(ring_options{.folder = folder,
                                                          .job = "bench",
                                                          .rank = i,
                                                          .size = ranks,
                                                          .local_rank = i,
                                                          .local_size = ranks}));
      rings.back()->come_to(life::running);
      rings.back()->recorder().attach(0, everyone, i);
      for (std::size_t k = 0; k < 5000; ++k) {
        const auto ticket =
            rings.back()->recorder().enter(comms[static_cast<std::size_t>(i)], bucket(k));
        rings.back()->recorder().start(ticket);
        rings.back()->recorder().done(ticket);
      }
    }
    const watchdog dog(*rings[0], {});
    timespec before{}, after{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    const double used = static_cast<double>(after.tv_sec - before.tv_sec) +
                        static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
    std::printf("{\"bench\": \"watchdog\", \"ranks_of_host\": %d, \"share_of_a_core\": %.5f}\n",
                ranks, used / seconds);
  }
  std::filesystem::remove_all(folder);
}

} // namespace

int main(int argc, char** argv) {
  const bool small = argc > 1 && std::string_view(argv[1]) == "--small";
  recorder_cost(small ? 10000 : 1000000);
  verdict_time(small ? 64 : 4096, small ? 256 : 4096);
  watchdog_share(8, small ? 0.6 : 10);
}
