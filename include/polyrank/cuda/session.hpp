// An ncclComm_t with everything that keeps it from hanging a program: non-blocking calls with a
// deadline, a watcher thread, and one cause that all who wait will see.
//
// The watcher looks every 10 ms for errors of NCCL and for a cause sent by another rank. On either
// it makes NCCL's kernels return (ncclCommAbort), so that nobody waits for the GPU for ever. A
// communicator that belongs to the caller is not aborted, since that would free it: there the cause
// is only reported.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/control.hpp>
#include <polyrank/cuda/failure.hpp>
#include <polyrank/cuda/nccl.hpp>
#include <polyrank/cuda/pending.hpp>

#include <atomic>
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
  /// The device must be current. @collective
  static session create(const ncclUniqueId& id, ncclConfig_t config,
                        std::chrono::milliseconds deadline, cuda::control line) {
    session s(std::move(line));
    config.blocking = 0;
    shared& state = *s.state_;
    const ncclResult_t code =
        ncclCommInitRankConfig(&state.comm, state.line.size(), id, state.line.rank(), &config);
    s.meet(code, "ncclCommInitRankConfig", state.comm, deadline);
    s.watch();
    return s;
  }

  /// A view of the caller's communicator.
  static session view(ncclComm_t comm, cuda::control line) {
    session s(std::move(line));
    s.state_->comm = comm;
    s.state_->owned = false;
    s.watch();
    return s;
  }

  /// The ranks of one colour; `line` is the control channel of the part. @collective
  session split(int colour, int key, ncclConfig_t config, std::chrono::milliseconds deadline,
                cuda::control line) {
    session part(std::move(line));
    config.blocking = 0;
    const ncclResult_t code = ncclCommSplit(state_->comm, colour, key, &part.state_->comm, &config);
    meet(code, "ncclCommSplit", state_->comm, deadline);
    part.arrive(state_->comm, "ncclCommSplit", deadline);
    part.meet(ncclInProgress, "ncclCommSplit", part.state_->comm, deadline);
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

  /// Makes calls into NCCL: `f(comm) -> ncclResult_t`, on one thread at a time. Returns when NCCL
  /// has handed the work to the GPU; throws aborted_error if the session fails meanwhile.
  template <class F>
  void issue(const char* call, call_site site, F f) {
    const std::unique_lock lock(state_->mutex);
    state_->why->check(site);
    settle(f(state_->comm), call, site);
  }

  /// Notes operation `ticket` of `recorder`, just enqueued on `s`, for its stamp of completion.
  /// Returns an event behind it.
  const event& note(stream& s, hang::flight_recorder* recorder,
                    hang::flight_recorder::ticket ticket) {
    const std::unique_lock lock(state_->mutex);
    return state_->running.push(s, recorder, ticket);
  }

  /// Ends the work of all ranks. Any thread; does not wait.
  void abort(std::string_view cause) noexcept {
    state_->why->set(cause);
    state_->line.abort(cause);
    state_->bell.notify_all(); // the watcher does the rest
  }

 private:
  struct shared {
    explicit shared(cuda::control l) : line(std::move(l)) {}

    cuda::control line;
    ncclComm_t comm = nullptr;
    bool owned = true, dead = false; // under mutex once the watcher runs
    std::shared_ptr<failure> why = std::make_shared<failure>();
    pending running;
    std::timed_mutex mutex; // of comm, dead and running
    std::mutex bell_mutex;
    std::condition_variable bell;
    bool stop = false; // under bell_mutex
  };

  explicit session(cuda::control line)
      : state_(std::make_shared<shared>(std::move(line))), exceptions_(std::uncaught_exceptions()) {
  }

  void watch() {
    watcher_ = std::thread([state = state_] { look(*state); });
  }

  /// Waits until NCCL, in the background, has written the handle that it makes from `parent`.
  void arrive(ncclComm_t parent, const char* call, std::chrono::milliseconds deadline) {
    const auto until = std::chrono::steady_clock::now() + deadline;
    const std::atomic_ref<ncclComm_t> made(state_->comm);
    for (ncclResult_t code = ncclSuccess; made.load() == nullptr;) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      check(ncclCommGetAsyncError(parent, &code), "ncclCommGetAsyncError", parent);
      check(code, call, parent);
      if (std::chrono::steady_clock::now() > until)
        throw timeout_error(
            polyrank::detail::cat(call, ": no result within ", deadline.count(), " ms"));
    }
  }

  /// Waits until NCCL is done with what it does in the background.
  void meet(ncclResult_t code, const char* call, ncclComm_t comm,
            std::chrono::milliseconds deadline) {
    const auto until = std::chrono::steady_clock::now() + deadline;
    try {
      check(code, call, comm);
      while (code == ncclInProgress) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        check(ncclCommGetAsyncError(comm, &code), "ncclCommGetAsyncError", comm);
        check(code, call, comm);
        if (const std::string cause = state_->line.heard(); !cause.empty())
          throw aborted_error(cause);
        if (std::chrono::steady_clock::now() > until)
          throw timeout_error(polyrank::detail::cat(
              call, ": not all of ", state_->line.size(), " ranks met within ", deadline.count(),
              " ms; a rank is missing, or NCCL's network is blocked (see NCCL_SOCKET_IFNAME; "
              "NCCL_DEBUG=INFO says more)"));
      }
    } catch (const error& e) {
      state_->why->set(e.what());
      state_->line.abort(polyrank::detail::cat("rank ", state_->line.rank(), ": ", e.what()));
      if (state_->comm != nullptr && state_->owned) static_cast<void>(ncclCommAbort(state_->comm));
      state_->dead = true;
      throw;
    }
  }

  /// Waits until a call that NCCL works on in the background (it connects to peers at the first
  /// operation) is handed over.
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
    // Our event queries must not disturb a program that captures a graph.
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
        s.running.poll();
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
    if (!watcher_.joinable()) return; // never met
    if (leak) {
      s.running.leak();
      watcher_.detach(); // it owns a share of the state
      return;
    }
    watcher_.join();
    if (s.why->is_set()) kill(s);
    if (!s.owned || s.dead) return;
    // Finalize lets what is enqueued come to its end; a peer that is gone must not keep us.
    ncclResult_t code = ncclCommFinalize(s.comm);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (code == ncclInProgress && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (ncclCommGetAsyncError(s.comm, &code) != ncclSuccess) break;
    }
    static_cast<void>(code == ncclSuccess ? ncclCommDestroy(s.comm) : ncclCommAbort(s.comm));
  }

  std::shared_ptr<shared> state_;
  int exceptions_;
  std::thread watcher_;
};

} // namespace polyrank::cuda
