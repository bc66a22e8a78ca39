// What training is asked for beside the configuration, and what comes out of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/progress.hpp"
#include "train_classifier/step_plan.hpp"

#include <polyrank/hang/ring.hpp>
#include <polyrank/monitor/trace.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::examples {

/// What the network says about a set of pictures.
struct evaluation {
  std::vector<std::uint8_t> predicted; ///< by picture
  std::vector<float> confidence;       ///< probability of the predicted class
  double accuracy = 0;
};

/// Equal on every rank but for `samples_per_second` and `communication_ms`.
struct training_result {
  std::size_t first_step = 0; ///< steps made before this run, which resumed
  bool stopped = false;       ///< saved and stopped on request, before the last step; not evaluated
  std::string save_error;     ///< why the last checkpoint was not saved; empty: it was
  float final_loss = 0;       ///< of the last step, also if it was made before this run
  std::vector<float> losses;  ///< mean over each step's global batch
  std::vector<std::pair<double, double>> validation; ///< (step, accuracy) after each epoch
  evaluation train, final_validation, test;
  double samples_per_second = 0;
  double communication_ms = 0; ///< mean time per step in which compute waited for gradients
  std::size_t samples_per_rank = 0;
  std::optional<trace_report> trace; ///< see tracing.hpp
  std::uint64_t digest = 0;          ///< of parameters and optimizer state in layout order
  step_plan plan;
  std::vector<float> parameters, state; ///< in layout order; state plane by plane
};

struct train_options {
  std::size_t workers = 1;
  progress* line = nullptr;     ///< of rank 0
  std::function<bool()> stop{}; ///< whether this rank was asked to save and stop
  hang::ring* ring = nullptr;   ///< of this rank, where it is watched: pauses, place in a pipeline
  std::function<void(const std::string& line, bool problem)> say{}; ///< of rank 0
  std::function<void(std::size_t steps)> watch{}; ///< called after each step, and at the end
};

} // namespace polyrank::examples
