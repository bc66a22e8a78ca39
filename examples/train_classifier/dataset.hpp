// The pictures that the classifier learns: Fashion-MNIST (70,000 product photos), or the
// handwritten digits that come with the project.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/data/labelled_images.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace polyrank::examples {

struct dataset {
  std::string name;            ///< "fashion-mnist", "digits"
  std::filesystem::path where; ///< the directory it was read from
  labelled_images train, validation, test;
  std::vector<std::string> class_names; ///< by label

  /// Pixel values are turned into (pixel - mean) * inv_deviation, both measured on `train`.
  float mean = 0, inv_deviation = 1;

  /// The network's input for one picture.
  void to_input(std::span<const std::uint8_t> pixels, float* out) const noexcept {
    for (std::size_t i = 0; i < pixels.size(); ++i)
      out[i] = (static_cast<float>(pixels[i]) - mean) * inv_deviation;
  }
};

/// Reads a directory that holds either the four IDX files of Fashion-MNIST or MNIST (.gz or
/// unpacked), or digits.csv(.gz).
///
/// Of 60,000 training images the last 5,000 are for validation; of fewer (digits) every set is cut
/// in proportion.
/// @throws data_error that names the directory or the faulty file
[[nodiscard]] dataset load_dataset(const std::filesystem::path& directory);

/// Where to look when no --data is given: the system's Fashion-MNIST if it is installed, else the
/// digits beside the program's sources or installation.
[[nodiscard]] std::filesystem::path default_data_directory();

} // namespace polyrank::examples
