// The part of the test main that needs all of Catch2 (slow to compile, so it is compiled once).
// SPDX-License-Identifier: Apache-2.0
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_assertion_result.hpp>
#include <catch2/catch_session.hpp>
#include <catch2/catch_test_case_info.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
using listener_base = Catch::EventListenerBase;
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
using listener_base = Catch::TestEventListenerBase;
#endif

#include "support/session.hpp"
#include "support/watchdog.hpp"

namespace {

// Tells the watchdog which test runs, and reports a fatal signal at once: after it there is no
// orderly end at which a rank could hand in its report.
class running_test : public listener_base {
 public:
  using listener_base::listener_base;

  void testCaseStarting(Catch::TestCaseInfo const& info) override {
    listener_base::testCaseStarting(info);
    polyrank::test::watchdog::enter(info.name);
  }
  void testCaseEnded(Catch::TestCaseStats const& stats) override {
    polyrank::test::watchdog::enter("between two test cases");
    listener_base::testCaseEnded(stats);
  }
#if defined(CATCH_VERSION_MAJOR) && CATCH_VERSION_MAJOR < 3
  bool assertionEnded(Catch::AssertionStats const& stats) override {
    report_fatal(stats.assertionResult);
    return false;
  }
#else
  void assertionEnded(Catch::AssertionStats const& stats) override {
    report_fatal(stats.assertionResult);
  }
#endif

 private:
  static void report_fatal(const Catch::AssertionResult& result) {
    if (result.getResultType() == Catch::ResultWas::FatalErrorCondition) {
      polyrank::test::watchdog::report("fatal: " + std::string(result.getMessage()));
    }
  }
};
CATCH_REGISTER_LISTENER(running_test)

} // namespace

int polyrank::test::run_session(std::vector<std::string> arguments) {
  bool ordered = false;
  for (const auto& a : arguments) {
    ordered = ordered || a.rfind("--order", 0) == 0;
  }
  if (!ordered) {
    arguments.insert(arguments.end(), {"--order", "decl"});
  }
  std::vector<const char*> argv;
  for (const auto& a : arguments) {
    argv.push_back(a.c_str());
  }
  return Catch::Session().run(static_cast<int>(argv.size()), argv.data()) == 0 ? 0 : 1;
}
