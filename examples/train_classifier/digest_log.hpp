// Digests of a run as it goes, so that two runs can be compared: a line for each tensor every few
// steps, in DIR/digests.csv. scripts/compare_digests.py names the first step and tensor that
// differ.
//
//     digest_log log(directory, first_step > 0);
//     log.add(step, tensors, gradients, weights, state);
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train_classifier/mlp.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/core/hash.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace polyrank::examples {

/// `step,tensor,gradient,weight,state`: hashes of the bits; gradient is the sum over all ranks, or
/// empty where no rank has all of it; state holds every plane.
class digest_log {
 public:
  /// Starts the file, or goes on with it where the run `resumes`. Throws data_error.
  digest_log(const std::filesystem::path& directory, bool resumes)
      : path_(directory / "digests.csv") {
    std::error_code ignored; // opening reports it
    std::filesystem::create_directories(directory, ignored);
    resumes = resumes && std::filesystem::exists(path_, ignored);
    file_.open(path_, resumes ? std::ios::app : std::ios::trunc);
    if (!resumes) file_ << "step,tensor,gradient,weight,state\n";
    flush();
  }

  /// After `step` steps. All in layout order, state plane by plane. Throws data_error.
  void add(std::uint64_t step, const std::vector<tensor>& tensors, std::span<const float> gradients,
           std::span<const float> weights, std::span<const float> state) {
    const auto digest = [](std::span<const float> values, const tensor& t, std::uint64_t seed) {
      return hash_bytes(values.data() + t.offset, t.count() * sizeof(float), seed);
    };
    for (const tensor& t : tensors) {
      std::uint64_t of_state = 0;
      for (std::size_t plane = 0; plane < state.size(); plane += weights.size())
        of_state = digest(state.subspan(plane), t, of_state);
      file_ << step << ',' << t.name << ','
            << (gradients.empty() ? std::string() : hex16(digest(gradients, t, 0))) << ','
            << hex16(digest(weights, t, 0)) << ',' << hex16(of_state) << '\n';
    }
    flush(); // a run that fails later has left its digests
  }

 private:
  void flush() {
    file_.flush();
    if (!file_) throw data_error(detail::cat(path_.string(), ": cannot be written"));
  }

  std::filesystem::path path_;
  std::ofstream file_;
};

} // namespace polyrank::examples
