// What the benchmarks of kernels measure with: device events.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "timing.hpp"

#include <polyrank/cuda/stream.hpp>

#include <functional>
#include <string>
#include <vector>

namespace polyrank::bench {

/// Milliseconds between two events on `s`, around what f enqueues there. Waits for it.
template <class F>
double device_milliseconds(cuda::stream& s, F&& f) {
  cudaEvent_t from = nullptr, to = nullptr;
  for (cudaEvent_t* e : {&from, &to}) cuda::check(cudaEventCreate(e), "cudaEventCreate");
  cuda::check(cudaEventRecord(from, s.native()), "cudaEventRecord");
  f();
  cuda::check(cudaEventRecord(to, s.native()), "cudaEventRecord");
  s.synchronize();
  float ms = 0;
  cuda::check(cudaEventElapsedTime(&ms, from, to), "cudaEventElapsedTime");
  for (cudaEvent_t e : {from, to}) cuda::check(cudaEventDestroy(e), "cudaEventDestroy");
  return static_cast<double>(ms);
}

/// A kernel that reads and writes `bytes`.
struct candidate {
  std::string name;
  double bytes;
  std::function<void()> run;
  std::vector<double> ms{};
  [[nodiscard]] double us() const { return 1e3 * median(ms); }
  [[nodiscard]] double gb_per_s() const { return bytes / median(ms) / 1e6; }
};

/// Runs all of them in turns, after three rounds that do not count.
inline void measure(std::vector<candidate>& all, int repetitions, cuda::stream& s) {
  for (int r = -3; r < repetitions; ++r)
    for (candidate& c : all) {
      const double ms = device_milliseconds(s, c.run);
      if (r >= 0) c.ms.push_back(ms);
    }
}

} // namespace polyrank::bench
