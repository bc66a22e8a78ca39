// Calls into a library that may never return: a hung driver must not hang the probe.
//
// Each call runs on a thread of its own. If it is late, the thread is left behind (a blocked system
// call cannot be cancelled) and keeps what it would write to alive.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace polyrank::probe {

/// The result of `f()`, or nothing if it took longer than `deadline`. `f` must own what it writes.
template <class F>
[[nodiscard]] auto bounded_call(F f, std::chrono::milliseconds deadline)
    -> std::optional<decltype(f())> {
  using result = decltype(f());
  auto promise = std::make_shared<std::promise<result>>();
  std::future<result> future = promise->get_future();
  std::thread worker([promise, f = std::move(f)]() mutable { promise->set_value(f()); });
  if (future.wait_for(deadline) != std::future_status::ready) {
    worker.detach();
    return std::nullopt;
  }
  worker.join();
  return future.get();
}

} // namespace polyrank::probe
