// The seam: what an algorithm may ask of a backend and of a communicator. Two models are shipped,
// host memory + MPI (host/) and CUDA + NCCL (cuda/); archetypes.hpp has the smallest ones.
//
// Rules that the syntax cannot say:
// - An operation is enqueued on the stream it names and returns at once; data are touched in stream
//   order. The host learns of completion only through stream.synchronize() or an event.
// - A communicator runs its operations in the order in which the host issued them, whatever stream
//   each names. Every rank of the communicator must issue the same operations in the same order.
// - Collectives are of equal size on every rank. In place is `in.data() == out.data()`, for
//   reduce_scatter and all_gather `in`/`out` at this rank's chunk of the larger one.
// - Spans must stay valid until the operation has run.
//
// Each algorithm requires only the parts it uses: communicator, collectives<T>, point_to_point<T>,
// splittable, windowed, abortable.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/on.hpp>
#include <polyrank/backend/transfer.hpp>
#include <polyrank/core/dtype.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank {

/// A point in the work of a stream. Recording again moves it; waiting on one never recorded is
/// free.
template <class E, class S>
concept event_of = std::default_initializable<E> && std::movable<E> && requires(E& e, S& s) {
  e.record(s);
  e.synchronize(); // the host waits; rethrows what failed before the point
  { e.query() } -> std::same_as<bool>;
};

/// An in-order queue of work.
template <class S, class E>
concept stream_of = requires(S& s, const E& e) {
  s.wait(e);       // later work of s starts after e's point
  s.synchronize(); // the host waits for all work; rethrows what failed
};

/// Element-wise work that algorithms enqueue themselves.
template <class B, class T>
concept element_operations = requires(std::span<const T> a, std::span<T> out, float factor,
                                      std::uint64_t& hash, typename B::stream& s) {
  B::fill(out, T{}, s);
  B::copy(a, out, s);
  B::add(a, a, out, s); // out = a + b; out may be a or b
  B::scale(out, factor, s);
  B::hash(a, hash,
          s); // equal data, equal hash, on one backend; host memory, valid after synchronize
};

/// Conversion between element types.
template <class B, class From, class To>
concept cast_operations =
    requires(std::span<const From> in, std::span<To> out, typename B::stream& s) {
      B::template cast<To, From>(in, out, s);
    };

/// Memory and streams of one kind of device.
template <class B>
concept backend =
    requires {
      typename B::stream;
      typename B::event;
      { B::name } -> std::convertible_to<std::string_view>;
      { B::on_device } -> std::convertible_to<bool>; // true where the host cannot read the memory
      { B::memory() } -> std::same_as<std::pmr::memory_resource&>;
    } && event_of<typename B::event, typename B::stream> &&
    stream_of<typename B::stream, typename B::event>;

/// Out-of-band agreement between the ranks at start-up: small, blocking, with deadlines.
/// Each call is @collective.
template <class C>
concept control_channel =
    requires(C& c, std::string_view bytes, std::int64_t value, std::chrono::milliseconds deadline) {
      { c.rank() } -> std::same_as<int>;
      { c.size() } -> std::same_as<int>;
      { c.all_gather(bytes) } -> std::same_as<std::vector<std::string>>; // lengths may differ
      { c.all_reduce_max(value) } -> std::same_as<std::int64_t>;
      c.barrier(deadline); // throws timeout_error
    };

/// What every communicator has.
template <class C>
concept communicator = backend<typename C::backend> && requires(C& c) {
  { c.rank() } -> std::same_as<int>;
  { c.size() } -> std::same_as<int>;
  { c.make_stream() } -> std::same_as<typename C::backend::stream>; // one made for communication
  requires control_channel<std::remove_cvref_t<decltype(c.control())>>;
};

template <class C, class T>
concept collectives =
    communicator<C> && requires(C& c, std::span<const T> in, std::span<T> out, reduce_op op,
                                int root, on<typename C::backend::stream> where) {
      c.all_reduce(in, out, op, where);     // in.size() == out.size()
      c.reduce_scatter(in, out, op, where); // in.size() == size * out.size()
      c.all_gather(in, out, where);         // out.size() == size * in.size()
      c.all_to_all(in, out, where);         // both size * chunk; not in place
      c.broadcast(out, root, where);
    };

template <class C, class T>
concept point_to_point = communicator<C> && requires(C& c, std::span<const transfer<T>> batch,
                                                     on<typename C::backend::stream> where) {
  c.exchange(batch, where); // all transfers progress together
};

/// Sub-communicators: ranks of one colour, ordered by key. @collective
template <class C>
concept splittable = communicator<C> && requires(C& c, int colour, int key) {
  { c.split(colour, key) } -> std::same_as<C>;
};

/// Memory that the transport reaches directly once all ranks have registered it. The window is
/// empty where one rank has a refusal; it goes before the memory.
template <class C>
concept windowed =
    communicator<C> && requires(C& c, void* memory, std::size_t bytes, std::string refusal) {
      { c.window_memory() } -> std::same_as<std::pmr::memory_resource&>;
      { c.register_window(memory, bytes, refusal) } -> std::same_as<typename C::window>;
      { std::declval<typename C::window>().registered() } -> std::same_as<bool>;
    };

/// One rank can end the waiting of all: their operations fail with aborted_error{cause}.
template <class C>
concept abortable = communicator<C> && requires(C& c, std::string_view cause) {
  { c.abort(cause) } noexcept;
  c.check(); // throws aborted_error if some rank has aborted
};

} // namespace polyrank
