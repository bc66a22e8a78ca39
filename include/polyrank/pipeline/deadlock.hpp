// Why a walk stopped: the shortest cycle among the streams' heads, in words.
//
// Every stream that is not at its end has a head that waits, for actions that stand at or behind
// the head of some other stream. Following these steps must come back: that cycle is the deadlock.
// A breadth-first search from every head finds the shortest one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/fault.hpp>
#include <polyrank/pipeline/walk.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::pipeline::detail {

[[nodiscard]] inline step step_at(const table& t, std::size_t rank, std::size_t index) {
  return {rank, index - t.row[rank], t.actions[index]};
}

[[nodiscard]] inline fault mispaired_fault(const table& t, place a, place b) {
  step x = step_at(t, a.rank, a.index), y = step_at(t, b.rank, b.index);
  if (is_recv(x.what.kind)) std::swap(x, y); // the sender first
  return {fault_kind::mispaired,
          x,
          polyrank::detail::cat(text_of(x), " would be paired with ", text_of(y),
                                ": transfers between two ranks pair up in issue order"),
          {x, y}};
}

/// "deadlock: rank 0 0SEND_F1 waits for 1RECV_F1 of rank 1, which stands behind 1SEND_F0; ..."
[[nodiscard]] inline std::string deadlock_text(const std::vector<step>& cycle) {
  std::string text = "deadlock: ";
  for (std::size_t n = 0; n < cycle.size(); n += 2) {
    const step &head = cycle[n], &need = cycle[n + 1], &next = cycle[(n + 2) % cycle.size()];
    text += polyrank::detail::cat(n > 0 ? "; " : "", "rank ", head.rank, " ", text_of(head.what),
                                  " waits for ", text_of(need.what), " of rank ", need.rank);
    if (need.index != next.index)
      text += polyrank::detail::cat(", which stands behind ", text_of(next.what));
  }
  return text;
}

/// `walk` stopped before the end, without a wrong pair.
template <class Walker>
[[nodiscard]] fault deadlock_fault(const table& t, const Walker& walk) {
  const std::size_t streams = walk.streams(), nodes = t.shape.ranks * streams;
  struct edge {
    std::size_t from, to, index; // head -> head of the stream where `index` stands
  };
  std::vector<edge> edges;
  std::vector<std::size_t> first(nodes + 1, 0);
  for (std::size_t node = 0; node < nodes; ++node) {
    first[node] = edges.size();
    const std::size_t rank = node / streams, head = walk.head(rank, node % streams);
    if (head == t.row[rank + 1]) continue;
    walk.explain(rank, head, [&](std::size_t r, const action& wanted) {
      const std::size_t lane = walk.lane(r, wanted);
      for (std::size_t n = walk.head(r, lane); n < t.row[r + 1]; ++n) {
        action found = t.actions[n];
        found.joined = wanted.joined;
        if (found != wanted) continue;
        edges.push_back({node, r * streams + lane, n});
        return;
      }
    });
  }
  first[nodes] = edges.size();

  std::vector<std::size_t> best, queue, via(nodes);
  for (std::size_t root = 0; root < nodes && best.size() != 1; ++root) {
    if (first[root] == first[root + 1]) continue;
    constexpr std::size_t unseen = ~std::size_t{0};
    std::fill(via.begin(), via.end(), unseen); // the edge by which a node was reached
    queue.assign(1, root);
    std::size_t closing = unseen;
    for (std::size_t q = 0; q < queue.size() && closing == unseen; ++q)
      for (std::size_t e = first[queue[q]]; e < first[queue[q] + 1]; ++e) {
        if (edges[e].to == root) {
          closing = e;
          break;
        }
        if (via[edges[e].to] != unseen) continue;
        via[edges[e].to] = e;
        queue.push_back(edges[e].to);
      }
    if (closing == unseen) continue;
    std::vector<std::size_t> cycle{closing};
    while (edges[cycle.back()].from != root) cycle.push_back(via[edges[cycle.back()].from]);
    if (best.empty() || cycle.size() < best.size()) best.assign(cycle.rbegin(), cycle.rend());
  }

  fault result{fault_kind::deadlock, {}, "deadlock", {}};
  for (std::size_t e : best) {
    const std::size_t rank = edges[e].from / streams;
    result.cycle.push_back(step_at(t, rank, walk.head(rank, edges[e].from % streams)));
    result.cycle.push_back(step_at(t, edges[e].to / streams, edges[e].index));
  }
  if (!result.cycle.empty()) {
    result.at = result.cycle.front();
    result.text = deadlock_text(result.cycle);
  }
  return result;
}

} // namespace polyrank::pipeline::detail
