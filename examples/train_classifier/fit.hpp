// --fit: the largest micro-batch that fits, by doubling. "Fits" is 20 full steps with optimizer,
// evaluation and save, within the limit and without growth.
//
//     const fit_result r = fit_micro_batch(most, limit, predict, [&](std::size_t micro_batch) {
//       return ...; // runs the steps, returns what they took
//     }, say);
//     r.best, r.trials
//
// Where running out of memory cannot be survived (the host backend: the kernel ends the process),
// `predict` asks for a forecast before each trial: memory is a constant plus something proportional
// to the micro-batch, so the next doubling adds twice what the last one added.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace polyrank::examples {

struct fit_trial {
  std::size_t micro_batch = 0;
  std::size_t bytes = 0; ///< most in use, or expected where it was not `run`
  bool run = true;
  std::string why{}; ///< it does not fit; empty: it does
};

struct fit_result {
  std::size_t best = 0; ///< 0: not even one picture fits
  std::vector<fit_trial> trials;
};

inline constexpr std::size_t fit_steps = 20;

/// Micro-batches 1, 2, 4, ... up to `most`, until one does not fit in `limit` bytes. `say` hears of
/// each.
[[nodiscard]] fit_result fit_micro_batch(std::size_t most, std::size_t limit, bool predict,
                                         const std::function<fit_trial(std::size_t)>& attempt,
                                         const std::function<void(const fit_trial&)>& say);

/// Why `late` bytes in use after the last step are growth over `early` ones after the fifth; empty:
/// they are not. What allocators and the page cache round is no growth: 5 % or 16 MiB.
[[nodiscard]] std::string growth(std::size_t early, std::size_t late);

/// One line for each trial.
[[nodiscard]] std::string fit_text(const fit_trial& t);

} // namespace polyrank::examples
