// How a bucket of gradients becomes the sum over all ranks. A policy is a small value that enqueues
// work on one stream; grad_sync calls it once per bucket. It always sums and never divides.
//
//   all_reduce_sum       the communicator's own all_reduce: fastest; bits may depend on the ranks
//   deterministic        a fixed tree over `blocks` logical blocks of the global batch: the same
//   bits
//                        for every number of ranks that divides `blocks`
//   local_only           no communication
//   reduce_scatter_sum   all_to_all_sum   error_feedback   hierarchical   in headers of their own
//
// A policy of one's own is a struct with a name and the three functions of all_reduce_sum below; a
// collective `check(comm)` may refuse ranks that it is not for, once all have the same model.
//
// Deterministic mode. The global batch is cut into L = `blocks` equal blocks; rank r of N owns
// blocks [rL/N, (r+1)L/N) and computes one gradient per block. The L gradients are the leaves of a
// complete binary tree of additions. The lower log2(L/N) levels are folded on each rank (by
// grad_sync, with a binary counter), the upper log2 N levels by `issue`: exchanges between ranks at
// distance 1, 2, 4 ... The tree is the same for every N, so are the bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/core/error.hpp>

#include <bit>
#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>

namespace polyrank {

namespace detail {

/// A policy with memory of its own per bucket: `kept(count)` elements, zero at the start.
template <class P>
concept keeps_state = requires(const P& p, std::size_t count) {
  { p.kept(count) } -> std::same_as<std::size_t>;
};

template <class P, class C, class G>
concept issues =
    requires(const P& p, C& comm, std::span<G> data, std::span<G> scratch,
             on<typename C::backend::stream> where) { p.issue(comm, data, scratch, where); } ||
    (keeps_state<P> && requires(const P& p, C& comm, std::span<G> data, std::span<G> scratch,
                                on<typename C::backend::stream> where) {
      p.issue(comm, data, data, scratch, where); // (comm, bucket, kept, scratch, where)
    });

} // namespace detail

/// What grad_sync asks of a policy P on communicator C with gradients of type G.
template <class P, class C, class G>
concept reduce_policy = std::copyable<P> && communicator<C> && detail::issues<P, C, G> &&
                        requires(const P& p, int ranks, std::size_t count) {
                          { P::name } -> std::convertible_to<std::string_view>;
                          // 0: microbatches are accumulated. Throws usage_error where it cannot
                          // serve this many ranks.
                          { p.blocks_per_rank(ranks) } -> std::same_as<std::size_t>;
                          {
                            p.scratch(count, ranks)
                          } -> std::same_as<std::size_t>; // elements, for a bucket of `count`
                        };

/// No communication: every rank keeps its own gradients. To measure what communication costs, or
/// for parameters that only exist on this rank.
struct local_only {
  static constexpr std::string_view name = "local_only";

  [[nodiscard]] static constexpr std::size_t blocks_per_rank(int) noexcept { return 0; }
  [[nodiscard]] static constexpr std::size_t scratch(std::size_t, int) noexcept { return 0; }
  template <class C, element G>
  void issue(C&, std::span<G>, std::span<G>, on<typename C::backend::stream>) const noexcept {}
};

struct all_reduce_sum {
  static constexpr std::string_view name = "all_reduce_sum";

  [[nodiscard]] static constexpr std::size_t blocks_per_rank(int) noexcept { return 0; }
  [[nodiscard]] static constexpr std::size_t scratch(std::size_t, int) noexcept { return 0; }

  template <class C, element G>
    requires collectives<C, G>
  void issue(C& comm, std::span<G> data, std::span<G>,
             on<typename C::backend::stream> where) const {
    comm.template all_reduce<G>(data, data, reduce_op::sum, where);
  }
};

struct deterministic {
  static constexpr std::string_view name = "deterministic";

  std::size_t blocks = 8; ///< L: a power of two that the number of ranks divides

  /// L / N. Throws usage_error where the tree cannot be the same for this number of ranks.
  [[nodiscard]] std::size_t blocks_per_rank(int ranks) const {
    const auto n = static_cast<std::size_t>(ranks);
    expects(std::has_single_bit(blocks), "deterministic mode: ", blocks,
            " blocks; the number must be a power of two");
    expects(blocks % n == 0, "deterministic mode: ", ranks, " ranks do not divide ", blocks,
            " blocks; use a power of two of at most ", blocks, " ranks, or more blocks");
    return blocks / n;
  }
  [[nodiscard]] static constexpr std::size_t scratch(std::size_t count, int ranks) noexcept {
    return ranks > 1 ? count : 0;
  }

  template <class C, element G>
    requires point_to_point<C, G>
  void issue(C& comm, std::span<G> data, std::span<G> scratch,
             on<typename C::backend::stream> where) const {
    using backend = typename C::backend;
    const std::span<G> theirs = scratch.first(data.size());
    for (int distance = 1; distance < comm.size(); distance *= 2) {
      const int partner = comm.rank() ^ distance;
      const transfer<G> both[] = {send_to(partner, data), receive_from(partner, theirs)};
      comm.exchange(std::span<const transfer<G>>(both), where);
      const bool mine_first = comm.rank() < partner;
      backend::template add<G>(mine_first ? data : theirs, mine_first ? theirs : data, data,
                               where.stream);
    }
  }
};

} // namespace polyrank
