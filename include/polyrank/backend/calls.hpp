// The typed front that every communicator shares: checks sizes and ranks, takes the element type
// off, and hands one untyped `call` to the communicator that carries it out.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/on.hpp>
#include <polyrank/backend/transfer.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/operation.hpp>

#include <cstddef>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace polyrank::detail {

/// One operation, stripped of its element type.
struct call {
  operation what; ///< its tag points into the caller's text: copy what must outlive the call
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::vector<transfer<std::byte>> transfers; ///< exchange only; counts in bytes
};

/// Base of the communicators. `Derived` has rank(), size() and issue(call, on<Stream>).
template <class Derived, class Stream>
class typed_calls {
 public:
  /// out = op over all ranks' in. @collective
  template <element T>
  void all_reduce(std::span<const std::type_identity_t<T>> in, std::span<T> out, reduce_op op,
                  on<Stream> where) {
    expects(in.size() == out.size(), "all_reduce: in has ", in.size(), " elements, out has ",
            out.size());
    collective<T>(op_kind::all_reduce, in.data(), out.data(), out.size(), where, op);
  }

  /// out = chunk `rank` of the reduction; in.size() == size() * out.size(). @collective
  template <element T>
  void reduce_scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, reduce_op op,
                      on<Stream> where) {
    expects(in.size() == out.size() * ranks(), "reduce_scatter: in has ", in.size(),
            " elements, out has ", out.size(), "; in must be ", ranks(), " (ranks) times out");
    collective<T>(op_kind::reduce_scatter, in.data(), out.data(), out.size(), where, op);
  }

  /// out = in of rank 0, of rank 1, ...; out.size() == size() * in.size(). @collective
  template <element T>
  void all_gather(std::span<const std::type_identity_t<T>> in, std::span<T> out, on<Stream> where) {
    expects(out.size() == in.size() * ranks(), "all_gather: in has ", in.size(),
            " elements, out has ", out.size(), "; out must be ", ranks(), " (ranks) times in");
    collective<T>(op_kind::all_gather, in.data(), out.data(), in.size(), where);
  }

  /// Chunk r of `out` = chunk `rank` of rank r's `in`; not in place. @collective
  template <element T>
  void all_to_all(std::span<const std::type_identity_t<T>> in, std::span<T> out, on<Stream> where) {
    expects(in.size() == out.size() && in.size() % ranks() == 0, "all_to_all: in has ", in.size(),
            " elements, out has ", out.size(), "; both must be the same multiple of ", ranks(),
            " (ranks)");
    expects(in.data() != out.data() || in.empty(),
            "all_to_all: in and out must be different memory");
    collective<T>(op_kind::all_to_all, in.data(), out.data(), in.size() / ranks(), where);
  }

  /// data of `root` on every rank. @collective
  template <element T>
  void broadcast(std::span<T> data, int root, on<Stream> where) {
    expects(root >= 0 && root < self().size(), "broadcast: root ", root, " is not a rank of ",
            self().size());
    collective<T>(op_kind::broadcast, data.data(), data.data(), data.size(), where, reduce_op::sum,
                  root);
  }

  /// All transfers of `batch`, progressing together; peers must issue the matching ones. Messages
  /// between two ranks are matched in order.
  template <element T>
  void exchange(std::span<const transfer<T>> batch, on<Stream> where) {
    call c;
    c.what = {.kind = op_kind::exchange, .type = dtype_of<T>};
    const auto way = [](const transfer<T>& t) {
      return t.sends ? direction::send : direction::receive;
    };
    if (batch.size() == 1 || batch.size() == 2) { // more are not told one by one
      c.what.peer = batch[0].peer;
      c.what.way = way(batch[0]);
    }
    if (batch.size() == 2) {
      c.what.second_peer = batch[1].peer;
      c.what.second_way = way(batch[1]);
    }
    c.transfers.reserve(batch.size());
    for (const transfer<T>& t : batch) {
      expects(t.peer >= 0 && t.peer < self().size(), "exchange: peer ", t.peer,
              " is not a rank of ", self().size());
      c.transfers.push_back(
          {t.peer, reinterpret_cast<std::byte*>(t.data), t.count * sizeof(T), t.sends});
      c.what.count += t.count;
    }
    self().issue(std::move(c), where);
  }
  template <element T>
  void exchange(std::initializer_list<transfer<T>> batch, on<Stream> where) {
    exchange(std::span<const transfer<T>>(batch.begin(), batch.size()), where);
  }

 private:
  Derived& self() noexcept { return static_cast<Derived&>(*this); }
  std::size_t ranks() noexcept { return static_cast<std::size_t>(self().size()); }

  template <element T>
  void collective(op_kind kind, const T* in, T* out, std::size_t count, on<Stream> where,
                  reduce_op op = reduce_op::sum, int root = -1) {
    call c;
    c.what = {.kind = kind, .type = dtype_of<T>, .op = op, .peer = root, .count = count};
    c.in = reinterpret_cast<const std::byte*>(in);
    c.out = reinterpret_cast<std::byte*>(out);
    self().issue(std::move(c), where);
  }
};

} // namespace polyrank::detail
