// Host streams and events: CUDA's ordering model on CPU threads.
//
// A worker stream is a thread that runs closures in order while the host goes on; so a forgotten
// `wait` is a real data race, which ThreadSanitizer finds on a laptop. An immediate stream runs
// each closure at once on the calling thread: simplest to debug, and needed where MPI calls must
// stay on one thread.
//
//     host::stream compute, side;
//     host::event ready;
//     compute.enqueue([&] { x = 1; });
//     ready.record(compute);
//     side.wait(ready);                  // without this line: a race on x
//     side.enqueue([&] { y = x + 1; });
//     side.synchronize();                // y == 2; rethrows what a closure threw
//
// Order between threads comes from enqueue -> execute, record -> wait and synchronize, from nothing
// else: no lock and no counter is shared the other way.
//
// A closure that throws makes its stream failed for good: later closures are skipped, events
// recorded on it carry the failure to the streams that wait for them, synchronize() rethrows it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/host/work_queue.hpp>

#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace polyrank::host {

class stream;

namespace detail {

/// One recorded point. Owned by its event, borrowed by closures; freed by whoever is last.
struct point {
  static constexpr int failed = 1 << 16; // added to `users`: such a point is never used again

  flag reached;
  std::exception_ptr failure; // written at most once, before `reached` is raised
  std::atomic<int> users{1};

  void fail(const std::exception_ptr& cause) noexcept {
    failure = cause;
    users.fetch_add(failed, std::memory_order_relaxed);
  }
  void release() noexcept {
    if (users.fetch_sub(1, std::memory_order_acq_rel) % failed == 1) delete this;
  }
};

/// A borrowed point, held by a closure.
class point_ref {
 public:
  explicit point_ref(point* p) noexcept : point_(p) {
    p->users.fetch_add(1, std::memory_order_relaxed);
  }
  point_ref(point_ref&& other) noexcept : point_(std::exchange(other.point_, nullptr)) {}
  point_ref& operator=(point_ref&&) = delete;
  ~point_ref() {
    if (point_ != nullptr) point_->release();
  }
  point* operator->() const noexcept { return point_; }

 private:
  point* point_;
};

} // namespace detail

/// A point in the work of a stream. Not thread-safe; the default-constructed event is "reached".
class event {
 public:
  event() = default;
  event(event&& other) noexcept { swap(other); }
  event& operator=(event&& other) noexcept {
    event(std::move(other)).swap(*this);
    return *this;
  }
  ~event() {
    for (detail::point* p : points_) p->release();
  }
  void swap(event& other) noexcept {
    points_.swap(other.points_);
    std::swap(current_, other.current_);
  }

  /// Moves the event to the present end of `s`.
  inline void record(stream& s);
  /// True when the work before the point has run (or was skipped because its stream had failed).
  [[nodiscard]] bool query() const noexcept {
    return current_ == nullptr || current_->reached.raised();
  }
  /// The host waits for the point; rethrows what failed before it.
  void synchronize() const {
    if (current_ == nullptr) return;
    current_->reached.wait();
    if (current_->failure) std::rethrow_exception(current_->failure);
  }

 private:
  friend class stream;

  /// A point nobody else uses any more, or a new one.
  detail::point* fresh_point() {
    for (detail::point* p : points_)
      if (p != current_ && p->users.load(std::memory_order_relaxed) == 1) {
        p->reached.reset();
        return p;
      }
    points_.push_back(nullptr);
    return points_.back() = new detail::point;
  }

  std::vector<detail::point*> points_; // a handful: as many as records are pending
  detail::point* current_ = nullptr;
};

/// An in-order queue of closures. Move-only. Destroying it runs what is queued.
class stream {
 public:
  enum class mode { worker, immediate };

  explicit stream(mode m = mode::worker) : state_(std::make_unique<state>()) {
    if (m == mode::worker) state_->worker = std::thread([s = state_.get()] { s->loop(); });
  }
  stream(stream&&) noexcept = default;
  stream& operator=(stream&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~stream() {
    if (state_ == nullptr || !state_->worker.joinable()) return;
    state_->queue.push([s = state_.get()] { s->stop = true; });
    state_->worker.join();
  }

  [[nodiscard]] bool immediate() const noexcept { return !state_->worker.joinable(); }

  /// Runs `closure` after all earlier work of this stream. Any thread may call it; the caller's own
  /// threads decide the order between their calls.
  template <class F>
  void enqueue(F&& closure) {
    if (immediate()) {
      state_->run(closure);
    } else {
      state_->queue.push([s = state_.get(), f = std::forward<F>(closure)]() mutable { s->run(f); });
    }
  }

  /// Later work of this stream runs after the present point of `e`.
  void wait(const event& e) {
    if (e.current_ == nullptr) return;
    enqueue([p = detail::point_ref(e.current_)] {
      p->reached.wait();
      if (p->failure) std::rethrow_exception(p->failure);
    });
  }

  /// The host waits for all work; rethrows what a closure threw.
  void synchronize() {
    event e;
    e.record(*this);
    e.synchronize();
  }

  /// An identity for comparison; stable when the stream is moved.
  [[nodiscard]] const void* id() const noexcept { return state_.get(); }

 private:
  friend class event;

  struct state {
    detail::work_queue queue;
    std::exception_ptr failure; // touched by the executing thread only
    bool stop = false;
    std::thread worker;

    template <class F>
    void run(F& closure) noexcept {
      if (failure) return;
      try {
        closure();
      } catch (...) {
        failure = std::current_exception();
      }
    }
    void loop() noexcept {
      while (!stop) {
        if (auto* item = queue.pop())
          item->run();
        else
          queue.wait();
      }
    }
  };

  std::unique_ptr<state> state_;
};

inline void event::record(stream& s) {
  detail::point* p = fresh_point();
  auto reach = [state = s.state_.get(), ref = detail::point_ref(p)] {
    if (state->failure) ref->fail(state->failure);
    ref->reached.raise();
  };
  current_ = p;
  if (s.immediate())
    reach();
  else
    s.state_->queue.push(std::move(reach));
}

} // namespace polyrank::host
