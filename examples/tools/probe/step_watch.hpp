// Ends the process when a step does not: says which one, on which rank, and leaves with a code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace polyrank::examples {

class step_watch {
 public:
  /// `who`: "rank 3/4 node2".
  step_watch(std::string who, std::chrono::seconds limit);
  ~step_watch();
  step_watch(const step_watch&) = delete;
  step_watch& operator=(const step_watch&) = delete;
  /// A new step starts now; it may take `least` even where the limit is shorter.
  void enter(const std::string& step, std::chrono::milliseconds least = {});

 private:
  void run();

  std::string who_, step_ = "start";
  std::chrono::seconds limit_;
  std::chrono::milliseconds now_{}; // the limit of this step
  std::mutex mutex_;
  std::condition_variable wake_;
  std::chrono::steady_clock::time_point due_;
  bool over_ = false;
  std::thread thread_;
};

} // namespace polyrank::examples
