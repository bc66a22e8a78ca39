// An ncclComm_t with everything that keeps it from hanging a program: a deadline for meeting the
// other ranks, a watcher thread, and one cause that all who wait will see.
//
// The watcher looks every 10 ms for errors of NCCL and for a cause sent by another rank. On either
// it makes NCCL's kernels and calls return (ncclCommAbort), so that nobody waits for ever. A
// communicator that belongs to the caller is not aborted, since that would free it: there the cause
// is only reported.
//
// Meeting and parting happen on a helper thread, because NCCL may wait for peers in them. (NCCL's
// own non-blocking mode would do that too, but then hands every single operation to a thread, which
// costs about 100 us each.)
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/control.hpp>
#include <polyrank/cuda/device.hpp>
#include <polyrank/cuda/failure.hpp>
#include <polyrank/cuda/nccl.hpp>
#include <polyrank/cuda/stamps.hpp>
#include <polyrank/cuda/stream.hpp>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace polyrank::cuda {

class session {
 public:
  /// Meets the other ranks. Throws timeout_error after `deadline`, aborted_error, nccl_error.
  /// The device must be current; `recorder` may be null. @collective
  static session create(const ncclUniqueId& id, ncclConfig_t config,
                        std::chrono::milliseconds deadline, cuda::control line,
                        hang::flight_recorder* recorder) {
    session s(std::move(line), recorder);
    config.blocking = 1;
    s.meet("ncclCommInitRankConfig", deadline,
           [id, config, n = s.state_->line.size(),
            rank = s.state_->line.rank()](ncclComm_t* made) mutable {
             return ncclCommInitRankConfig(made, n, id, rank, &config);
           });
    s.watch();
    return s;
  }

  /// A view of the caller's communicator, whose device must be current.
  static session view(ncclComm_t comm, cuda::control line, hang::flight_recorder* recorder) {
    session s(std::move(line), recorder);
    s.state_->comm = comm;
    s.state_->owned = false;
    s.watch();
    return s;
  }

  /// The ranks of one colour; `line` is the control channel of the part. @collective
  session split(int colour, int key, ncclConfig_t config, std::chrono::milliseconds deadline,
                cuda::control line, hang::flight_recorder* recorder) {
    session part(std::move(line), recorder);
    config.blocking = 1;
    part.meet("ncclCommSplit", deadline,
              [parent = state_, colour, key, config](ncclComm_t* made) mutable {
                return ncclCommSplit(parent->comm, colour, key, made, &config);
              });
    part.watch();
    return part;
  }

  session(session&&) noexcept = default;
  session& operator=(session&&) = delete;
  ~session() {
    if (state_ != nullptr) end();
  }

  [[nodiscard]] ncclComm_t native() const noexcept { return state_->comm; }
  [[nodiscard]] const std::shared_ptr<failure>& why() const noexcept { return state_->why; }
  /// Why the GPU does not write its progress into the flight recorder; empty: it does.
  [[nodiscard]] std::string why_no_stamps() const { return state_->stamps.why(); }

  /// Records that `what` is about to be issued on `s`.
  void enter(hang::comm_history& history, const operation& what, const stream& s) {
    const std::unique_lock lock(state_->mutex);
    state_->stamps.enter(history, what, s.native());
  }

  /// Makes calls into NCCL: `f(comm) -> ncclResult_t`, on one thread at a time. Returns when NCCL
  /// has handed the work to the GPU; throws aborted_error if the session fails meanwhile. The first
  /// operation of a kind connects to peers, and so waits for them. `launch_on`: where the entered
  /// operations run; null: they are not launched yet.
  template <class F>
  void issue(const char* call, call_site site, const stream* launch_on, F f) {
    const std::unique_lock lock(state_->mutex);
    state_->why->check(site);
    if (launch_on != nullptr) state_->stamps.begin(launch_on->native());
    const ncclResult_t code = f(state_->comm);
    state_->why->check(site); // the reason, where the call was made to return
    settle(code, call, site);
    if (launch_on != nullptr) state_->stamps.end(launch_on->native());
  }

