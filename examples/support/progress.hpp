// The line that tells a waiting person how far the work is: rewritten in place on a terminal, a
// plain line every few seconds elsewhere, and under mpirun.
//
//     progress line({.total = steps});
//     for (std::size_t i = 0; i < steps; ++i) {
//       work(i);
//       if (line.due()) line.show(i + 1, "loss 0.412  41230 samples/s");
//     }
//     line.end();
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

namespace polyrank::examples {

/// Whether to write colours and rewrite lines: FORCE_COLOR (not "0") says yes; NO_COLOR, TERM=dumb
/// and a stream that is no terminal say no.
[[nodiscard]] bool is_fancy(std::FILE* stream) noexcept;

/// "42 s", "3 min 05 s", "2 h 07 min".
[[nodiscard]] std::string duration_text(double seconds);

/// Memory of this process in use, in bytes; 0 where the system does not tell.
[[nodiscard]] std::size_t resident_bytes() noexcept;

class progress {
 public:
  struct options {
    std::size_t total = 0;
    bool enabled = true;
    std::FILE* to = stdout;
    std::chrono::milliseconds fancy_interval{100};
    std::chrono::milliseconds plain_interval{3000};
  };

  explicit progress(options o);

  /// Whether enough time has passed since the last line.
  [[nodiscard]] bool due() const noexcept;
  /// Writes "step done/total  <text>  ETA ...".
  void show(std::size_t done, std::string_view text);
  /// Ends a rewritten line; later output starts on a line of its own.
  void end();

 private:
  using clock = std::chrono::steady_clock;
  options options_;
  bool fancy_;
  bool line_open_ = false;
  clock::time_point start_, last_;
};

} // namespace polyrank::examples
