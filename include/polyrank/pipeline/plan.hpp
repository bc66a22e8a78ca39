// Where everything of one rank lies: decided once, before the first step, from the table and from
// what the stages of all ranks say about themselves.
//
// Slots first, then the activations. An activation lives from F to B, or to I, which leaves its
// first bytes for W; where a RECOMPUTE brings it back it does not survive F. Places are reused in
// issue order (arena.hpp).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/pipeline/arena.hpp>
#include <polyrank/pipeline/costs.hpp>
#include <polyrank/pipeline/stage.hpp>
#include <polyrank/pipeline/table.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::pipeline {

namespace detail {

/// The buffers that a stage has for its two boundaries.
enum class slot_side : std::uint8_t { input, gradient, output, input_gradient, scratch };
inline constexpr std::size_t slot_sides = 5;

inline void pack(std::string& out, std::uint64_t n) {
  out.append(reinterpret_cast<const char*>(&n), sizeof n);
}
inline void pack(std::string& out, const std::vector<boundary>& tensors) {
  pack(out, tensors.size());
  for (const boundary& b : tensors) {
    pack(out, b.name.size());
    out += b.name;
    pack(out, static_cast<std::uint64_t>(b.type));
    pack(out, b.row);
    pack(out, b.needs_grad ? 1 : 0);
  }
}
inline void pack(std::string& out, const stage_bytes& b) {
  pack(out, b.activation);
  pack(out, b.weight_context);
}

/// Reads back what pack() wrote.
class unpacker {
 public:
  explicit unpacker(std::string_view text) : text_(text) {}
  std::uint64_t number() {
    std::uint64_t n = 0;
    std::memcpy(&n, take(sizeof n).data(), sizeof n);
    return n;
  }
  std::vector<boundary> boundaries() {
    std::vector<boundary> out(number());
    for (boundary& b : out) {
      b.name = take(number());
      b.type = static_cast<dtype>(number());
      b.row = number();
      b.needs_grad = number() != 0;
    }
    return out;
  }

 private:
  std::string_view take(std::size_t n) {
    const std::string_view part = text_.substr(0, n);
    text_.remove_prefix(n);
    return part;
  }
  std::string_view text_;
};

/// What the stages of all ranks exchange and hold; equal on every rank.
struct facts {
  std::vector<std::vector<boundary>> inputs; ///< of each stage
  std::vector<stage_bytes> bytes;            ///< rounded to the unit of memory
  std::vector<stage_memory> memory;          ///< the same for simulate()

  facts() = default;
  /// From the packed description of each rank. Throws mismatch_error or usage_error where stages do
  /// not fit, the same on every rank.
  facts(const shape& s, std::size_t rows, const std::vector<std::string>& packed)
      : inputs(s.stages()), bytes(s.stages()), memory(s.stages()) {
    using polyrank::detail::cat;
    std::vector<std::vector<boundary>> outputs(s.stages());
    for (std::size_t r = 0; r < s.ranks; ++r) {
      unpacker from(packed[r]);
      for (std::size_t c = 0; c < s.chunks; ++c) {
        const std::size_t stage = s.stage_of(r, c);
        inputs[stage] = from.boundaries();
        outputs[stage] = from.boundaries();
        bytes[stage].activation = round_up(from.number(), message::unit);
        bytes[stage].weight_context = round_up(from.number(), message::unit);
      }
    }
    const auto refuse = [](const std::string& text) {
      throw on_every_rank(usage_error("pipeline: " + text));
    };
    if (!inputs.front().empty())
      refuse(cat("stage 0 wants ", inputs[0][0].text(), ", but nobody is before it; it reads the ",
                 "batch itself"));
    if (!outputs.back().empty())
      refuse(cat("the last stage sends ", outputs.back()[0].text(),
                 ", but nobody is behind it; it ", "computes the loss itself"));
    for (std::size_t stage = 0; stage < s.stages(); ++stage) {
      if (bytes[stage].weight_context > bytes[stage].activation)
        refuse(cat("stage ", stage, " keeps ", bytes[stage].weight_context,
                   " bytes for W, but its ", "activation, of which they are the first, has ",
                   bytes[stage].activation));
      if (stage > 0) compare(s, stage - 1, outputs[stage - 1], inputs[stage]);
      memory[stage].activation = static_cast<double>(bytes[stage].activation);
      memory[stage].weight_context = static_cast<double>(bytes[stage].weight_context);
      memory[stage].boundary = static_cast<double>(message(inputs[stage], false).bytes(rows));
      memory[stage].boundary_gradient =
          static_cast<double>(message(inputs[stage], true).bytes(rows));
    }
  }

