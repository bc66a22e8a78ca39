// Times at points of CUDA streams, from CUDA events.
//
//     cuda::stopwatch watch(2);
//     watch.start(s);                    // the host waits for s; times count from here
//     watch.mark(0, s);
//     kernel<<<..., s.native()>>>(x);
//     watch.mark(1, s);
//     s.synchronize();
//     watch.seconds(1) - watch.seconds(0)
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/stream.hpp>

#include <chrono>
#include <cstddef>
#include <vector>

namespace polyrank::cuda {

/// `count` marks on streams of the device that is current at construction.
class stopwatch {
 public:
  explicit stopwatch(std::size_t count) : events_(count + 1, nullptr) {
    for (cudaEvent_t& e : events_) check(cudaEventCreate(&e), "cudaEventCreate");
  }
  stopwatch(const stopwatch&) = delete;
  stopwatch& operator=(const stopwatch&) = delete;
  ~stopwatch() {
    if (detail::unwinding()) return;
    for (cudaEvent_t e : events_)
      if (e != nullptr) static_cast<void>(cudaEventDestroy(e));
  }

  void start(stream& s) {
    check(cudaEventRecord(events_.back(), s.native()), "cudaEventRecord");
    s.synchronize();
    origin_ =
        std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  void mark(std::size_t i, stream& s) {
    check(cudaEventRecord(events_[i], s.native()), "cudaEventRecord");
  }
  /// Since start(), after the stream has come to the mark.
  [[nodiscard]] double seconds(std::size_t i) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events_.back(), events_[i]), "cudaEventElapsedTime");
    return static_cast<double>(ms) / 1e3;
  }
  /// Of start() on this machine's steady clock.
  [[nodiscard]] double origin() const noexcept { return origin_; }

 private:
  std::vector<cudaEvent_t> events_; // the last one is the origin
  double origin_ = 0;
};

} // namespace polyrank::cuda
