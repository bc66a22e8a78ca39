// Times at points of host streams.
//
//     host::stopwatch watch(2);
//     watch.start(s);                    // the host waits for s; times count from here
//     watch.mark(0, s);
//     ... work on s ...
//     watch.mark(1, s);
//     s.synchronize();
//     watch.seconds(1) - watch.seconds(0)
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/host/stream.hpp>

#include <chrono>
#include <cstddef>
#include <vector>

namespace polyrank::host {

/// `count` marks, each written by the stream it is set on. Must outlive the work of those streams.
class stopwatch {
 public:
  explicit stopwatch(std::size_t count) : at_(count, 0) {}

  void start(stream& s) {
    s.synchronize();
    origin_ = now();
  }
  void mark(std::size_t i, stream& s) {
    s.enqueue([to = &at_[i]] { *to = now(); });
  }
  /// Since start(), after the stream has come to the mark.
  [[nodiscard]] double seconds(std::size_t i) const { return at_[i] - origin_; }
  /// Of start() on this machine's steady clock.
  [[nodiscard]] double origin() const noexcept { return origin_; }

 private:
  static double now() noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  std::vector<double> at_;
  double origin_ = 0;
};

} // namespace polyrank::host
