// First half of validate(): what each rank's own list must satisfy. One pass over the actions with
// nine bits per (stage, microbatch), then one pass over those bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/fault.hpp>
#include <polyrank/pipeline/table.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::pipeline::detail {

/// Does the stage's tensor come from, or go to, another rank?
struct boundaries {
  bool from_below = false, to_above = false;
};

/// One bit per kind that has a microbatch: five on the compute stream, four transfers.
[[nodiscard]] constexpr std::uint16_t bit_of(action_kind k) noexcept {
  const unsigned n = static_cast<unsigned>(k);
  return static_cast<std::uint16_t>(1u << (n < 5 ? n : n - 2));
}

class census_taker {
 public:
  explicit census_taker(const table& t)
      : t_(t), m_(t.shape.microbatches), stages_(t.shape.stages()) {}

  std::optional<fault> run() {
    if (auto found = well_formed()) return found;
    seen_.assign(stages_ * m_, 0), stage_.assign(stages_, {});
    rank_of_.resize(stages_), edge_.resize(stages_);
    for (std::size_t s = 0; s < stages_; ++s) {
      rank_of_[s] = t_.shape.rank_of(s);
      edge_[s] = {s > 0 && t_.shape.crosses(s - 1), s + 1 < stages_ && t_.shape.crosses(s)};
    }
    for (const action& a : t_.actions) {
      explicit_ = explicit_ || is_transfer(a.kind);
      trains_ = trains_ || a.kind == action_kind::backward || a.kind == action_kind::input_grad;
    }
    for (std::size_t r = 0; r < t_.shape.ranks; ++r)
      if (!list_of(r)) return found_;
    return totals();
  }

 private:
  /// Of a stage as a whole.
  struct stage_state {
    std::size_t finished = 0; // microbatches whose B or W is done
    bool used = false, unsharded = false, resharded = false, tied = false, reduced = false;
  };

  static constexpr std::uint16_t f = bit_of(action_kind::forward),
                                 b = bit_of(action_kind::backward),
                                 i = bit_of(action_kind::input_grad),
                                 w = bit_of(action_kind::weight_grad);

  /// Notes a fault; false, so that a check can return it. Faults are rare, and big: checks that
  /// run once per action hand around a bool.
  bool fail(fault_kind kind, std::size_t r, std::size_t index, std::string_view what) {
    const step at{r, index - t_.row[r], t_.actions[index]};
    found_ = fault{kind, at, polyrank::detail::cat(text_of(at), " ", what), {}};
    return false;
  }

  std::optional<fault> well_formed() const {
    const auto bad = [](std::string text) {
      return fault{fault_kind::malformed, {}, std::move(text), {}};
    };
    if (t_.row.size() != t_.shape.ranks + 1 || t_.row.front() != 0 ||
        t_.row.back() != t_.actions.size())
      return bad(polyrank::detail::cat("the table has ", t_.row.empty() ? 0 : t_.row.size() - 1,
                                       " rows, the shape has ", t_.shape.ranks, " ranks"));
    for (std::size_t r = 0; r < t_.shape.ranks; ++r)
      if (t_.row[r] > t_.row[r + 1]) return bad("the table's rows do not ascend");
    if (!t_.slots.empty() && t_.slots.size() != stages_)
      return bad(polyrank::detail::cat("slots are given for ", t_.slots.size(), " of ", stages_,
                                       " stages"));
    return std::nullopt;
  }

