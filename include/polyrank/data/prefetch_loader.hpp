// Assembles batches ahead of the training loop, in background threads, and hands them out in order.
//
//     prefetch_loader<batch> loader({.workers = 2, .depth = 4}, steps, [&](std::size_t i, batch& b)
//     {
//       b.x.resize(rows * features);                   // fill b with batch i; runs in a worker
//     });
//     while (loader.remaining() > 0) {
//       batch b = loader.next();                       // batch 0, 1, 2, ... whatever the workers
//       train(b);
//       loader.recycle(std::move(b));                  // optional: its memory is used again
//     }
//
// The caller owns the batch that next() returns and keeps it as long as a stream still reads it.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace polyrank {

struct loader_options {
  std::size_t workers = 1; ///< threads; 0 assembles inside next()
  std::size_t depth = 4;   ///< batches that may be assembled or in the making ahead of the consumer
};

/// Threads for one rank: its share of the CPUs that the ranks of its host may use, at least one.
[[nodiscard]] constexpr std::size_t default_workers(std::size_t cpus,
                                                    std::size_t ranks_on_host) noexcept {
  return std::max<std::size_t>(1, cpus / std::max<std::size_t>(1, ranks_on_host));
}

/// One consumer thread. `Batch` is default-constructible and movable.
template <class Batch>
class prefetch_loader {
 public:
  /// Fills the batch; called for each index once, from several threads at a time. The batch may
  /// hold what an earlier, recycled batch left in it.
  using assemble_function = std::function<void(std::size_t index, Batch& batch)>;

  /// Batches 0 ... count - 1 will be handed out.
  /// @throws usage_error if there are workers but no depth
  prefetch_loader(loader_options options, std::size_t count, assemble_function assemble)
      : assemble_(std::move(assemble)), count_(count), slots_(options.depth) {
    expects(options.workers == 0 || options.depth > 0,
            "prefetch_loader: a depth of 0 batches leaves the workers nothing to do");
    try {
      for (std::size_t i = 0; i < options.workers; ++i) workers_.emplace_back([this] { work(); });
    } catch (...) { // the system has no more threads
      stop();
      throw;
    }
  }
  prefetch_loader(const prefetch_loader&) = delete;
  prefetch_loader& operator=(const prefetch_loader&) = delete;
  /// May be called at any time; waits for the batches in the making, drops the rest.
  ~prefetch_loader() { stop(); }

  /// Batches not yet handed out.
  [[nodiscard]] std::size_t remaining() const noexcept { return count_ - next_; }

  /// The next batch, in index order; waits for it if need be.
  /// @throws what assembling this batch threw; the loader then goes on behind it
  /// @throws usage_error if no batch is left
  [[nodiscard]] Batch next() {
    expects(remaining() > 0, "prefetch_loader: all ", count_, " batches were handed out");
    const std::size_t index = next_++;
    if (workers_.empty()) {
      Batch batch = take_spare();
      assemble_(index, batch);
      return batch;
    }
    std::unique_lock lock(mutex_);
    slot& s = slots_[index % slots_.size()];
    filled_.wait(lock, [&s] { return s.full; });
    s.full = false;
    ++handed_out_;
    Batch batch = std::move(s.batch);
    const std::exception_ptr failure = std::exchange(s.failure, nullptr);
    lock.unlock();
    freed_.notify_all();
    if (failure) std::rethrow_exception(failure);
    return batch;
  }

  /// Gives a batch back, so that a later one is assembled in its memory.
  void recycle(Batch batch) {
    const std::lock_guard lock(mutex_);
    spares_.push_back(std::move(batch));
  }

 private:
  struct slot {
    Batch batch{};
    std::exception_ptr failure;
    bool full = false;
  };

  [[nodiscard]] Batch take_spare() {
    const std::lock_guard lock(mutex_);
    return pop_spare();
  }
  [[nodiscard]] Batch pop_spare() {
    if (spares_.empty()) return Batch{};
    Batch batch = std::move(spares_.back());
    spares_.pop_back();
    return batch;
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      // Index i may start when batch i - depth was handed out: its slot is then empty.
      freed_.wait(lock, [this] {
        return stopping_ || claimed_ == count_ || claimed_ < handed_out_ + slots_.size();
      });
      if (stopping_ || claimed_ == count_) return;
      const std::size_t index = claimed_++;
      Batch batch = pop_spare();
      std::exception_ptr failure;
      lock.unlock();
      try {
        assemble_(index, batch);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      slot& s = slots_[index % slots_.size()];
      s.batch = std::move(batch);
      s.failure = failure;
      s.full = true;
      filled_.notify_all();
    }
  }

  void stop() noexcept {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    freed_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  assemble_function assemble_;
  std::size_t count_;
  std::size_t next_ = 0; // of the consumer alone
  std::mutex mutex_;     // guards what follows
  std::condition_variable filled_, freed_;
  std::vector<slot> slots_;
  std::vector<Batch> spares_;
  std::size_t claimed_ = 0;
  std::size_t handed_out_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

} // namespace polyrank
