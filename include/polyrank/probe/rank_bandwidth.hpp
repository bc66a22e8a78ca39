// Latency and bandwidth between each pair of ranks over the host backend, data verified before
// anything is timed, and the cost model that fits them.
//
// With up to eight ranks one pair runs at a time; with more, disjoint pairs run together (a
// round-robin tournament: n - 1 rounds for n ranks).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/core/cost_model.hpp>
#include <polyrank/core/hash.hpp>
#include <polyrank/probe/judge_ranks.hpp>
#include <polyrank/probe/report.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::probe {

/// Rounds of disjoint pairs that cover all pairs of n ranks (the circle method). Up to `alone`
/// ranks, one pair a round.
[[nodiscard]] inline std::vector<std::vector<std::pair<int, int>>> pair_rounds(int n,
                                                                               int alone = 8) {
  std::vector<std::vector<std::pair<int, int>>> out;
  const int even = n + n % 2;
  for (int r = 0; r + 1 < even; ++r) {
    std::vector<std::pair<int, int>> round;
    for (int i = 0; i < even / 2; ++i) {
      const int a = i == 0 ? even - 1 : (r + i) % (even - 1);
      const int b = (r + even - 1 - i) % (even - 1);
      if (a < n && b < n) round.emplace_back(std::min(a, b), std::max(a, b));
    }
    if (n > alone)
      out.push_back(std::move(round));
    else
      for (const auto& p : round) out.push_back({p});
  }
  return out;
}

namespace detail {

[[nodiscard]] inline double median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

/// Ping-pong between this rank and `peer`; `leads` sends first.
template <class Comm, class Stream>
rank_link ping_pong(Comm& comm, Stream& stream, int peer, bool leads, std::size_t large) {
  rank_link link;
  link.a = std::min(comm.rank(), peer);
  link.b = std::max(comm.rank(), peer);
  std::vector<std::uint8_t> out(large), in(large);
  const auto seed = static_cast<std::uint64_t>(link.a) << 32 | static_cast<std::uint64_t>(link.b);
  const auto pattern = [&](std::vector<std::uint8_t>& v, std::uint64_t who) {
    for (std::size_t i = 0; i < v.size(); ++i)
      v[i] = static_cast<std::uint8_t>(mix(seed + who * 7919 + i / 8) >> i % 8 * 8);
  };
  const auto send = [&](std::size_t n) {
    comm.template exchange<std::uint8_t>(
        {send_to(peer, std::span<const std::uint8_t>(out.data(), n))}, on(stream, "probe"));
    stream.synchronize();
  };
  const auto receive = [&](std::size_t n) {
    comm.template exchange<std::uint8_t>(
        {receive_from(peer, std::span<std::uint8_t>(in.data(), n))}, on(stream, "probe"));
    stream.synchronize();
  };
  const auto round_trips = [&](std::size_t bytes, int n) {
    std::vector<double> seconds;
    for (int i = 0; i < n; ++i) {
      const auto start = std::chrono::steady_clock::now();
      leads ? send(bytes) : receive(bytes);
      leads ? receive(bytes) : send(bytes);
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / 2);
    }
    return median(std::move(seconds));
  };
  pattern(out, static_cast<std::uint64_t>(comm.rank()));
  static_cast<void>(round_trips(large, 1));
  std::vector<std::uint8_t> want(large);
  pattern(want, static_cast<std::uint64_t>(peer));
  link.data_ok = in == want;
  link.seconds = round_trips(8, 30);
  const double whole = round_trips(large, 3);
  link.bytes_per_s = static_cast<double>(large) / std::max(whole - link.seconds, 1e-9);
  return link;
}

} // namespace detail

/// Measures all pairs; every rank returns all links, ordered by (a, b). @collective
template <class Comm>
  requires point_to_point<Comm, std::uint8_t>
[[nodiscard]] std::vector<rank_link>
measure_rank_links(Comm& comm, const std::vector<rank_facts>& ranks, std::size_t large = 4 << 20) {
  auto stream = comm.make_stream();
  std::vector<rank_link> mine;
  for (const auto& round : pair_rounds(comm.size())) {
    for (const auto& [a, b] : round)
      if (comm.rank() == a || comm.rank() == b) {
        const bool leads = comm.rank() == a;
        rank_link link = detail::ping_pong(comm, stream, leads ? b : a, leads, large);
        link.same_host =
            ranks[static_cast<std::size_t>(a)].host == ranks[static_cast<std::size_t>(b)].host;
        mine.push_back(link);
      }
    comm.control().barrier(std::chrono::minutes(5)); // the next pair starts on a quiet machine
  }
  const std::string bytes(reinterpret_cast<const char*>(mine.data()),
                          mine.size() * sizeof(rank_link));
  std::vector<rank_link> out;
  for (const std::string& words : comm.control().all_gather(bytes)) {
    std::vector<rank_link> theirs(words.size() / sizeof(rank_link));
    if (!theirs.empty())
      std::memcpy(theirs.data(), words.data(), theirs.size() * sizeof(rank_link));
    for (const rank_link& l : theirs) {
      const auto known = std::find_if(out.begin(), out.end(),
                                      [&](const rank_link& o) { return o.a == l.a && o.b == l.b; });
      if (known == out.end())
        out.push_back(l);
      else {
        known->data_ok = known->data_ok && l.data_ok;
        known->seconds = std::max(known->seconds, l.seconds);
        known->bytes_per_s = std::min(known->bytes_per_s, l.bytes_per_s);
      }
    }
  }
  std::sort(out.begin(), out.end(), [](const rank_link& x, const rank_link& y) {
    return std::pair(x.a, x.b) < std::pair(y.a, y.b);
  });
  return out;
}

/// The cost model of the links within hosts, or of those between them: medians. Nothing where there
/// are none.
[[nodiscard]] inline std::optional<cost_model> fit_cost_model(const std::vector<rank_link>& links,
                                                              bool same_host) {
  std::vector<double> alpha, beta;
  for (const rank_link& l : links)
    if (l.same_host == same_host) {
      alpha.push_back(l.seconds);
      beta.push_back(l.bytes_per_s);
    }
  if (alpha.empty()) return std::nullopt;
  return cost_model{detail::median(std::move(alpha)), detail::median(std::move(beta))};
}

/// Corrupt data, and links at less than a quarter of the median of their kind.
[[nodiscard]] inline std::vector<finding> judge_rank_links(const std::vector<rank_link>& links,
                                                           const std::vector<rank_facts>& ranks) {
  using polyrank::detail::cat;
  std::vector<finding> out;
  for (const bool same : {true, false}) {
    std::vector<double> rates;
    for (const rank_link& l : links)
      if (l.same_host == same) rates.push_back(l.bytes_per_s);
    const double usual = detail::median(std::move(rates));
    for (const rank_link& l : links) {
      if (l.same_host != same) continue;
      const std::string who =
          cat("ranks ", l.a, " and ", l.b, " (", ranks[static_cast<std::size_t>(l.a)].host, ", ",
              ranks[static_cast<std::size_t>(l.b)].host, ")");
      if (!l.data_ok) out.push_back({"rank_data_corrupt", who, l.b, ""});
      if (l.bytes_per_s < usual / 4)
        out.push_back({"rank_link_slow",
                       cat(who, ": ", static_cast<std::int64_t>(l.bytes_per_s / 1e6),
                           " MB/s, its peers ", static_cast<std::int64_t>(usual / 1e6), " MB/s"),
                       -1, ""});
    }
  }
  return out;
}

} // namespace polyrank::probe