  bool list_of(std::size_t r) {
    bool updated = false;
    for (std::size_t n = t_.row[r]; n < t_.row[r + 1]; ++n) {
      const action& a = t_.actions[n];
      if (static_cast<std::size_t>(a.kind) >= action_kinds) {
        const step at{r, n - t_.row[r], {}};
        found_ =
            fault{fault_kind::malformed,
                  at,
                  polyrank::detail::cat("rank ", r, ", action ", at.index, " has no known kind"),
                  {}};
        return false;
      }
      if (a.stage >= stages_)
        return fail(fault_kind::malformed, r, n,
                    polyrank::detail::cat("names a stage beyond the last, ", stages_ - 1));
      if (rank_of_[a.stage] != r)
        return fail(fault_kind::placement, r, n,
                    polyrank::detail::cat("is of stage ", a.stage, ", which rank ",
                                          rank_of_[a.stage], " owns"));
      if (updated) return fail(fault_kind::order, r, n, "comes after the optimizer");
      if (a.kind == action_kind::optimizer) updated = true;
      if (!(has_microbatch(a.kind) ? of_microbatch(r, n, a) : of_stage(r, n, a))) return false;
    }
    return true;
  }

  bool of_microbatch(std::size_t r, std::size_t n, const action& a) {
    if (a.microbatch >= m_)
      return fail(fault_kind::malformed, r, n,
                  polyrank::detail::cat("names a microbatch beyond the last, ", m_ - 1));
    std::uint16_t& seen = seen_[a.stage * m_ + a.microbatch];
    if ((seen & bit_of(a.kind)) != 0) return fail(fault_kind::duplicate, r, n, "occurs twice");
    const auto needs = [&](std::uint16_t any, std::string_view what) {
      if ((seen & any) != 0) return true;
      return fail(fault_kind::order, r, n, polyrank::detail::cat("comes before its ", what));
    };
    stage_state& stage = stage_[a.stage];
    const boundaries& edge = edge_[a.stage];
    bool fine = true;
    if (is_compute(a.kind)) {
      stage.used = true;
      if (stage.resharded) return fail(fault_kind::order, r, n, "runs after RESHARD");
      if (a.joined != 0 && (a.kind != action_kind::forward || !joins(r, n)))
        return fail(fault_kind::malformed, r, n, "is joined with something that is not a backward");
    }
    switch (a.kind) {
    case action_kind::forward:
      if (explicit_ && edge.from_below) fine = needs(bit_of(action_kind::recv_forward), "RECV_F");
      break;
    case action_kind::recompute:
      fine = needs(f, "forward");
      if (fine && (seen & (b | i)) != 0)
        fine = fail(fault_kind::order, r, n, "comes after its backward");
      break;
    case action_kind::backward:
    case action_kind::input_grad:
      fine = needs(f, "forward");
      if (fine && (seen & (b | i)) != 0)
        fine = fail(fault_kind::duplicate, r, n, "is a second backward");
      if (fine && explicit_ && edge.to_above)
        fine = needs(bit_of(action_kind::recv_backward), "RECV_B");
      if (a.kind == action_kind::backward) ++stage.finished;
      break;
    case action_kind::weight_grad:
      fine = needs(i, "input gradient");
      ++stage.finished;
      break;
    case action_kind::send_forward:
      if (!edge.to_above) return fail(fault_kind::malformed, r, n, "has no other rank to go to");
      fine = needs(f, "forward");
      break;
    case action_kind::send_backward:
      if (!edge.from_below) return fail(fault_kind::malformed, r, n, "has no other rank to go to");
      fine = needs(b | i, "backward");
      break;
    case action_kind::recv_forward:
      if (!edge.from_below)
        return fail(fault_kind::malformed, r, n, "has no other rank to come from");
      if (!t_.slots.empty() && t_.slots[a.stage].activation == 0) fine = no_slot(r, n);
      break;
    default:
      if (!edge.to_above)
        return fail(fault_kind::malformed, r, n, "has no other rank to come from");
      if (!t_.slots.empty() && t_.slots[a.stage].gradient == 0) fine = no_slot(r, n);
    }
    seen = static_cast<std::uint16_t>(seen | bit_of(a.kind));
    return fine;
  }

