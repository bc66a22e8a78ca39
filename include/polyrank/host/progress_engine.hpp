// The progress engine: one thread per process that makes every MPI call of polyrank.
//
// An operation is a `task`: a small state machine over MPI_Isend/MPI_Irecv that is advanced until
// it is finished. The engine advances all active tasks in turn and, when none moves, spins, then
// yields, then sleeps. It never makes a blocking MPI call, so it can always notice an abort.
//
//     struct hello : host::task {                 // rank 0 -> rank 1, one int
//       bool advance() override;                  // true when finished
//     };
//     engine.run(task);                           // any thread; blocks until finished, rethrows
//
// Modes: `threaded` needs MPI_THREAD_MULTIPLE, because the program's own threads may call MPI at
// any time. `inline_` advances tasks on the thread that calls run(): for an adopted MPI below
// MULTIPLE.
//
// Abort: abort(cause) on any rank sends one eager message to every peer; their tasks and all later
// ones fail with aborted_error{cause}. From then on every engine takes in whatever still arrives,
// so that what its peers are sending ends and they may free it. Nothing of this blocks for long.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/buffer.hpp>
#include <polyrank/host/memory.hpp>
#include <polyrank/host/mpi_include.hpp>
#include <polyrank/host/work_queue.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace polyrank::host {

/// Takes in what nobody will ask for any more, once the communicator has been aborted.
class drain {
 public:
  explicit drain(MPI_Comm comm) noexcept : comm_(comm) {}
  /// From now on turn() takes all messages.
  void open() noexcept { open_ = true; }
  [[nodiscard]] bool is_open() const noexcept { return open_; }
  /// Takes what has arrived. Does not wait.
  void turn() noexcept {
    if (!open_) return;
    try {
      for (;;) {
        int there = 0, bytes = 0;
        MPI_Message message;
        MPI_Status status;
        if (MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &there, &message, &status) !=
                MPI_SUCCESS ||
            there == 0)
          break;
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        taken_.push_back(
            {MPI_REQUEST_NULL, buffer<std::byte>(static_cast<std::size_t>(bytes), memory())});
        MPI_Imrecv(taken_.back().data.data(), bytes, MPI_BYTE, &message, &taken_.back().request);
      }
      std::erase_if(taken_, [](item& i) {
        int done = 0;
        return MPI_Test(&i.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
      });
    } catch (...) { // out of memory: the peers wait in vain, for a bounded time
      open_ = false;
    }
  }
  /// Waits for `r`, taking in messages meanwhile; false: it is not complete after `patience`.
  bool outlast(MPI_Request& r, std::chrono::milliseconds patience) noexcept {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    int done = 0;
    do {
      if (MPI_Test(&r, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) break;
      turn();
      std::this_thread::yield(); // to who is to take it in
    } while (done == 0 && std::chrono::steady_clock::now() < deadline);
    return done != 0;
  }
  /// What is still on its way stays where it is.
  ~drain() {
    if (!taken_.empty()) detail::memory_is_kept = true;
  }
  drain(const drain&) = delete;
  drain& operator=(const drain&) = delete;

 private:
  struct item {
    MPI_Request request;
    buffer<std::byte> data;
  };
  MPI_Comm comm_;
  bool open_ = false;
  std::vector<item> taken_;
};

/// Where messages go: an MPI communicator, a tag of one's own, and the ranks of a group in it.
/// Messages of one link between two ranks arrive in order.
class link {
 public:
  link(MPI_Comm comm, int tag, std::vector<int> members, int rank,
       std::atomic<std::uint64_t>& bytes_sent, drain& d)
      : comm_(comm), tag_(tag), members_(std::move(members)), rank_(rank), bytes_sent_(&bytes_sent),
        drain_(&d) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  /// The rank in the engine's communicator of member `i`.
  [[nodiscard]] int member(int i) const noexcept { return members_[static_cast<std::size_t>(i)]; }

