// Where a rank's memory goes: what was planned beside what is in use, by category.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace polyrank::examples {

/// Of the device, or on the host backend of the process and its host; in bytes.
struct memory_state {
  std::size_t used = 0, free = 0;
};

struct memory_line {
  std::string what;
  std::size_t plan = 0, real = 0; ///< bytes
};

/// One line: "memory   MiB of rank 0, plan / real: parameters 0.9 / 0.9, ..., other 60.1, free
/// 20031". What is used by nobody in `lines` (contexts, libraries, data, other processes) is
/// "other".
[[nodiscard]] std::string memory_text(const std::vector<memory_line>& lines,
                                      const memory_state& now);

} // namespace polyrank::examples
