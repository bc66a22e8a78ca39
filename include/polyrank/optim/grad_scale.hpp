// What one step does with its gradients, as one record in backend memory: norm, factor, skip, and
// the state of the loss scaler. It is written once all squares are summed, and read by the update;
// the host never waits for it.
//
//     conclude(record, squares, {.mean = 1.0f / (ranks * microbatches), .max_norm = 1});
//     ... update multiplies gradients by record.factor, or does nothing where record.skip ...
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hd.hpp>
#include <polyrank/core/ieee.hpp>
#include <polyrank/optim/loss_scaler.hpp>

#include <cmath>
#include <cstdint>

namespace polyrank {

/// Trivially copyable; starts as step_record{.scaler = initial(options)}.
struct step_record {
  double squares = 0;        ///< sum of squares of the summed, scaled gradients
  float norm = 0;            ///< of the mean gradient: what is compared with max_norm
  float factor = 1;          ///< turns summed gradients into clipped means
  std::uint32_t skip = 0;    ///< 1: some gradient was not finite; nothing is updated
  std::uint32_t clipped = 0; ///< 1: factor has shortened the gradient
  std::uint64_t applied = 0; ///< updates made, this one included: t of the bias correction
  std::uint64_t skipped = 0; ///< steps that made none
  scaler_state scaler;       ///< for the next backward; a trainer multiplies its loss by scale
};

struct grad_scale_terms {
  float mean = 1;     ///< 1 / (ranks * microbatches), or 1 / blocks
  float max_norm = 0; ///< 0: do not clip
  scaler_options scaler{};
};

/// The verdict on gradients whose squares sum to `squares`.
///
/// norm = mean / scale * sqrt(squares); factor = mean / scale, times max_norm / norm unless
/// norm <= max_norm. A NaN is not <= anything, but then the step is skipped anyway.
POLYRANK_HD inline void conclude(step_record& r, double squares,
                                 const grad_scale_terms& t) noexcept {
  const float unscale = ieee::div(t.mean, r.scaler.scale);
  const double norm = static_cast<double>(unscale) * std::sqrt(squares);
  r.squares = squares;
  r.norm = static_cast<float>(norm);
  r.factor = unscale;
  r.clipped = 0;
  // Finite floats have finite squares in double, so this sees infinity and NaN, nothing else.
  r.skip = squares - squares == 0 ? 0 : 1;
  if (t.max_norm > 0 && !(r.norm <= t.max_norm)) {
    r.factor = ieee::mul(unscale, ieee::div(t.max_norm, r.norm));
    r.clipped = 1;
  }
  (r.skip != 0 ? r.skipped : r.applied) += 1;
  r.scaler = next(r.scaler, r.skip != 0, t.scaler);
}

/// The factor of a step whose own norm is not awaited: clipped as `last_norm` (of the step before)
/// would ask for; 0 means there is none yet.
[[nodiscard]] POLYRANK_HD inline float factor_from(float last_norm,
                                                   const grad_scale_terms& t) noexcept {
  if (!(t.max_norm > 0) || last_norm <= t.max_norm) return t.mean;
  return ieee::mul(t.mean, ieee::div(t.max_norm, last_norm));
}

} // namespace polyrank
