// The host communicator: ranks are processes, data travel by MPI, carried by the progress engine.
//
//     launch::world world(argc, argv);
//     host::communicator comm = world.communicator();
//     comm.all_reduce<float>(in, out, reduce_op::sum, on(stream, "loss"));
//
// The engine must outlive its communicators. A failed operation makes its stream failed; after an
// abort every operation fails with aborted_error.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/buffer.hpp>
#include <polyrank/host/backend.hpp>
#include <polyrank/host/calls.hpp>
#include <polyrank/host/collectives.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace polyrank::host {

/// How the host collectives cut their data. The same on all ranks.
struct tuning {
  std::size_t small_bytes = 32 << 10;    ///< all_reduce up to this size by doubling, above by ring
  std::size_t segment_bytes = 512 << 10; ///< of ring and tree
  std::size_t lanes = 1; ///< segments of one chunk in flight; more pay where links have latency
};

/// control_channel over the progress engine. While it waits, the flight recorder (if any) says so.
/// For one thread at a time.
class mpi_control {
 public:
  mpi_control(progress_engine& engine, std::vector<int> members, std::uint32_t context,
              hang::flight_recorder* recorder)
      : engine_(&engine), recorder_(recorder),
        link_(std::make_shared<const link>(engine.make_link(std::move(members), context, 1))) {}

  [[nodiscard]] int rank() const noexcept { return link_->rank(); }
  [[nodiscard]] int size() const noexcept { return link_->size(); }

  /// The bytes of every rank; lengths may differ. @collective
  [[nodiscard]] std::vector<std::string> all_gather(std::string_view bytes) {
    const auto waits = phase("control channel: all_gather");
    const std::vector<std::uint64_t> lengths = gather<std::uint64_t>(bytes.size());
    const std::size_t longest = *std::max_element(lengths.begin(), lengths.end());
    const std::size_t n = lengths.size();
    buffer<std::byte> mine(longest, memory()), all(longest * n, memory());
    if (!bytes.empty()) std::memcpy(mine.data(), bytes.data(), bytes.size());
    detail::ring task(*link_, detail::ring::kind::all_gather, mine.data(), all.data(), longest, 1,
                      nullptr, {});
    engine_->run(task);
    std::vector<std::string> out;
    out.reserve(n);
    for (std::size_t r = 0; r < n; ++r)
      out.emplace_back(reinterpret_cast<const char*>(all.data()) + r * longest, lengths[r]);
    return out;
  }
  /// @collective
  [[nodiscard]] std::int64_t all_reduce_max(std::int64_t value) {
    const auto waits = phase("control channel: all_reduce_max");
    doubling(value, std::chrono::hours(24 * 365));
    return value;
  }
  /// Returns once every rank has called it; throws timeout_error after `deadline`. @collective
  void barrier(std::chrono::milliseconds deadline) {
    const auto waits = phase("control channel: barrier");
    std::int64_t nothing = 0;
    try {
      doubling(nothing, deadline);
    } catch (const timeout_error&) {
      throw timeout_error(polyrank::detail::cat("barrier: not all of ", size(),
                                                " ranks came within ", deadline.count(), " ms"));
    }
  }

 private:
  template <class T>
  std::vector<T> gather(T value) {
    std::vector<T> all(static_cast<std::size_t>(size()));
    detail::ring task(*link_, detail::ring::kind::all_gather,
                      reinterpret_cast<const std::byte*>(&value),
                      reinterpret_cast<std::byte*>(all.data()), 1, sizeof(T), nullptr, {});
    engine_->run(task);
    return all;
  }
  [[nodiscard]] hang::flight_recorder::phase_scope phase(std::string_view what) const noexcept {
    using scope = hang::flight_recorder::phase_scope;
    return recorder_ != nullptr ? recorder_->wait(what) : scope(nullptr, {}, {}, {});
  }
  void doubling(std::int64_t& value, std::chrono::nanoseconds deadline) {
    auto* data = reinterpret_cast<std::byte*>(&value);
    detail::doubling task(*link_, data, data, 1, sizeof value,
                          detail::reducer_of(dtype::i64, reduce_op::max));
    engine_->run(task, deadline);
  }

  progress_engine* engine_;
  hang::flight_recorder* recorder_;
  std::shared_ptr<const link> link_;
};

/// A model of all communicator concepts of the seam.
class communicator : public detail::calls<communicator> {
 public:
  using backend = host::backend;

  /// The ranks `members` of `engine` under `context`, a number that no other communicator of these
  /// ranks has. Use launch::world::communicator() or split().
  communicator(progress_engine& engine, const std::vector<int>& members, std::uint32_t context,
               hang::flight_recorder* recorder, tuning t = {})
      : calls(context, recorder), engine_(&engine),
        link_(std::make_shared<const link>(engine.make_link(members, context, 0))),
        control_(engine, members, context, recorder), tuning_(t) {
    announce(members, link_->rank());
  }

  [[nodiscard]] int rank() const noexcept { return link_->rank(); }
  [[nodiscard]] int size() const noexcept { return link_->size(); }
  [[nodiscard]] mpi_control& control() noexcept { return control_; }

