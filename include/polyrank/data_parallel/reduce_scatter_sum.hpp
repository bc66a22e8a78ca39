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

  /// In place. What does not divide by the ranks, less than one element each, goes by all_reduce.
  template <class C, element G>
    requires collectives<C, G>
  void issue(C& comm, std::span<G> data, std::span<G>,
             on<typename C::backend::stream> where) const {
    const auto n = static_cast<std::size_t>(comm.size()), chunk = data.size() / n;
    const std::span<G> body = data.first(chunk * n), odd = data.subspan(chunk * n);
    if (chunk > 0) {
      const auto mine = body.subspan(static_cast<std::size_t>(comm.rank()) * chunk, chunk);
      comm.template reduce_scatter<G>(body, mine, reduce_op::sum, where);
      comm.template all_gather<G>(mine, body, where);
    }
    if (!odd.empty()) comm.template all_reduce<G>(odd, odd, reduce_op::sum, where);
  }
};

} // namespace polyrank
