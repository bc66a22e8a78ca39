// Host memory of exactly the size asked for, rounded up to a page: no powers of two. Huge pages
// where the kernel gives them. Pages are touched first by the threads of `touch`, so that they lie
// near the CPUs that will work on them; without it by whoever writes to them.
//
//     slab_resource slabs;                                   // ordinary pages
//     slab_resource slabs({.pin = register_with_the_gpu, .unpin = ...}, &pool);
//     buffer<float> masters(n, slabs);
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/core/partition.hpp>
#include <polyrank/zero/cpu_pool.hpp>
#include <polyrank/zero/host_limits.hpp>

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace polyrank {

/// What makes pages known to a device (cudaHostRegister), and undoes it. Null: nothing.
struct slab_hooks {
  void (*pin)(void*, std::size_t) = nullptr;
  void (*unpin)(void*, std::size_t) = nullptr;
};

class slab_resource final : public std::pmr::memory_resource {
 public:
  static constexpr std::size_t page = 4096;

  explicit slab_resource(slab_hooks hooks = {}, cpu_pool* touch = nullptr) noexcept
      : hooks_(hooks), touch_(touch) {}
  /// Bytes handed out now.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    expects(alignment <= page, "slab: an alignment of ", alignment, " bytes, a page has ", page);
    const std::size_t size = round_up(bytes, page);
#if defined(__linux__)
    void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw out_of_memory("host slab", size, read_host_limits().free());
    static_cast<void>(madvise(p, size, MADV_HUGEPAGE)); // a wish
#else
    void* p = ::operator new(size, std::align_val_t(page));
#endif
    if (hooks_.pin != nullptr) {
      if (touch_ != nullptr) // to lock pages is to touch them, on one thread
        touch_->run([&](std::size_t part) {
          const range r = partition(size / page, touch_->size(), part);
          for (std::size_t k = r.begin; k < r.end; ++k)
            static_cast<volatile char*>(p)[k * page] = 0;
        });
      try {
        hooks_.pin(p, size);
      } catch (...) {
        release(p, size);
        throw;
      }
    }
    bytes_ += size;
    return p;
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t) override {
    const std::size_t size = round_up(bytes, page);
    if (hooks_.unpin != nullptr) hooks_.unpin(p, size);
    release(p, size);
    bytes_ -= size;
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }
  static void release(void* p, [[maybe_unused]] std::size_t size) noexcept {
#if defined(__linux__)
    static_cast<void>(munmap(p, size));
#else
    ::operator delete(p, std::align_val_t(page));
#endif
  }

  slab_hooks hooks_;
  cpu_pool* touch_;
  std::size_t bytes_ = 0;
};

} // namespace polyrank
