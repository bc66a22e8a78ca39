// Turns the codes of the CUDA runtime into typed errors.
//
//     cuda::check(cudaStreamCreate(&s), "cudaStreamCreate");
//
// Every header of cuda/ but the .cuh compiles with a plain C++ compiler.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>

#include <cuda_runtime_api.h>

#include <string>

namespace polyrank::cuda {

/// A call into the CUDA runtime failed.
class cuda_error : public comm_error {
 public:
  cuda_error(const std::string& call, int code, const std::string& reason,
             call_site site = call_site::here())
      : comm_error(call, code, reason, site) {}
};

/// What to do about `code`; empty where the code speaks for itself.
[[nodiscard]] inline const char* advice(cudaError_t code) noexcept {
  switch (code) {
  case cudaErrorInsufficientDriver:
    return "; the driver is older than the CUDA runtime this program was built with: update the "
           "driver, or build with an older toolkit";
  case cudaErrorNoDevice:
    return "; no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES";
  case cudaErrorNoKernelImageForDevice:
    return "; the program holds no code for this GPU: rebuild with CMAKE_CUDA_ARCHITECTURES (nvcc "
           "-arch) that includes it";
  case cudaErrorIllegalAddress:
    return "; some earlier kernel read or wrote outside its memory: run under compute-sanitizer";
  default:
    return "";
  }
}

/// Throws cuda_error naming `call` unless `code` is cudaSuccess.
inline void check(cudaError_t code, const char* call, call_site site = call_site::here()) {
  if (code == cudaSuccess) return;
  static_cast<void>(cudaGetLastError()); // a failed call is reported once
  throw cuda_error(
      call, static_cast<int>(code),
      polyrank::detail::cat(cudaGetErrorName(code), ": ", cudaGetErrorString(code), advice(code)),
      site);
}

} // namespace polyrank::cuda
