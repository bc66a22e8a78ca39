// What our kernels share: 16-byte vectors, conversions between element types, launch arithmetic.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/dtype.hpp>
#include <polyrank/cuda/check.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

// Kernels are templates and hidden, so that two libraries that include us never share one by
// accident.
#define POLYRANK_KERNEL __attribute__((visibility("hidden"))) __global__

namespace polyrank::cuda::detail {

inline constexpr unsigned threads_per_block = 256;

/// N elements that are loaded and stored at once where they are aligned.
template <class T, unsigned N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) pack_of {
  T at[N];
};

/// Elements in 16 bytes.
template <class T>
inline constexpr unsigned lanes_of = 16 / sizeof(T);

template <class T, unsigned N>
__device__ __forceinline__ pack_of<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const pack_of<T, N>*>(from);
}
template <class T, unsigned N>
__device__ __forceinline__ void store_pack(const pack_of<T, N>& value, T* to) {
  *reinterpret_cast<pack_of<T, N>*>(to) = value;
}

__host__ __device__ __forceinline__ bool aligned(const void* p, std::size_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(p) & (bytes - 1)) == 0;
}

template <class T>
__device__ __forceinline__ float to_float(T x) {
  if constexpr (std::is_same_v<T, bf16>)
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
  else if constexpr (std::is_same_v<T, fp16>)
    return __half2float(__ushort_as_half(x.bits));
  else
    return static_cast<float>(x);
}

template <class T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, bf16>) {
    bf16 r;
    r.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    return r;
  } else if constexpr (std::is_same_v<T, fp16>) {
    fp16 r;
    r.bits = __half_as_ushort(__float2half_rn(x));
    return r;
  } else {
    return static_cast<T>(x);
  }
}

template <class T>
__device__ __forceinline__ T plus(T a, T b) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, fp16>)
    return from_float<T>(__fadd_rn(to_float(a), to_float(b)));
  else if constexpr (std::is_same_v<T, float>)
    return __fadd_rn(a, b);
  else if constexpr (std::is_same_v<T, double>)
    return __dadd_rn(a, b);
  else
    return static_cast<T>(a + b);
}

/// True where a kernel may be launched before its predecessor has ended (compute capability 9.0).
[[nodiscard]] inline bool knows_early_launch() {
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "cudaDeviceGetAttribute");
  return major >= 9;
}

/// Blocks for n elements, `per_block` each.
[[nodiscard]] inline unsigned blocks_for(std::size_t n, std::size_t per_block) {
  const std::size_t blocks = (n + per_block - 1) / per_block;
  expects(blocks <= 0x7fffffffu, "a kernel over ", n, " elements needs more than 2^31 blocks");
  return static_cast<unsigned>(blocks);
}

} // namespace polyrank::cuda::detail