  /// Starts to send at most `max_message` bytes to group rank `peer`.
  [[nodiscard]] MPI_Request send(int peer, const std::byte* data, std::size_t bytes) const {
    MPI_Request r = MPI_REQUEST_NULL;
    detail::check_mpi(
        MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, member(peer), tag_, comm_, &r),
        "MPI_Isend");
    bytes_sent_->fetch_add(bytes, std::memory_order_relaxed);
    return r;
  }
  [[nodiscard]] MPI_Request receive(int peer, std::byte* data, std::size_t bytes) const {
    MPI_Request r = MPI_REQUEST_NULL;
    detail::check_mpi(
        MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, member(peer), tag_, comm_, &r),
        "MPI_Irecv");
    return r;
  }
  /// True when `r` is complete (or null); it is null afterwards.
  static bool test(MPI_Request& r) {
    int done = 0;
    MPI_Status status;
    detail::check_mpi(MPI_Test(&r, &done, &status), "MPI_Test");
    return done != 0;
  }
  /// Gives up a request. A receive is cancelled, so that its memory is not written any more. A send
  /// cannot be: it gets time to end, in which peers that still answer take it in. What MPI uses
  /// after that is kept (host/memory.hpp).
  void drop(MPI_Request& r, bool is_receive) const noexcept {
    if (r == MPI_REQUEST_NULL) return;
    if (is_receive) MPI_Cancel(&r);
    const int patience = is_receive ? 100 : drain_->is_open() ? 500 : 50;
    if (!drain_->outlast(r, std::chrono::milliseconds(patience))) {
      detail::memory_is_kept = true;
      if (r != MPI_REQUEST_NULL && !is_receive) MPI_Request_free(&r);
    }
    r = MPI_REQUEST_NULL;
  }

 private:
  MPI_Comm comm_;
  int tag_;
  std::vector<int> members_;
  int rank_;
  std::atomic<std::uint64_t>* bytes_sent_;
  drain* drain_;
};

/// An operation in progress.
class task {
 public:
  explicit task(const link& over) : over_(over) {}
  task(const task&) = delete;
  task& operator=(const task&) = delete;
  virtual ~task() = default;

  /// Does what can be done without waiting; true when finished. Throws comm_error.
  virtual bool advance() = 0;
  /// Gives up all requests.
  virtual void cancel() noexcept = 0;

 protected:
  [[nodiscard]] const link& over() const noexcept { return over_; }
  /// advance() says that something has happened, so that the engine stays awake.
  void moved() noexcept { moved_ = true; }

 private:
  friend class progress_engine;
  const link& over_;
  bool moved_ = false;
  detail::flag finished_;
  std::atomic<bool> expired_{false};
  std::exception_ptr failure_;
};

class progress_engine {
 public:
  enum class mode { threaded, inline_ };

  /// Takes `comm` (not owned; nobody else may use it) and starts. `max_message` bounds one MPI
  /// message in bytes; the same on all ranks.
  progress_engine(MPI_Comm comm, mode m, std::size_t max_message = std::size_t{1} << 30)
      : comm_(comm), mode_(m), max_message_(max_message), drain_(comm) {
    expects(max_message > 0 && max_message <= std::size_t{1} << 30, "progress_engine: max_message ",
            max_message, " is not in 1 ... 2^30 bytes");
    detail::check_mpi(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
    detail::check_mpi(MPI_Comm_size(comm, &size_), "MPI_Comm_size");
    detail::check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    listen();
    if (m == mode::threaded) thread_ = std::thread([this] { loop(); });
  }
  progress_engine(const progress_engine&) = delete;
  progress_engine& operator=(const progress_engine&) = delete;

  /// Stops. No task may be running.
  ~progress_engine() { stop(); }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] mode running_mode() const noexcept { return mode_; }
  [[nodiscard]] std::size_t max_message() const noexcept { return max_message_; }

  /// A link over the group `members` (ranks of this engine) for context `context`; kind 0 or 1
  /// gives two independent channels of one context.
  [[nodiscard]] link make_link(std::vector<int> members, std::uint32_t context, int kind) {
    int rank = -1;
    for (std::size_t i = 0; i < members.size(); ++i)
      if (members[i] == rank_) rank = static_cast<int>(i);
    expects(context < max_contexts, "too many communicators: ", context, " exist, ", max_contexts,
            " are possible");
    return {comm_, 1 + static_cast<int>(context) * 2 + kind, std::move(members), rank, bytes_sent_,
            drain_};
  }
  /// All ranks, in order.
  [[nodiscard]] std::vector<int> everyone() const {
    std::vector<int> all(static_cast<std::size_t>(size_));
    for (int r = 0; r < size_; ++r) all[static_cast<std::size_t>(r)] = r;
    return all;
  }

