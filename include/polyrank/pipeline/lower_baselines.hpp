// Two other orders of communication, to measure lower() against and to test validate() with. Both
// use one lane per rank.
//
//     late receive   each receive just before its consumer, each send just after its producer. The
//                    obvious order; with one lane everything but GPipe deadlocks (pytorch#172668).
//     sweep          PyTorch's order, modelled: sweep over the ranks, one action of each; a send
//     and
//                    the receive on its peer are appended at the moment the producer is. Free of
//                    deadlock, but receives stand ahead of sends that are ready (pytorch#188833).
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/pipeline/lower_compute.hpp>
#include <polyrank/pipeline/table.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace polyrank::pipeline {

namespace detail {

/// The transfer that carries a's result away, if it crosses ranks.
[[nodiscard]] inline bool outgoing(const shape& s, const action& a, action& send) noexcept {
  if (a.kind == action_kind::forward && a.stage + 1u < s.stages() && s.crosses(a.stage)) {
    send = make_action(action_kind::send_forward, a.stage, a.microbatch);
    return true;
  }
  if (is_backward(a.kind) && a.stage > 0 && s.crosses(a.stage - 1u)) {
    send = make_action(action_kind::send_backward, a.stage, a.microbatch);
    return true;
  }
  return false;
}
/// The transfer that brings a's input.
[[nodiscard]] inline bool incoming(const shape& s, const action& a, action& recv) noexcept {
  if (a.kind == action_kind::forward && a.stage > 0 && s.crosses(a.stage - 1u)) {
    recv = make_action(action_kind::recv_forward, a.stage, a.microbatch);
    return true;
  }
  if (is_backward(a.kind) && a.stage + 1u < s.stages() && s.crosses(a.stage)) {
    recv = make_action(action_kind::recv_backward, a.stage, a.microbatch);
    return true;
  }
  return false;
}

[[nodiscard]] inline table with_rows(const shape& s, const std::vector<std::vector<action>>& rows) {
  table out;
  out.shape = s;
  for (const auto& row : rows) {
    out.actions.insert(out.actions.end(), row.begin(), row.end());
    out.row.push_back(out.actions.size());
  }
  return out;
}

} // namespace detail

/// Receives just before their consumers.
[[nodiscard]] inline table lower_late_receive(const table& compute) {
  std::vector<std::vector<action>> rows(compute.shape.ranks);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto list = compute.of(r);
    action comm;
    for (std::size_t j = 0; j < list.size(); ++j) {
      const std::size_t last = j + list[j].joined; // a pair stays together
      for (std::size_t n = j; n <= last; ++n)
        if (detail::incoming(compute.shape, list[n], comm)) rows[r].push_back(comm);
      for (std::size_t n = j; n <= last; ++n) rows[r].push_back(list[n]);
      for (std::size_t n = j; n <= last; ++n)
        if (detail::outgoing(compute.shape, list[n], comm)) rows[r].push_back(comm);
      j = last;
    }
  }
  return detail::with_rows(compute.shape, rows);
}

/// PyTorch's order. data_error where the compute table does not run to its end.
[[nodiscard]] inline table lower_sweep(const table& compute) {
  const shape& s = compute.shape;
  std::vector<std::vector<action>> rows(s.ranks);
  std::vector<std::size_t> next(compute.row.begin(), compute.row.end() - 1);
  const std::size_t cells = s.stages() * s.microbatches;
  std::vector<std::uint8_t> forward(cells, 0), backward(cells, 0); // its input is announced
  const auto cell = [&](std::size_t stage, std::size_t k) { return stage * s.microbatches + k; };
  for (std::size_t k = 0; k < s.microbatches; ++k) forward[cell(0, k)] = 1;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < s.ranks; ++r) {
      if (next[r] == compute.row[r + 1]) continue;
      const std::size_t first = next[r], last = first + compute.actions[first].joined;
      bool ready = true;
      for (std::size_t n = first; n <= last; ++n) {
        const action& a = compute.actions[n];
        if (a.kind == action_kind::forward) ready = ready && forward[cell(a.stage, a.microbatch)];
        if (detail::is_backward(a.kind)) ready = ready && backward[cell(a.stage, a.microbatch)];
      }
      if (!ready) continue;
      moved = true;
      for (std::size_t n = first; n <= last; ++n) rows[r].push_back(compute.actions[n]);
      for (std::size_t n = first; n <= last; ++n) {
        const action& a = compute.actions[n];
        action send;
        if (detail::outgoing(s, a, send)) {
          rows[r].push_back(send);
          rows[peer_of(s, send)].push_back(partner_of(s, send));
        }
        if (a.kind == action_kind::forward && a.stage + 1u == s.stages())
          backward[cell(a.stage, a.microbatch)] = 1; // the loss
        else if (a.kind == action_kind::forward)
          forward[cell(a.stage + 1u, a.microbatch)] = 1;
        else if (detail::is_backward(a.kind) && a.stage > 0)
          backward[cell(a.stage - 1u, a.microbatch)] = 1;
      }
      next[r] = last + 1;
    }
  }
  for (std::size_t r = 0; r < s.ranks; ++r)
    if (next[r] != compute.row[r + 1])
      throw data_error("the schedule does not run to its end; validate() says where it stops");
  return detail::with_rows(s, rows);
}

} // namespace polyrank::pipeline
