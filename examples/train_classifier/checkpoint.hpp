// The whole state of a run in one file: what it takes to go on from this step, on any number of
// ranks.
//
//   8 bytes   magic "PRKSTATE"
//   8 bytes   length of the header, little-endian
//   header    JSON: {"format", "step", "config", "model", "layout": [{"name", "shape", "offset"}],
//             "optimizer", "planes", "count"}; padded with blanks to a multiple of 64 bytes with
//             the above
//   floats    parameters in layout order, then each plane of the optimizer's state
//   8 bytes   hash of everything before
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train_classifier/config.hpp"
#include "train_classifier/mlp.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::examples {

struct checkpoint {
  std::uint64_t step = 0;
  mlp_shape model;
  std::uint64_t seed = 0;
  std::string config_json;
  std::vector<float> parameters;
  std::vector<float> state; ///< adamw::state_count planes of parameters.size()
};

/// As the trainer's JSON shows it.
[[nodiscard]] std::string config_json(const config& c);

[[nodiscard]] std::vector<std::byte> encode(const checkpoint& c);

/// @throws data_error (with `name` and the offset) if the bytes are no complete, intact checkpoint
[[nodiscard]] checkpoint decode(std::span<const std::byte> bytes, std::string_view name);

/// Writes `directory`/state.prk; the file appears complete or not at all. Returns its path.
std::filesystem::path save(const checkpoint& c, const std::filesystem::path& directory);

} // namespace polyrank::examples
