// First step of lower(): the actions that a rank adds to its own list, without looking at others:
// RECOMPUTE before a backward, UNSHARD and RESHARD around the use of sharded parameters, OPTIMIZER.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/pipeline/table.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace polyrank::pipeline::detail {

[[nodiscard]] constexpr bool is_backward(action_kind k) noexcept {
  return k == action_kind::backward || k == action_kind::input_grad;
}

/// Every backward that `wanted` says gets its forward again, except where that has just run.
template <class Wanted>
[[nodiscard]] std::vector<action> add_recompute(std::span<const action> list, Wanted wanted) {
  std::vector<action> out;
  const auto again = [&](const action& backward) {
    if (!wanted(backward)) return;
    action forward = make_action(action_kind::forward, backward.stage, backward.microbatch);
    if (!out.empty() && out.back() == forward) return;
    forward.kind = action_kind::recompute;
    out.push_back(forward);
  };
  for (std::size_t j = 0; j < list.size(); ++j) {
    if (list[j].joined != 0) { // before the pair, not inside it
      again(list[j + 1]);
      out.push_back(list[j++]);
    } else if (is_backward(list[j].kind)) {
      again(list[j]);
    }
    out.push_back(list[j]);
  }
  return out;
}

/// Keeps the parameters of at most `room` stages gathered. A stage is dropped right after its last
/// use before the eviction, the stage used again last goes first (Belady 1966), and the next one is
/// gathered at once, so that the gather overlaps whatever runs until it is needed.
[[nodiscard]] inline std::vector<action> add_gathers(std::span<const action> list,
                                                     std::size_t room) {
  constexpr std::size_t never = ~std::size_t{0};
  std::vector<std::size_t> next_use(list.size(), never);
  std::vector<std::pair<std::size_t, std::size_t>> upcoming; // (stage, index)
  const auto find = [](auto& pairs, std::size_t stage) {
    return std::find_if(pairs.begin(), pairs.end(), [&](auto& p) { return p.first == stage; });
  };
  for (std::size_t j = list.size(); j-- > 0;) {
    auto at = find(upcoming, list[j].stage);
    if (at == upcoming.end()) {
      upcoming.push_back({list[j].stage, j});
    } else {
      next_use[j] = at->second;
      at->second = j;
    }
  }
  std::vector<std::pair<std::size_t, action>> inserts;   // (before which index, what)
  std::vector<std::pair<std::size_t, std::size_t>> live; // (stage, last use)
  std::vector<std::size_t> free(room, 0);                // since which index there is room
  const auto drop = [&](std::size_t victim) {
    const auto [stage, use] = live[victim];
    const std::size_t after = use + 1 + list[use].joined;
    inserts.push_back({after, make_action(action_kind::reshard, stage)});
    free.push_back(after);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
  };
  for (std::size_t j = 0; j < list.size(); ++j) {
    auto at = find(live, list[j].stage);
    if (at == live.end()) {
      if (free.empty()) {
        // Not the forward of the pair that list[j] closes: both run at once.
        const auto key = [&](const auto& l) {
          const bool partner = l.second + 1 == j && list[l.second].joined != 0;
          return partner ? std::size_t{0} : next_use[l.second];
        };
        std::size_t victim = 0;
        for (std::size_t i = 1; i < live.size(); ++i)
          if (key(live[i]) > key(live[victim])) victim = i;
        drop(victim);
      }
      const auto earliest = std::min_element(free.begin(), free.end());
      inserts.push_back({*earliest, make_action(action_kind::unshard, list[j].stage)});
      free.erase(earliest);
      live.push_back({list[j].stage, j});
      at = live.end() - 1;
    }
    at->second = j;
    if (next_use[j] == never) drop(static_cast<std::size_t>(at - live.begin()));
  }
  std::stable_sort(inserts.begin(), inserts.end(), [](const auto& a, const auto& b) {
    return a.first != b.first
               ? a.first < b.first
               : a.second.kind == action_kind::reshard && b.second.kind != action_kind::reshard;
  });
  std::vector<action> out;
  out.reserve(list.size() + inserts.size());
  std::size_t next = 0;
  for (std::size_t j = 0; j <= list.size(); ++j) {
    while (next < inserts.size() && inserts[next].first == j) out.push_back(inserts[next++].second);
    if (j < list.size()) out.push_back(list[j]);
  }
  return out;
}

/// The table with these actions; `live_stages` 0: parameters are resident.
[[nodiscard]] inline table extend_compute(const table& t, bool recompute, std::size_t live_stages,
                                          bool optimizer) {
  const bool pairs = std::any_of(t.actions.begin(), t.actions.end(),
                                 [](const action& a) { return a.joined != 0; });
  expects(live_stages != 1 || !pairs,
          "an overlapped pair uses two stages at once, so live_stages must be at least 2");
  table out;
  out.shape = t.shape;
  for (std::size_t r = 0; r < t.shape.ranks; ++r) {
    std::vector<action> list(t.of(r).begin(), t.of(r).end());
    if (recompute) list = add_recompute(list, [](const action&) { return true; });
    if (live_stages > 0) list = add_gathers(list, live_stages);
    if (optimizer) list.push_back(make_action(action_kind::optimizer, t.shape.stage_of(r, 0)));
    out.actions.insert(out.actions.end(), list.begin(), list.end());
    out.row.push_back(out.actions.size());
  }
  return out;
}

} // namespace polyrank::pipeline::detail
