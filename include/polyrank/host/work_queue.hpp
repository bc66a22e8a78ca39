// A queue of closures with one consumer thread that sleeps when there is nothing to do.
//
// push -> pop is the only order it creates between threads (and push -> push between several
// producers). In particular a producer learns nothing of what the consumer has run: freed slots are
// not handed back, each node is allocated by its producer and freed by the consumer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/host/futex.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <type_traits>
#include <utility>

namespace polyrank::host::detail {

/// An unbounded queue: many producers, one consumer.
class work_queue {
 public:
  /// A closure in the queue.
  struct item {
    virtual ~item() = default;
    virtual void run() {}
    std::atomic<item*> next{nullptr};
  };

  work_queue() : head_(new item), tail_(head_) {}
  work_queue(const work_queue&) = delete;
  work_queue& operator=(const work_queue&) = delete;
  ~work_queue() {
    while (head_ != nullptr)
      delete std::exchange(head_, head_->next.load(std::memory_order_acquire));
  }

  /// Appends `closure`; any thread.
  template <class F>
  void push(F&& closure) {
    struct holder final : item {
      explicit holder(F&& f) : closure_(std::forward<F>(f)) {}
      void run() override { closure_(); }
      std::decay_t<F> closure_;
    };
    item* fresh = new holder(std::forward<F>(closure));
    item* before = tail_.exchange(fresh, std::memory_order_acq_rel);
    before->next.store(fresh, std::memory_order_release);
    if (bell_.exchange(rung, std::memory_order_release) == sleeping) futex_wake(bell_);
  }

  /// The oldest closure, or null where there is none; consumer only. The pointer is valid until the
  /// next call.
  item* pop() noexcept {
    item* next = head_->next.load(std::memory_order_acquire);
    if (next != nullptr) delete std::exchange(head_, next);
    return next;
  }

  /// Sleeps until something is pushed, at most `timeout`; consumer only. May return early.
  void wait(std::chrono::nanoseconds timeout = std::chrono::hours(1)) noexcept {
    for (int spin = 0; spin < 64; ++spin) {
      if (head_->next.load(std::memory_order_relaxed) != nullptr) return;
      cpu_relax();
    }
    bell_.exchange(idle, std::memory_order_acquire);
    if (head_->next.load(std::memory_order_relaxed) != nullptr) return;
    std::uint32_t expected = idle;
    if (bell_.compare_exchange_strong(expected, sleeping, std::memory_order_relaxed))
      futex_wait(bell_, sleeping, timeout);
  }

 private:
  static constexpr std::uint32_t idle = 0, rung = 1, sleeping = 2;
  item* head_; // the last closure taken (or the first dummy)
  std::atomic<item*> tail_;
  futex_word bell_{idle};
};

} // namespace polyrank::host::detail
