// Why the work of a communicator cannot be trusted any more. Shared by the communicator, its
// watcher and the streams it was used on: when one rank fails, NCCL's kernels are made to return
// without a result, so whoever waits for a stream afterwards must learn it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string_view>

namespace polyrank::cuda {

/// Set once, by any thread.
class failure {
 public:
  /// Keeps the first `cause`. Never blocks, never allocates.
  void set(std::string_view cause) noexcept {
    int expected = 0;
    if (!state_.compare_exchange_strong(expected, 1)) return;
    std::memcpy(cause_.data(), cause.data(), std::min(cause.size(), cause_.size() - 1));
    state_.store(2, std::memory_order_release);
  }
  [[nodiscard]] bool is_set() const noexcept { return state_.load(std::memory_order_acquire) == 2; }
  /// Valid once is_set().
  [[nodiscard]] const char* cause() const noexcept { return cause_.data(); }
  /// Throws aborted_error if set.
  void check(call_site site = call_site::here()) const {
    if (is_set()) throw aborted_error(cause(), site);
  }

 private:
  std::atomic<int> state_{0}; // 0 no, 1 being written, 2 set
  std::array<char, 512> cause_{};
};

} // namespace polyrank::cuda
