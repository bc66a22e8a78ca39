// main() of the tests without MPI.
// SPDX-License-Identifier: Apache-2.0
#include "support/session.hpp"
#include "support/watchdog.hpp"

int main(int argc, char** argv) {
  const polyrank::test::watchdog watchdog("");
  return polyrank::test::run_session({argv, argv + argc});
}
