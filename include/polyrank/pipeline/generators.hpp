// The schedules by name, and generate(): a checked shape in, a table out.
//
//     table t = generate(schedule::zb_v, 4, 8);                  // 4 ranks, 8 microbatches
//     table u = generate(schedule_from("interleaved"), 4, 8, 2); // 2 chunks per rank
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/generators_basic.hpp>
#include <polyrank/pipeline/generators_controllable.hpp>
#include <polyrank/pipeline/generators_vee.hpp>
#include <polyrank/pipeline/generators_zero_bubble.hpp>
#include <polyrank/pipeline/table.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace polyrank::pipeline {

enum class schedule : std::uint8_t {
  gpipe,
  one_f_one_b,
  interleaved,
  bfs,
  zb_h1,
  zb_h2,
  zb_v,
  v_half,
  v_min,
  dualpipe_v,
  forward_only,
};

/// What a schedule is called and which shapes it takes.
struct schedule_traits {
  std::string_view name;
  std::size_t min_chunks, max_chunks;
  placement place;
  bool splits_backward; ///< the stage needs separate input and weight gradients
};

inline constexpr std::array<schedule_traits, 11> schedules = {{
    {"gpipe", 1, 1, placement::loop, false},
    {"1f1b", 1, 1, placement::loop, false},
    {"interleaved", 1, max_stages, placement::loop, false},
    {"bfs", 1, max_stages, placement::loop, false},
    {"zb_h1", 1, 1, placement::loop, true},
    {"zb_h2", 1, 1, placement::loop, true},
    {"zb_v", 2, 2, placement::vee, true},
    {"v_half", 2, 2, placement::vee, true},
    {"v_min", 2, 2, placement::vee, true},
    {"dualpipe_v", 2, 2, placement::vee, true},
    {"forward_only", 1, max_stages, placement::loop, false},
}};

/// The ten that train, in the order in which they are compared.
inline constexpr std::array<schedule, 10> training_schedules = {
    schedule::gpipe, schedule::one_f_one_b, schedule::interleaved, schedule::bfs,
    schedule::zb_h1, schedule::zb_h2,       schedule::zb_v,        schedule::v_half,
    schedule::v_min, schedule::dualpipe_v};

[[nodiscard]] constexpr const schedule_traits& traits_of(schedule s) noexcept {
  return schedules[static_cast<std::size_t>(s)];
}

/// usage_error with the list of names where there is none such.
[[nodiscard]] inline schedule schedule_from(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < schedules.size(); ++i) {
    if (schedules[i].name == name) return static_cast<schedule>(i);
    polyrank::detail::append(known, i == 0 ? "" : ", ");
    polyrank::detail::append(known, schedules[i].name);
  }
  throw usage_error(polyrank::detail::cat("unknown schedule \"", name, "\"; there are ", known));
}

/// The chunks per rank that a schedule takes where the user names none: 2 where it can use them.
[[nodiscard]] constexpr std::size_t default_chunks(schedule s) noexcept {
  return traits_of(s).max_chunks == 1 || s == schedule::forward_only ? 1 : 2;
}

/// The checked shape of a schedule; usage_error names the domain where the numbers are outside.
[[nodiscard]] inline shape shape_of(schedule s, std::size_t ranks, std::size_t microbatches,
                                    std::size_t chunks) {
  const schedule_traits& t = traits_of(s);
  expects(chunks >= t.min_chunks && chunks <= t.max_chunks, t.name, " takes ",
          t.max_chunks == max_stages ? "at least " : "exactly ", t.min_chunks,
          t.min_chunks == 1 ? " chunk" : " chunks", " per rank, got ", chunks);
  const shape result{ranks, microbatches, chunks, t.place};
  check(result);
  return result;
}

/// Rank `rank`'s actions of schedule `s`, in order, to `sink(action)`.
template <class Sink>
constexpr void emit(schedule s, const shape& at, std::size_t rank, Sink&& sink) {
  switch (s) {
  case schedule::gpipe:
    return gpipe(at, rank, sink);
  case schedule::one_f_one_b:
    return one_f_one_b(at, rank, sink);
  case schedule::interleaved:
    return interleaved(at, rank, sink);
  case schedule::bfs:
    return bfs(at, rank, sink);
  case schedule::zb_h1:
    return zb_h1(at, rank, sink);
  case schedule::zb_h2:
    return zb_h2(at, rank, sink);
  case schedule::zb_v:
    return zb_v(at, rank, sink);
  case schedule::v_half:
    return v_half(at, rank, sink);
  case schedule::v_min:
    return v_min(at, rank, sink);
  case schedule::dualpipe_v:
    return dualpipe_v(at, rank, sink);
  case schedule::forward_only:
    return forward_only(at, rank, sink);
  }
}

/// The compute actions of all ranks. Evaluation of a V model: give forward_only a shape with
/// placement::vee through the second overload.
[[nodiscard]] inline table generate(schedule s, const shape& at) {
  check(at);
  expects(at.place == placement::loop || at.chunks == 2,
          "the V placement has exactly 2 chunks per rank, got ", at.chunks);
  if (s != schedule::forward_only)
    expects(at == shape_of(s, at.ranks, at.microbatches, at.chunks), traits_of(s).name,
            " needs the ", traits_of(s).place == placement::vee ? "V" : "loop", " placement");
  table t;
  t.shape = at;
  const std::size_t per_cell = s == schedule::forward_only    ? 1
                               : traits_of(s).splits_backward ? 3
                                                              : 2;
  t.actions.reserve(per_cell * at.stages() * at.microbatches);
  t.row.reserve(at.ranks + 1);
  if (s == schedule::v_half) { // whose ranks are made together
    const std::size_t each = per_cell * at.chunks * at.microbatches;
    for (std::size_t r = 0; r < at.ranks; ++r) t.row.push_back((r + 1) * each);
    std::vector<std::size_t> next(t.row.begin(), t.row.end() - 1);
    t.actions.resize(at.ranks * each);
    v_half_all(at, [&](std::size_t r, const action& a) { t.actions[next[r]++] = a; });
    return t;
  }
  for (std::size_t r = 0; r < at.ranks; ++r) {
    emit(s, at, r, [&](const action& a) { t.actions.push_back(a); });
    t.row.push_back(t.actions.size());
  }
  return t;
}

[[nodiscard]] inline table generate(schedule s, std::size_t ranks, std::size_t microbatches,
                                    std::size_t chunks = 0) {
  return generate(s, shape_of(s, ranks, microbatches, chunks == 0 ? default_chunks(s) : chunks));
}

} // namespace polyrank::pipeline
