// A small training loop in which one rank does something wrong: what the selftest runs. On either
// backend: `Side` gives the communicator, its stream and memory, and how a stream is blocked.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/hang/commands.hpp"

#include <polyrank/backend/buffer.hpp>
#include <polyrank/launch/run.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include <unistd.h>

namespace polyrank::examples {

using namespace std::chrono_literals;

inline constexpr int fault_step = 5;
inline constexpr std::array<std::size_t, 3> buckets{60000, 40000, 20000};
// More than any operation uses: MPI reads past a buffer whose peer expects more.
inline constexpr std::size_t room = std::size_t{1} << 20;

/// The selftest's clock starts at this line.
inline void announce() {
  std::fputs("fault now\n", stderr);
  std::fflush(stderr);
}
[[noreturn]] inline void sleep_forever() {
  for (;;) std::this_thread::sleep_for(1h);
}

template <class Side>
class job {
 public:
  job(launch::world& world, const inject_flags& flags)
      : world_(world), flags_(flags), what_(flags.scenario), comm_(Side::join(world)),
        stream_(comm_.make_stream()), data_(room, Side::memory()), whole_(room, Side::memory()),
        doubles_(room, Side::memory()) {
    if (what_ == "order") second_.emplace(comm_.split(0, comm_.rank()));
    if (what_ == "subgroup") second_.emplace(comm_.split(comm_.rank() % 2, comm_.rank()));
  }

  int run() {
    if (what_ == "graph") return replay_graph();
    for (int step = 0; step < flags_.steps; ++step) {
      const bool here = step >= fault_step && world_.rank() == flags_.rank;
      if (what_ == "fork" || what_ == "op") std::this_thread::sleep_for(30ms);
      if (what_ == "late" && world_.rank() == flags_.rank) be_late(step);
      if (what_ == "save") {
        std::this_thread::sleep_for(10ms);
        if (comm_.control().all_reduce_max(world_.save_requested() ? 1 : 0) != 0) return 75;
      }
      if (what_ == "straggler" && world_.rank() == flags_.rank) std::this_thread::sleep_for(100ms);
      if (step == fault_step) {
        if (here) announce();
        if (!here && what_ == "kill_early") std::this_thread::sleep_for(150ms);
        if (!all_ranks(here)) return 0;
        if (here && !before_step()) return 0;
      }
      for (std::size_t b = 0; b < buckets.size(); ++b) {
        if (step == fault_step && here && b == 1) {
          if (what_ == "skip") continue;
          if (instead_of_bucket()) continue;
        }
        all_reduce(b);
      }
      stream_.synchronize();
    }
    return 0;
  }

 private:
  void all_reduce(std::size_t b, reduce_op op = reduce_op::sum) {
    const std::span<float> x = data_.span().first(buckets[b]);
    comm_.template all_reduce<float>(x, x, op, on(stream_, "bucket " + std::to_string(b)));
  }

  /// Nothing is wrong, it only takes time: less than the deadline, or declared.
  void be_late(int step) {
    if (step % 4 == 1) {
      const auto pause = world_.ring()->pause("checkpoint");
      std::this_thread::sleep_for(12s);
    } else {
      const auto phase = world_.ring()->phase(hang::host_state::compute, "evaluation");
      std::this_thread::sleep_for(5s);
    }
  }

  /// What the faulty rank does before the step; false: it leaves.
  bool before_step() {
    if (what_ == "sleep") sleep_forever();
    if (what_ == "stop") ::raise(SIGSTOP);
    if (what_ == "kill" || what_ == "kill_early") ::raise(SIGKILL);
    if (what_ == "abort") {
      ::signal(SIGABRT, SIG_DFL); // MPI's handler prints a page
      std::abort();
    }
    if (what_ == "throw") throw std::runtime_error("deliberate failure");
    if (what_ == "exit") ::_exit(0);
    if (what_ == "leave") return false;
    if (what_ == "extra") {
      all_reduce(2);
      stream_.synchronize();
    }
    if (what_ == "stream") Side::block(stream_);
    if (what_ == "spin")
      for (std::atomic<int> x{0};; x.fetch_add(1, std::memory_order_relaxed)) {
      }
    if (what_ == "fork" && ::fork() == 0) {
      std::this_thread::sleep_for(6s);
      ::_exit(0);
    }
    if (what_ == "cut" && std::system("ip link set eth0 down") != 0)
      throw std::runtime_error("cannot take eth0 down");
    if (what_ == "pause") {
      const auto pause = world_.ring()->pause("checkpoint");
      std::this_thread::sleep_for(3 * deadline());
    }
    if (what_ == "slow") std::this_thread::sleep_for(deadline() / 2);
    return true;
  }

