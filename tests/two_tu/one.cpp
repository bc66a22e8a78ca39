// SPDX-License-Identifier: Apache-2.0
#include "all_headers.hpp"

const char* version_in_two();

int main() {
  // The same inline entity, seen from two translation units.
  return version_in_two() == std::string(POLYRANK_VERSION_STRING) ? 0 : 1;
}
