// Who waits for whom. Pure.
//
// A rank waits in an operation that it has started and not finished; it waits for the members that
// have not started it. A rank that is waited for and waits for nobody is where the trouble begins;
// where there is none, the ranks wait in a circle.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/scan.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace polyrank::hang::detail {

/// Ranks that wait in one operation.
struct wait_group {
  std::size_t comm = 0;
  record what; ///< of the first waiter
  std::vector<int> waiters{};
  std::vector<int> missing{}; ///< for these
};

struct wait_graph {
  std::vector<wait_group> groups;
  std::vector<int> roots;          ///< waited for, waiting for nobody
  std::vector<int> blocked;        ///< have issued something that did not start, and run nothing
  std::vector<std::size_t> circle; ///< groups, where there are no roots
  std::vector<int> circle_ranks;   ///< the waiter of each
};

/// Whether the rank's process can go on at all.
[[nodiscard]] inline bool able(const rank_state& r) noexcept {
  return r.from->process != process_state::dead && r.from->process != process_state::stopped &&
         r.from->process != process_state::unreachable;
}

/// Whether anything is known that could accuse the rank.
[[nodiscard]] inline bool known(const rank_state& r) noexcept { return r.ring() || !able(r); }

/// The operations in which the rank is now. Where `started` only means issued, the oldest one.
[[nodiscard]] inline std::vector<const record*> fronts(const rank_state& r) {
  std::vector<const record*> found;
  if (!able(r)) return found;
  const bool issue = r.ring() && r.from->ring.at(layout::f_issue_starts) != 0;
  for (const record& u : r.unfinished) {
    if (u.started_ns != 0) found.push_back(&u);
    if (issue) break;
  }
  return found;
}

/// Whether the rank has come to the collective `what` of `comm`, in a graph to the same replay.
[[nodiscard]] inline bool reached(const rank_state& r, std::size_t comm, std::uint32_t id,
                                  const record& what) {
  const std::uint64_t seq = what.seq;
  const position* p = r.in(comm);
  if (p == nullptr || p->last_seq < seq) return false;
  if (what.in_graph)
    for (const record& g : r.replayed)
      if (g.comm == id && !g.is_exchange() && g.seq == seq)
        return able(r) && g.replay >= what.replay;
  const bool issue = r.ring() && r.from->ring.at(layout::f_issue_starts) != 0;
  for (const record& u : r.unfinished) {
    if (u.comm == id && !u.is_exchange() && u.seq == seq)
      return able(r) && (issue ? &u == &r.unfinished.front() : u.started_ns != 0);
  }
  return true;
}

/// Whether one of the rank's transfers answers one with `peer` that goes `way`.
[[nodiscard]] inline bool answers(const rank_state& r, std::uint32_t id, int peer, direction way) {
  for (const record* f : fronts(r))
    if (f->comm == id && f->is_exchange()) {
      const operation& o = f->what;
      if (o.way == direction::none) return true; // more than two: not told
      if ((o.peer == peer && o.way != way) || (o.second_peer == peer && o.second_way != way))
        return true;
    }
  return false;
}

/// `complete`: members of whom there is no sample count as missing.
[[nodiscard]] inline wait_graph waits_of(const scene& all, bool complete) {
  wait_graph g;
  std::map<std::tuple<std::size_t, std::uint64_t, std::uint64_t>, std::size_t> keys;
  std::vector<char> waits(all.ranks.size(), 0), wanted(all.ranks.size(), 0);
  const auto place = [&](int rank) {
    return static_cast<std::size_t>(all.find(rank) - all.ranks.data());
  };
  for (const rank_state& r : all.ranks) {
    const auto running = fronts(r);
    if (running.empty() && !r.unfinished.empty() && able(r)) g.blocked.push_back(r.from->rank);
    for (const record* f : running) {
      const position* p = nullptr;
      for (const position& q : r.positions)
        if (all.comms[q.comm].id == f->comm) p = &q;
      if (p == nullptr) continue;
      const comm_state& c = all.comms[p->comm];
      if (!f->is_exchange()) {
        const auto [at, fresh] = keys.try_emplace({p->comm, f->seq, f->replay}, g.groups.size());
        if (fresh) {
          g.groups.push_back({.comm = p->comm, .what = *f});
          for (const int m : c.members) {
            const rank_state* q = all.find(m);
            if (q == nullptr ? complete : known(*q) && !reached(*q, p->comm, c.id, *f))
              g.groups.back().missing.push_back(m);
          }
        }
        wait_group& group = g.groups[at->second];
        group.waiters.push_back(r.from->rank);
        if (f->started_ns < group.what.started_ns) group.what = *f;
        continue;
      }
      int mine = -1; // this rank's number in the communicator
      for (std::size_t i = 0; i < c.by_rank.size(); ++i)
        if (c.by_rank[i] == r.from->rank) mine = static_cast<int>(i);
      wait_group group{.comm = p->comm, .what = *f, .waiters = {r.from->rank}};
      const auto add = [&](int peer, direction way) {
        if (way == direction::none || peer < 0 ||
            static_cast<std::size_t>(peer) >= c.by_rank.size())
          return;
        const int q = c.by_rank[static_cast<std::size_t>(peer)];
        if (q < 0 || q == r.from->rank) return;
        const rank_state* other = all.find(q);
        if (other == nullptr ? complete : known(*other) && !answers(*other, c.id, mine, way))
          group.missing.push_back(q);
      };
      add(f->what.peer, f->what.way);
      add(f->what.second_peer, f->what.second_way);
      g.groups.push_back(std::move(group));
    }
  }
  for (const wait_group& w : g.groups) {
    if (w.missing.empty()) continue;
    for (const int r : w.waiters) waits[place(r)] = 1;
    for (const int m : w.missing)
      if (all.find(m) != nullptr) wanted[place(m)] = 1;
  }
  for (std::size_t i = 0; i < all.ranks.size(); ++i)
    if (wanted[i] != 0 && waits[i] == 0) g.roots.push_back(all.ranks[i].from->rank);
  for (const wait_group& w : g.groups) // members of whom nothing is known
    for (const int m : w.missing)
      if (all.find(m) == nullptr && std::find(g.roots.begin(), g.roots.end(), m) == g.roots.end())
        g.roots.push_back(m);
  std::sort(g.roots.begin(), g.roots.end());
  if (!g.roots.empty()) return g;

  // Follow the waits until a rank comes twice.
  const auto group_of = [&](int rank) {
    for (std::size_t i = 0; i < g.groups.size(); ++i)
      if (!g.groups[i].missing.empty() &&
          std::find(g.groups[i].waiters.begin(), g.groups[i].waiters.end(), rank) !=
              g.groups[i].waiters.end())
        return i;
    return g.groups.size();
  };
  std::vector<int> path;
  std::vector<std::size_t> steps;
  int at = -1;
  for (const wait_group& w : g.groups)
    if (!w.missing.empty() && at < 0) at = w.waiters[0];
  while (at >= 0) {
    const auto seen = std::find(path.begin(), path.end(), at);
    if (seen != path.end()) {
      const auto skip = seen - path.begin();
      g.circle_ranks.assign(seen, path.end());
      g.circle.assign(steps.begin() + skip, steps.end());
      break;
    }
    const std::size_t step = group_of(at);
    if (step == g.groups.size()) break;
    path.push_back(at);
    steps.push_back(step);
    at = g.groups[step].missing[0];
  }
  return g;
}

} // namespace polyrank::hang::detail
