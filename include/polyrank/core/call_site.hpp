// Where in the user's source a call was made. Works in g++, nvcc and clang 14 (no
// std::source_location).
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace polyrank {

/// A place in source code. Take it as a defaulted last parameter: `call_site site =
/// call_site::here()`.
struct call_site {
  const char* file = "";
  unsigned line = 0;

  static constexpr call_site here(const char* file = __builtin_FILE(),
                                  unsigned line = __builtin_LINE()) noexcept {
    return {file, line};
  }

  /// The file name without its folders.
  [[nodiscard]] constexpr const char* file_name() const noexcept {
    const char* name = file;
    for (const char* c = file; *c != '\0'; ++c)
      if (*c == '/') name = c + 1;
    return name;
  }
};

} // namespace polyrank
