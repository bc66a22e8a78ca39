// Which machines the ranks are on, by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include <unistd.h>

namespace polyrank {

/// This machine's name; empty where it has none.
[[nodiscard]] inline std::string host_name() {
  char name[256] = "";
  static_cast<void>(::gethostname(name, sizeof name - 1));
  return name;
}

/// The names of all ranks' machines, each once, in the order of ranks. @collective
template <control_channel Control>
[[nodiscard]] std::vector<std::string> host_names(Control& control) {
  std::vector<std::string> names;
  for (const std::string& name : control.all_gather(host_name()))
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  return names;
}

} // namespace polyrank
