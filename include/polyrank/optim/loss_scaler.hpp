// Dynamic loss scaling for fp16: the loss is multiplied by `scale`, so that small gradients do not
// vanish; steps whose gradients overflow are skipped and lower the scale, long clean runs raise it.
// Pure: state in, state out, on host and device alike; every rank computes it from one agreed
// verdict, so it is the same everywhere.
//
//     scaler_state s = initial(options);
//     s = next(s, overflowed, options);           // once per step
//
// Hysteresis as in Megatron-LM: the scale is lowered at the `hysteresis`-th overflow since it last
// rose (or fell), so that one bad batch does not cost range. bf16 and fp32 need no scaler.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/core/hd.hpp>

#include <cstdint>

namespace polyrank {

struct scaler_options {
  bool enabled = false;
  float initial = 65536;       ///< a power of two, so that scaling rounds nothing
  float factor = 2;            ///< of a rise and a fall; a power of two
  float least = 1;             ///< the scale never falls below this
  float most = 16777216;       ///< nor rises above
  std::uint32_t window = 1000; ///< clean steps before a rise
  std::uint32_t hysteresis = 2;

  /// Throws usage_error for numbers that make no scaler.
  void check() const {
    expects(least > 0 && least <= initial && initial <= most, "loss scaler: it must be 0 < least (",
            least, ") <= initial (", initial, ") <= most (", most, ")");
    expects(factor > 1, "loss scaler: the factor is ", factor, ", it must be more than 1");
    expects(window > 0 && hysteresis > 0, "loss scaler: window (", window, ") and hysteresis (",
            hysteresis, ") must be at least 1");
  }
};

struct scaler_state {
  float scale = 1;
  std::uint32_t clean = 0;    ///< steps since the last overflow or change
  std::uint32_t patience = 1; ///< overflows until the scale falls
  std::uint32_t at_least = 0; ///< overflows in a row at the least scale: if this grows, it is not
                              ///< the scale that is wrong
};

[[nodiscard]] inline scaler_state initial(const scaler_options& o) noexcept {
  return o.enabled ? scaler_state{.scale = o.initial, .patience = o.hysteresis} : scaler_state{};
}

/// The state after a step that overflowed, or did not.
[[nodiscard]] POLYRANK_HD constexpr scaler_state next(scaler_state s, bool overflowed,
                                                      const scaler_options& o) noexcept {
  if (!o.enabled) return s;
  if (overflowed) {
    s.clean = 0;
    s.at_least = s.scale <= o.least ? s.at_least + 1 : 0;
    if (--s.patience > 0) return s;
    s.patience = o.hysteresis;
    s.scale = s.scale / o.factor < o.least ? o.least : s.scale / o.factor;
    return s;
  }
  s.at_least = 0;
  if (++s.clean < o.window) return s;
  s.clean = 0;
  s.patience = o.hysteresis;
  if (s.scale * o.factor <= o.most) s.scale *= o.factor;
  return s;
}

} // namespace polyrank
