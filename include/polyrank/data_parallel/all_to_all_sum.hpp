// Reduce policy: 16 bits on the wire, sums in fp32, in rank order.
//
// A ring adds in the wire's type at every hop, so its error grows with the number of ranks. Here
// each rank sends chunk r of its gradient to rank r (all-to-all), rank r adds the n contributions
// in fp32 in rank order, and the rounded sums are gathered. As many bytes as a ring of the same
// wire type; each contribution is rounded to the wire once, the sum once more:
//
//     |result - sum| <= u * (sum of |contributions| + |sum|) + n * 2^-24 * sum of |contributions|
//
// with u = 2^-8 for bf16 and 2^-11 for fp16 (their unit roundoffs; fp16 without underflow). With
// Wire = float there is no rounding but that of the fp32 sum. The order is fixed, so a run repeats
// its bits; another number of ranks gives others (see `deterministic`).
//
// Not for slow links between machines: an all-to-all sends (n - ranks per host) / n of the data
// across, a ring only 1 / (ranks per host) of that. Use hierarchical there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/partition.hpp>
#include <polyrank/data_parallel/reduce_policy.hpp>

#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>

namespace polyrank {

template <element Wire = bf16>
struct all_to_all_sum {
  static constexpr std::string_view name = std::is_same_v<Wire, bf16>   ? "all_to_all_sum<bf16>"
                                           : std::is_same_v<Wire, fp16> ? "all_to_all_sum<fp16>"
                                                                        : "all_to_all_sum<float>";

  [[nodiscard]] static constexpr std::size_t blocks_per_rank(int) noexcept { return 0; }

  /// Elements of G = float: send and receive buffers on the wire's type, one chunk of sums and one
  /// of converted contributions.
  [[nodiscard]] static constexpr std::size_t scratch(std::size_t count, int ranks) noexcept {
    const auto n = static_cast<std::size_t>(ranks), chunk = ceil_div(count, n);
    return 2 * wire_floats(n * chunk) + 2 * chunk;
  }

  template <class C>
    requires(collectives<C, Wire> && cast_operations<typename C::backend, float, Wire>)
  void issue(C& comm, std::span<float> data, std::span<float> scratch,
             on<typename C::backend::stream> where) const {
    using backend = typename C::backend;
    const auto n = static_cast<std::size_t>(comm.size()), chunk = ceil_div(data.size(), n);
    if (chunk == 0) return;
    const std::size_t wire = wire_floats(n * chunk);
    const std::span<Wire> out{reinterpret_cast<Wire*>(scratch.data()), n * chunk};
    const std::span<Wire> in{reinterpret_cast<Wire*>(scratch.data() + wire), n * chunk};
    const std::span<float> sum = scratch.subspan(2 * wire, chunk),
                           one = scratch.subspan(2 * wire + chunk, chunk);

    cast<backend, Wire, float>(data, out.first(data.size()), where.stream);
    backend::template fill<Wire>(out.subspan(data.size()), Wire{},
                                 where.stream); // padding counts as 0
    comm.template all_to_all<Wire>(out, in, where);
    cast<backend, float, Wire>(in.first(chunk), sum, where.stream);
    for (std::size_t r = 1; r < n; ++r) {
      cast<backend, float, Wire>(in.subspan(r * chunk, chunk), one, where.stream);
      backend::template add<float>(sum, one, sum, where.stream);
    }
    const auto mine = out.subspan(static_cast<std::size_t>(comm.rank()) * chunk, chunk);
    cast<backend, Wire, float>(sum, mine, where.stream);
    comm.template all_gather<Wire>(mine, out, where);
    cast<backend, float, Wire>(out.first(data.size()), data, where.stream);
  }

 private:
  [[nodiscard]] static constexpr std::size_t wire_floats(std::size_t count) noexcept {
    return ceil_div(count * sizeof(Wire), sizeof(float));
  }
  template <class B, element To, element From>
  static void cast(std::span<const From> in, std::span<To> out, typename B::stream& s) {
    if constexpr (std::is_same_v<To, From>)
      B::template copy<To>(in, out, s);
    else
      B::template cast<To, From>(in, out, s);
  }
};

} // namespace polyrank