  /// A stream that this communicator can serve: worker, or immediate where MPI allows one thread
  /// only.
  [[nodiscard]] stream make_stream() const { return stream(stream_mode()); }
  [[nodiscard]] stream::mode stream_mode() const noexcept {
    return engine_->running_mode() == progress_engine::mode::threaded ? stream::mode::worker
                                                                      : stream::mode::immediate;
  }

  /// The ranks of one colour, ordered by (key, rank). @collective
  [[nodiscard]] communicator split(int colour, int key) {
    struct entry {
      int colour, key, rank, member;
      std::uint32_t context;
    };
    const entry mine{colour, key, rank(), link_->member(rank()), engine_->next_context.load()};
    std::vector<entry> all;
    for (const std::string& word :
         control_.all_gather({reinterpret_cast<const char*>(&mine), sizeof mine})) {
      entry e{};
      std::memcpy(&e, word.data(), sizeof e);
      all.push_back(e);
    }
    std::uint32_t context = 0;
    for (const entry& e : all) context = std::max(context, e.context);
    // Groups of one split share no rank, so they can share the context number.
    engine_->next_context = context + 1;
    std::erase_if(all, [&](const entry& e) { return e.colour != colour; });
    std::sort(all.begin(), all.end(), [](const entry& a, const entry& b) {
      return std::tie(a.key, a.rank) < std::tie(b.key, b.rank);
    });
    std::vector<int> members;
    for (const entry& e : all) members.push_back(e.member);
    return {*engine_, members, context, recorder(), tuning_};
  }

  /// Ends the waiting of all ranks of the world with aborted_error{cause}.
  void abort(std::string_view cause) noexcept { engine_->abort(cause); }
  /// Throws aborted_error if some rank has aborted.
  void check() const { engine_->check(); }

 private:
  friend class detail::calls<communicator>;

  /// Carries out a call; runs on the stream's thread and blocks until it is done.
  struct executor {
    progress_engine* engine;
    std::shared_ptr<const link> over;
    tuning cut;

    void operator()(detail::call& c) const {
      try {
        perform(c);
      } catch (const comm_error& e) {
        throw comm_error(c.name, e.code(), e.what(), c.what.site);
      }
    }

   private:
    void perform(const detail::call& c) const {
      using hang::op_kind;
      const std::size_t width = size_of(c.what.type), count = c.what.count;
      const auto op = detail::reducer_of(c.what.type, c.what.op);
      const auto ring = [&](detail::ring::kind kind) {
        detail::ring task(*over, kind, c.in, c.out, count, width, op,
                          {.segment_bytes = std::min(cut.segment_bytes, engine->max_message()),
                           .lanes = cut.lanes});
        engine->run(task);
      };
      switch (c.what.kind) {
      case op_kind::all_reduce:
        if (count * width <= std::min(cut.small_bytes, engine->max_message())) {
          detail::doubling task(*over, c.in, c.out, count, width, op);
          return engine->run(task);
        }
        return ring(detail::ring::kind::all_reduce);
      case op_kind::reduce_scatter:
        return ring(detail::ring::kind::reduce_scatter);
      case op_kind::all_gather:
        return ring(detail::ring::kind::all_gather);
      case op_kind::broadcast: {
        detail::tree task(*over, c.out, count * width, c.what.peer,
                          std::min(cut.segment_bytes, engine->max_message()));
        return engine->run(task);
      }
      case op_kind::all_to_all: {
        const std::size_t chunk = count * width, n = static_cast<std::size_t>(over->size());
        detail::batch task(*over, engine->max_message());
        for (std::size_t i = 1; i < n; ++i) {
          const std::size_t me = static_cast<std::size_t>(over->rank()), from = (me + n - i) % n,
                            to = (me + i) % n;
          task.add(static_cast<int>(from), c.out + from * chunk, chunk, false);
          task.add(static_cast<int>(to), const_cast<std::byte*>(c.in) + to * chunk, chunk, true);
        }
        const std::size_t own = static_cast<std::size_t>(over->rank()) * chunk;
        if (chunk > 0) std::memcpy(c.out + own, c.in + own, chunk);
        return engine->run(task);
      }
      case op_kind::exchange: {
        detail::batch task(*over, engine->max_message());
        for (const auto& t : c.transfers) task.add(t.peer, t.data, t.count, t.sends);
        return engine->run(task);
      }
      case op_kind::reduce: // not one of ours
        break;
      }
    }
  };

  void accept(const stream& s) const {
    expects(s.immediate() || stream_mode() == stream::mode::worker,
            "MPI was initialised below MPI_THREAD_MULTIPLE, so communication must run on the "
            "calling thread: make the "
            "stream with comm.make_stream(), or call MPI_Init_thread with MPI_THREAD_MULTIPLE");
  }
  [[nodiscard]] executor runner() const { return {engine_, link_, tuning_}; }

  progress_engine* engine_;
  std::shared_ptr<const link> link_;
  mpi_control control_;
  tuning tuning_;
};

} // namespace polyrank::host
