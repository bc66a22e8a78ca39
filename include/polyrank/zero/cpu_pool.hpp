// Threads of our own for updates on the host: part k of a job always runs on thread k, so memory
// that a job touches first lies near the thread that works on it later.
//
//     cpu_pool pool(threads_for(usable, cpus_of_host, ranks_of_host));
//     pool.run([&](std::size_t part) { ... });        // every part in [0, pool.size()); blocks
//
// Not OpenMP: a header cannot know how its user's runtime is set up, and Open MPI binds the ranks
// of a job of two to one core each, where a runtime would start one thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>

#include <algorithm>
#include <atomic>
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
  explicit cpu_pool(std::size_t threads) {
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

 private:
  void start() {
    turn_.fetch_add(1, std::memory_order_release);
    turn_.notify_all();
  }
  void loop(std::size_t part) {
    for (std::uint32_t seen = 0;; ++seen) {
      turn_.wait(seen, std::memory_order_acquire);
      static_cast<void>(turn_.load(std::memory_order_acquire));
      if (job_ == nullptr) return;
      job_(context_, part);
      if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
    }
  }

  void (*job_)(void*, std::size_t) = nullptr;
  void* context_ = nullptr;
  std::atomic<std::uint32_t> turn_{0};
  std::atomic<int> pending_{0}; // an int is what the kernel can wait for
  std::vector<std::thread> workers_;
};

} // namespace polyrank
