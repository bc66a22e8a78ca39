// A report as text: one row per rank, time to the right.
//
//     rank 0 |F0F1....B0--F2B1--..B2--|
//     rank 1 |..F0B0--F1B1--F2B2--....|
//
// Letter: F, B, I, W, R (recompute), O (optimizer); small in odd chunks. Then the microbatch, as
// many digits as fit, and dashes to the end of the action. A dot is idle time. An overlapped pair
// shows its forward in the first half and its backward in the second.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/text.hpp>
#include <polyrank/pipeline/report.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace polyrank::pipeline {

namespace detail {

/// The letter of a compute action; a blank for what takes no time.
[[nodiscard]] constexpr char letter_of(const shape& s, const action& a) noexcept {
  char letter = ' ';
  switch (a.kind) {
  case action_kind::forward:
    letter = 'F';
    break;
  case action_kind::backward:
    letter = 'B';
    break;
  case action_kind::input_grad:
    letter = 'I';
    break;
  case action_kind::weight_grad:
    letter = 'W';
    break;
  case action_kind::recompute:
    letter = 'R';
    break;
  case action_kind::optimizer:
    letter = 'O';
    break;
  default:
    return ' ';
  }
  return s.chunk_of(a.stage) % 2 == 1 ? static_cast<char>(letter - 'A' + 'a') : letter;
}

} // namespace detail

/// Rows of at most `columns` cells, from a report with a timeline. Cells are a whole fraction of
/// the shortest action where that fits, so that equal actions look equal.
[[nodiscard]] inline std::string ascii(const report& r, std::size_t columns = 120) {
  double shortest = r.makespan, first = 0;
  bool any = false;
  for (const event& e : r.timeline) {
    if (e.lane != 0) continue;
    first = any ? std::min(first, e.start) : e.start;
    any = true;
    if (e.end > e.start) shortest = std::min(shortest, (e.end - e.start) / (e.what.joined + 1));
  }
  if (!any || r.makespan <= 0) return "";
  const auto wide = static_cast<double>(std::max<std::size_t>(columns, 8));
  const double per_shortest = std::floor(wide * shortest / r.makespan + 1e-9);
  const double cell =
      per_shortest >= 1 ? shortest / std::min(per_shortest, 4.0) : r.makespan / wide;
  const auto column = [&](double t) {
    return static_cast<std::size_t>(std::max(0.0, std::floor((t - first) / cell + 0.5)));
  };
  std::vector<std::string> rows(r.shape.ranks, std::string(column(first + r.makespan), '.'));
  bool second = false;
  for (const event& e : r.timeline) {
    if (e.lane != 0) continue;
    const char letter = detail::letter_of(r.shape, e.what);
    const double middle = (e.start + e.end) / 2;
    const double start = second ? middle : e.start, end = e.what.joined != 0 ? middle : e.end;
    second = e.what.joined != 0;
    if (letter == ' ' || e.rank >= rows.size()) continue;
    std::string& row = rows[e.rank];
    const std::size_t to = std::min(column(end), row.size());
    std::string text(1, letter);
    if (has_microbatch(e.what.kind)) polyrank::detail::append(text, e.what.microbatch);
    for (std::size_t at = column(start), i = 0; at < to; ++at, ++i)
      row[at] = i < text.size() ? text[i] : '-';
  }
  std::string out;
  const std::size_t digits = polyrank::detail::cat(r.shape.ranks - 1).size();
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    const std::string number = polyrank::detail::cat(rank);
    out += polyrank::detail::cat("rank ", std::string(digits - number.size(), ' '), number, " |",
                                 rows[rank], "|\n");
  }
  return out;
}

} // namespace polyrank::pipeline
