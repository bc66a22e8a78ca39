// The norm kernels, for nvcc. See norm.hpp.
//
// Two launches: pairs of blocks of 4096 elements to sums, sums to the result. In the first, thread
// t of 256 takes units t + 256 j of a block for j = 0, 1, ...; a unit is 4 bytes, so that a warp
// reads 128 bytes in a row whatever the alignment, and all loads are under way before the first
// use. That is as fast as 16 bytes a thread, and tensors at odd offsets lose nothing. In the
// second, thread t of 1024 adds the sums t, t + 1024, ... Where the GPU can, it is launched before
// the first has ended and waits there. (Folding in the first launch would save the second, but each
// block then stays until its fence and its atomic have come back: measured, a tenth slower.)
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/lanes.cuh>
#include <polyrank/cuda/norm.hpp>

namespace polyrank::cuda::detail {

template <class Sum>
__device__ __forceinline__ Sum warp_sum(Sum x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

__device__ __forceinline__ void conclude(double squares, norm_options o, norm_result* result) {
  norm_result r;
  r.squares = squares;
  r.norm = static_cast<float>(static_cast<double>(o.scale) * sqrt(squares));
  r.factor = o.scale;
  r.skip = isfinite(r.norm) ? 0 : 1;
  // Not `norm > max_norm`: that is false for NaN.
  if (o.max_norm > 0 && !(r.norm <= o.max_norm)) r.factor = o.scale * (o.max_norm / r.norm);
  *result = r;
}

/// Elements that one thread takes of a block.
template <class T>
struct norm_share {
  static constexpr unsigned width = 4 / sizeof(T), turns = norm_block / (threads_per_block * width);
  pack_of<T, width> x[turns];

  /// Elements from one turn to the next.
  static constexpr unsigned stride = threads_per_block * width;

  __device__ __forceinline__ void load(const T* block) {
    const T* mine = block + threadIdx.x * width; // so that all turns are offsets of one register
    if (width == 1 || aligned(block, 4)) {
#pragma unroll
      for (unsigned j = 0; j < turns; ++j) {
        const unsigned unit = __ldcs(reinterpret_cast<const unsigned*>(mine + j * stride));
        x[j] = reinterpret_cast<const pack_of<T, width>&>(unit);
      }
    } else {
#pragma unroll
      for (unsigned j = 0; j < turns; ++j)
        for (unsigned c = 0; c < width; ++c) x[j].at[c] = mine[j * stride + c];
    }
  }
  __device__ __forceinline__ float squares() const {
    float sum = 0;
#pragma unroll
    for (unsigned j = 0; j < turns; ++j)
#pragma unroll
      for (unsigned c = 0; c < width; ++c) {
        const float v = to_float(x[j].at[c]);
        sum = __fmaf_rn(v, v, sum);
      }
    return sum;
  }
};

/// The same sum for a block that spans tensors or is cut off: first all places, then all loads.
template <class T>
__device__ __noinline__ float gathered_squares(norm_source<T> from, std::size_t block) {
  using share = norm_share<T>;
  const T* at[share::turns * share::width];
  std::uint32_t part = from.first[block];
#pragma unroll
  for (unsigned i = 0; i < share::turns * share::width; ++i) {
    const std::size_t place = block * norm_block + i / share::width * share::stride +
                              threadIdx.x * share::width + i % share::width;
    while (from.parts[part].data != nullptr && place >= from.parts[part + 1].begin) ++part;
    const norm_part<T> p = from.parts[part];
    at[i] = p.data != nullptr ? p.data + (place - p.begin) : nullptr;
  }
  share s;
#pragma unroll
  for (unsigned i = 0; i < share::turns * share::width; ++i)
    s.x[i / share::width].at[i % share::width] = at[i] != nullptr ? *at[i] : T{};
  return s.squares();
}

template <class T>
POLYRANK_KERNEL void __launch_bounds__(threads_per_block)
    norm_blocks(norm_source<T> from, std::size_t blocks, double* sums) {
  constexpr unsigned warps = threads_per_block / 32;
  // From the back: the last block is often cut off and slow, it should not be the last to begin.
  const std::size_t pair = gridDim.x - 1 - blockIdx.x, first = pair * norm_pair;
  const T* whole[norm_pair];
  bool all = true;
#pragma unroll
  for (unsigned b = 0; b < norm_pair; ++b) {
    whole[b] = first + b < blocks ? from.whole[first + b] : nullptr;
    all = all && whole[b] != nullptr;
  }
  float sum[norm_pair] = {};
  if (all) {
    norm_share<T> share[norm_pair];
#pragma unroll
    for (unsigned b = 0; b < norm_pair; ++b) share[b].load(whole[b]);
#pragma unroll
    for (unsigned b = 0; b < norm_pair; ++b) sum[b] = share[b].squares();
  } else {
    for (unsigned b = 0; b < norm_pair; ++b)
      if (first + b < blocks) sum[b] = gathered_squares(from, first + b);
  }
  __shared__ float part[norm_pair][warps];
#pragma unroll
  for (unsigned b = 0; b < norm_pair; ++b) {
    const float total = warp_sum(sum[b]);
    if (threadIdx.x % 32 == 0) part[b][threadIdx.x / 32] = total;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  double total = 0;
  for (unsigned b = 0; b < norm_pair; ++b)
    for (unsigned w = 0; w < warps; ++w) total += static_cast<double>(part[b][w]);
  sums[pair] = total;
}

inline constexpr unsigned norm_fold_threads = 1024;

template <class Options>
POLYRANK_KERNEL void __launch_bounds__(norm_fold_threads)
    norm_fold(const double* sums, std::size_t count, Options o, norm_result* result) {
  constexpr unsigned turns = 16, warps = norm_fold_threads / 32;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory"); // for the sums
#endif
  double total = 0;
  for (std::size_t base = threadIdx.x; base < count; base += turns * norm_fold_threads) {
    double x[turns];
#pragma unroll
    for (unsigned j = 0; j < turns; ++j) {
      const std::size_t at = base + j * norm_fold_threads;
      x[j] = at < count ? sums[at] : 0;
    }
#pragma unroll
    for (unsigned j = 0; j < turns; ++j) total += x[j];
  }
  __shared__ double part[warps];
  total = warp_sum(total);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = total;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  total = warp_sum(part[threadIdx.x]);
  if (threadIdx.x == 0) conclude(total, o, result);
}

template <class T>
void launch_norm(norm_source<T> from, std::size_t blocks, double* sums, norm_options o,
                 norm_result* result, cudaStream_t s) {
  const std::size_t pairs = ceil_div(blocks, norm_pair);
  if (pairs > 0)
    norm_blocks<T><<<blocks_for(pairs, 1), threads_per_block, 0, s>>>(from, blocks, sums);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = 1;
  launch.blockDim = norm_fold_threads;
  launch.stream = s;
  launch.attrs = &early;
  launch.numAttrs = pairs > 0 && knows_early_launch() ? 1 : 0;
  check(cudaLaunchKernelEx(&launch, norm_fold<norm_options>, static_cast<const double*>(sums),
                           pairs, o, result),
        "kernel launch");
}

} // namespace polyrank::cuda::detail

// Instantiates the norm of gradients of type T. Once in a program for each.
#define POLYRANK_INSTANTIATE_CUDA_NORM(T)                                                          \
  template void polyrank::cuda::detail::launch_norm<T>(                                            \
      polyrank::cuda::detail::norm_source<T>, std::size_t, double*, polyrank::cuda::norm_options,  \
      polyrank::cuda::norm_result*, cudaStream_t)
