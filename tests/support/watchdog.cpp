// SPDX-License-Identifier: Apache-2.0
#include "support/watchdog.hpp"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include <unistd.h>

namespace polyrank::test {
namespace {

using clock = std::chrono::steady_clock;

// A test program has one main thread and one watchdog, and Catch2 makes its listeners itself, so
// what they share has to stand here.
struct {
  std::mutex mutex;
  std::string who;
  std::string running = "before the first test case";
  std::function<std::string()> more_text;
  clock::time_point since;
  std::atomic<bool> stop{false};
} shared;

std::chrono::duration<double> deadline() {
  const char* text = std::getenv("POLYRANK_TEST_DEADLINE");
  const double seconds = text != nullptr ? std::strtod(text, nullptr) : 0.0;
  return std::chrono::duration<double>(seconds > 0.0 ? seconds : 60.0);
}

void print(const std::string& text) {
  const std::string who = shared.who.empty() ? "" : "=== " + shared.who + " ===\n";
  std::string all = who + text + "\n  in: " + shared.running + "\n";
  if (shared.more_text) {
    all += shared.more_text();
  }
  std::fputs(all.c_str(), stderr); // one call, so that lines of two ranks do not mix
  std::fflush(stderr);
}

void watch(std::chrono::duration<double> limit) {
  while (!shared.stop.load()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::lock_guard lock(shared.mutex);
    const std::chrono::duration<double> running = clock::now() - shared.since;
    if (running < limit) {
      continue;
    }
    char text[96];
    std::snprintf(text, sizeof text, "watchdog: no end after %.0f s", running.count());
    print(text);
    std::this_thread::sleep_for(std::chrono::seconds(3));
    _exit(1);
  }
}

} // namespace

watchdog::watchdog(std::string who, std::function<std::string()> more_text) {
  shared.who = std::move(who);
  shared.more_text = std::move(more_text);
  shared.since = clock::now();
  thread_ = std::thread(watch, deadline());
}

watchdog::~watchdog() {
  shared.stop.store(true);
  thread_.join();
}

void watchdog::enter(const std::string& name) {
  std::lock_guard lock(shared.mutex);
  shared.running = name;
  shared.since = clock::now();
}

void watchdog::report(const std::string& text) {
  std::lock_guard lock(shared.mutex);
  print(text);
}

} // namespace polyrank::test
