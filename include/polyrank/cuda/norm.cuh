// The norm kernel, for nvcc. See norm.hpp.
//
// Two launches: blocks of 4096 elements to sums, sums to the result. In the first, thread t takes
// elements 4 (t + 256 j) + 0 ... 3 for j = 0 ... 3 of each block. In the second, a warp folds 64
// sums; whoever arrives last folds what the others have left, in one order, so the result does not
// depend on who that is. (Folding in the first launch would save the second, but its fences would
// wait for the loads of the next block.)
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

/// Lane 0 of a warp gets the sum of up to 64 sums.
__device__ __forceinline__ double fold(const double* sums, std::size_t count) {
  const unsigned a = threadIdx.x % 32, b = a + 32;
  const double x = a < count ? __ldcg(sums + a) : 0.0;
  const double y = b < count ? __ldcg(sums + b) : 0.0;
  return warp_sum(x + y);
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

template <class T, unsigned Blocks>
POLYRANK_KERNEL void __launch_bounds__(threads_per_block)
    norm_blocks(norm_source<T> from, std::size_t blocks, double* sums) {
  constexpr unsigned warps = threads_per_block / 32;
  __shared__ float part[Blocks][warps];
  norm_share<T> share[Blocks];
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * Blocks;
  const T* whole[Blocks];
#pragma unroll
  for (unsigned b = 0; b < Blocks; ++b)
    whole[b] = first + b < blocks ? from.whole[first + b] : nullptr;
#pragma unroll
  for (unsigned b = 0; b < Blocks; ++b)
    if (whole[b] != nullptr) share[b].load(whole[b]);
#pragma unroll
  for (unsigned b = 0; b < Blocks; ++b) {
    float sum = 0;
    if (whole[b] != nullptr)
      sum = share[b].squares();
    else if (first + b < blocks)
      sum = gathered_squares(from, first + b);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) part[b][threadIdx.x / 32] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= Blocks || first + threadIdx.x >= blocks) return;
  double total = 0;
  for (unsigned w = 0; w < warps; ++w) total += static_cast<double>(part[threadIdx.x][w]);
  sums[first + threadIdx.x] = total;
}

/// Each warp of the grid folds 64 block sums; the last block of threads to arrive folds the rest.
template <class Tree>
POLYRANK_KERNEL void __launch_bounds__(threads_per_block)
    norm_folds(Tree tree, norm_options o, norm_result* result) {
  constexpr unsigned warps = threads_per_block / 32;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const double* level = tree.sums;
  std::size_t count = tree.blocks;
  double* above = tree.sums + count;
  std::size_t groups = (count + norm_fan - 1) / norm_fan;
  const auto fold_groups = [&](std::size_t from, std::size_t step) {
    for (std::size_t g = from; g < groups; g += step) {
      const double sum = fold(level + g * norm_fan,
                              count - g * norm_fan < norm_fan ? count - g * norm_fan : norm_fan);
      if (lane == 0) above[g] = sum;
    }
  };
  const std::size_t mine = static_cast<std::size_t>(blockIdx.x) * warps + warp;
  fold_groups(mine, static_cast<std::size_t>(gridDim.x) * warps);
  __shared__ bool last;
  __threadfence(); // our sums are visible before we are counted
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(tree.arrived, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  while (groups > 1) {
    level = above;
    count = groups;
    above += groups;
    groups = (count + norm_fan - 1) / norm_fan;
    fold_groups(warp, warps);
    __threadfence();
    __syncthreads();
  }
  if (threadIdx.x == 0) conclude(__ldcg(above), o, result);
}

/// Without elements.
template <class T>
POLYRANK_KERNEL void norm_of_nothing(norm_options o, norm_result* result) {
  conclude(0, o, result);
}

template <class T>
void launch_norm(norm_source<T> from, norm_tree tree, norm_options o, norm_result* result,
                 cudaStream_t s) {
  constexpr unsigned blocks = 2, warps = threads_per_block / 32;
  if (tree.blocks == 0) {
    norm_of_nothing<T><<<1, 1, 0, s>>>(o, result);
  } else {
    norm_blocks<T, blocks><<<blocks_for(tree.blocks, blocks), threads_per_block, 0, s>>>(
        from, tree.blocks, tree.sums);
    const std::size_t grid = (tree.blocks + norm_fan * warps - 1) / (norm_fan * warps);
    norm_folds<norm_tree>
        <<<static_cast<unsigned>(grid < 1024 ? grid : 1024), threads_per_block, 0, s>>>(tree, o,
                                                                                        result);
  }
  check(cudaGetLastError(), "kernel launch");
}

} // namespace polyrank::cuda::detail

// Instantiates the norm of gradients of type T. Once in a program for each.
#define POLYRANK_INSTANTIATE_CUDA_NORM(T)                                                          \
  template void polyrank::cuda::detail::launch_norm<T>(                                            \
      polyrank::cuda::detail::norm_source<T>, polyrank::cuda::detail::norm_tree,                   \
      polyrank::cuda::norm_options, polyrank::cuda::norm_result*, cudaStream_t)
