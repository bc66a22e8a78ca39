// Ends a test program whose test case runs for too long, and names that case.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace polyrank::test {

/// A thread that ends the process with code 1 when one test case takes longer than
/// POLYRANK_TEST_DEADLINE seconds (default 60). Under mpirun that ends the job; every rank gets
/// three seconds to say where it stands. One per process.
class watchdog {
 public:
  /// @param who        starts each report, e.g. "rank 1"; may be empty
  /// @param more_text  called when a report is made; what it returns is printed too
  explicit watchdog(std::string who, std::function<std::string()> more_text = {});
  ~watchdog();
  watchdog(const watchdog&) = delete;
  watchdog& operator=(const watchdog&) = delete;

  /// A new test case (or phase) begins: the clock starts again.
  static void enter(const std::string& name);

  /// Prints `=== rank r === text`, the running test and what more_text says, to stderr.
  static void report(const std::string& text);

 private:
  std::thread thread_;
};

} // namespace polyrank::test
