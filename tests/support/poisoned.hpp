// A memory resource for tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <memory_resource>

namespace polyrank::test {

/// New memory is full of NaN; bytes in use are counted, and how often memory was taken.
class poisoned final : public std::pmr::memory_resource {
 public:
  std::size_t bytes = 0, taken = 0;

 private:
  void* do_allocate(std::size_t n, std::size_t alignment) override {
    void* p = std::pmr::new_delete_resource()->allocate(n, alignment);
    std::memset(p, 0xff, n); // NaN in fp32, bf16, fp16 and fp64
    bytes += n;
    ++taken;
    return p;
  }
  void do_deallocate(void* p, std::size_t n, std::size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(p, n, alignment);
    bytes -= n;
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }
};

} // namespace polyrank::test
