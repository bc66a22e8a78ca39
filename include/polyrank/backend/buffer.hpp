// Owns `count` elements of memory from a memory resource: host, pinned or device alike.
//
// The resource is std::pmr::memory_resource, so users hand in their own. The memory is raw: it is
// neither constructed nor cleared (device memory cannot be touched from the host).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>

#include <cstddef>
#include <limits>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <utility>

namespace polyrank {

template <class T>
class buffer {
  static_assert(std::is_trivially_copyable_v<T>, "buffer<T>: T must be trivially copyable");

 public:
  /// Address and size granularity: a page, as windows and direct I/O need it.
  static constexpr std::size_t alignment = 4096;

  buffer() = default;

  /// Allocates `count` elements from `resource`. Throws whatever the resource throws.
  buffer(std::size_t count, std::pmr::memory_resource& resource)
      : resource_(&resource), count_(count) {
    expects(count <= std::numeric_limits<std::size_t>::max() / sizeof(T), "buffer: ", count,
            " elements do not fit into the address space");
    if (count_ > 0) data_ = static_cast<T*>(resource.allocate(count_ * sizeof(T), alignment));
  }

  buffer(buffer&& other) noexcept { swap(other); }
  buffer& operator=(buffer&& other) noexcept {
    buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~buffer() {
    if (data_ != nullptr) resource_->deallocate(data_, count_ * sizeof(T), alignment);
  }

  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return count_ * sizeof(T); }
  [[nodiscard]] std::span<T> span() const noexcept { return {data_, count_}; }

  void swap(buffer& other) noexcept {
    std::swap(resource_, other.resource_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
  }

 private:
  std::pmr::memory_resource* resource_ = nullptr;
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

} // namespace polyrank
