// How many buffers a stage needs for what it sends: its outputs until they have been sent, the
// gradients of its inputs likewise.
//
// Such a buffer is taken by F (by B or I) and given back by the send, or, where the next stage is
// on the same rank, by that stage's F (B or I). Counted is in the order in which the rank issues
// its actions, plus one: with it a compute action need not wait until the last send is through.
//
// Waiting for an earlier send cannot deadlock a table of lower(): the send has its producer's time
// in the order of keys, which is before the end of every later action of that producer's stage.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/slots.hpp>
#include <polyrank/pipeline/table.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace polyrank::pipeline::detail {

/// Fills in slots[s].output, input_gradient and scratch of a table that has slots.
inline void count_outgoing(table& t) {
  const shape& s = t.shape;
  const std::size_t m = s.microbatches, last = s.stages() - 1;
  struct span {
    std::vector<double> from, to;
  };
  std::vector<std::size_t> scratch;
  const auto window = [&](const span& w) { return slot_window(w.from, w.to, 1, scratch); };
  const auto fresh = [m] { return span{std::vector<double>(m), std::vector<double>(m)}; };
  for (std::size_t r = 0; r < s.ranks; ++r) {
    std::vector<span> out(s.chunks), grad(s.chunks);
    for (std::size_t c = 0; c < s.chunks; ++c) out[c] = grad[c] = fresh();
    bool trains = false;
    double now = 0;
    for (const action& a : t.of(r)) {
      const std::size_t stage = a.stage, k = a.microbatch, c = s.chunk_of(stage);
      switch (a.kind) {
      case action_kind::forward:
        out[c].from[k] = now;
        if (stage > 0 && !s.crosses(stage - 1)) out[s.chunk_of(stage - 1)].to[k] = now;
        break;
      case action_kind::backward:
      case action_kind::input_grad:
        trains = true;
        grad[c].from[k] = now;
        if (stage < last && !s.crosses(stage)) grad[s.chunk_of(stage + 1)].to[k] = now;
        break;
      case action_kind::send_forward:
        out[c].to[k] = now;
        break;
      case action_kind::send_backward:
        grad[c].to[k] = now;
        break;
      case action_kind::recompute:
        if (stage < last) t.slots[stage].scratch = 1;
        break;
      default:
        break;
      }
      ++now;
    }
    for (std::size_t c = 0; c < s.chunks; ++c) {
      const std::size_t stage = s.stage_of(r, c);
      if (stage < last) t.slots[stage].output = window(out[c]);
      if (stage > 0 && trains) t.slots[stage].input_gradient = window(grad[c]);
    }
  }
}

} // namespace polyrank::pipeline::detail