  bool of_stage(std::size_t r, std::size_t n, const action& a) {
    stage_state& s = stage_[a.stage];
    const bool complete = !trains_ || s.finished == m_;
    switch (a.kind) {
    case action_kind::unshard:
      if (s.used && !s.unsharded)
        return fail(fault_kind::order, r, n, "comes after the stage's first use");
      if (s.unsharded && !s.resharded)
        return fail(fault_kind::duplicate, r, n, "gathers a stage that is gathered");
      s.unsharded = true, s.resharded = false;
      return true;
    case action_kind::reshard:
      if (!s.unsharded || s.resharded)
        return fail(fault_kind::order, r, n, "drops a stage that is not gathered");
      s.resharded = true;
      return true;
    case action_kind::tied_reduce:
      if (a.stage != 0 && a.stage + 1u != stages_)
        return fail(fault_kind::malformed, r, n, "is of neither the first nor the last stage");
      if (s.tied) return fail(fault_kind::duplicate, r, n, "occurs twice");
      if (s.reduced) return fail(fault_kind::order, r, n, "comes after the stage's REDUCE_GRAD");
      s.tied = true;
      break;
    case action_kind::reduce:
      if (s.reduced) return fail(fault_kind::duplicate, r, n, "occurs twice");
      s.reduced = true;
      break;
    default: // the optimizer: list_of() lets nothing follow it
      return true;
    }
    if (!complete) return fail(fault_kind::order, r, n, "comes before the stage's last gradient");
    return true;
  }

  std::optional<fault> totals() const {
    for (std::size_t s = 0; s < stages_; ++s)
      for (std::size_t k = 0; k < m_; ++k) {
        const std::uint16_t seen = seen_[s * m_ + k];
        if ((seen & f) == 0) return missing(s, k, action_kind::forward);
        if (trains_ && (seen & (b | i)) == 0) return missing(s, k, action_kind::backward);
        if ((seen & i) != 0 && (seen & w) == 0) return missing(s, k, action_kind::weight_grad);
        if (!explicit_) continue;
        const auto absent = [&](action_kind kind) { return (seen & bit_of(kind)) == 0; };
        if (edge_[s].to_above && absent(action_kind::send_forward))
          return missing(s, k, action_kind::send_forward);
        if (trains_ && edge_[s].from_below && absent(action_kind::send_backward))
          return missing(s, k, action_kind::send_backward);
        if (!trains_ && edge_[s].to_above && !absent(action_kind::recv_backward))
          return missing(s, k, action_kind::backward);
      }
    if (stage_.front().tied != stage_.back().tied)
      return missing(stage_.front().tied ? stages_ - 1 : 0, 0, action_kind::tied_reduce);
    return std::nullopt;
  }

  [[nodiscard]] fault missing(std::size_t s, std::size_t k, action_kind kind) const {
    const step at{rank_of_[s], t_.row[rank_of_[s] + 1] - t_.row[rank_of_[s]],
                  make_action(kind, s, k)};
    return {fault_kind::missing,
            at,
            polyrank::detail::cat("rank ", at.rank, " never runs ", text_of(at.what)),
            {}};
  }
  bool no_slot(std::size_t r, std::size_t n) {
    return fail(fault_kind::malformed, r, n, "has no slot to receive into");
  }
  [[nodiscard]] static constexpr bool is_compute(action_kind k) noexcept {
    return k <= action_kind::recompute;
  }
  [[nodiscard]] bool joins(std::size_t r, std::size_t n) const noexcept {
    if (n + 1 == t_.row[r + 1]) return false;
    const action& next = t_.actions[n + 1];
    return (next.kind == action_kind::backward || next.kind == action_kind::input_grad) &&
           next.joined == 0 &&
           (next.stage != t_.actions[n].stage || next.microbatch != t_.actions[n].microbatch);
  }

  const table& t_;
  std::size_t m_, stages_;
  bool explicit_ = false, trains_ = false;
  std::vector<std::uint16_t> seen_;
  std::vector<stage_state> stage_;
  std::vector<std::size_t> rank_of_;
  std::vector<boundaries> edge_;
  std::optional<fault> found_;
};

[[nodiscard]] inline std::optional<fault> census(const table& t) { return census_taker(t).run(); }

} // namespace polyrank::pipeline::detail
