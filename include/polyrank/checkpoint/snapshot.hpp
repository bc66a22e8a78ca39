// Copies a state into the saver's memory while compute goes on: on a stream of its own, behind the
// work that made the state. Only what changes the state has to wait for the copy.
//
//     checkpoint::snapshot<cuda::backend> copies;
//     copies.begin(compute);                               // after the update just enqueued
//     saver.save(step, notes, tensors, mine,
//                [&](const fragment& f, std::span<std::byte> out) { copies.take(state_at(f), out); },
//                &copies);
//     ... forward and backward of the next step on `compute` ...
//     copies.hold(compute);                                // the next update comes after the copy
//
// The copy overlaps with compute where the saver's memory is pinned (saver_options::memory).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace polyrank::checkpoint {

template <backend B>
class snapshot {
 public:
  using stream = typename B::stream;
  using event = typename B::event;

  explicit snapshot(stream s = stream()) : stream_(std::move(s)) {}
  snapshot(const snapshot&) = delete;
  snapshot& operator=(const snapshot&) = delete;

  /// What is taken from now on is the state after all work that `compute` has so far.
  void begin(stream& compute) {
    made_.record(compute);
    stream_.wait(made_);
  }
  /// Enqueues the copy of `from`; `to` has as many bytes and is aligned for T.
  template <element T>
  void take(std::span<const T> from, std::span<std::byte> to) {
    B::template copy<T>(from, std::span(reinterpret_cast<T*>(to.data()), from.size()), stream_);
  }
  /// The copy ends here. saver::save() calls it.
  void close() { taken_.record(stream_); }
  /// Later work of `s` may change the state.
  void hold(stream& s) const { s.wait(taken_); }
  /// Waits for the copy; on a thread of the saver's own, which calls it.
  void arrive() const {
    if constexpr (requires { B::enter(stream_); }) B::enter(stream_);
    taken_.synchronize();
  }
  /// The caller waits for the copy.
  void synchronize() const { taken_.synchronize(); }

 private:
  stream stream_;
  event made_, taken_;
};

} // namespace polyrank::checkpoint
