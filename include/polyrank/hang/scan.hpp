// From rings to what a diagnosis needs of them: each rank's position in each communicator and what
// it has not finished; who belongs to which communicator. Pure.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/process.hpp>
#include <polyrank/hang/ring_view.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::hang {

/// What is known of one rank at one moment.
struct sample {
  int rank = 0;
  ring_view ring{};      ///< invalid where there is none
  std::uint64_t now = 0; ///< on the steady clock of the rank's host
  process_state process = process_state::unknown;
  std::string where{}; ///< of its main thread, e.g. "sleeps in poll"
  std::string host{};  ///< known also where there is no ring
};

namespace detail {

/// A rank's position in one communicator.
struct position {
  std::size_t comm = 0;                                       ///< number in comm_list
  std::uint64_t last_seq = 0, last_chain = 0, last_index = 0; ///< of collectives entered
};

/// A rank, read.
struct rank_state {
  const sample* from = nullptr;
  std::vector<position> positions;
  std::vector<record> unfinished; ///< in issue order, at most `most_unfinished`
  std::vector<record> replayed;   ///< of CUDA graphs, finished or not; as many
  record last;                    ///< the last one that it finished, else that it entered
  bool has_last = false;
  std::uint64_t moved_ns = 0; ///< the newest stamp

  static constexpr std::size_t most_unfinished = 256;

  [[nodiscard]] bool ring() const noexcept { return from->ring.valid(); }
  [[nodiscard]] const position* in(std::size_t comm) const noexcept {
    for (const position& p : positions)
      if (p.comm == comm) return &p;
    return nullptr;
  }
  /// Nanoseconds for which nothing moved although something is unfinished.
  [[nodiscard]] std::uint64_t stuck() const noexcept {
    if (unfinished.empty()) return 0;
    const std::uint64_t since = std::max(unfinished.front().entered_ns, moved_ns);
    return from->now > since ? from->now - since : 0;
  }
};

/// A communicator, as its members know it.
struct comm_state {
  std::uint32_t id = 0;
  std::uint64_t hash = 0;
  int size = 0;               ///< 0: no member told
  std::vector<int> members{}; ///< ranks of the world, ascending
  std::vector<int> by_rank{}; ///< its rank -> rank of the world, -1 unknown
};

/// All of them.
struct scene {
  std::vector<rank_state> ranks;
  std::vector<comm_state> comms;
  std::vector<int> index; ///< rank of the world -> place in `ranks`, -1 none

  [[nodiscard]] const rank_state* find(int rank) const noexcept {
    const auto r = static_cast<std::size_t>(rank);
    return rank >= 0 && r < index.size() && index[r] >= 0
               ? &ranks[static_cast<std::size_t>(index[r])]
               : nullptr;
  }
};

inline void scan_ring(rank_state& r,
                      const std::vector<std::pair<std::uint32_t, std::size_t>>& known, scene& all) {
  const ring_view& ring = r.from->ring;
  std::vector<std::pair<std::uint32_t, std::size_t>> ids = known; // id -> comm
  std::vector<std::pair<std::uint32_t, std::size_t>> places;      // id -> place in positions
  const auto place_of = [&](std::uint32_t id) -> position& {
    for (const auto& [key, at] : places)
      if (key == id) return r.positions[at];
    std::size_t comm = all.comms.size();
    for (const auto& [key, at] : ids)
      if (key == id) comm = at;
    if (comm == all.comms.size()) { // nobody announced it: those who use it are its members
      for (std::size_t c = 0; c < all.comms.size(); ++c)
        if (all.comms[c].id == id && all.comms[c].size == 0) comm = c;
      if (comm == all.comms.size()) all.comms.push_back({.id = id});
      all.comms[comm].members.push_back(r.from->rank);
      ids.emplace_back(id, comm);
    }
    places.emplace_back(id, r.positions.size());
    r.positions.push_back({.comm = comm});
    return r.positions.back();
  };
  for (const auto& [id, comm] : known) place_of(id);
  const std::uint64_t end = ring.next();
  std::uint64_t last_done = end;
  std::uint32_t current_id = 0;
  std::size_t current = static_cast<std::size_t>(-1);
  for (std::uint64_t i = ring.oldest(); i < end; ++i) {
    if (!ring.holds(i)) continue;
    const std::uint32_t id = ring.comm(i);
    if (current == static_cast<std::size_t>(-1) || id != current_id) {
      current = static_cast<std::size_t>(&place_of(id) - r.positions.data());
      current_id = id;
    }
    if (!ring.is_exchange(i)) {
      position& p = r.positions[current];
      p.last_seq = ring.seq(i);
      p.last_chain = ring.chain(i);
      p.last_index = i;
    }
    if (record what;
        ring.in_graph(i) && r.replayed.size() < rank_state::most_unfinished && ring.read(i, what))
      r.replayed.push_back(what);
    if (ring.done(i) != 0) {
      last_done = i;
    } else if (record what;
               r.unfinished.size() < rank_state::most_unfinished && ring.read(i, what)) {
      if (!what.finished()) r.unfinished.push_back(what);
    }
  }
  for (std::uint64_t i = end > 64 ? std::max(ring.oldest(), end - 64) : 0; i < end; ++i)
    if (ring.holds(i)) r.moved_ns = std::max({r.moved_ns, ring.started(i), ring.done(i)});
  if (last_done != end) r.has_last = ring.read(last_done, r.last);
  if (!r.has_last && end > 0) r.has_last = ring.read(end - 1, r.last);
}

[[nodiscard]] inline scene look(std::span<const sample> samples) {
  scene all;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::size_t> keys;
  std::vector<std::vector<std::pair<std::uint32_t, std::size_t>>> known(samples.size());
  for (std::size_t s = 0; s < samples.size(); ++s) {
    if (!samples[s].ring.valid()) continue;
    for (comm_entry& e : samples[s].ring.comms()) {
      const auto [at, fresh] = keys.try_emplace({e.id, e.members_hash}, all.comms.size());
      const bool unknown = e.members.empty();
      if (fresh)
        all.comms.push_back(
            {.id = e.id, .hash = e.members_hash, .size = e.size, .members = std::move(e.members)});
      if (unknown) all.comms[at->second].members.push_back(samples[s].rank);
      comm_state& c = all.comms[at->second];
      const auto size = static_cast<std::size_t>(std::min(c.size, 1 << 16));
      if (c.by_rank.size() < size) c.by_rank.resize(size, -1);
      if (static_cast<std::size_t>(e.rank) < size)
        c.by_rank[static_cast<std::size_t>(e.rank)] = samples[s].rank;
      known[s].emplace_back(e.id, at->second);
    }
  }
  all.ranks.resize(samples.size());
  for (std::size_t s = 0; s < samples.size(); ++s) {
    rank_state& r = all.ranks[s];
    r.from = &samples[s];
    if (samples[s].rank >= 0 && samples[s].rank < 1 << 24) {
      const auto rank = static_cast<std::size_t>(samples[s].rank);
      if (all.index.size() <= rank) all.index.resize(rank + 1, -1);
      all.index[rank] = static_cast<int>(s);
    }
    if (r.ring()) scan_ring(r, known[s], all);
  }
  for (comm_state& c : all.comms) std::sort(c.members.begin(), c.members.end());
  return all;
}

} // namespace detail
} // namespace polyrank::hang
