// GPUs of this process: can they be used, which is current, what are they.
//
//     if (const std::string why = cuda::unusable(); !why.empty()) ... host backend, because of why
//     cuda::scoped_device on(1);        // the caller's device is current again at the end
//
// A program that links CUDA starts on machines without driver or GPU; nothing here needs libcuda.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/check.hpp>

#include <cstddef>
#include <string>

namespace polyrank::cuda {

/// GPUs visible to this process; 0 where there is no driver.
[[nodiscard]] inline int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());
  return 0;
}

/// "12.8" of 12080.
[[nodiscard]] inline std::string cuda_version_text(int code) {
  return polyrank::detail::cat(code / 1000, '.', code % 1000 / 10);
}

/// What is wrong with a driver that supports CUDA `driver` (0: there is none) for a program built
/// with CUDA `runtime`, or empty: pure. Minor versions of one major version fit each other.
[[nodiscard]] inline std::string driver_fault(int driver, int runtime) {
  if (driver == 0) return "there is no NVIDIA driver (libcuda.so.1 was not found)";
  if (driver / 1000 >= runtime / 1000) return {};
  return polyrank::detail::cat("the driver is too old: it supports CUDA ",
                               cuda_version_text(driver), ", this program was built with ",
                               cuda_version_text(runtime),
                               "; update the driver, or build with CUDA ", driver / 1000,
                               " (nvidia-smi shows the driver's version)");
}

/// Why CUDA cannot be used here, or empty. Never throws.
[[nodiscard]] inline std::string unusable() {
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    driver = 0;
  }
  if (const std::string fault = driver_fault(driver, CUDART_VERSION); !fault.empty()) return fault;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return polyrank::detail::cat("cudaGetDeviceCount: ", cudaGetErrorString(code), advice(code));
  }
  return count > 0 ? "" : "no GPU is visible (see CUDA_VISIBLE_DEVICES)";
}

[[nodiscard]] inline int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

/// Makes `device` current and the former one again at the end of the scope.
class scoped_device {
 public:
  explicit scoped_device(int device) : before_(current_device()), changed_(device != before_) {
    if (changed_) check(cudaSetDevice(device), "cudaSetDevice");
  }
  scoped_device(const scoped_device&) = delete;
  scoped_device& operator=(const scoped_device&) = delete;
  ~scoped_device() {
    if (changed_) static_cast<void>(cudaSetDevice(before_));
  }

 private:
  int before_;
  bool changed_;
};

/// What a person and a start-up check want to know of a GPU.
struct device_info {
  int index = 0;
  std::string name;   ///< "NVIDIA H200"
  std::string bus_id; ///< "0000:1b:00.0": the same card has the same one in every process of a host
  int major = 0, minor = 0; ///< compute capability
  int multiprocessors = 0;
  std::size_t memory = 0; ///< bytes

  /// bf16 arithmetic exists from compute capability 8.0 on.
  [[nodiscard]] bool has_bf16() const noexcept { return major >= 8; }
};

[[nodiscard]] inline device_info describe(int device) {
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties");
  char bus[32] = "";
  check(cudaDeviceGetPCIBusId(bus, sizeof bus, device), "cudaDeviceGetPCIBusId");
  return {.index = device,
          .name = p.name,
          .bus_id = bus,
          .major = p.major,
          .minor = p.minor,
          .multiprocessors = p.multiProcessorCount,
          .memory = p.totalGlobalMem};
}

} // namespace polyrank::cuda
