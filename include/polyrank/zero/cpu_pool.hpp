// Threads of our own for updates on the host: part k of a job always runs on thread k, so memory
// that a job touches first lies near the thread that works on it later.
//
//     cpu_pool pool(threads_for(usable, cpus_of_host, ranks_of_host));
//     pool.run([&](std::size_t part) { ... });        // every part in [0, pool.size()); blocks
//     pool.share(count, [&](std::size_t begin, std::size_t end) { ... });
//
// Not OpenMP: a header cannot know how its user's runtime is set up, and Open MPI binds the ranks
// of a job of two to one core each, where a runtime would start one thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/core/partition.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace polyrank {

/// Threads for one of `ranks_of_host` ranks that may use `usable` CPUs of `cpus_of_host`: its whole
/// mask where the ranks are bound to CPUs of their own, else its share.
[[nodiscard]] constexpr std::size_t threads_for(std::size_t usable, std::size_t cpus_of_host,
                                                std::size_t ranks_of_host) noexcept {
  const std::size_t share =
      std::max<std::size_t>(1, cpus_of_host / std::max<std::size_t>(1, ranks_of_host));
  return std::max<std::size_t>(1, std::min(usable, share));
}

class cpu_pool {
 public:
  /// The calling thread of run() is the first of `threads`.
  explicit cpu_pool(std::size_t threads) : next_(threads) {
    expects(threads > 0, "cpu_pool: no threads");
    for (std::size_t k = 1; k < threads; ++k) workers_.emplace_back([this, k] { loop(k); });
  }
  cpu_pool(const cpu_pool&) = delete;
  cpu_pool& operator=(const cpu_pool&) = delete;
  ~cpu_pool() {
    job_ = nullptr;
    start();
    for (std::thread& t : workers_) t.join();
  }

  [[nodiscard]] std::size_t size() const noexcept { return workers_.size() + 1; }

  /// body(part) for every part in [0, size()), each on its thread. `body` must not throw. One run
  /// at a time.
  template <class Body>
  void run(Body&& body) {
    context_ = &body;
    job_ = [](void* context, std::size_t part) {
      (*static_cast<std::remove_reference_t<Body>*>(context))(part);
    };
    pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    start();
    body(std::size_t{0});
    for (int left = pending_.load(std::memory_order_acquire); left != 0;
         left = pending_.load(std::memory_order_acquire))
      pending_.wait(left, std::memory_order_acquire);
  }

  /// body(begin, end) for pieces of [0, count), cut at cache lines. A thread begins with a part of
  /// its own, always the same, and then helps the others with theirs: nobody waits long for a
  /// thread whose CPU had something else to do, such as the trainer's own.
  template <class Body>
  void share(std::size_t count, Body&& body) {
    constexpr std::size_t piece = 1 << 15;
    const std::size_t n = size();
    if (n == 1 || count < piece / 2) return body(std::size_t{0}, count);
    const auto part = [count, n](std::size_t k) { return partition_blocks(count, n, k, 64); };
    for (std::size_t k = 0; k < n; ++k) next_[k].at.store(part(k).begin, std::memory_order_relaxed);
    run([&](std::size_t mine) {
      for (std::size_t k = mine; k < mine + n; ++k) {
        std::atomic<std::size_t>& next = next_[k % n].at;
        const std::size_t end = part(k % n).end;
        for (std::size_t at; (at = next.fetch_add(piece, std::memory_order_relaxed)) < end;)
          body(at, std::min(at + piece, end));
      }
    });
  }

 private:
  struct alignas(64) place {
    std::atomic<std::size_t> at{0};
  };

  void start() {
    turn_.fetch_add(1, std::memory_order_release);
    turn_.notify_all();
  }
  void loop(std::size_t part) {
    for (std::uint32_t seen = 0;; ++seen) {
      look_for(seen);
      turn_.wait(seen, std::memory_order_acquire);
      static_cast<void>(turn_.load(std::memory_order_acquire));
      if (job_ == nullptr) return;
      job_(context_, part);
      if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
    }
  }

  /// Buckets follow each other closely, and to be woken takes as long as the pause between them.
  void look_for(std::uint32_t seen) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
    while (turn_.load(std::memory_order_relaxed) == seen &&
           std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
  }

  void (*job_)(void*, std::size_t) = nullptr;
  void* context_ = nullptr;
  std::atomic<std::uint32_t> turn_{0};
  std::atomic<int> pending_{0}; // an int is what the kernel can wait for
  std::vector<place> next_;     // by part: the first element that nobody has taken
  std::vector<std::thread> workers_;
};

} // namespace polyrank