  /// Bytes that this rank has sent, of all communicators, agreement at start-up included.
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept {
    return bytes_sent_.load(std::memory_order_relaxed);
  }

  /// Context numbers that this process has given out; the next free one of a group is the maximum
  /// over its ranks.
  std::atomic<std::uint32_t> next_context{0};

  /// Runs `t` to its end. Throws what it threw, aborted_error after an abort, timeout_error if it
  /// is not finished within `timeout`.
  void run(task& t, std::chrono::nanoseconds timeout = std::chrono::hours(24 * 365)) {
    if (mode_ == mode::inline_) {
      const auto deadline = std::chrono::steady_clock::now() + timeout;
      backoff pause;
      while (!step(t)) {
        hear();
        if (std::exchange(t.moved_, false)) pause.reset();
        pause.wait();
        if (std::chrono::steady_clock::now() > deadline) t.expired_ = true;
      }
    } else {
      check(); // after close() there is no thread to do it
      queue_.push([this, &t] { active_.push_back(&t); });
      if (!t.finished_.wait(timeout)) {
        t.expired_ = true;
        t.finished_.wait();
      }
    }
    if (t.failure_) std::rethrow_exception(t.failure_);
  }

  /// Fails every task here and on every peer, now and later. Any thread; never blocks.
  void abort(std::string_view cause) noexcept {
    int expected = 0;
    if (!abort_state_.compare_exchange_strong(expected, 1)) return;
    set_cause(cause);
    tell_ = true;
    abort_state_.store(2, std::memory_order_release);
    if (mode_ == mode::threaded) try {
        queue_.push([] {}); // wake up
      } catch (...) {       // out of memory: the engine sees the flag at its next turn
      }
    else
      end_all();
  }
  [[nodiscard]] bool aborted() const noexcept {
    return abort_state_.load(std::memory_order_acquire) == 2;
  }
  /// The cause; valid once aborted().
  [[nodiscard]] const char* cause() const noexcept { return cause_.data(); }
  void check() const {
    if (aborted()) throw aborted_error(cause());
  }

  /// Stops while MPI still works, and fails every task, running or later, with
  /// aborted_error{cause}; the peers are not told. For MPI that ends before the engine does.
  void close(std::string_view cause) noexcept {
    closed_ = true;
    int expected = 0;
    if (abort_state_.compare_exchange_strong(expected, 1)) {
      set_cause(cause);
      abort_state_.store(2, std::memory_order_release);
    }
    stop();
    while (auto* item = queue_.pop()) item->run();
    for (task* t : active_) {
      step(*t);
      t->finished_.raise();
    }
    active_.clear();
    stop_listening();
  }

  /// Ends the thread; bounded in time. Called by the destructor.
  void stop() noexcept {
    if (stopped_) return;
    stopped_ = true;
    if (thread_.joinable()) {
      stopping_ = true;
      try {
        queue_.push([] {});
      } catch (...) {
      }
      thread_.join();
    }
    // An aborted MPI is left alone: requests of dead peers may never complete.
    if (!aborted()) stop_listening();
  }

 private:
  using notice = std::array<char, 512>;
  static constexpr std::uint32_t max_contexts = 16000; // tags up to 32767 exist everywhere
  static constexpr int notice_tag = 0;

