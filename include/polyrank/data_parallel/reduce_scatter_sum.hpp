// Reduce policy: reduce-scatter, then all-gather. The same bytes as an all-reduce, in two halves:
// the first is what sharded optimizers need, and either half may use an algorithm of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/data_parallel/reduce_policy.hpp>

#include <cstddef>
#include <span>
#include <string_view>

namespace polyrank {

struct reduce_scatter_sum {
  static constexpr std::string_view name = "reduce_scatter_sum";

  [[nodiscard]] static constexpr std::size_t blocks_per_rank(int) noexcept { return 0; }
  [[nodiscard]] static constexpr std::size_t scratch(std::size_t, int) noexcept { return 0; }

  /// In place.
  template <class C, element G>
    requires collectives<C, G>
  void issue(C& comm, std::span<G> data, std::span<G> scratch,
             on<typename C::backend::stream> where) const {
    scatter(comm, data, scratch, where);
    gather(comm, data, scratch, where);
  }

  /// The first half: returns the sums of this rank's part of `data`. What does not divide by the
  /// ranks belongs to the last one.
  template <class C, element G>
    requires collectives<C, G>
  std::span<G> scatter(C& comm, std::span<G> data, std::span<G>,
                       on<typename C::backend::stream> where) const {
    const auto [chunk, body, odd] = cut(comm, data);
    const auto begin = static_cast<std::size_t>(comm.rank()) * chunk;
    if (chunk > 0)
      comm.template reduce_scatter<G>(body, body.subspan(begin, chunk), reduce_op::sum, where);
    if (!odd.empty()) comm.template all_reduce<G>(odd, odd, reduce_op::sum, where);
    return comm.rank() + 1 == comm.size() ? data.subspan(begin) : data.subspan(begin, chunk);
  }

  /// The second half: every rank's part to all.
  template <class C, element G>
    requires collectives<C, G>
  void gather(C& comm, std::span<G> data, std::span<G>,
              on<typename C::backend::stream> where) const {
    const auto [chunk, body, odd] = cut(comm, data);
    const auto begin = static_cast<std::size_t>(comm.rank()) * chunk;
    if (chunk > 0) comm.template all_gather<G>(body.subspan(begin, chunk), body, where);
    if (!odd.empty()) comm.template broadcast<G>(odd, comm.size() - 1, where);
  }

 private:
  template <element G>
  struct parts {
    std::size_t chunk;      // of a rank
    std::span<G> body, odd; // what divides by the ranks, and the rest
  };
  template <class C, element G>
  [[nodiscard]] static parts<G> cut(const C& comm, std::span<G> data) {
    const auto n = static_cast<std::size_t>(comm.size()), chunk = data.size() / n;
    return {chunk, data.first(chunk * n), data.subspan(chunk * n)};
  }
};

} // namespace polyrank
