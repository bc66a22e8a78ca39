// SPDX-License-Identifier: Apache-2.0
#include "step_watch.hpp"

#include <algorithm>
#include <cstdio>
#include <unistd.h>
#include <utility>

namespace polyrank::examples {

step_watch::step_watch(std::string who, std::chrono::seconds limit)
    : who_(std::move(who)), limit_(limit), now_(limit),
      due_(std::chrono::steady_clock::now() + limit), thread_([this] { run(); }) {}

step_watch::~step_watch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void step_watch::enter(const std::string& step, std::chrono::milliseconds least) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  now_ = std::max<std::chrono::milliseconds>(limit_, least);
  due_ = std::chrono::steady_clock::now() + now_;
}

void step_watch::run() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    wake_.wait_until(lock, due_);
    if (!over_ && std::chrono::steady_clock::now() >= due_) {
      std::fprintf(stderr,
                   "[%s] polyrank_probe: step \"%s\" did not end within %lld s; giving up\n",
                   who_.c_str(), step_.c_str(), static_cast<long long>(now_.count() / 1000));
      std::fflush(stderr);
      _exit(20);
    }
  }
}

} // namespace polyrank::examples
