// The few calls into the driver that the runtime does not offer, found at run time: nothing links
// libcuda, so a program starts where there is no driver.
//
//     const cuda::driver d = cuda::driver::of_runtime();
//     if (d.usable()) d.write_value(stream, address, 7, 0);
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <type_traits>

#include <dlfcn.h>

namespace polyrank::cuda {

/// Entry points, all of CUDA 12; null where the driver has none.
struct driver {
  CUresult (*host_register)(void*, std::size_t, unsigned) = nullptr;
  CUresult (*host_unregister)(void*) = nullptr;
  CUresult (*host_device_pointer)(CUdeviceptr*, void*, unsigned) = nullptr;
  CUresult (*current_device)(CUdevice*) = nullptr;
  CUresult (*device_attribute)(int*, CUdevice_attribute, CUdevice) = nullptr;
  CUresult (*write_value)(CUstream, CUdeviceptr, cuuint64_t, unsigned) = nullptr;
  CUresult (*capture_info)(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                           const CUgraphNode**, std::size_t*) = nullptr;
  CUresult (*launch_host)(CUstream, CUhostFn, void*) = nullptr;
  CUresult (*event_create)(CUevent*, unsigned) = nullptr;
  CUresult (*event_record)(CUevent, CUstream) = nullptr;
  CUresult (*event_query)(CUevent) = nullptr;
  CUresult (*event_destroy)(CUevent) = nullptr;

  [[nodiscard]] bool usable() const noexcept {
    return host_register != nullptr && host_unregister != nullptr &&
           host_device_pointer != nullptr && current_device != nullptr &&
           device_attribute != nullptr && write_value != nullptr && capture_info != nullptr &&
           launch_host != nullptr && event_create != nullptr && event_record != nullptr &&
           event_query != nullptr && event_destroy != nullptr;
  }

  /// `find(name, symbol)` gives the function `name` of CUDA 12, which libcuda exports as `symbol`.
  template <class Find>
  [[nodiscard]] static driver load(Find find) {
    driver d;
    const auto get = [&](auto& to, const char* name, const char* symbol) {
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(find(name, symbol));
    };
    get(d.host_register, "cuMemHostRegister", "cuMemHostRegister_v2");
    get(d.host_unregister, "cuMemHostUnregister", "cuMemHostUnregister");
    get(d.host_device_pointer, "cuMemHostGetDevicePointer", "cuMemHostGetDevicePointer_v2");
    get(d.current_device, "cuCtxGetDevice", "cuCtxGetDevice");
    get(d.device_attribute, "cuDeviceGetAttribute", "cuDeviceGetAttribute");
    get(d.write_value, "cuStreamWriteValue64", "cuStreamWriteValue64_v2");
    get(d.capture_info, "cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v2");
    get(d.launch_host, "cuLaunchHostFunc", "cuLaunchHostFunc");
    get(d.event_create, "cuEventCreate", "cuEventCreate");
    get(d.event_record, "cuEventRecord", "cuEventRecord");
    get(d.event_query, "cuEventQuery", "cuEventQuery");
    get(d.event_destroy, "cuEventDestroy", "cuEventDestroy_v2");
    return d;
  }

  /// As the CUDA runtime that this program links finds them.
  [[nodiscard]] static driver of_runtime() {
    return load([](const char* name, const char*) {
      void* f = nullptr;
      cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
      const cudaError_t code =
          cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &found);
#else
      const cudaError_t code = cudaGetDriverEntryPoint(name, &f, cudaEnableDefault, &found);
#endif
      if (code == cudaSuccess && found == cudaDriverEntryPointSuccess) return f;
      static_cast<void>(cudaGetLastError());
      return static_cast<void*>(nullptr);
    });
  }

  /// As the libcuda that is already in this process exports them; not usable() where there is none.
  [[nodiscard]] static driver of_process() {
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return {};
    return load([&](const char*, const char* symbol) { return ::dlsym(library, symbol); });
  }
};

} // namespace polyrank::cuda
