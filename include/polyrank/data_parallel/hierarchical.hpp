// Reduce policy: first inside a host, then across hosts. Each link carries what it is good at: the
// fast links inside a host see the whole bucket, the slow ones between hosts 1/(ranks per host) of
// it.
//
//     auto inside = comm.split(host_number, comm.rank());    // the ranks of my host
//     auto across = comm.split(inside.rank(), comm.rank());  // my counterparts on the other hosts
//     grad_sync sync(comm, params, hierarchical{inside, across});
//
// A reduce-scatter inside, an all-reduce of one chunk across, an all-gather inside. The two
// communicators must outlive grad_sync. Every host must have the same number of ranks, or else the
// result would be wrong: that is checked at construction. A third argument is the policy inside,
// one with two halves: reduce_scatter_sum (default), or all_to_all_sum<bf16>{}, which sends 16 bits
// inside and sums in fp32.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/data_parallel/reduce_scatter_sum.hpp>

#include <cstddef>
#include <span>
#include <string_view>

namespace polyrank {

template <communicator Comm, class Inside = reduce_scatter_sum>
class hierarchical {
 public:
  static constexpr std::string_view name = "hierarchical";

  hierarchical(Comm& inside, Comm& across, Inside policy = {})
      : inside_(&inside), across_(&across), policy_(policy) {}

  /// Throws what the policy inside does. @collective
  template <class C>
  void check(C&) const {
    if constexpr (requires { policy_.check(*inside_); }) policy_.check(*inside_);
  }

  /// Throws usage_error unless inside x across is the whole communicator.
  [[nodiscard]] std::size_t blocks_per_rank(int ranks) const {
    expects(inside_->size() * across_->size() == ranks, "hierarchical: ", inside_->size(),
            " ranks inside x ", across_->size(), " across are not the ", ranks,
            " ranks of the communicator; every host needs the same number of ranks");
    return 0;
  }
  [[nodiscard]] std::size_t scratch(std::size_t count, int) const {
    return policy_.scratch(count, inside_->size());
  }

  template <class C, element G>
    requires collectives<Comm, G> && detail::issues<Inside, Comm, G>
  void issue(C&, std::span<G> data, std::span<G> scratch,
             on<typename C::backend::stream> where) const {
    const std::span<G> mine = policy_.scatter(*inside_, data, scratch, where);
    if (!mine.empty()) across_->template all_reduce<G>(mine, mine, reduce_op::sum, where);
    policy_.gather(*inside_, data, scratch, where);
  }

 private:
  Comm* inside_;
  Comm* across_;
  Inside policy_;
};

} // namespace polyrank
