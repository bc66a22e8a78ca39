// Between llm.c's files and one safetensors file. There, tensors have llm.c's names; the state is
// optimizer/0/NAME and optimizer/1/NAME (moments) and master/NAME, all fp32, and the notes llmc.*
// say the rest. A shuffled data loader is loader/RANK.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace polyrank::examples {

struct from_llmc_flags {
  std::string model;
  std::vector<std::string> states;
  std::string out;
};
/// Returns what was written, in words.
[[nodiscard]] std::string from_llmc(const from_llmc_flags& f);

struct to_llmc_flags {
  std::string file;
  std::string out;                              ///< directory
  std::size_t ranks = 1;                        ///< processes that will load the state
  std::size_t zero = 0;                         ///< 1: for llm.c's -z 1
  std::optional<std::size_t> heads, vocabulary; ///< for files that do not say
  std::string precision;                        ///< fp32, bf16; empty: as in the file
};
/// Returns what was written, in words.
[[nodiscard]] std::string to_llmc(const to_llmc_flags& f);

} // namespace polyrank::examples
