// Device and pinned memory as std::pmr::memory_resource, so that users can put their own pool in
// its place.
//
//     buffer<float> arena(n, cuda::device_memory());         // of the current device
//     buffer<float> staging(n, cuda::pinned_memory());       // host memory; copies overlap
//
// Running out throws out_of_memory with the bytes asked and free. Nothing is rounded up to powers
// of two. Nothing is freed while an exception unwinds: cudaFree waits for the device, whose work
// may wait for a peer that is gone. A program that catches the exception and goes on (with a
// smaller batch, say) has that memory back when it allocates next.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/stream.hpp>

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <mutex>
#include <utility>
#include <vector>

namespace polyrank::cuda {

namespace detail {

/// Memory whose owners went while an exception unwound.
class orphans {
 public:
  void keep(void* p) noexcept {
    try {
      const std::lock_guard one_at_a_time(lock_);
      all_.push_back(p);
    } catch (...) { // leaked
    }
  }
  /// Calls `free` for each, unless an exception unwinds.
  template <class Free>
  void release(Free free) {
    if (unwinding()) return;
    std::vector<void*> mine;
    {
      const std::lock_guard one_at_a_time(lock_);
      mine.swap(all_);
    }
    for (void* p : mine) free(p);
  }

 private:
  std::mutex lock_;
  std::vector<void*> all_;
};

} // namespace detail

/// cudaMalloc on the device that is current at the time.
class device_memory_resource final : public std::pmr::memory_resource {
 private:
  static constexpr std::size_t unit = std::size_t{2} << 20; // what the driver maps at a time

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    void* p = take(bytes);
    if (reinterpret_cast<std::uintptr_t>(p) % alignment == 0) return p;
    // Small allocations share a unit and start anywhere in it; a whole unit starts aligned.
    static_cast<void>(cudaFree(p));
    p = take((bytes + unit - 1) / unit * unit);
    if (reinterpret_cast<std::uintptr_t>(p) % alignment == 0) return p;
    static_cast<void>(cudaFree(p));
    throw usage_error(
        polyrank::detail::cat("cudaMalloc: an alignment of ", alignment, " bytes cannot be had"));
  }
  void do_deallocate(void* p, std::size_t, std::size_t) override {
    if (detail::unwinding())
      left().keep(p);
    else
      static_cast<void>(cudaFree(p));
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return dynamic_cast<const device_memory_resource*>(&other) != nullptr;
  }

  static detail::orphans& left() {
    static detail::orphans all;
    return all;
  }
  static void* take(std::size_t bytes) {
    left().release([](void* p) { static_cast<void>(cudaFree(p)); });
    void* p = nullptr;
    const cudaError_t code = cudaMalloc(&p, bytes);
    if (code == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      std::size_t free = 0, total = 0;
      static_cast<void>(cudaMemGetInfo(&free, &total));
      throw out_of_memory("cudaMalloc", bytes, free);
    }
    check(code, "cudaMalloc");
    return p;
  }
};

/// Page-locked host memory that every GPU of the process can copy from and to.
class pinned_memory_resource final : public std::pmr::memory_resource {
 private:
  void* do_allocate(std::size_t bytes, std::size_t) override {
    left().release([](void* p) { static_cast<void>(cudaFreeHost(p)); });
    void* p = nullptr;
    const cudaError_t code = cudaHostAlloc(&p, bytes, cudaHostAllocPortable); // page-aligned
    if (code == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      throw out_of_memory("cudaHostAlloc (page-locked; see ulimit -l)", bytes, 0);
    }
    check(code, "cudaHostAlloc");
    return p;
  }
  void do_deallocate(void* p, std::size_t, std::size_t) override {
    if (detail::unwinding())
      left().keep(p);
    else
      static_cast<void>(cudaFreeHost(p));
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return dynamic_cast<const pinned_memory_resource*>(&other) != nullptr;
  }
  static detail::orphans& left() {
    static detail::orphans all;
    return all;
  }
};

/// Resources without state: any copy of them is as good as any other.
[[nodiscard]] inline std::pmr::memory_resource& device_memory() noexcept {
  static device_memory_resource resource;
  return resource;
}
[[nodiscard]] inline std::pmr::memory_resource& pinned_memory() noexcept {
  static pinned_memory_resource resource;
  return resource;
}

} // namespace polyrank::cuda
