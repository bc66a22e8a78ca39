// Ranks as threads of one process: for debugging, ThreadSanitizer and fault injection.
//
//     host::loopback::run(4, [](host::loopback::communicator& comm) {
//       host::stream s;
//       std::vector<float> x{1}, y(1);
//       comm.all_reduce<float>(x, y, reduce_op::sum, on(s));
//       s.synchronize();                       // y[0] == 4
//     });
//
// Collectives sum in rank order, so every rank gets the same bits. Operations that differ between
// ranks are a mismatch_error on all of them; an operation that some rank never enters is a
// timeout_error that names it. Faults are injected by (rank, k-th operation of that rank).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/partition.hpp>
#include <polyrank/host/backend.hpp>
#include <polyrank/host/calls.hpp>

#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace polyrank::host::loopback {

/// Something that goes wrong at operation `operation` (from 1) of `rank`.
struct fault {
  enum class kind {
    drop,  ///< the rank skips the operation, as if it had never been issued
    delay, ///< the rank enters it `delay` later
    fail   ///< the operation throws comm_error on that rank
  };
  int rank = 0;
  std::uint64_t operation = 1;
  kind what = kind::fail;
  std::chrono::milliseconds delay{0};
};

struct options {
  std::chrono::milliseconds timeout{60000}; ///< of one operation
  std::vector<fault> faults;
};

namespace detail {
using host::detail::call;

/// What all ranks of all communicators of one run share.
struct hub {
  explicit hub(options o) : settings(std::move(o)) {}

  options settings;
  std::atomic<int> abort_state{0}; // 0 no, 1 the cause is being written, 2 aborted
  std::string cause;
  std::mutex groups_mutex; // start-up only
  std::map<std::tuple<std::uint32_t, std::uint64_t, int>, std::shared_ptr<struct group>> groups;
  std::uint32_t next_group = 1;

  void abort(std::string_view text) noexcept {
    int expected = 0;
    if (!abort_state.compare_exchange_strong(expected, 1, std::memory_order_relaxed)) return;
    cause = text;
    abort_state.store(2, std::memory_order_release);
  }
  void check() const {
    if (abort_state.load(std::memory_order_acquire) == 2) throw aborted_error(cause);
  }
};

/// The ranks of one communicator.
struct group {
  /// A message that waits for its receiver, who copies it and raises `taken`.
  struct message {
    const std::byte* data;
    std::size_t bytes;
    host::detail::flag taken;
  };
  struct mailbox {
    std::mutex mutex;
    std::deque<message*> messages;
    host::detail::futex_word posted{0}; // messages so far
  };

  group(hub& h, std::uint32_t group_id, std::size_t n)
      : shared(h), id(group_id), size(n), entered(n), posted(n), words(n), mailboxes(n * n) {}

  hub& shared;
  std::uint32_t id;
  std::size_t size;
  std::vector<std::atomic<std::uint64_t>> entered; // operations each rank has entered
  std::vector<const call*> posted;
  std::vector<std::string> words; // for the control channel
  std::vector<mailbox> mailboxes; // [from * size + to]
  struct meeting {
    std::atomic<std::uint32_t> arrived{0};
    host::detail::futex_word phase{0};
  };
  meeting operations, talks;   // the control channel may be used while streams are at work
  std::atomic<int> reading{0}; // sequentially consistent, both
  std::atomic<bool> closed{false};

