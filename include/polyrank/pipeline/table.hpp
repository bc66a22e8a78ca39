// A whole schedule: for every rank its actions in the order in which the rank issues them.
//
// All ranks' actions lie in one array, eight bytes each; row[r] .. row[r + 1] is rank r.
//
//     table t = generate(schedule::one_f_one_b, shape{.ranks = 4, .microbatches = 8});
//     for (action a : t.of(0)) ...          // 0F0 0F1 0F2 0F3 0B0 0F4 ...
//
// A table with only compute actions is what people write and generators make. lower() adds the
// transfers, and with them the two things an executor needs: lanes and slots.
//
// Lane: a stream with a communicator. Actions of one lane run one after the other, in issue order.
// Slot: a receive buffer. Microbatch k of stage s uses slot k mod slots[s].activation (input of the
// forward, kept until its last reader) and k mod slots[s].gradient (input of the backward). What a
// stage sends lies in slots too, until it has been sent: k mod .output and .input_gradient.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/action.hpp>
#include <polyrank/pipeline/shape.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace polyrank::pipeline {

/// Which communication shares a stream.
enum class lane_policy : std::uint8_t {
  single,     ///< one lane per rank for everything: no two NCCL kernels wait for each other
  per_channel ///< one lane per (peer, direction, forward or backward), one for collectives
};

inline constexpr std::size_t max_lanes = 10; ///< lane 0 computes

struct slot_counts {
  std::uint32_t activation = 0;     ///< tensors received
  std::uint32_t gradient = 0;       ///< gradients received
  std::uint32_t output = 0;         ///< tensors to be sent
  std::uint32_t input_gradient = 0; ///< gradients to be sent
  std::uint32_t scratch = 0;        ///< outputs of recomputations, which nobody reads
};

struct table {
  pipeline::shape shape;
  std::vector<action> actions;
  std::vector<std::size_t> row{0};
  lane_policy lanes = lane_policy::single;
  std::vector<slot_counts> slots; ///< per stage; empty: a buffer for every microbatch

  [[nodiscard]] std::span<const action> of(std::size_t rank) const noexcept {
    return {actions.data() + row[rank], row[rank + 1] - row[rank]};
  }
  /// Is there at least one send or receive? If not, tensors travel by themselves.
  [[nodiscard]] bool has_transfers() const noexcept {
    return std::any_of(actions.begin(), actions.end(),
                       [](const action& a) { return is_transfer(a.kind); });
  }
  [[nodiscard]] bool has(action_kind kind) const noexcept {
    return std::any_of(actions.begin(), actions.end(),
                       [kind](const action& a) { return a.kind == kind; });
  }
};

/// The other rank of a transfer or of a tied reduction.
[[nodiscard]] constexpr std::size_t peer_of(const shape& s, const action& a) noexcept {
  switch (a.kind) {
  case action_kind::send_forward:
  case action_kind::recv_backward:
    return s.rank_of(a.stage + std::size_t{1});
  case action_kind::recv_forward:
  case action_kind::send_backward:
    return s.rank_of(a.stage - std::size_t{1});
  case action_kind::tied_reduce:
    return s.rank_of(a.stage == 0 ? s.stages() - 1 : 0);
  default:
    return s.rank_of(a.stage);
  }
}

/// The action on the other rank that a transfer or tied reduction meets.
[[nodiscard]] constexpr action partner_of(const shape& s, const action& a) noexcept {
  switch (a.kind) {
  case action_kind::send_forward:
    return make_action(action_kind::recv_forward, a.stage + std::size_t{1}, a.microbatch);
  case action_kind::recv_forward:
    return make_action(action_kind::send_forward, a.stage - std::size_t{1}, a.microbatch);
  case action_kind::send_backward:
    return make_action(action_kind::recv_backward, a.stage - std::size_t{1}, a.microbatch);
  case action_kind::recv_backward:
    return make_action(action_kind::send_backward, a.stage + std::size_t{1}, a.microbatch);
  case action_kind::tied_reduce:
    return make_action(a.kind, a.stage == 0 ? s.stages() - 1 : 0, a.microbatch);
  default:
    return a;
  }
}

/// The stream on which `rank` runs `a`: 0 computes, 1 and up communicate.
[[nodiscard]] constexpr std::size_t lane_of(const shape& s, lane_policy policy, std::size_t rank,
                                            const action& a) noexcept {
  if (!is_lane(a.kind)) return 0;
  if (policy == lane_policy::single) return 1;
  if (!is_transfer(a.kind)) return max_lanes - 1;
  const std::size_t next = rank + 1 == s.ranks ? 0 : rank + 1;
  const bool backward =
      a.kind == action_kind::send_backward || a.kind == action_kind::recv_backward;
  return 1 + (peer_of(s, a) == next ? 0u : 4u) + (is_recv(a.kind) ? 2u : 0u) + (backward ? 1u : 0u);
}

} // namespace polyrank::pipeline
