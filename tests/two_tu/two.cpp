// SPDX-License-Identifier: Apache-2.0
#include "all_headers.hpp"

const char* version_in_two() { return POLYRANK_VERSION_STRING; }