  template <class Ready, class Describe>
  void wait_until(Ready ready, Describe describe, std::chrono::nanoseconds timeout) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!ready()) {
      shared.check();
      if (std::chrono::steady_clock::now() > deadline) throw timeout_error(describe());
    }
  }

  /// Lives while a rank reads calls of others. Throws where one of them has left.
  class reader {
   public:
    explicit reader(group& g) : group_(&g) {
      g.reading.fetch_add(1);
      if (!g.closed.load()) return;
      g.reading.fetch_sub(1);
      g.shared.check();
      throw aborted_error("another rank has left the operation");
    }
    reader(const reader&) = delete;
    reader& operator=(const reader&) = delete;
    ~reader() { group_->reading.fetch_sub(1); }

   private:
    group* group_;
  };
  /// Before a rank leaves an operation that is not done: nobody begins to read its call, and those
  /// who do so now have ended.
  void close() noexcept {
    closed.store(true);
    while (reading.load() != 0) std::this_thread::yield();
  }

  /// All ranks meet. Creates order between all of them.
  void meet(meeting& at, std::string_view what, std::chrono::nanoseconds timeout) {
    auto& [arrived, phase] = at;
    const std::uint32_t before = phase.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      arrived.store(0, std::memory_order_relaxed);
      phase.fetch_add(1, std::memory_order_release);
      host::detail::futex_wake(phase);
      return;
    }
    wait_until(
        [&] {
          if (phase.load(std::memory_order_acquire) == before)
            host::detail::futex_wait(phase, before, std::chrono::milliseconds(5));
          return phase.load(std::memory_order_acquire) != before;
        },
        [&] {
          return polyrank::detail::cat(what, " of communicator ", id, " timed out: ", missing());
        },
        timeout);
  }

  /// Which ranks are behind, as words.
  [[nodiscard]] std::string missing() const {
    std::uint64_t most = 0;
    for (const auto& e : entered) most = std::max(most, e.load(std::memory_order_relaxed));
    std::string list;
    for (std::size_t r = 0; r < size; ++r)
      if (entered[r].load(std::memory_order_relaxed) < most)
        list += polyrank::detail::cat(list.empty() ? "" : ", ", r);
    return list.empty() ? "some ranks never came"
                        : polyrank::detail::cat("ranks that did not enter it: ", list);
  }
};

/// Carries out the calls of one rank.
struct runner {
  std::shared_ptr<group> g;
  std::size_t rank;

  void operator()(call& c) const {
    const std::uint64_t k = g->entered[rank].load(std::memory_order_relaxed) + 1;
    for (const fault& f : g->shared.settings.faults) {
      if (f.rank != static_cast<int>(rank) || f.operation != k || g->id != 0) continue;
      if (f.what == fault::kind::delay) std::this_thread::sleep_for(f.delay);
      if (f.what == fault::kind::drop) return;
      if (f.what == fault::kind::fail)
        throw comm_error(c.name, -1, polyrank::detail::cat("injected fault on rank ", rank),
                         c.what.site);
    }
    g->entered[rank].store(k, std::memory_order_relaxed);
    std::string difference;
    try {
      if (c.what.kind == hang::op_kind::exchange)
        exchange(c);
      else
        difference = collective(c);
    } catch (...) {
      g->close();
      throw;
    }
    if (!difference.empty()) throw on_every_rank(mismatch_error(difference, c.what.site));
  }

 private:
  /// Returns how the ranks' calls differ, if they do: the same on every rank.
  [[nodiscard]] std::string collective(call& c) const {
    g->posted[rank] = &c;
    g->meet(g->operations, c.name, timeout());
    std::string difference;
    {
      const group::reader others(*g);
      difference = compare();
      if (difference.empty()) move_data(c);
    }
    g->meet(g->operations, c.name, timeout());
    return difference;
  }

  [[nodiscard]] std::chrono::nanoseconds timeout() const noexcept {
    return g->shared.settings.timeout;
  }

  [[nodiscard]] std::string compare() const {
    const auto describe = [&](std::size_t r) {
      const call& c = *g->posted[r];
      return polyrank::detail::cat("rank ", r, ": ", c.name, ' ', name_of(c.what.op), " of ",
                                   c.what.count, ' ', name_of(c.what.type), " at ",
                                   c.what.site.file_name(), ':', c.what.site.line);
    };
    for (std::size_t r = 1; r < g->size; ++r)
      if (g->posted[r]->what.signature() != g->posted[0]->what.signature())
        return polyrank::detail::cat("ranks issued different operations on communicator ", g->id,
                                     ": ", describe(0), "; ", describe(r));
    return {};
  }

  /// Each rank writes what it alone writes: its slice of every output, or its own output.
  void move_data(const call& c) const {
    const std::size_t n = g->size, width = size_of(c.what.type), chunk = c.what.count * width;
    const auto in = [&](std::size_t r) { return g->posted[r]->in; };
    const auto put = [](std::byte* to, const std::byte* from, std::size_t bytes) {
      if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
    };
    switch (c.what.kind) {
    case hang::op_kind::all_reduce: {
      const range mine = partition(c.what.count, n, rank);
      std::vector<std::byte> sum(mine.size() * width);
      reduce_into(sum.data(), mine.begin * width, mine.size(), c);
      for (std::size_t r = 0; r < n; ++r)
        put(g->posted[r]->out + mine.begin * width, sum.data(), sum.size());
      break;
    }
    case hang::op_kind::reduce_scatter: {
      std::vector<std::byte> sum(chunk);
      reduce_into(sum.data(), rank * chunk, c.what.count, c);
      put(c.out, sum.data(), chunk);
      break;
    }
    case hang::op_kind::all_gather:
      for (std::size_t r = 0; r < n; ++r) put(c.out + r * chunk, in(r), chunk);
      break;
    case hang::op_kind::all_to_all:
      for (std::size_t r = 0; r < n; ++r) put(c.out + r * chunk, in(r) + rank * chunk, chunk);
      break;
    case hang::op_kind::broadcast:
      put(c.out, in(static_cast<std::size_t>(c.what.peer)), chunk);
      break;
    case hang::op_kind::exchange:
    case hang::op_kind::reduce: // not one of ours
      break;
    }
  }