  /// Ends the work of all ranks. Any thread; does not wait.
  void abort(std::string_view cause) noexcept {
    state_->why->set(cause);
    state_->line.abort(cause);
    state_->bell.notify_all(); // the watcher does the rest
  }

 private:
  friend class window;

  struct shared {
    shared(cuda::control l, hang::flight_recorder* recorder)
        : line(std::move(l)), stamps(recorder, driver::of_runtime()) {}

    cuda::control line;
    ncclComm_t comm = nullptr;
    bool owned = true, dead = false; // under mutex once the watcher runs
    std::shared_ptr<failure> why = std::make_shared<failure>();
    cuda::stamps stamps;
    std::timed_mutex mutex; // of comm, dead and stamps
    std::mutex bell_mutex;
    std::condition_variable bell;
    bool stop = false; // under bell_mutex
  };

  session(cuda::control line, hang::flight_recorder* recorder)
      : state_(std::make_shared<shared>(std::move(line), recorder)),
        exceptions_(std::uncaught_exceptions()) {}

  void watch() {
    watcher_ = std::thread([state = state_] { look(*state); });
  }

  /// A call that may wait for peers, on a thread of its own.
  template <class Made>
  struct errand {
    std::mutex mutex;
    std::condition_variable bell;
    bool done = false, given_up = false;
    ncclResult_t code = ncclSuccess;
    Made made = nullptr;
    std::string last_words;

    [[nodiscard]] std::string reason() const {
      return polyrank::detail::cat(ncclGetErrorString(code), ": ", last_words);
    }
  };

  /// Runs `f(&made)` within `deadline`. Throws aborted_error, timeout_error; what is made later
  /// than that is given to `drop`.
  template <class Made, class F, class Drop>
  std::shared_ptr<errand<Made>> send(const char* call, std::chrono::milliseconds deadline, F f,
                                     Drop drop) {
    auto e = std::make_shared<errand<Made>>();
    std::thread([e, f, drop, device = current_device()]() mutable {
      static_cast<void>(cudaSetDevice(device));
      Made made = nullptr;
      const ncclResult_t code = f(&made);
      const std::scoped_lock lock(e->mutex);
      e->code = code;
      e->made = made;
      if (const char* last = ncclGetLastError(nullptr); code != ncclSuccess && last != nullptr)
        e->last_words = last;
      e->done = true;
      if (e->given_up && made != nullptr) drop(made);
      e->bell.notify_all();
    }).detach();
    const auto until = std::chrono::steady_clock::now() + deadline;
    std::unique_lock lock(e->mutex);
    while (!e->bell.wait_for(lock, std::chrono::milliseconds(5), [&] { return e->done; })) {
      const std::string cause = state_->line.heard();
      e->given_up = !cause.empty() || std::chrono::steady_clock::now() > until;
      if (!cause.empty()) throw aborted_error(cause);
      if (e->given_up)
        throw timeout_error(polyrank::detail::cat(
            call, ": not all of ", state_->line.size(), " ranks met within ", deadline.count(),
            " ms; a rank is missing, or NCCL's network is blocked (see NCCL_SOCKET_IFNAME; "
            "NCCL_DEBUG=INFO says more)"));
    }
    return e;
  }

  /// Runs `f`; tells the other ranks what went wrong on this one, then throws it.
  template <class F>
  void telling(F f) {
    try {
      f();
    } catch (const error& failed) {
      state_->why->set(failed.what());
      state_->line.abort(polyrank::detail::cat("rank ", state_->line.rank(), ": ", failed.what()));
      throw;
    }
  }

  /// Makes the communicator by `f(&comm)`.
  template <class F>
  void meet(const char* call, std::chrono::milliseconds deadline, F f) {
    telling([&] {
      state_->dead = true; // until there is one
      const auto e = send<ncclComm_t>(
          call, deadline, f, [](ncclComm_t late) { static_cast<void>(ncclCommAbort(late)); });
      if (e->code != ncclSuccess) throw nccl_error(call, static_cast<int>(e->code), e->reason());
      state_->comm = e->made;
      state_->dead = false;
    });
  }

