// Memory that all ranks have registered with NCCL, a "window": NCCL reaches it from other ranks
// without copying through buffers of its own, and may use its kernels for symmetric memory.
//
//     buffer<float> arena(n, comm.window_memory());
//     cuda::window w = comm.register_window(arena.data(), arena.size_bytes());  // all ranks or
//     none
//
// Needs NCCL 2.27 and memory from ncclMemAlloc. Where one rank cannot or will not, none has a
// window and everything works as without. grad_sync does all this for its arena.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/memory.hpp>
#include <polyrank/cuda/session.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace polyrank::cuda {

/// ncclMemAlloc on the current device. Freeing waits for the device, as cudaFree does.
class window_memory_resource final : public std::pmr::memory_resource {
 private:
  void* do_allocate(std::size_t bytes, std::size_t) override { // whole pages of the driver
    void* p = nullptr;
    if (ncclMemAlloc(&p, bytes) == ncclSuccess) return p;
    static_cast<void>(cudaGetLastError());
    std::size_t free = 0, total = 0;
    static_cast<void>(cudaMemGetInfo(&free, &total));
    throw out_of_memory("ncclMemAlloc", bytes, free);
  }
  void do_deallocate(void* p, std::size_t, std::size_t) override {
    if (detail::unwinding()) return;
    static_cast<void>(cudaDeviceSynchronize());
    static_cast<void>(ncclMemFree(p));
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return dynamic_cast<const window_memory_resource*>(&other) != nullptr;
  }
};

[[nodiscard]] inline std::pmr::memory_resource& window_memory() noexcept {
  static window_memory_resource resource;
  return resource;
}

/// What a rank brings to the opening of a window.
struct window_offer {
  std::size_t bytes = 0;
  std::string refusal; ///< why it will not take part; empty: it will
};

/// Why no window can be opened, naming the first rank that stands in the way, or empty: pure.
[[nodiscard]] inline std::string window_fault(const std::vector<window_offer>& all) {
  using polyrank::detail::cat;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (!all[r].refusal.empty()) return cat("rank ", r, ": ", all[r].refusal);
    if (all[r].bytes != all[0].bytes)
      return cat("rank 0 registers ", all[0].bytes, " bytes, rank ", r, " ", all[r].bytes);
  }
  return {};
}

/// Registered memory, or nothing. Must go before the memory; waits for the device when it goes.
class window {
 public:
  window() = default;
  window(window&& other) noexcept { swap(other); }
  window& operator=(window&& other) noexcept {
    window(std::move(other)).swap(*this);
    return *this;
  }
  ~window() {
    if (of_ != nullptr && !detail::unwinding()) close();
  }
  void swap(window& other) noexcept {
    std::swap(of_, other.of_);
    std::swap(handle_, other.handle_);
  }

  [[nodiscard]] bool registered() const noexcept { return of_ != nullptr; }

  /// Registers `memory` while all other ranks do. Where NCCL refuses the window is empty and `why`
  /// gets the reason. Throws aborted_error, timeout_error. @collective
  [[nodiscard]] static window open([[maybe_unused]] session& s, [[maybe_unused]] void* memory,
                                   [[maybe_unused]] std::size_t bytes,
                                   [[maybe_unused]] std::chrono::milliseconds deadline,
                                   std::string& why) {
    window w;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    s.telling([&] {
      const auto e = s.send<handle>(
          "ncclCommWindowRegister", deadline,
          [comm = s.native(), memory, bytes](handle* made) {
            ncclResult_t code =
                ncclCommWindowRegister(comm, memory, bytes, made, NCCL_WIN_COLL_SYMMETRIC);
            while (code == ncclInProgress) { // a caller's communicator may be non-blocking
              std::this_thread::sleep_for(std::chrono::microseconds(100));
              if (ncclCommGetAsyncError(comm, &code) != ncclSuccess) break;
            }
            return code;
          },
          [](handle) {}); // the communicator is given up, and its windows with it
      if (e->code != ncclSuccess)
        why = e->reason();
      else if (e->made == nullptr)
        why = "NCCL does not map memory into other ranks here (see NCCL_CUMEM_ENABLE)";
      else
        w.of_ = s.state_, w.handle_ = e->made;
    });
#else
    why = "compiled with an NCCL header older than 2.27";
#endif
    return w;
  }

 private:
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  using handle = ncclWindow_t;
  void close() noexcept {
    static_cast<void>(cudaDeviceSynchronize()); // kernels may still use it
    const std::scoped_lock lock(of_->mutex);
    if (!of_->dead && !of_->why->is_set())
      static_cast<void>(ncclCommWindowDeregister(of_->comm, handle_));
  }
#else
  using handle = void*;
  void close() noexcept {}
#endif

  std::shared_ptr<session::shared> of_;
  handle handle_ = nullptr;
};

} // namespace polyrank::cuda
