// Device memory for tests: up, down, and a kernel that keeps a stream busy.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/buffer.hpp>
#include <polyrank/cuda/memory.hpp>
#include <polyrank/cuda/stream.hpp>

#include <chrono>
#include <cstddef>
#include <memory_resource>
#include <span>
#include <vector>

namespace polyrank::test {

/// Keeps `s` busy for about `time`.
void delay(cuda::stream& s, std::chrono::microseconds time);

template <class T>
buffer<T> empty(std::size_t count, std::pmr::memory_resource& memory = cuda::device_memory()) {
  return {count, memory};
}

template <class T>
void put(const std::vector<T>& from, std::span<T> to) {
  cuda::check(cudaMemcpy(to.data(), from.data(), to.size_bytes(), cudaMemcpyHostToDevice),
              "cudaMemcpy");
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); // also for streams that do not
}

template <class T>
buffer<T> up(const std::vector<T>& from,
             std::pmr::memory_resource& memory = cuda::device_memory()) {
  buffer<T> to = empty<T>(from.size(), memory);
  if (!from.empty()) put(from, to.span());
  return to;
}

/// Waits for the whole device.
template <class T>
std::vector<T> down(std::span<const T> from) {
  std::vector<T> to(from.size());
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  if (!from.empty())
    cuda::check(cudaMemcpy(to.data(), from.data(), from.size_bytes(), cudaMemcpyDeviceToHost),
                "cudaMemcpy");
  return to;
}
template <class T>
std::vector<T> down(const buffer<T>& from) {
  return down(std::span<const T>(from.span()));
}

} // namespace polyrank::test
