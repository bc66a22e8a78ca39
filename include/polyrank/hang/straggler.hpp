// Finds a rank that is always the last. Pure.
//
// Clocks of different hosts need not agree: the last to enter a collective is the one that waits
// least in it, and what the others wait longer is what it costs them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/scan.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace polyrank::hang::detail {

struct lateness {
  int rank = -1;                ///< -1: nobody
  std::size_t last = 0, of = 0; ///< collectives in which it was last, of those looked at
  std::uint64_t lost_ns = 0, window_ns = 0;
  record example; ///< the collective that lost most
};

/// A straggler causes at least two thirds of all waiting (over six collectives or more) and costs
/// the others at least a fifth of the time, and `least_ns`, also without its latest arrival. Looks
/// at the last 64 collectives of each communicator.
[[nodiscard]] inline lateness find_straggler(const scene& all, std::uint64_t least_ns) {
  lateness worst;
  for (std::size_t c = 0; c < all.comms.size(); ++c) {
    const comm_state& comm = all.comms[c];
    if (comm.members.size() < 2) continue;
    std::uint64_t common = UINT64_MAX;
    std::vector<const rank_state*> here;
    for (const int m : comm.members) {
      const rank_state* r = all.find(m);
      const position* p = r != nullptr ? r->in(c) : nullptr;
      if (p == nullptr || p->last_seq == 0) break;
      common = std::min(common, p->last_seq);
      here.push_back(r);
    }
    if (here.size() != comm.members.size() || common < 6) continue;
    const std::uint64_t from = common > 64 ? common - 63 : 1;
    const std::size_t n = static_cast<std::size_t>(common - from + 1);
    std::vector<std::uint64_t> wait(n * here.size(), UINT64_MAX);
    std::uint64_t begin = UINT64_MAX, end = 0;
    for (std::size_t h = 0; h < here.size(); ++h) {
      const ring_view& ring = here[h]->from->ring;
      for (std::uint64_t i = ring.next(); i-- > ring.oldest();) {
        if (!ring.holds(i) || ring.comm(i) != comm.id || ring.is_exchange(i)) continue;
        const std::uint64_t seq = ring.seq(i);
        if (seq < from) break;
        const std::uint64_t started = ring.started(i), done = ring.done(i);
        if (seq > common || started == 0 || done < started || ring.in_graph(i)) continue;
        wait[(seq - from) * here.size() + h] = done - started;
        if (h == 0) {
          begin = std::min(begin, ring.entered(i));
          end = std::max(end, done);
        }
      }
    }
    if (end <= begin) continue;
    std::vector<lateness> each(here.size());
    std::vector<std::uint64_t> most(here.size(), 0), most_seq(here.size(), 0);
    std::size_t complete = 0;
    for (std::size_t k = 0; k < n; ++k) {
      const auto row = wait.begin() + static_cast<std::ptrdiff_t>(k * here.size());
      const auto row_end = row + static_cast<std::ptrdiff_t>(here.size());
      if (std::find(row, row_end, UINT64_MAX) != row_end) continue;
      ++complete;
      const auto least = std::min_element(row, row_end);
      const auto h = static_cast<std::size_t>(least - row);
      std::uint64_t next = UINT64_MAX; // the second to last one's wait
      for (auto w = row; w != row_end; ++w)
        if (w != least) next = std::min(next, *w);
      const std::uint64_t lost = next - *least;
      ++each[h].last;
      each[h].lost_ns += lost;
      if (lost >= most[h]) {
        most[h] = lost;
        most_seq[h] = from + k;
      }
    }
    std::uint64_t total = 0;
    for (const lateness& l : each) total += l.lost_ns;
    for (std::size_t h = 0; h < here.size(); ++h) {
      lateness& l = each[h];
      l.of = complete;
      l.window_ns = end - begin;
      const std::uint64_t again = l.lost_ns - most[h]; // once late is not always late
      if (complete < 6 || l.lost_ns * 3 < total * 2 || again * 5 < l.window_ns ||
          again < least_ns || l.lost_ns <= worst.lost_ns)
        continue;
      l.rank = here[h]->from->rank;
      const ring_view& ring = here[h]->from->ring;
      for (std::uint64_t i = ring.oldest(); i < ring.next(); ++i)
        if (ring.holds(i) && ring.comm(i) == comm.id && !ring.is_exchange(i) &&
            ring.seq(i) == most_seq[h])
          ring.read(i, l.example);
      worst = l;
    }
  }
  return worst;
}

} // namespace polyrank::hang::detail
