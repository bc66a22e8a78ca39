// Which activations to drop and compute again, so that no rank holds more than a cap: as few as
// possible, and those whose absence helps longest.
//
//     table t = generate(schedule::one_f_one_b, 4, 16);
//     table u = recompute_to_fit(t, costs, 2.5e9);   // RECOMPUTE before some backwards
//     table w = lower(u, costs);
//
// Each rank alone: where its activations are highest, the one whose backward is farthest away is
// dropped (as Belady evicts), until the cap holds. lower(..., {.recompute = true}) drops all.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/costs.hpp>
#include <polyrank/pipeline/lower_compute.hpp>
#include <polyrank/pipeline/table.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace polyrank::pipeline {

namespace detail {

/// One rank's list, and what of it is dropped after its forward.
class activation_budget {
 public:
  activation_budget(std::span<const action> list, const shape& s, const costs& c)
      : list_(list), m_(s.microbatches), costs_(c), dropped_(s.stages() * m_),
        backward_(s.stages() * m_, none), forward_(s.stages() * m_, none) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind == action_kind::forward) forward_[cell(list[i])] = i;
      if (is_backward(list[i].kind)) backward_[cell(list[i])] = i;
    }
  }

  /// Drops until the peak is at most `cap`; the smallest peak that it can reach, if that is more.
  double fit(double cap) {
    for (;;) {
      const auto [peak, at] = highest();
      if (peak <= cap * (1 + 1e-9)) return peak;
      std::size_t best = none;
      for (std::size_t k = 0; k < dropped_.size(); ++k) {
        // Held over that point, and not computed right before its backward anyway.
        if (dropped_[k] || forward_[k] >= at || backward_[k] == none || backward_[k] <= at)
          continue;
        if (best == none || backward_[k] > backward_[best]) best = k;
      }
      if (best == none) return peak;
      dropped_[best] = true;
    }
  }
  [[nodiscard]] bool dropped(const action& a) const { return dropped_[cell(a)]; }

 private:
  static constexpr std::size_t none = ~std::size_t{0};
  struct point {
    double peak;
    std::size_t at;
  };
  [[nodiscard]] std::size_t cell(const action& a) const { return a.stage * m_ + a.microbatch; }

  /// What computing the backward's activation again adds.
  [[nodiscard]] double again(const action& backward) const {
    const stage_memory& b = costs_.memory[backward.stage];
    return dropped_[cell(backward)] ? b.activation - b.checkpoint : 0;
  }
  /// The most that is held, and during which action.
  [[nodiscard]] point highest() const {
    point top{0, 0};
    double now = 0;
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const action& a = list_[i];
      if (a.kind > action_kind::weight_grad) continue;
      const stage_memory& b = costs_.memory[a.stage];
      if (a.kind == action_kind::forward) {
        if (a.joined != 0) now += again(list_[i + 1]); // before the pair, not inside it
        if (now + b.activation > top.peak) top = {now + b.activation, i};
        now += dropped_[cell(a)] ? b.checkpoint : b.activation;
      } else if (a.kind == action_kind::weight_grad) {
        now -= b.weight_context;
      } else {
        if (i == 0 || list_[i - 1].joined == 0) now += again(a);
        if (now > top.peak) top = {now, i};
        now -= b.activation - (a.kind == action_kind::input_grad ? b.weight_context : 0);
      }
    }
    return top;
  }

  std::span<const action> list_;
  std::size_t m_;
  const costs& costs_;
  std::vector<bool> dropped_;
  std::vector<std::size_t> backward_, forward_; // per cell: index in the list
};

} // namespace detail

/// The compute table with RECOMPUTE where the cap (per rank, in the unit of `c`) asks for it.
/// Throws usage_error, naming the smallest cap that works, where it cannot be met.
[[nodiscard]] inline table recompute_to_fit(const table& compute, const costs& c, double cap) {
  check(compute.shape);
  check(c, compute.shape);
  expects(cap > 0, "the memory cap is ", cap, ", it must be above 0");
  table out;
  out.shape = compute.shape;
  double least = 0;
  for (std::size_t r = 0; r < compute.shape.ranks; ++r) {
    const std::span<const action> list = compute.of(r);
    detail::activation_budget budget(list, compute.shape, c);
    least = std::max(least, budget.fit(cap));
    const std::vector<action> fitted =
        detail::add_recompute(list, [&](const action& a) { return budget.dropped(a); });
    out.actions.insert(out.actions.end(), fitted.begin(), fitted.end());
    out.row.push_back(out.actions.size());
  }
  expects(least <= cap * (1 + 1e-9), "activations do not fit into ", cap,
          " per rank, even where they are computed again; the smallest cap that works is ", least);
  return out;
}

} // namespace polyrank::pipeline
