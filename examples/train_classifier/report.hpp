// What a run leaves behind: a JSON file for programs, two pictures for people.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train_classifier/dataset.hpp"
#include "train_classifier/fit.hpp"
#include "train_classifier/training_result.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace polyrank::examples {

/// Facts of a run that the training loop does not know.
struct run_facts {
  std::string backend;
  std::size_t ranks = 1;
  std::uint64_t wire_bytes = 0; ///< sent by rank 0
};

/// The JSON of a trainer: final, losses, samples_per_second, samples_per_rank, wire_bytes, digest,
/// backend, ranks, config.
[[nodiscard]] std::string result_json(const training_result& r, const config& c, const dataset& d,
                                      const run_facts& facts);

/// One line a step: step, epoch, loss, learning rate, and the validation accuracy where it was
/// measured.
[[nodiscard]] std::string metrics_csv(const training_result& r, const config& c);

/// Loss by step, accuracy by epoch.
[[nodiscard]] std::string learning_curve(const training_result& r, const dataset& d);

/// Test pictures that the network got wrong, the most confident mistake first; then, for
/// comparison, pictures that it got right, one or two of each kind.
[[nodiscard]] std::string contact_sheet(const evaluation& e, const dataset& d,
                                        std::size_t mistakes = 60, std::size_t correct = 20);

/// {"fit": {"micro_batch", "batch", "trials": [{"micro_batch", "bytes", "run", "fits", "why"}]}}
[[nodiscard]] std::string fit_json(const fit_result& r, std::size_t batch);

} // namespace polyrank::examples
