// What the benchmarks measure with.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

namespace polyrank::bench {

using clock = std::chrono::steady_clock;

/// The larger of the middle two, where there are two.
inline double median(std::vector<double> v) {
  const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), middle, v.end());
  return *middle;
}

/// Milliseconds.
inline double since(clock::time_point start) {
  return std::chrono::duration<double, std::milli>(clock::now() - start).count();
}
template <class F>
double milliseconds(F&& f) {
  const auto start = clock::now();
  f();
  return since(start);
}

} // namespace polyrank::bench