  void reduce_into(std::byte* sum, std::size_t offset, std::size_t count, const call& c) const {
    const auto add = host::detail::reducer_of(c.what.type, c.what.op);
    if (count == 0) return;
    std::memcpy(sum, g->posted[0]->in + offset, count * size_of(c.what.type));
    for (std::size_t r = 1; r < g->size; ++r) add(sum, g->posted[r]->in + offset, sum, count);
  }

  /// Rendezvous: a send is done when its receiver has copied it.
  void exchange(const call& c) const {
    std::deque<group::message> outgoing;
    for (const auto& t : c.transfers)
      if (t.sends) {
        auto& m = outgoing.emplace_back();
        m.data = t.data;
        m.bytes = t.count;
        auto& box = g->mailboxes[rank * g->size + static_cast<std::size_t>(t.peer)];
        {
          const std::lock_guard lock(box.mutex);
          box.messages.push_back(&m);
        }
        box.posted.fetch_add(1, std::memory_order_relaxed);
        host::detail::futex_wake(box.posted);
      }
    for (const auto& t : c.transfers)
      if (!t.sends) receive(c, t);
    for (auto& m : outgoing)
      g->wait_until([&] { return m.taken.wait(std::chrono::milliseconds(5)); },
                    [&] {
                      return polyrank::detail::cat(c.name, " timed out on rank ", rank,
                                                   ": nobody received");
                    },
                    timeout());
  }

  void receive(const call& c, const transfer<std::byte>& t) const {
    auto& box = g->mailboxes[static_cast<std::size_t>(t.peer) * g->size + rank];
    std::size_t sent = 0;
    const auto take = [&] {
      const group::reader others(*g);
      group::message* m = nullptr;
      {
        const std::lock_guard lock(box.mutex);
        if (box.messages.empty()) return false;
        m = box.messages.front();
        box.messages.pop_front();
      }
      sent = m->bytes;
      if (sent == t.count && sent != 0) std::memcpy(t.data, m->data, sent);
      m->taken.raise();
      return true;
    };
    g->wait_until(
        [&] {
          const std::uint32_t before = box.posted.load(std::memory_order_relaxed);
          if (take()) return true;
          host::detail::futex_wait(box.posted, before, std::chrono::milliseconds(5));
          return false;
        },
        [&] {
          return polyrank::detail::cat(c.name, " timed out: rank ", rank,
                                       " waits for a message from rank ", t.peer);
        },
        timeout());
    if (sent != t.count)
      throw mismatch_error(polyrank::detail::cat(c.name, ": rank ", t.peer, " sent ", sent,
                                                 " bytes, rank ", rank, " expected ", t.count),
                           c.what.site);
  }
};

} // namespace detail

/// Start-up agreement between the threads.
class control {
 public:
  control(std::shared_ptr<detail::group> g, int rank) : group_(std::move(g)), rank_(rank) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(group_->size); }

  std::vector<std::string> all_gather(std::string_view bytes) {
    group_->words[static_cast<std::size_t>(rank_)] = bytes;
    group_->meet(group_->talks, "all_gather", group_->shared.settings.timeout);
    std::vector<std::string> all = group_->words;
    group_->meet(group_->talks, "all_gather", group_->shared.settings.timeout);
    return all;
  }
  std::int64_t all_reduce_max(std::int64_t value) {
    std::int64_t most = value;
    for (const std::string& word :
         all_gather({reinterpret_cast<const char*>(&value), sizeof value})) {
      std::int64_t theirs;
      std::memcpy(&theirs, word.data(), sizeof theirs);
      most = std::max(most, theirs);
    }
    return most;
  }
  void barrier(std::chrono::milliseconds deadline) {
    group_->meet(group_->talks, "barrier", deadline);
  }

 private:
  std::shared_ptr<detail::group> group_;
  int rank_;
};

