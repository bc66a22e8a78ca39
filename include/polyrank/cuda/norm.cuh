// The norm kernel, for nvcc. See norm.hpp.
//
// One launch reads the gradients once. Thread t of a block takes elements 4 (t + 256 j) + 0 ... 3
// for j = 0 ... 3. Whichever block arrives last at a fold of 64 sums adds them, in one order; so
// the result does not depend on who that is.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/device.hpp>
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

/// Warp 0 of the block that has just written sum `index` of the lowest level: adds up every fold
/// that is complete now.
template <class Tree>
__device__ __forceinline__ void climb(Tree tree, std::size_t index, norm_options o,
                                      norm_result* result) {
  double* level = tree.sums;
  std::uint32_t* arrived = tree.arrived;
  std::size_t count = tree.blocks;
  while (count > 1) {
    const std::size_t group = index / norm_fan, begin = group * norm_fan;
    const auto members = static_cast<unsigned>(count - begin < norm_fan ? count - begin : norm_fan);
    unsigned before = 0;
    if (threadIdx.x == 0) {
      __threadfence();                                  // our sum is visible before we are counted
      before = atomicInc(arrived + group, members - 1); // the last one sets it back to zero
    }
    if (__shfl_sync(~0u, before, 0) != members - 1) return;
    __threadfence();
    const unsigned a = threadIdx.x, b = a + 32;
    const double x = a < members ? __ldcg(level + begin + a) : 0.0;
    const double y = b < members ? __ldcg(level + begin + b) : 0.0;
    const double sum = warp_sum(x + y);
    level += count;
    count = (count + norm_fan - 1) / norm_fan;
    arrived += count;
    index = group;
    if (threadIdx.x == 0) level[index] = sum;
  }
  if (threadIdx.x == 0) conclude(level[0], o, result);
}

/// Elements that one thread takes of a block.
template <class T>
struct norm_share {
  static constexpr unsigned width = 4, turns = norm_block / (threads_per_block * width);
  pack_of<T, width> x[turns];

  __device__ __forceinline__ void load(const T* block) {
#pragma unroll
    for (unsigned j = 0; j < turns; ++j)
      x[j] = load_pack<T, width>(block + (threadIdx.x + j * threads_per_block) * width);
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

/// The same sum for a block that spans tensors, is cut off, or is not aligned.
template <class T>
__device__ __noinline__ float gathered_squares(norm_source<T> from, std::size_t block) {
  using share = norm_share<T>;
  std::uint32_t at = from.first[block];
  float sum = 0;
  for (unsigned j = 0; j < share::turns; ++j)
    for (unsigned c = 0; c < share::width; ++c) {
      const std::size_t place =
          block * norm_block + (threadIdx.x + j * threads_per_block) * share::width + c;
      while (from.parts[at].data != nullptr && place >= from.parts[at + 1].begin) ++at;
      const norm_part<T> p = from.parts[at];
      const float v = p.data != nullptr ? to_float(p.data[place - p.begin]) : 0.0f;
      sum = __fmaf_rn(v, v, sum);
    }
  return sum;
}

inline constexpr unsigned norm_resident = 5; // blocks of threads on a multiprocessor

template <class T>
POLYRANK_KERNEL void __launch_bounds__(threads_per_block, norm_resident)
    norm(norm_source<T> from, norm_tree tree, norm_options o, norm_result* result) {
  constexpr unsigned warps = threads_per_block / 32;
  __shared__ float sums[2][warps]; // in turn, so that one barrier a block is enough
  norm_share<T> share;
  std::size_t block = blockIdx.x, next = block + gridDim.x;
  const T *here = from.whole[block], *there = next < tree.blocks ? from.whole[next] : nullptr;
  if (here != nullptr) share.load(here);
  for (unsigned turn = 0; block < tree.blocks; turn ^= 1) {
    float sum = here != nullptr ? share.squares() : gathered_squares(from, block);
    here = there;
    if (here != nullptr) share.load(here);
    there = next + gridDim.x < tree.blocks ? from.whole[next + gridDim.x] : nullptr;
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sums[turn][threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
      if (threadIdx.x == 0) {
        double total = 0;
        for (unsigned w = 0; w < warps; ++w) total += static_cast<double>(sums[turn][w]);
        tree.sums[block] = total;
      }
      climb(tree, block, o, result);
    }
    block = next;
    next += gridDim.x;
  }
}

/// Without elements.
template <class T>
POLYRANK_KERNEL void norm_of_nothing(norm_options o, norm_result* result) {
  conclude(0, o, result);
}

template <class T>
void launch_norm(norm_source<T> from, norm_tree tree, norm_options o, norm_result* result,
                 cudaStream_t s) {
  if (tree.blocks == 0) {
    norm_of_nothing<T><<<1, 1, 0, s>>>(o, result);
  } else {
    int processors = 0;
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, current_device()),
          "cudaDeviceGetAttribute");
    const std::size_t grid = static_cast<std::size_t>(processors) * norm_resident;
    norm<T><<<static_cast<unsigned>(tree.blocks < grid ? tree.blocks : grid), threads_per_block, 0,
              s>>>(from, tree, o, result);
  }
  check(cudaGetLastError(), "kernel launch");
}

} // namespace polyrank::cuda::detail

// Instantiates the norm of gradients of type T. Once in a program for each.
#define POLYRANK_INSTANTIATE_CUDA_NORM(T)                                                          \
  template void polyrank::cuda::detail::launch_norm<T>(                                            \
      polyrank::cuda::detail::norm_source<T>, polyrank::cuda::detail::norm_tree,                   \
      polyrank::cuda::norm_options, polyrank::cuda::norm_result*, cudaStream_t)
