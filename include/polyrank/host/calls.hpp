// What the host communicators share beneath the typed front: the flight recorder, the issue order,
// and handing each call to whoever carries it out (MPI or loopback) on the stream's thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/calls.hpp>
#include <polyrank/hang/flight_recorder.hpp>
#include <polyrank/host/stream.hpp>
#include <polyrank/host/timeline.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace polyrank::host::detail {

/// A call on its way to the stream's thread.
struct call : polyrank::detail::call {
  std::string name; ///< for messages: all_reduce #3 "bucket 0"
};

/// Base of the host communicators. `Derived` has rank(), size() and
/// `std::function-like runner() -> copyable object with operator()(call&)`, which blocks until
/// done.
template <class Derived>
class calls : public polyrank::detail::typed_calls<calls<Derived>, stream> {
 public:
  /// From now on every operation is a span of `line` (null: no more), which must outlive it.
  void trace(timeline* line) noexcept { trace_ = line; }

 protected:
  calls(std::uint32_t id, hang::flight_recorder* recorder) : recorder_(recorder) {
    history_.id = id;
  }

  /// Tells the recorder who belongs together: the ranks of the world in this communicator's order.
  void announce(std::span<const int> members, int rank) {
    if (recorder_ != nullptr) recorder_->attach(history_.id, members, rank);
  }

  [[nodiscard]] std::uint32_t id() const noexcept { return history_.id; }
  [[nodiscard]] hang::flight_recorder* recorder() const noexcept { return recorder_; }

 private:
  friend class polyrank::detail::typed_calls<calls<Derived>, stream>;

  Derived& self() noexcept { return static_cast<Derived&>(*this); }
  [[nodiscard]] int size() noexcept { return self().size(); }

  void issue(polyrank::detail::call asked, on<stream> where) {
    call c{{std::move(asked)}, {}};
    c.what.tag = where.tag;
    c.what.site = where.site;
    self().accept(where.stream); // throws where the stream cannot serve
    hang::flight_recorder::ticket ticket = 0;
    if (recorder_ != nullptr)
      ticket = recorder_->enter(history_, c.what);
    else
      history_.extend(c.what);
    c.name = polyrank::detail::cat(name_of(c.what.kind), " #", history_.number(c.what.kind));
    if (!where.tag.empty()) c.name += polyrank::detail::cat(" \"", where.tag, '"');
    c.what.tag = {};
    // One communicator, one order: an operation on another stream starts after its predecessor.
    if (last_stream_ != where.stream.id()) where.stream.wait(last_);
    const timeline::scope span(trace_, where.stream,
                               where.tag.empty() ? name_of(c.what.kind) : where.tag,
                               span_kind::communication);
    where.stream.enqueue(
        [c = std::move(c), ticket, recorder = recorder_, run = self().runner()]() mutable {
          if (recorder != nullptr) recorder->start(ticket);
          run(c);
          if (recorder != nullptr) recorder->done(ticket);
        });
    last_.record(where.stream);
    last_stream_ = where.stream.id();
  }

  hang::comm_history history_;
  hang::flight_recorder* recorder_;
  timeline* trace_ = nullptr;
  event last_;
  const void* last_stream_ = nullptr;
};

} // namespace polyrank::host::detail
