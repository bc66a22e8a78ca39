// What a run saves and how it goes on from there. The state of the classifier as tensors:
//
//   layer0.weight, layer0.bias, ...                the weights, fp32
//   optimizer/0/layer0.weight, ...                 the optimizer's state, plane by plane
//
// and as notes: the step, the last loss, and every flag that the rest of the curve depends on. All
// randomness is a function of (seed, step, row), so the step is the position of the sampler, and
// nothing in a checkpoint depends on the number of ranks.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train_classifier/config.hpp"
#include "train_classifier/mlp.hpp"

#include <polyrank/checkpoint/fragments.hpp>
#include <polyrank/checkpoint/manifest.hpp>
#include <polyrank/optim/grad_scale.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace polyrank::examples {

/// As the trainer's JSON shows it.
[[nodiscard]] std::string config_json(const config& c);

/// All tensors of a run whose optimizer keeps `planes` floats a weight: weights, then each plane.
[[nodiscard]] std::vector<checkpoint::tensor_info> state_tensors(const std::vector<tensor>& weights,
                                                                 std::size_t planes);

[[nodiscard]] checkpoint::metadata make_notes(const config& c, std::size_t training_pictures,
                                              float loss, const step_record& last);

/// What a checkpoint's notes say of its last step: updates made, steps skipped, the loss scaler.
/// @throws data_error if they say nonsense
[[nodiscard]] step_record record_of(const checkpoint::manifest& saved);

/// Judges the notes of a checkpoint for a run with these flags; returns the last loss.
/// @throws usage_error naming the flag that must be as it was
[[nodiscard]] float judge_notes(const checkpoint::manifest& saved, const config& c,
                                std::size_t training_pictures);

/// Takes what fits from a safetensors file into `values`, the concatenation of all weights. Returns
/// a line for each tensor that did not fit.
/// @throws data_error if the file cannot be read, or nothing in it fits
[[nodiscard]] std::string load_weights(const std::filesystem::path& file,
                                       const std::vector<tensor>& weights, std::span<float> values);

/// Writes the weights as one safetensors file.
void save_weights(const std::filesystem::path& file, const std::vector<tensor>& weights,
                  std::span<const float> values);

} // namespace polyrank::examples