  /// Waits until a call that NCCL works on in the background (a caller's communicator may be
  /// non-blocking) is handed over.
  void settle(ncclResult_t code, const char* call, call_site site) {
    check(code, call, state_->comm, site);
    for (unsigned turn = 0; code == ncclInProgress; ++turn) {
      state_->mutex.unlock();
      if (turn < 1000)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      state_->mutex.lock();
      state_->why->check(site);
      check(ncclCommGetAsyncError(state_->comm, &code), "ncclCommGetAsyncError", state_->comm,
            site);
      check(code, call, state_->comm, site);
    }
  }

  static void look(shared& s) noexcept {
    // Event queries (GPUs without stream writes) must not disturb a program that captures a graph.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode));
    for (;;) {
      {
        std::unique_lock lock(s.bell_mutex);
        s.bell.wait_for(lock, std::chrono::milliseconds(10));
        if (s.stop) return;
      }
      if (!s.why->is_set())
        if (const std::string cause = s.line.heard(); !cause.empty()) s.why->set(cause);
      if (!s.why->is_set() && s.mutex.try_lock()) {
        ncclResult_t code = ncclSuccess;
        static_cast<void>(ncclCommGetAsyncError(s.comm, &code));
        s.stamps.poll();
        s.mutex.unlock();
        if (code != ncclSuccess && code != ncclInProgress) tell(s, code);
      }
      if (s.why->is_set()) {
        kill(s);
        return;
      }
    }
  }
  static void tell(shared& s, ncclResult_t code) noexcept {
    try {
      const char* last = ncclGetLastError(s.comm);
      const std::string cause =
          polyrank::detail::cat("rank ", s.line.rank(), ": NCCL: ", ncclGetErrorString(code), ": ",
                                last != nullptr ? last : "");
      s.why->set(cause);
      s.line.abort(cause);
    } catch (...) { // out of memory
      s.why->set("NCCL failed");
      s.line.abort("NCCL failed");
    }
  }
  /// Makes the kernels return. A thread that sits in a full launch queue keeps the mutex, so wait
  /// for it only a little.
  static void kill(shared& s) noexcept {
    const bool locked = s.mutex.try_lock_for(std::chrono::seconds(1));
    if (s.owned && !s.dead) {
      s.dead = true;
      static_cast<void>(ncclCommAbort(s.comm));
    }
    if (locked) s.mutex.unlock();
  }

  void end() noexcept {
    shared& s = *state_;
    const bool leak = std::uncaught_exceptions() > exceptions_;
    if (leak) {
      s.why->set("left by an exception");
      s.line.abort("a rank left its NCCL communicator by an exception");
    }
    {
      const std::scoped_lock lock(s.bell_mutex);
      s.stop = true;
    }
    s.bell.notify_all();
    if (leak || !watcher_.joinable()) { // or never met
      if (s.mutex.try_lock_for(std::chrono::seconds(1))) {
        s.stamps.leak();
        s.mutex.unlock();
      }
      if (watcher_.joinable()) watcher_.detach(); // it owns a share of the state
      return;
    }
    watcher_.join();
    if (s.why->is_set()) {
      kill(s);
      s.stamps.leak();
    } else {
      s.stamps.leave();
    }
    if (!s.owned || s.dead) {
      s.dead = true; // whoever still holds a window leaves it to the owner
      return;
    }
    // Parting waits for what is enqueued, and for peers; one that is gone must not keep us.
    auto e = std::make_shared<errand<ncclComm_t>>();
    std::thread([e, comm = s.comm] {
      static_cast<void>(ncclCommFinalize(comm));
      static_cast<void>(ncclCommDestroy(comm));
      const std::scoped_lock lock(e->mutex);
      e->done = true;
      e->bell.notify_all();
    }).detach();
    s.dead = true;
    std::unique_lock lock(e->mutex);
    e->bell.wait_for(lock, std::chrono::seconds(10), [&] { return e->done; });
  }

  std::shared_ptr<shared> state_;
  int exceptions_;
  std::thread watcher_;
};

} // namespace polyrank::cuda
