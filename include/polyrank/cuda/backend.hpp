// The CUDA backend: device memory, CUDA streams, and element-wise work on them.
//
// Needs one .cu file in the program, see ops.hpp. The backend of a job with NCCL:
// communicator.hpp.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/cuda/memory.hpp>
#include <polyrank/cuda/ops.hpp>
#include <polyrank/cuda/pointer.hpp>
#include <polyrank/cuda/stopwatch.hpp>
#include <polyrank/cuda/stream.hpp>

#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace polyrank::cuda {

/// A model of polyrank::backend. The operations are enqueued; spans are device memory and must live
/// until they have run. The caller's device stays current.
struct backend {
  using stream = cuda::stream;
  using event = cuda::event;
  using stopwatch = cuda::stopwatch;
  static constexpr std::string_view name = "cuda";
  static constexpr bool on_device = true;

  /// Memory of the device that is current when it is allocated.
  [[nodiscard]] static std::pmr::memory_resource& memory() noexcept { return device_memory(); }

  /// out[i] = value
  template <element T>
  static void fill(std::span<T> out, T value, stream& s) {
    if (out.empty()) return;
    scoped_device here(s.device());
    detail::launch_fill<T>(out.data(), out.size(), value, s.native());
  }

  /// out = in; equal sizes; no overlap unless they are the same.
  template <element T>
  static void copy(std::span<const std::type_identity_t<T>> in, std::span<T> out, stream& s) {
    expects(in.size() == out.size(), "copy: ", in.size(), " elements into ", out.size());
    if (out.empty() || in.data() == out.data()) return;
    scoped_device here(s.device());
    check(cudaMemcpyAsync(out.data(), in.data(), out.size_bytes(), cudaMemcpyDefault, s.native()),
          "cudaMemcpyAsync");
  }

  /// out = a + b; equal sizes; out may be a or b. 16-bit floats are added in fp32 and rounded once.
  template <element T>
  static void add(std::span<const std::type_identity_t<T>> a,
                  std::span<const std::type_identity_t<T>> b, std::span<T> out, stream& s) {
    expects(a.size() == out.size() && b.size() == out.size(), "add: ", a.size(), " + ", b.size(),
            " elements into ", out.size());
    scoped_device here(s.device());
    detail::launch_add<T>(a.data(), b.data(), out.data(), out.size(), s.native());
  }

  /// out[i] *= factor
  template <element T>
  static void scale(std::span<T> out, float factor, stream& s) {
    scoped_device here(s.device());
    detail::launch_scale<T>(out.data(), out.size(), factor, s.native());
  }

  /// out[i] = To(in[i]), rounded once; equal sizes.
  template <element To, element From>
  static void cast(std::span<const From> in, std::span<To> out, stream& s) {
    expects(in.size() == out.size(), "cast: ", in.size(), " elements into ", out.size());
    scoped_device here(s.device());
    detail::launch_cast<To, From>(in.data(), out.data(), out.size(), s.native());
  }

  /// out = hash of the bytes (another one than the host backend's); `out` is in host memory and
  /// valid after s.synchronize().
  template <element T>
  static void hash(std::span<const T> in, std::uint64_t& out, stream& s) {
    scoped_device here(s.device());
    std::uint64_t* sum = nullptr;
    check(cudaMallocAsync(reinterpret_cast<void**>(&sum), sizeof *sum, s.native()),
          "cudaMallocAsync");
    check(cudaMemsetAsync(sum, 0, sizeof *sum, s.native()), "cudaMemsetAsync");
    detail::launch_hash<std::uint64_t>(in.data(), in.size_bytes(), sum, s.native());
    check(cudaMemcpyAsync(&out, sum, sizeof out, cudaMemcpyDeviceToHost, s.native()),
          "cudaMemcpyAsync");
    check(cudaFreeAsync(sum, s.native()), "cudaFreeAsync");
  }

  /// Makes the device of `s` current on this thread, for good. A new thread begins with device 0,
  /// and its first call would make a context there.
  static void enter(const stream& s) { check(cudaSetDevice(s.device()), "cudaSetDevice"); }

  /// Why `s` cannot be used beside `other`, or empty.
  [[nodiscard]] static std::string stream_fault(const stream& s, const stream& other) {
    return cuda::stream_fault(s.device(), other.device());
  }

  /// Throws usage_error, starting with `what`, unless `pointer` is memory of the current device.
  static void check_pointer(const void* pointer, std::string_view what) {
    cuda::check_pointer(pointer, what, current_device());
  }
};

} // namespace polyrank::cuda
