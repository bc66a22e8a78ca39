// One Catch2 run, whichever Catch2 is there; compiled once and linked into every test.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace polyrank::test {

/// Runs the test cases that the arguments select, in the order of declaration unless they say
/// otherwise (ranks that shuffle differently would wait for each other for ever).
/// @returns 0 when all passed, else 1.
int run_session(std::vector<std::string> arguments);

} // namespace polyrank::test
