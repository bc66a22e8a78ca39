// Ordinary aligned memory, and what becomes of it when an operation is given up.
//
// MPI cannot take back a message that is under way: when an operation fails (a peer is gone, sizes
// differ), MPI goes on reading what was to be sent, whenever somebody calls it. From that moment on
// this resource keeps what it is given back, so that a program which unwinds does not pull memory
// away from under MPI. Memory of other resources should live until the world ends, if an operation
// on it has failed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory_resource>

namespace polyrank::host {

namespace detail {

/// True once MPI may still use memory of an operation that has failed.
inline std::atomic<bool> memory_is_kept{false};

class lasting_resource final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    if (!memory_is_kept.load(std::memory_order_relaxed))
      std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
};

} // namespace detail

/// The host's memory; see above for what it does after a failure.
[[nodiscard]] inline std::pmr::memory_resource& memory() noexcept {
  static detail::lasting_resource* const resource = new detail::lasting_resource; // outlives all
  return *resource;
}

} // namespace polyrank::host
