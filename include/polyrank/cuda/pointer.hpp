// Is a pointer memory of this GPU? Asked once, when a program hands its tensors over.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/device.hpp>

#include <string_view>

namespace polyrank::cuda {

/// Throws usage_error, starting with `what`, unless `pointer` is memory of device `device` or
/// managed memory. Null passes.
inline void check_pointer(const void* pointer, std::string_view what, int device,
                          call_site site = call_site::here()) {
  if (pointer == nullptr) return;
  cudaPointerAttributes a{};
  check(cudaPointerGetAttributes(&a, pointer), "cudaPointerGetAttributes", site);
  using polyrank::detail::cat;
  if (a.type == cudaMemoryTypeHost || a.type == cudaMemoryTypeUnregistered)
    throw usage_error(cat(what, " points to host memory",
                          a.type == cudaMemoryTypeHost ? " (pinned)" : "",
                          "; the CUDA backend needs device memory: cudaMalloc it, or use the host "
                          "backend"),
                      site);
  if (a.type == cudaMemoryTypeDevice && a.device != device)
    throw usage_error(cat(what, " points to memory of GPU ", a.device, ", but this rank uses GPU ",
                          device, ": call cudaSetDevice(", device, ") before you allocate"),
                      site);
}

} // namespace polyrank::cuda
