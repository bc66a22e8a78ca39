// How far apart the clocks of the ranks are, from an all_gather of a control channel: no rank can
// leave one before every rank has entered it. So if rank r enters at a_r and leaves at b_r, each on
// its own clock, and its clock is ahead of rank 0's by x, then
//
//     a_r - b_0 <= x <= b_r - a_0
//
// and the best of several rounds leaves an interval as short as two all_gathers. Nothing is assumed
// of how long messages take.
//
//     clock_map common = clock_map(measure_offset(control));     // at the start
//     ... common.end_with(measure_offset(control)) ...           // at the end: also a drift
//     double t0 = common(steady_microseconds());                 // on rank 0's clock
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/backend/trace.hpp>
#include <polyrank/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace polyrank {

/// Microseconds.
struct clock_offset {
  double at = 0;    ///< when it was measured, on this rank's clock
  double ahead = 0; ///< this rank's clock minus rank 0's
  double error = 0; ///< the truth is within ahead +- error
};

/// The offset of this rank. `now` reads its clock in microseconds. @collective
template <control_channel Control, class Clock>
[[nodiscard]] clock_offset measure_offset(Control& control, Clock now, std::size_t rounds = 16) {
  expects(rounds > 0, "measure_offset: no rounds");
  std::vector<double> mine; // entered and left, round by round
  for (std::size_t k = 0; k < rounds; ++k) {
    mine.push_back(now());
    static_cast<void>(control.all_gather(""));
    mine.push_back(now());
  }
  const std::vector<std::string> all = control.all_gather(
      {reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(double)});
  std::vector<double> zero(mine.size());
  expects(all[0].size() == mine.size() * sizeof(double), "measure_offset: rank 0 made ",
          all[0].size() / sizeof(double) / 2, " rounds, this rank ", rounds);
  std::memcpy(zero.data(), all[0].data(), all[0].size());
  if (control.rank() == 0) return {.at = mine.back()};
  double least = -std::numeric_limits<double>::infinity(), most = -least;
  for (std::size_t k = 0; k < mine.size(); k += 2) {
    least = std::max(least, mine[k] - zero[k + 1]);
    most = std::min(most, mine[k + 1] - zero[k]);
  }
  return {.at = mine.back(), .ahead = (least + most) / 2, .error = (most - least) / 2};
}
template <control_channel Control>
[[nodiscard]] clock_offset measure_offset(Control& control) {
  return measure_offset(control, steady_microseconds);
}

/// Turns times of this rank's clock into rank 0's.
class clock_map {
 public:
  explicit clock_map(const clock_offset& start) : start_(start), end_(start) {}
  /// A second measurement; between the two the offset changes evenly.
  void end_with(const clock_offset& end) { end_ = end; }

  [[nodiscard]] double operator()(double t) const noexcept {
    const double span = end_.at - start_.at;
    const double part = span > 0 ? std::clamp((t - start_.at) / span, 0.0, 1.0) : 0.0;
    return t - (start_.ahead + part * (end_.ahead - start_.ahead));
  }
  /// The larger of the two errors.
  [[nodiscard]] double error() const noexcept { return std::max(start_.error, end_.error); }

 private:
  clock_offset start_, end_;
};

} // namespace polyrank
