// The element-wise kernels of the backend, for nvcc. See ops.hpp for what they do.
//
// Bound by memory: every thread moves 16 bytes of each array where all are aligned, else the same
// elements one by one, coalesced. The grid covers the data; nothing is persistent.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hash.hpp>
#include <polyrank/cuda/lanes.cuh>
#include <polyrank/cuda/ops.hpp>

#include <algorithm>

namespace polyrank::cuda::detail {

/// out[i] = f(a[i], b[i]); a kernel that needs fewer operands passes out in their place.
template <class A, class T, class F>
POLYRANK_KERNEL void __launch_bounds__(threads_per_block)
    map(const A* a, const A* b, T* out, std::size_t n, bool wide, F f) {
  constexpr unsigned lanes = sizeof(A) > sizeof(T) ? lanes_of<A> : lanes_of<T>;
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * threads_per_block * lanes;
  const std::size_t i = first + static_cast<std::size_t>(threadIdx.x) * lanes;
  if (wide && i + lanes <= n) {
    pack_of<A, lanes> x, y;
    if constexpr (F::operands > 0) x = load_pack<A, lanes>(a + i);
    if constexpr (F::operands > 1) y = load_pack<A, lanes>(b + i);
    pack_of<T, lanes> r;
#pragma unroll
    for (unsigned k = 0; k < lanes; ++k) r.at[k] = f(x.at[k], y.at[k]);
    store_pack<T, lanes>(r, out + i);
    return;
  }
  const std::size_t step = wide ? 1 : threads_per_block;
  const std::size_t from = wide ? i : first + threadIdx.x;
#pragma unroll
  for (unsigned k = 0; k < lanes; ++k) {
    const std::size_t at = from + k * step;
    if (at >= n) continue;
    A x{}, y{};
    if constexpr (F::operands > 0) x = a[at];
    if constexpr (F::operands > 1) y = b[at];
    out[at] = f(x, y);
  }
}

template <class A, class T, class F>
void launch_map(const A* a, const A* b, T* out, std::size_t n, F f, cudaStream_t s) {
  if (n == 0) return;
  constexpr unsigned lanes = sizeof(A) > sizeof(T) ? lanes_of<A> : lanes_of<T>;
  const bool wide = aligned(a, lanes * sizeof(A) < 16 ? lanes * sizeof(A) : 16) &&
                    aligned(b, lanes * sizeof(A) < 16 ? lanes * sizeof(A) : 16) &&
                    aligned(out, lanes * sizeof(T) < 16 ? lanes * sizeof(T) : 16);
  map<A, T, F><<<blocks_for(n, std::size_t{threads_per_block} * lanes), threads_per_block, 0, s>>>(
      a, b, out, n, wide, f);
  check(cudaGetLastError(), "kernel launch");
}

template <class T>
struct fill_with {
  static constexpr int operands = 0;
  T value;
  __device__ T operator()(T, T) const { return value; }
};
template <class T>
struct add_both {
  static constexpr int operands = 2;
  __device__ T operator()(T a, T b) const { return plus(a, b); }
};
template <class T>
struct scale_by {
  static constexpr int operands = 1;
  float factor;
  __device__ T operator()(T a, T) const { return from_float<T>(__fmul_rn(to_float(a), factor)); }
};
template <class To, class From>
struct cast_to {
  static constexpr int operands = 1;
  __device__ To operator()(From a, From) const { return from_float<To>(to_float(a)); }
};

template <class T>
void launch_fill(T* out, std::size_t n, T value, cudaStream_t s) {
  launch_map<T, T>(out, out, out, n, fill_with<T>{value}, s);
}
template <class T>
void launch_add(const T* a, const T* b, T* out, std::size_t n, cudaStream_t s) {
  launch_map<T, T>(a, b, out, n, add_both<T>{}, s);
}
template <class T>
void launch_scale(T* out, std::size_t n, float factor, cudaStream_t s) {
  launch_map<T, T>(out, out, out, n, scale_by<T>{factor}, s);
}
template <class To, class From>
void launch_cast(const From* in, To* out, std::size_t n, cudaStream_t s) {
  launch_map<From, To>(in, in, out, n, cast_to<To, From>{}, s);
}

/// The sum of mix(word ^ mix(place)): its order does not matter, so neither does the grid.
template <class Word>
POLYRANK_KERNEL void __launch_bounds__(threads_per_block)
    hash_words(const unsigned char* data, std::size_t bytes, Word* hash) {
  const std::size_t words = bytes / sizeof(Word),
                    stride = static_cast<std::size_t>(gridDim.x) * threads_per_block;
  Word sum = 0;
  std::size_t i = static_cast<std::size_t>(blockIdx.x) * threads_per_block + threadIdx.x;
  if (i == 0) { // the length and the last, incomplete word
    Word tail = 0;
    for (std::size_t k = words * sizeof(Word); k < bytes; ++k) tail = tail << 8 | data[k];
    sum = mix(bytes ^ mix(tail));
  }
  const bool wide = aligned(data, sizeof(Word));
  for (; i < words; i += stride) {
    Word word = 0;
    if (wide)
      word = reinterpret_cast<const Word*>(data)[i];
    else
      for (unsigned k = 0; k < sizeof(Word); ++k)
        word |= static_cast<Word>(data[i * sizeof(Word) + k]) << (8 * k);
    sum += mix(word ^ mix(i + 1));
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (threadIdx.x % 32 == 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(hash), static_cast<unsigned long long>(sum));
}

template <class Word>
void launch_hash(const void* data, std::size_t bytes, Word* hash, cudaStream_t s) {
  const std::size_t wanted = (bytes / sizeof(Word) + threads_per_block) / threads_per_block;
  hash_words<Word>
      <<<static_cast<unsigned>(std::min<std::size_t>(wanted, 4096)), threads_per_block, 0, s>>>(
          static_cast<const unsigned char*>(data), bytes, hash);
  check(cudaGetLastError(), "kernel launch");
}

} // namespace polyrank::cuda::detail

// Instantiates fill, add and scale for one element type.
#define POLYRANK_INSTANTIATE_CUDA_OPS_FOR(T)                                                       \
  template void polyrank::cuda::detail::launch_fill<T>(T*, std::size_t, T, cudaStream_t);          \
  template void polyrank::cuda::detail::launch_add<T>(const T*, const T*, T*, std::size_t,         \
                                                      cudaStream_t);                               \
  template void polyrank::cuda::detail::launch_scale<T>(T*, std::size_t, float, cudaStream_t)

// Instantiates the cast from From to To.
#define POLYRANK_INSTANTIATE_CUDA_CAST(To, From)                                                   \
  template void polyrank::cuda::detail::launch_cast<To, From>(const From*, To*, std::size_t,       \
                                                              cudaStream_t)

// Everything that cuda::backend launches, for the element types of training. Once in a program.
#define POLYRANK_INSTANTIATE_CUDA_OPS()                                                            \
  POLYRANK_INSTANTIATE_CUDA_OPS_FOR(float);                                                        \
  POLYRANK_INSTANTIATE_CUDA_OPS_FOR(polyrank::bf16);                                               \
  POLYRANK_INSTANTIATE_CUDA_OPS_FOR(polyrank::fp16);                                               \
  POLYRANK_INSTANTIATE_CUDA_OPS_FOR(std::int32_t);                                                 \
  POLYRANK_INSTANTIATE_CUDA_CAST(polyrank::bf16, float);                                           \
  POLYRANK_INSTANTIATE_CUDA_CAST(float, polyrank::bf16);                                           \
  POLYRANK_INSTANTIATE_CUDA_CAST(polyrank::fp16, float);                                           \
  POLYRANK_INSTANTIATE_CUDA_CAST(float, polyrank::fp16);                                           \
  template void polyrank::cuda::detail::launch_hash<std::uint64_t>(const void*, std::size_t,       \
                                                                   std::uint64_t*, cudaStream_t)
