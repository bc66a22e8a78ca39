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
// Not for the links between machines: an all-to-all sends (n - ranks per host) / n of the data
// across for each rank, a ring only 1 / (ranks per host) of that. So ranks on several hosts are
// refused at construction, unless you say that their links are good enough (GPUs of several hosts
// in one NVLink domain; one rank per host, where the two are alike):
//
//     grad_sync sync(comm, params, all_to_all_sum<bf16>{.across_hosts = true});
//     grad_sync sync(comm, params, hierarchical{inside, across, all_to_all_sum<bf16>{}});
//
// The second sends 16 bits inside each host, and the sums of one chunk a rank, in fp32, across.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/hosts.hpp>
#include <polyrank/core/partition.hpp>
#include <polyrank/data_parallel/reduce_policy.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace polyrank {

template <element Wire = bf16>
struct all_to_all_sum {
  static constexpr std::string_view name = std::is_same_v<Wire, bf16>   ? "all_to_all_sum<bf16>"
                                           : std::is_same_v<Wire, fp16> ? "all_to_all_sum<fp16>"
                                                                        : "all_to_all_sum<float>";

  bool across_hosts = false; ///< true: allow ranks on several hosts

  /// Throws usage_error on every rank where they are on several hosts, unless that is allowed.
  /// @collective
  template <class C>
  void check(C& comm) const {
    const std::vector<std::string> hosts = host_names(comm.control());
    if (hosts.size() > 1 && !across_hosts)
      throw on_every_rank(
          usage_error(detail::cat(name, ": the ranks are on ", hosts.size(), " hosts (", hosts[0],
                                  ", ", hosts[1], hosts.size() > 2 ? ", ...)" : ")",
                                  ", and an all-to-all would send far more between them "
                                  "than a ring; use hierarchical{inside, across, ",
                                  name,
                                  "{}}, or set across_hosts = true "
                                  "where all are in one NVLink domain")));
  }

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
    scatter(comm, data, scratch, where);
    gather(comm, data, scratch, where);
  }

  /// The first half. Returns the sums of this rank's chunk, in `scratch`: as many on every rank,
  /// zeros behind the end of `data`.
  template <class C>
    requires(collectives<C, Wire> && cast_operations<typename C::backend, float, Wire>)
  std::span<float> scatter(C& comm, std::span<float> data, std::span<float> scratch,
                           on<typename C::backend::stream> where) const {
    using backend = typename C::backend;
    const auto [n, chunk, out, in, sum, one] = plan(comm, data, scratch);
    if (chunk == 0) return {};
    cast<backend, Wire, float>(data, out.first(data.size()), where.stream);
    backend::template fill<Wire>(out.subspan(data.size()), Wire{},
                                 where.stream); // padding counts as 0
    comm.template all_to_all<Wire>(out, in, where);
    cast<backend, float, Wire>(in.first(chunk), sum, where.stream);
    for (std::size_t r = 1; r < n; ++r) {
      cast<backend, float, Wire>(in.subspan(r * chunk, chunk), one, where.stream);
      backend::template add<float>(sum, one, sum, where.stream);
    }
    return sum;
  }

  /// The second half: what scatter() returned, of every rank, rounded, into `data`.
  template <class C>
    requires(collectives<C, Wire> && cast_operations<typename C::backend, float, Wire>)
  void gather(C& comm, std::span<float> data, std::span<float> scratch,
              on<typename C::backend::stream> where) const {
    using backend = typename C::backend;
    const auto [n, chunk, out, in, sum, one] = plan(comm, data, scratch);
    if (chunk == 0) return;
    const auto mine = out.subspan(static_cast<std::size_t>(comm.rank()) * chunk, chunk);
    cast<backend, Wire, float>(sum, mine, where.stream);
    comm.template all_gather<Wire>(mine, out, where);
    cast<backend, float, Wire>(out.first(data.size()), data, where.stream);
  }

 private:
  struct parts {
    std::size_t ranks, chunk;
    std::span<Wire> out, in;   // a chunk for each rank
    std::span<float> sum, one; // a chunk
  };
  template <class C>
  [[nodiscard]] static parts plan(const C& comm, std::span<float> data, std::span<float> scratch) {
    const auto n = static_cast<std::size_t>(comm.size()), chunk = ceil_div(data.size(), n);
    const std::size_t wire = wire_floats(n * chunk);
    return {n,
            chunk,
            {reinterpret_cast<Wire*>(scratch.data()), n * chunk},
            {reinterpret_cast<Wire*>(scratch.data() + wire), n * chunk},
            scratch.subspan(2 * wire, chunk),
            scratch.subspan(2 * wire + chunk, chunk)};
  }
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