 private:
  static void compare(const shape& s, std::size_t below, const std::vector<boundary>& sent,
                      const std::vector<boundary>& expected) {
    using polyrank::detail::cat;
    const auto name = [](const std::vector<boundary>& all, std::size_t i) {
      return i < all.size() ? all[i].text() : std::string("nothing");
    };
    if (sent.empty())
      throw on_every_rank(
          usage_error(cat("pipeline: stage ", below, " sends nothing to stage ", below + 1)));
    for (std::size_t i = 0; i < std::max(sent.size(), expected.size()); ++i)
      if (i >= sent.size() || i >= expected.size() || sent[i] != expected[i])
        throw on_every_rank(
            mismatch_error(cat("pipeline: tensor ", i, " between stage ", below, " and ", below + 1,
                               ": rank ", s.rank_of(below), " sends ", name(sent, i), ", rank ",
                               s.rank_of(below + 1), " expects ", name(expected, i))));
  }
};

} // namespace detail

/// The memory of one rank.
class rank_plan {
 public:
  rank_plan() = default;
  /// Throws data_error where the table takes a slot, in issue order, before it was given back.
  rank_plan(const table& t, std::size_t rank, const detail::facts& f, std::size_t max_rows)
      : shape_(t.shape), facts_(f), rows_(max_rows), slots_(t.slots) {
    const std::size_t m = shape_.microbatches, stages = shape_.stages();
    if (slots_.empty()) {
      const auto each = static_cast<std::uint32_t>(m);
      slots_.assign(stages, {each, each, each, each, t.has(action_kind::recompute) ? 1u : 0u});
    }
    for (std::size_t s = 0; s < stages; ++s) {
      const auto above = s + 1 < stages ? f.inputs[s + 1] : std::vector<boundary>{};
      messages_.push_back({detail::message(f.inputs[s], false), detail::message(above, true),
                           detail::message(above, false), detail::message(f.inputs[s], true),
                           detail::message(above, false)});
    }
    base_.assign(stages * detail::slot_sides, 0);
    for (std::size_t c = 0; c < shape_.chunks; ++c)
      for (std::size_t which = 0; which < detail::slot_sides; ++which) {
        const std::size_t s = shape_.stage_of(rank, c);
        base_[s * detail::slot_sides + which] = slot_bytes_;
        slot_bytes_ += count(s, which) * messages_[s][which].bytes(rows_);
      }
    check_reuse(t.of(rank));
    place_blocks(t, rank);
  }

  using side = detail::slot_side;
  [[nodiscard]] const std::vector<slot_counts>& slots() const noexcept { return slots_; }
  [[nodiscard]] std::size_t max_rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t slot_bytes() const noexcept { return slot_bytes_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return slot_bytes_ + block_bytes_; }
  [[nodiscard]] const detail::message& message(std::size_t stage, side which) const {
    return messages_[stage][static_cast<std::size_t>(which)];
  }
  /// Where the message of microbatch k lies.
  [[nodiscard]] std::size_t offset(std::size_t stage, side which, std::size_t k) const {
    const auto n = static_cast<std::size_t>(which);
    return base_[stage * detail::slot_sides + n] +
           k % count(stage, n) * messages_[stage][n].bytes(rows_);
  }
  [[nodiscard]] std::size_t activation(std::size_t stage) const {
    return facts_.bytes[stage].activation;
  }
  [[nodiscard]] std::size_t context(std::size_t stage) const {
    return facts_.bytes[stage].weight_context;
  }
  /// Of action i, an F or a RECOMPUTE: where its activation goes.
  [[nodiscard]] std::size_t block(std::size_t i) const { return slot_bytes_ + block_[i]; }
  /// Whether the activation of action i, an F, ends with it.
  [[nodiscard]] bool dropped(std::size_t i) const { return dropped_[i]; }

