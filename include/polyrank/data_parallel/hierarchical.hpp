// Reduce policy: first inside a host, then across hosts. Each link carries what it is good at: the
// fast links inside a host see the whole bucket, the slow ones between hosts 1/(ranks per host) of
// it.
//
//     auto inside = comm.split(host_number, comm.rank());    // the ranks of my host
//     auto across = comm.split(inside.rank(), comm.rank());  // my counterparts on the other hosts
//     grad_sync sync(comm, params, hierarchical{inside, across});
//
// reduce_scatter inside, all_reduce of one chunk across, all_gather inside. The two communicators
// must outlive grad_sync. Every host must have the same number of ranks, or else the result would
// be wrong: that is checked at construction.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/data_parallel/reduce_policy.hpp>

#include <cstddef>
#include <span>
#include <string_view>

namespace polyrank {

template <communicator Comm>
class hierarchical {
 public:
  static constexpr std::string_view name = "hierarchical";

  hierarchical(Comm& inside, Comm& across) : inside_(&inside), across_(&across) {}

  /// Throws usage_error unless inside x across is the whole communicator.
  [[nodiscard]] std::size_t blocks_per_rank(int ranks) const {
    expects(inside_->size() * across_->size() == ranks, "hierarchical: ", inside_->size(),
            " ranks inside x ", across_->size(), " across are not the ", ranks,
            " ranks of the communicator; every host needs the same number of ranks");
    return 0;
  }
  [[nodiscard]] static constexpr std::size_t scratch(std::size_t, int) noexcept { return 0; }

  template <class C, element G>
    requires collectives<Comm, G>
  void issue(C&, std::span<G> data, std::span<G>, on<typename C::backend::stream> where) const {
    const auto n = static_cast<std::size_t>(inside_->size()), chunk = data.size() / n;
    const std::span<G> body = data.first(chunk * n), odd = data.subspan(chunk * n);
    if (chunk > 0) {
      const auto mine = body.subspan(static_cast<std::size_t>(inside_->rank()) * chunk, chunk);
      inside_->template reduce_scatter<G>(body, mine, reduce_op::sum, where);
      across_->template all_reduce<G>(mine, mine, reduce_op::sum, where);
      inside_->template all_gather<G>(mine, body, where);
    }
    if (!odd.empty()) {
      inside_->template all_reduce<G>(odd, odd, reduce_op::sum, where);
      across_->template all_reduce<G>(odd, odd, reduce_op::sum, where);
    }
  }

 private:
  Comm* inside_;
  Comm* across_;
};

} // namespace polyrank