/// A model of all communicator concepts of the seam; one per thread.
class communicator : public host::detail::calls<communicator> {
 public:
  using backend = host::backend;

  [[nodiscard]] int rank() const noexcept { return static_cast<int>(rank_); }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(group_->size); }
  [[nodiscard]] loopback::control& control() noexcept { return control_; }
  [[nodiscard]] stream make_stream() const { return stream(mode_); }

  /// Streams that make_stream() makes from now on; worker by default.
  void set_stream_mode(stream::mode m) noexcept { mode_ = m; }

  /// The ranks of one colour, ordered by (key, rank). @collective
  [[nodiscard]] communicator split(int colour, int key) {
    struct entry {
      int colour, key, rank;
    };
    const entry mine{colour, key, rank()};
    std::vector<entry> members;
    for (const std::string& word :
         control_.all_gather({reinterpret_cast<const char*>(&mine), sizeof mine})) {
      entry e;
      std::memcpy(&e, word.data(), sizeof e);
      if (e.colour == colour) members.push_back(e);
    }
    std::sort(members.begin(), members.end(), [](const entry& a, const entry& b) {
      return std::tie(a.key, a.rank) < std::tie(b.key, b.rank);
    });
    std::size_t new_rank = 0;
    while (members[new_rank].rank != rank()) ++new_rank;
    detail::hub& hub = group_->shared;
    const std::lock_guard lock(hub.groups_mutex);
    auto& g = hub.groups[{group_->id, ++splits_, colour}];
    if (g == nullptr) g = std::make_shared<detail::group>(hub, hub.next_group++, members.size());
    return {hub_, g, new_rank, recorder()};
  }

  /// Ends the waiting of all ranks of the run with aborted_error{cause}.
  void abort(std::string_view cause) noexcept { hub_->abort(cause); }
  /// Throws aborted_error if some rank has aborted.
  void check() const { hub_->check(); }

 private:
  friend class host::detail::calls<communicator>;
  template <class Body>
  friend void run(int, Body, options);

  communicator(std::shared_ptr<detail::hub> hub, std::shared_ptr<detail::group> g, std::size_t rank,
               hang::flight_recorder* recorder)
      : calls(g->id, recorder), hub_(std::move(hub)), group_(std::move(g)), rank_(rank),
        control_(group_, static_cast<int>(rank)) {}

  void accept(const stream&) const noexcept {}
  [[nodiscard]] detail::runner runner() const { return {group_, rank_}; }

  std::shared_ptr<detail::hub> hub_;
  std::shared_ptr<detail::group> group_;
  std::size_t rank_;
  loopback::control control_;
  std::uint64_t splits_ = 0;
  stream::mode mode_ = stream::mode::worker;
};

/// Runs `body(communicator&)` on `n` threads, one per rank. If bodies throw, the others are
/// released and the first cause is rethrown here (an aborted_error only if there is nothing
/// better).
template <class Body>
void run(int n, Body body, options settings) {
  expects(n > 0, "loopback::run: ", n, " ranks; at least 1 is needed");
  const auto hub = std::make_shared<detail::hub>(std::move(settings));
  const auto world = std::make_shared<detail::group>(*hub, 0, static_cast<std::size_t>(n));
  std::vector<std::exception_ptr> failures(world->size);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < world->size; ++r)
    threads.emplace_back([&, r] {
      hang::flight_recorder recorder(256);
      communicator comm(hub, world, r, &recorder);
      try {
        body(comm);
      } catch (const std::exception& e) {
        failures[r] = std::current_exception();
        hub->abort(polyrank::detail::cat("rank ", r, ": ", e.what()));
      } catch (...) {
        failures[r] = std::current_exception();
        hub->abort(polyrank::detail::cat("rank ", r, ": unknown exception"));
      }
    });
  for (std::thread& t : threads) t.join();
  std::exception_ptr first;
  for (const auto& failure : failures) {
    if (!failure) continue;
    if (!first) first = failure;
    try {
      std::rethrow_exception(failure);
    } catch (const aborted_error&) {
    } catch (...) {
      std::rethrow_exception(failure);
    }
  }
  if (first) std::rethrow_exception(first);
}

template <class Body>
void run(int n, Body body) {
  run(n, std::move(body), {});
}

} // namespace polyrank::host::loopback