 private:
  [[nodiscard]] std::size_t count(std::size_t stage, std::size_t which) const {
    const slot_counts& n = slots_[stage];
    const std::array<std::uint32_t, detail::slot_sides> all{n.activation, n.gradient, n.output,
                                                            n.input_gradient, n.scratch};
    return all[which];
  }

  /// An event is recorded when its action is issued, so who waits for it must be issued later.
  void check_reuse(std::span<const action> list) const {
    struct taken {
      std::vector<bool> input, gradient;
    };
    std::vector<taken> stages(shape_.stages());
    for (std::size_t s = 0; s < stages.size(); ++s)
      stages[s] = {std::vector<bool>(slots_[s].activation), std::vector<bool>(slots_[s].gradient)};
    const bool trains = trains_on(list);
    for (const action& a : list) {
      taken& s = stages[a.stage];
      const auto take = [&a](std::vector<bool>& slots) {
        const auto slot = slots.begin() + static_cast<std::ptrdiff_t>(a.microbatch % slots.size());
        if (*slot)
          throw data_error(polyrank::detail::cat(
              text_of(a), " takes a slot whose last reader is issued later; give the table more "
                          "slots, or none"));
        *slot = true;
      };
      if (a.kind == action_kind::recv_forward) take(s.input);
      if (a.kind == action_kind::recv_backward) take(s.gradient);
      if (a.kind == action_kind::weight_grad || a.kind == action_kind::backward ||
          (a.kind == action_kind::forward && !trains))
        for (auto* slots : {&s.input, &s.gradient})
          if (!slots->empty()) (*slots)[a.microbatch % slots->size()] = false;
    }
  }
  [[nodiscard]] static bool trains_on(std::span<const action> list) {
    return std::any_of(list.begin(), list.end(), [](const action& a) {
      return a.kind == action_kind::backward || a.kind == action_kind::input_grad;
    });
  }

  void place_blocks(const table& t, std::size_t rank) {
    const std::span<const action> list = t.of(rank);
    const std::size_t m = shape_.microbatches;
    std::vector<bool> again(shape_.stages() * m);
    const bool trains = trains_on(list);
    for (const action& a : list)
      if (a.kind == action_kind::recompute) again[a.stage * m + a.microbatch] = true;
    block_.assign(list.size(), 0), dropped_.assign(list.size(), false);
    std::vector<std::size_t> at(shape_.stages() * m);
    detail::arena places;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const action& a = list[i];
      const std::size_t cell = a.stage * m + a.microbatch;
      const std::size_t all = activation(a.stage), kept = context(a.stage);
      switch (a.kind) {
      case action_kind::forward:
      case action_kind::recompute:
        block_[i] = at[cell] = places.take(all);
        dropped_[i] = a.kind == action_kind::forward && (!trains || again[cell]);
        if (dropped_[i]) places.give_back(at[cell], all);
        break;
      case action_kind::backward:
        places.give_back(at[cell], all);
        break;
      case action_kind::input_grad:
        places.give_back(at[cell] + kept, all - kept);
        break;
      case action_kind::weight_grad:
        places.give_back(at[cell], kept);
        break;
      default:
        break;
      }
    }
    block_bytes_ = places.size();
  }

  shape shape_;
  detail::facts facts_;
  std::size_t rows_ = 1, slot_bytes_ = 0, block_bytes_ = 0;
  std::vector<slot_counts> slots_;
  std::vector<std::array<detail::message, detail::slot_sides>> messages_; // per stage
  std::vector<std::size_t> base_;                                         // per stage and side
  std::vector<std::size_t> block_;                                        // per action
  std::vector<bool> dropped_;
};

} // namespace polyrank::pipeline
