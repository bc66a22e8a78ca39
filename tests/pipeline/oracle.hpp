// A second opinion on validate(): builds the graph of a lowered table node by node, with a map for
// every lookup, and asks whether it has a cycle. Slow, and shares no code with the walk.
//
// Nodes are compute actions and transfers (both ends are one node). Edges: program order of every
// stream, producer to transfer, transfer to consumer, last reader of a slot to the next transfer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/table.hpp>

#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace oracle {

using namespace polyrank::pipeline;
using kind = action_kind;

/// Does the table, which trains and has transfers, run to its end with the right data?
inline bool runs(const table& t) {
  const shape& s = t.shape;
  const std::size_t last = s.stages() - 1;
  using key = std::tuple<kind, std::size_t, std::size_t>;
  std::map<key, std::pair<std::size_t, std::size_t>> where; // -> rank, index
  std::size_t expected = 0;
  for (std::size_t r = 0; r < s.ranks; ++r)
    for (std::size_t i = 0; i < t.of(r).size(); ++i) {
      const action& a = t.of(r)[i];
      if (a.stage > last || a.microbatch >= s.microbatches || s.rank_of(a.stage) != r) return false;
      if (!where.insert({{a.kind, a.stage, a.microbatch}, {r, i}}).second) return false;
    }
  const auto has = [&](kind k, std::size_t st, std::size_t mb) {
    return where.count({k, st, mb}) > 0;
  };
  const auto before = [&](kind a, kind b, std::size_t st, std::size_t mb) {
    return has(a, st, mb) && has(b, st, mb) &&
           where[{a, st, mb}].second < where[{b, st, mb}].second;
  };
  for (std::size_t st = 0; st <= last; ++st)
    for (std::size_t mb = 0; mb < s.microbatches; ++mb) {
      const bool whole = has(kind::backward, st, mb), split = has(kind::input_grad, st, mb);
      const kind back = whole ? kind::backward : kind::input_grad;
      if (whole == split || has(kind::weight_grad, st, mb) != split) return false;
      if (!before(kind::forward, back, st, mb)) return false;
      if (split && !before(kind::input_grad, kind::weight_grad, st, mb)) return false;
      expected += split ? 3 : 2;
      if (st > 0 && s.crosses(st - 1)) {
        if (!before(kind::recv_forward, kind::forward, st, mb)) return false;
        if (!before(back, kind::send_backward, st, mb)) return false;
        expected += 2;
      }
      if (st < last && s.crosses(st)) {
        if (!before(kind::forward, kind::send_forward, st, mb)) return false;
        if (!before(kind::recv_backward, back, st, mb)) return false;
        expected += 2;
      }
    }
  if (expected != t.actions.size()) return false;

  // Pairing: the k-th send from a to b on a communicator meets the k-th receive.
  std::map<std::tuple<std::size_t, std::size_t, std::size_t>, std::vector<action>> sends, recvs;
  const auto backward_kind = [](const action& a) {
    return a.kind == kind::send_backward || a.kind == kind::recv_backward;
  };
  for (std::size_t r = 0; r < s.ranks; ++r)
    for (const action& a : t.of(r)) {
      const std::size_t comm = t.lanes == lane_policy::single ? 0 : 1 + backward_kind(a);
      if (is_send(a.kind)) sends[{comm, r, peer_of(s, a)}].push_back(partner_of(s, a));
      if (is_recv(a.kind)) recvs[{comm, peer_of(s, a), r}].push_back(a);
    }
  if (sends != recvs) return false;

  // The graph.
  std::map<key, std::size_t> node; // a transfer is known by its receive
  const auto id = [&](action a) {
    if (is_send(a.kind)) a = partner_of(s, a);
    return node.insert({{a.kind, a.stage, a.microbatch}, node.size()}).first->second;
  };
  std::vector<std::pair<std::size_t, std::size_t>> edges;
  for (std::size_t r = 0; r < s.ranks; ++r) {
    std::map<std::size_t, std::size_t> previous; // stream -> node
    std::map<std::pair<std::size_t, std::size_t>, std::size_t>
        reader; // (slot kind+stage, slot) -> mb
    for (const action& a : t.of(r)) {
      const std::size_t stream = lane_of(s, t.lanes, r, a), me = id(a);
      if (previous.count(stream) > 0) edges.push_back({previous[stream], me});
      previous[stream] = me;
      const auto need = [&](kind k, std::size_t st) {
        if (has(k, st, a.microbatch)) edges.push_back({id(make_action(k, st, a.microbatch)), me});
      };
      const bool back = a.kind == kind::backward || a.kind == kind::input_grad;
      if (a.kind == kind::forward && a.stage > 0)
        need(s.crosses(a.stage - 1u) ? kind::recv_forward : kind::forward,
             s.crosses(a.stage - 1u) ? a.stage : a.stage - 1u);
      if (back && a.stage < last && s.crosses(a.stage)) need(kind::recv_backward, a.stage);
      if (back && a.stage < last && !s.crosses(a.stage))
        for (kind k : {kind::backward, kind::input_grad}) need(k, a.stage + 1u);
      if (a.kind == kind::send_forward) need(kind::forward, a.stage);
      if (a.kind == kind::send_backward)
        for (kind k : {kind::backward, kind::input_grad}) need(k, a.stage);
      if (is_recv(a.kind) && !t.slots.empty()) {
        const bool forward = a.kind == kind::recv_forward;
        const std::size_t n = forward ? t.slots[a.stage].activation : t.slots[a.stage].gradient;
        const std::pair slot{a.stage * 2u + (forward ? 0u : 1u), a.microbatch % n};
        if (reader.count(slot) > 0)
          for (kind k : {kind::backward, kind::weight_grad})
            if (has(k, a.stage, reader[slot]))
              edges.push_back({id(make_action(k, a.stage, reader[slot])), me});
        reader[slot] = a.microbatch;
      }
    }
  }
  std::vector<std::vector<std::size_t>> next(node.size());
  std::vector<std::size_t> open(node.size(), 0), ready;
  for (const auto& [a, b] : edges) next[a].push_back(b), ++open[b];
  for (std::size_t n = 0; n < open.size(); ++n)
    if (open[n] == 0) ready.push_back(n);
  std::size_t done = 0;
  while (!ready.empty()) {
    const std::size_t n = ready.back();
    ready.pop_back();
    ++done;
    for (std::size_t b : next[n])
      if (--open[b] == 0) ready.push_back(b);
  }
  return done == node.size();
}

} // namespace oracle
