// One step of a pipeline schedule in eight bytes, and its text: "2F0" is the forward of microbatch
// 0 through stage 2.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/text.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace polyrank::pipeline {

/// What a rank does. Forward to weight_grad, recompute, reshard and optimizer run on the compute
/// stream; the others run on a communication lane.
enum class action_kind : std::uint8_t {
  forward,       ///< F
  backward,      ///< B: input and weight gradient together
  input_grad,    ///< I: the half of B that the stage below waits for
  weight_grad,   ///< W: the half of B that nobody waits for
  recompute,     ///< runs F again just before the backward, for activations that were dropped
  reshard,       ///< drops the gathered parameters of a stage
  optimizer,     ///< the update, after every reduction of this rank
  send_forward,  ///< stage s -> s + 1
  recv_forward,  ///< stage s <- s - 1
  send_backward, ///< stage s -> s - 1
  recv_backward, ///< stage s <- s + 1
  unshard,       ///< gathers the sharded parameters of a stage
  tied_reduce,   ///< sums the gradient of a weight shared by the first and the last stage
  reduce,        ///< sums the stage's gradients over the data-parallel replicas
};

inline constexpr std::size_t action_kinds = 14;

/// The names are PyTorch's where PyTorch has one.
inline constexpr std::array<std::string_view, action_kinds> action_names = {
    "F",      "B",      "I",      "W",      "RECOMPUTE", "RESHARD",     "OPTIMIZER",
    "SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD",   "TIED_REDUCE", "REDUCE_GRAD"};

[[nodiscard]] constexpr std::string_view name_of(action_kind k) noexcept {
  return action_names[static_cast<std::size_t>(k)];
}

/// Runs on a communication lane, not on the compute stream.
[[nodiscard]] constexpr bool is_lane(action_kind k) noexcept {
  return k >= action_kind::send_forward;
}
/// Moves a tensor between two ranks.
[[nodiscard]] constexpr bool is_transfer(action_kind k) noexcept {
  return k >= action_kind::send_forward && k <= action_kind::recv_backward;
}
[[nodiscard]] constexpr bool is_send(action_kind k) noexcept {
  return k == action_kind::send_forward || k == action_kind::send_backward;
}
[[nodiscard]] constexpr bool is_recv(action_kind k) noexcept {
  return k == action_kind::recv_forward || k == action_kind::recv_backward;
}
/// Belongs to one microbatch; the others belong to a stage.
[[nodiscard]] constexpr bool has_microbatch(action_kind k) noexcept {
  return k <= action_kind::recompute || is_transfer(k);
}

/// Plain data, compared bit by bit.
struct action {
  action_kind kind = action_kind::forward;
  std::uint8_t joined = 0; ///< 1: a forward that runs together with the backward after it
  std::uint16_t stage = 0;
  std::uint32_t microbatch = 0;

  friend constexpr bool operator==(const action&, const action&) noexcept = default;
};
static_assert(sizeof(action) == 8);

[[nodiscard]] constexpr action make_action(action_kind kind, std::size_t stage,
                                           std::size_t microbatch = 0,
                                           bool joined = false) noexcept {
  return {kind, static_cast<std::uint8_t>(joined), static_cast<std::uint16_t>(stage),
          static_cast<std::uint32_t>(microbatch)};
}

/// "2F0", "0SEND_F1", "3REDUCE_GRAD".
[[nodiscard]] inline std::string text_of(const action& a) {
  std::string out = polyrank::detail::cat(a.stage, name_of(a.kind));
  if (has_microbatch(a.kind)) polyrank::detail::append(out, a.microbatch);
  return out;
}

} // namespace polyrank::pipeline
