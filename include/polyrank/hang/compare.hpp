// Finds the first operation of a communicator at which the ranks' histories differ. Pure.
//
// Each record holds a hash of all signatures up to it, so one comparison at the latest operation
// that all have entered tells whether anything ever differed, also after the rings have wrapped.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/scan.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::hang::detail {

/// The ranks that did the same at the place of difference.
struct faction {
  record what;
  std::vector<int> ranks;
};

struct difference {
  bool found = false;
  bool forgotten = false; ///< it lies before the oldest records
  std::size_t comm = 0;
  std::uint64_t seq = 0;
  std::vector<faction> factions; ///< largest first
  bool skipped = false; ///< the smaller faction did the operation after it: it left this one out
  bool swapped = false; ///< it did this and the next in the other order
};

/// The records of collectives of one rank on one communicator, by number.
class sequence {
 public:
  sequence(const rank_state& r, std::uint32_t id) : ring_(&r.from->ring), rank_(r.from->rank) {
    const std::uint64_t end = ring_->next();
    for (std::uint64_t i = ring_->oldest(); i < end; ++i)
      if (ring_->holds(i) && ring_->comm(i) == id && !ring_->is_exchange(i)) {
        const std::uint64_t seq = ring_->seq(i);
        if (places_.empty()) first_ = seq;
        if (seq == first_ + places_.size()) places_.push_back(i); // damaged numbers are left out
      }
  }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] std::uint64_t first() const noexcept { return first_; }
  [[nodiscard]] bool empty() const noexcept { return places_.empty(); }
  [[nodiscard]] std::uint64_t last() const noexcept { return first_ + places_.size() - 1; }
  [[nodiscard]] bool has(std::uint64_t seq) const noexcept {
    return seq >= first_ && seq - first_ < places_.size();
  }
  [[nodiscard]] std::uint64_t chain(std::uint64_t seq) const noexcept {
    return ring_->chain(places_[seq - first_]);
  }
  bool read(std::uint64_t seq, record& out) const noexcept {
    return has(seq) && ring_->read(places_[seq - first_], out);
  }
  [[nodiscard]] std::uint64_t signature(std::uint64_t seq) const noexcept {
    record r;
    return read(seq, r) ? r.what.signature() : 0;
  }

 private:
  const ring_view* ring_;
  int rank_;
  std::uint64_t first_ = 0;
  std::vector<std::uint64_t> places_;
};

/// True if the histories differ at the latest operation that all members have entered.
[[nodiscard]] inline bool differs(const scene& all, std::size_t comm) {
  std::uint64_t common = UINT64_MAX;
  std::vector<std::pair<const rank_state*, const position*>> here;
  for (const rank_state& r : all.ranks)
    if (const position* p = r.ring() ? r.in(comm) : nullptr; p != nullptr && p->last_seq > 0) {
      common = std::min(common, p->last_seq);
      here.emplace_back(&r, p);
    }
  bool first = true;
  std::uint64_t expected = 0;
  for (const auto& [r, p] : here) {
    std::uint64_t chain = p->last_chain;
    if (p->last_seq != common) {
      const ring_view& ring = r->from->ring;
      bool found = false;
      for (std::uint64_t i = p->last_index; i-- > ring.oldest() && !found;)
        if (ring.holds(i) && ring.comm(i) == all.comms[comm].id && !ring.is_exchange(i) &&
            ring.seq(i) == common) {
          chain = ring.chain(i);
          found = ring.holds(i);
        }
      if (!found) continue; // that far ahead: its ring has wrapped
    }
    if (first) expected = chain;
    if (chain != expected) return true;
    first = false;
  }
  return false;
}

[[nodiscard]] inline difference compare(const scene& all, std::size_t comm) {
  difference d;
  if (!differs(all, comm)) return d;
  d.found = true;
  d.comm = comm;
  std::vector<sequence> lines;
  std::uint64_t from = 0, to = UINT64_MAX;
  for (const rank_state& r : all.ranks)
    if (const position* p = r.ring() ? r.in(comm) : nullptr; p != nullptr && p->last_seq > 0) {
      sequence line(r, all.comms[comm].id);
      if (line.empty()) continue;
      from = std::max(from, line.first());
      to = std::min(to, line.last());
      lines.push_back(std::move(line));
    }
  if (lines.size() < 2 || from > to) return d;
  const auto agree = [&](std::uint64_t seq) {
    for (const sequence& l : lines)
      if (l.has(seq) && lines[0].has(seq) && l.signature(seq) != lines[0].signature(seq))
        return false;
    return true;
  };
  for (d.seq = from; d.seq <= to && agree(d.seq); ++d.seq) {
  }
  d.forgotten = d.seq > to;
  if (d.forgotten) d.seq = from;
  for (const sequence& l : lines) {
    record r;
    if (!l.read(d.seq, r)) continue;
    const std::uint64_t key = d.forgotten ? l.chain(d.seq) : r.what.signature();
    const auto same = std::find_if(d.factions.begin(), d.factions.end(), [&](const faction& f) {
      return (d.forgotten ? f.what.chain : f.what.what.signature()) == key;
    });
    if (same != d.factions.end())
      same->ranks.push_back(l.rank());
    else
      d.factions.push_back({r, {l.rank()}});
  }
  std::stable_sort(d.factions.begin(), d.factions.end(), [](const faction& a, const faction& b) {
    return a.ranks.size() > b.ranks.size();
  });
  if (d.forgotten || d.factions.size() != 2) return d;
  // How the smaller faction goes on. Where both have one rank, try both ways.
  const auto line_of = [&](int rank) -> const sequence& {
    return *std::find_if(lines.begin(), lines.end(),
                         [&](const sequence& l) { return l.rank() == rank; });
  };
  const auto left_out = [&](const faction& few, const faction& many) {
    const sequence &a = line_of(few.ranks[0]), &b = line_of(many.ranks[0]);
    bool any = false;
    for (std::uint64_t k = d.seq; k < d.seq + 4 && a.has(k) && b.has(k + 1); ++k) {
      if (a.signature(k) != b.signature(k + 1)) return false;
      any = true;
    }
    if (any || b.has(d.seq + 1)) return any;
    // The many wait in it. What followed it the last time?
    for (std::uint64_t k = d.seq; k-- > b.first();)
      if (b.signature(k) == b.signature(d.seq)) return b.signature(k + 1) == a.signature(d.seq);
    return false;
  };
  const sequence &a = line_of(d.factions[1].ranks[0]), &b = line_of(d.factions[0].ranks[0]);
  d.swapped = a.has(d.seq + 1) && b.has(d.seq + 1) &&
              a.signature(d.seq) == b.signature(d.seq + 1) &&
              a.signature(d.seq + 1) == b.signature(d.seq);
  if (d.swapped) return d;
  d.skipped = left_out(d.factions[1], d.factions[0]);
  if (!d.skipped && d.factions[0].ranks.size() == d.factions[1].ranks.size() &&
      left_out(d.factions[0], d.factions[1])) {
    std::swap(d.factions[0], d.factions[1]);
    d.skipped = true;
  }
  return d;
}

} // namespace polyrank::hang::detail
