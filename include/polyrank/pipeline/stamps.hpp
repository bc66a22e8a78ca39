// Which tensor a message carries, in its first four bytes: boundary, direction, microbatch and
// step.
//
// Messages have no tags: the k-th send between two ranks meets the k-th receive. A schedule that
// was put together wrongly would train on the right sizes and the wrong data; with stamps it ends
// with an error that names both. They are written and read by the lanes, and compared by the host
// when it waits anyway.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/buffer.hpp>
#include <polyrank/backend/concepts.hpp>
#include <polyrank/pipeline/table.hpp>

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

namespace polyrank::pipeline {

template <backend B>
class message_stamps {
 public:
  using stream = typename B::stream;
  using event = typename B::event;

  /// Writes beforehand what is the same in every step.
  void prepare(const table& t, std::size_t rank, stream& s, std::pmr::memory_resource& memory) {
    microbatches_ = t.shape.microbatches;
    std::vector<std::int32_t> ids;
    for (const action& a : t.of(rank)) {
      actions_.push_back(a);
      number_.push_back(is_send(a.kind) ? ids.size() : expected_.size());
      if (is_send(a.kind)) ids.push_back(id_of(a));
      if (is_recv(a.kind)) expected_.push_back(id_of(a));
    }
    for (auto* b : {&ids_, &step_, &stamps_}) *b = buffer<std::int32_t>(ids.size(), memory);
    received_ = buffer<std::int32_t>(expected_.size(), memory);
    B::template copy<std::int32_t>(ids, ids_.span(), s);
    s.synchronize();
  }

  /// The stamps of step `step`; lanes wait for there().
  void begin(std::uint64_t step, stream& s) {
    if (ids_.size() == 0) return;
    B::template fill<std::int32_t>(step_.span(), bits_of(step), s);
    B::template add<std::int32_t>(ids_.span(), step_.span(), stamps_.span(), s);
    there_.record(s);
  }
  [[nodiscard]] const event& there() const noexcept { return there_; }

  /// Action i, a send, is about to leave.
  void write(std::size_t i, std::span<std::byte> message, stream& s) {
    B::template copy<std::int32_t>(stamps_.span().subspan(number_[i], 1), head(message), s);
  }
  /// Action i, a receive, has come.
  void read(std::size_t i, std::span<std::byte> message, stream& s) {
    B::template copy<std::int32_t>(head(message), received_.span().subspan(number_[i], 1), s);
  }

  /// Waits, and compares what came in step `step`. Throws data_error naming the first that differs.
  void compare(std::uint64_t step, stream& s) {
    if (expected_.empty() || step == 0) return;
    std::vector<std::int32_t> got(expected_.size());
    B::template copy<std::int32_t>(received_.span(), std::span(got), s);
    s.synchronize();
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      if (!is_recv(actions_[i].kind)) continue;
      const std::int32_t want = expected_[number_[i]] + bits_of(step), is = got[number_[i]];
      if (is == want) continue;
      const std::size_t id = static_cast<std::size_t>(is & id_mask), m = microbatches_;
      throw data_error(polyrank::detail::cat(
          "pipeline: ", text_of(actions_[i]), " got microbatch ", id % m, " of boundary ",
          id / m / 2, id / m % 2 == 1 ? " backward" : " forward",
          (is & ~id_mask) != (want & ~id_mask) ? ", of another step" : ""));
    }
  }

 private:
  static constexpr std::int32_t id_unit = 1 << 24, id_mask = id_unit - 1;

  /// Equal on both ends of a transfer. Very large tables repeat ids; neighbours still differ.
  [[nodiscard]] std::int32_t id_of(const action& a) const {
    const bool backward =
        a.kind == action_kind::send_backward || a.kind == action_kind::recv_backward;
    const bool upper = a.kind == action_kind::recv_forward || a.kind == action_kind::send_backward;
    const std::size_t boundary = a.stage - (upper ? 1u : 0u);
    return static_cast<std::int32_t>(
        ((2 * boundary + (backward ? 1u : 0u)) * microbatches_ + a.microbatch) & id_mask);
  }
  [[nodiscard]] static std::int32_t bits_of(std::uint64_t step) noexcept {
    return static_cast<std::int32_t>(step % 127 + 1) * id_unit;
  }
  [[nodiscard]] static std::span<std::int32_t> head(std::span<std::byte> message) {
    return {reinterpret_cast<std::int32_t*>(message.data()), 1};
  }

  std::size_t microbatches_ = 0;
  std::vector<action> actions_;
  std::vector<std::size_t> number_; // per action: among the sends, or among the receives
  std::vector<std::int32_t> expected_;
  buffer<std::int32_t> ids_, step_, stamps_, received_;
  event there_;
};

} // namespace polyrank::pipeline