  /// What the faulty rank does instead of its second bucket; false: nothing.
  bool instead_of_bucket() {
    const std::span<float> x = data_.span().first(buckets[1]);
    if (what_ == "count") {
      comm_.template all_reduce<float>(x.first(39999), x.first(39999), reduce_op::sum,
                                       on(stream_, "bucket 1"));
    } else if (what_ == "type") {
      const std::span<double> y = doubles_.span().first(buckets[1]);
      comm_.template all_reduce<double>(y, y, reduce_op::sum, on(stream_, "bucket 1"));
    } else if (what_ == "op") {
      all_reduce(1, reduce_op::max);
    } else if (what_ == "kind") {
      comm_.template broadcast<float>(x, 0, on(stream_, "bucket 1"));
    } else {
      return false;
    }
    return true;
  }

  /// All steps are replays of one CUDA graph; the faulty rank stops replaying.
  int replay_graph() {
    all_reduce(0);
    stream_.synchronize();
    Side::capture(stream_, [this] {
      all_reduce(0);
      all_reduce(1);
    });
    for (int step = 0; step < flags_.steps; ++step) {
      if (step == fault_step && world_.rank() == flags_.rank) {
        announce();
        sleep_forever();
      }
      Side::replay(stream_);
      stream_.synchronize();
    }
    return 0;
  }

  /// Faults in which all ranks take part; false: nothing is left to do.
  bool all_ranks(bool here) {
    const int n = world_.size(), me = world_.rank();
    const std::span<float> x = whole_.span();
    if (what_ == "root") {
      comm_.template broadcast<float>(x, here ? 1 : 0, on(stream_, "weights"));
      stream_.synchronize();
    } else if (what_ == "order") {
      const auto first = [&] {
        comm_.template all_reduce<float>(x, x, reduce_op::sum, on(stream_, "first"));
      };
      const auto second = [&] {
        second_->template all_reduce<float>(x, x, reduce_op::sum, on(stream_, "second"));
      };
      if (here) second();
      first();
      if (!here) second();
      stream_.synchronize();
    } else if (what_ == "subgroup") {
      if (here) sleep_forever();
      const std::span<float> y = data_.span().first(buckets[0]);
      second_->template all_reduce<float>(y, y, reduce_op::sum, on(stream_, "half"));
      stream_.synchronize();
    } else if (what_ == "send_send" && (me == 0 || me == flags_.rank)) {
      const int peer = me == 0 ? flags_.rank : 0;
      comm_.template exchange<float>({send_to<float>(peer, std::span<const float>(x))},
                                     on(stream_, "send"));
      comm_.template exchange<float>({receive_from<float>(peer, x)}, on(stream_, "receive"));
      stream_.synchronize();
    } else if (what_ == "ring") {
      comm_.template exchange<float>({send_to<float>((me + 1) % n, std::span<const float>(x))},
                                     on(stream_, "to next"));
      comm_.template exchange<float>({receive_from<float>((me + n - 1) % n, x)},
                                     on(stream_, "from previous"));
      stream_.synchronize();
    } else if (what_ == "pipeline") { // stage after stage; the faulty one never sends
      if (me > 0)
        comm_.template exchange<float>({receive_from<float>(me - 1, x)},
                                       on(stream_, "activations"));
      stream_.synchronize();
      if (here) sleep_forever();
      if (me + 1 < n)
        comm_.template exchange<float>({send_to<float>(me + 1, std::span<const float>(x))},
                                       on(stream_, "activations"));
      stream_.synchronize();
    } else if (what_ == "barrier") {
      if (here) sleep_forever();
      const auto phase = world_.ring()->phase(hang::host_state::mpi, "MPI_Barrier");
      MPI_Barrier(MPI_COMM_WORLD);
    } else if (what_ == "control" || (what_ == "apart" && here)) {
      if (what_ == "control" && here) sleep_forever();
      static_cast<void>(comm_.control().all_gather("the same?"));
    }
    return true;
  }

  [[nodiscard]] static std::chrono::milliseconds deadline() {
    const char* text = std::getenv("POLYRANK_HANG_DEADLINE");
    return std::chrono::milliseconds(
        static_cast<long>(1000 * (text != nullptr ? std::strtod(text, nullptr) : 2)));
  }

  launch::world& world_;
  const inject_flags& flags_;
  std::string what_;
  typename Side::communicator comm_;
  std::optional<typename Side::communicator> second_;
  typename Side::stream stream_;
  buffer<float> data_, whole_;
  buffer<double> doubles_;
};

} // namespace polyrank::examples