  /// Spins, then yields, then sleeps, until something moves.
  struct backoff {
    unsigned idle = 0;
    void reset() noexcept { idle = 0; }
    void wait() noexcept {
      ++idle;
      if (idle < 32)
        detail::cpu_relax();
      else if (idle < 2000)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(idle < 20000 ? 50 : 500));
    }
  };

  void loop() noexcept {
    backoff pause;
    unsigned turns = 0;
    while (!stopping_) {
      bool moved = false;
      while (auto* item = queue_.pop()) {
        item->run();
        moved = true;
      }
      if (aborted()) end_all();
      if (active_.empty()) {
        // A rank that waits elsewhere (for a GPU, say) must still learn that a peer has failed.
        if (!moved && !stopping_) queue_.wait(std::chrono::milliseconds(drain_.is_open() ? 1 : 20));
        hear();
        pause.reset();
        continue;
      }
      for (std::size_t i = 0; i < active_.size();) {
        task* t = active_[i];
        if (step(*t)) {
          active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
          t->finished_.raise(); // `t` may be gone from here on
          moved = true;
        } else {
          moved = std::exchange(t->moved_, false) || moved;
          ++i;
        }
      }
      if (moved)
        pause.reset();
      else
        pause.wait();
      if (++turns % 64 == 0) hear();
    }
    if (!aborted() || closed_) return;
    // Peers need a moment to hear of it and to give up what they are sending.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    do {
      end_all();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    } while (std::chrono::steady_clock::now() < until);
  }

  /// After an abort: tells the peers, takes in what they still send.
  void end_all() noexcept {
    if (closed_) return;
    if (tell_.exchange(false)) tell_peers();
    drain_.open();
    drain_.turn();
  }

  /// Advances one task; true when it is finished, well or badly.
  bool step(task& t) noexcept {
    try {
      check();
      if (t.expired_) throw timeout_error("deadline passed");
      return t.advance();
    } catch (...) {
      t.failure_ = std::current_exception();
      if (aborted()) end_all();
      t.cancel();
      return true;
    }
  }

  void set_cause(std::string_view cause) noexcept {
    std::memcpy(cause_.data(), cause.data(), std::min(cause.size(), cause_.size() - 1));
  }

  void listen() {
    detail::check_mpi(MPI_Irecv(heard_text_.data(), static_cast<int>(heard_text_.size()), MPI_CHAR,
                                MPI_ANY_SOURCE, notice_tag, comm_, &heard_),
                      "MPI_Irecv");
  }

  void stop_listening() noexcept {
    if (heard_ == MPI_REQUEST_NULL) return;
    MPI_Cancel(&heard_);
    drain_.outlast(heard_, std::chrono::milliseconds(100));
    heard_ = MPI_REQUEST_NULL;
  }

  /// Looks for an abort notice of a peer.
  void hear() noexcept {
    int done = 0;
    if (heard_ == MPI_REQUEST_NULL || MPI_Test(&heard_, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
        done == 0)
      return;
    int expected = 0;
    if (!abort_state_.compare_exchange_strong(expected, 1)) return;
    heard_text_.back() = '\0';
    set_cause(heard_text_.data());
    abort_state_.store(2, std::memory_order_release);
  }

  /// Sends the cause to every peer; gives up after half a second.
  void tell_peers() noexcept {
    std::vector<MPI_Request> sent;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      if (MPI_Isend(cause_.data(), static_cast<int>(cause_.size()), MPI_CHAR, r, notice_tag, comm_,
                    &request) == MPI_SUCCESS)
        sent.push_back(request);
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
    int done = 0;
    while (done == 0 && std::chrono::steady_clock::now() < deadline) {
      if (MPI_Testall(static_cast<int>(sent.size()), sent.data(), &done, MPI_STATUSES_IGNORE) !=
          MPI_SUCCESS)
        break;
      std::this_thread::yield();
    }
  }

  MPI_Comm comm_;
  mode mode_;
  std::size_t max_message_;
  int rank_ = 0, size_ = 1;
  std::atomic<std::uint64_t> bytes_sent_{0};
  drain drain_;
  detail::work_queue queue_;
  std::vector<task*> active_; // engine thread only
  std::atomic<bool> stopping_{false};
  bool stopped_ = false;
  std::atomic<bool> closed_{false}; // MPI is about to end
  std::atomic<int> abort_state_{0}; // 0 no, 1 the cause is being written, 2 aborted
  std::atomic<bool> tell_{false};
  notice cause_{}, heard_text_{};
  MPI_Request heard_ = MPI_REQUEST_NULL;
  std::thread thread_;
};

} // namespace polyrank::host
