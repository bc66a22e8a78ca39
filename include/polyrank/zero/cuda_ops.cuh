// The kernels of the sharded optimizer, for nvcc. See cuda_ops.hpp.
//
// The update is bound by memory (AdamW, fp32 gradients: 28 bytes an element, 30 with a bf16 copy):
// a block of threads takes 1024 elements, four consecutive ones a thread, all loads before the
// first use. The numbers of the step are read from the device, where prepare() has put them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/ops.cuh>
#include <polyrank/cuda/optimizer.cuh>
#include <polyrank/optim/stochastic_rounding.hpp>
#include <polyrank/zero/cuda_ops.hpp>

namespace polyrank::cuda::detail {

/// Sum over the threads of a block, for thread 0; in one order, whatever the schedule.
__device__ __forceinline__ double block_sum(double x) {
  __shared__ double part[threads_per_block / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0)
    for (double p : part) sum += p;
  return sum;
}

/// One block of threads for each block of 4096 elements; the square of a float is exact in fp64.
template <class T>
POLYRANK_KERNEL void __launch_bounds__(threads_per_block)
    block_squares(const T* from, std::size_t count, double* out) {
  constexpr unsigned width = 4, turns = norm_block / (threads_per_block * width);
  const std::size_t begin = static_cast<std::size_t>(blockIdx.x) * norm_block;
  double sum = 0;
  if (begin + norm_block <= count) {
    pack_of<T, width> x[turns];
#pragma unroll
    for (unsigned j = 0; j < turns; ++j)
      x[j] = load_four(from + begin + (threadIdx.x + j * threads_per_block) * width);
#pragma unroll
    for (unsigned j = 0; j < turns; ++j)
#pragma unroll
      for (unsigned c = 0; c < width; ++c) {
        const double v = to_float(x[j].at[c]);
        sum = fma(v, v, sum);
      }
  } else {
    for (unsigned j = 0; j < turns; ++j)
      for (unsigned c = 0; c < width; ++c) {
        const std::size_t i = begin + (threadIdx.x + j * threads_per_block) * width + c;
        const double v = i < count ? static_cast<double>(to_float(from[i])) : 0.0;
        sum = fma(v, v, sum);
      }
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

template <class T>
void launch_block_squares(const T* from, std::size_t count, double* out, cudaStream_t s) {
  if (count == 0) return;
  block_squares<T><<<blocks_for(count, norm_block), threads_per_block, 0, s>>>(from, count, out);
  check(cudaGetLastError(), "kernel launch");
}

template <class T>
POLYRANK_KERNEL void __launch_bounds__(threads_per_block)
    count_nonfinite(const T* from, std::size_t count, std::uint32_t* counter) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * threads_per_block;
  unsigned bad = 0;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * threads_per_block + threadIdx.x;
       i < count; i += stride)
    bad += isfinite(to_float(from[i])) ? 0 : 1;
  for (int offset = 16; offset > 0; offset /= 2) bad += __shfl_xor_sync(~0u, bad, offset);
  if (threadIdx.x % 32 == 0 && bad != 0) atomicAdd(counter, bad);
}

template <class T>
void launch_count_nonfinite(const T* from, std::size_t count, std::uint32_t* counter,
                            cudaStream_t s) {
  if (count == 0) return;
  const std::size_t wanted = (count + threads_per_block - 1) / threads_per_block;
  count_nonfinite<T>
      <<<static_cast<unsigned>(wanted < 4096 ? wanted : 4096), threads_per_block, 0, s>>>(
          from, count, counter);
  check(cudaGetLastError(), "kernel launch");
}

/// Elements that a block of threads folds: eight a thread.
inline constexpr std::size_t fold_span = 8 * threads_per_block;

/// Folds elements 0, stride, 2 stride ... by pairs of neighbours, then pairs of those, and so on:
/// each block of threads its `fold_span` of them, into the first one's place. A block's own span is
/// a subtree of the whole, so launches with growing strides make the host's tree.
template <class Record>
POLYRANK_KERNEL void __launch_bounds__(threads_per_block)
    fold_norm(double* blocks, std::size_t count, std::size_t stride, Record* record,
              grad_scale_terms terms) {
  __shared__ double level[threads_per_block];
  const std::size_t items = (count + stride - 1) / stride;
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * fold_span + 8 * threadIdx.x;
  // A place beyond the end holds zero: to add it changes nothing, a sum of squares is not -0.
  double x[8];
#pragma unroll
  for (unsigned k = 0; k < 8; ++k) x[k] = first + k < items ? blocks[(first + k) * stride] : 0.0;
  level[threadIdx.x] = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
  for (unsigned width = threads_per_block / 2; width > 0; width /= 2) {
    __syncthreads();
    double sum = 0;
    if (threadIdx.x < width) sum = level[2 * threadIdx.x] + level[2 * threadIdx.x + 1];
    __syncthreads();
    if (threadIdx.x < width) level[threadIdx.x] = sum;
  }
  if (threadIdx.x != 0) return;
  if (record != nullptr)
    polyrank::conclude(*record, level[0], terms);
  else
    blocks[static_cast<std::size_t>(blockIdx.x) * fold_span * stride] = level[0];
}

template <class Record>
void launch_conclude(double* blocks, std::size_t count, Record* record,
                     const grad_scale_terms& terms, cudaStream_t s) {
  std::size_t stride = 1, items = count;
  for (; items > fold_span; items = (items + fold_span - 1) / fold_span, stride *= fold_span)
    fold_norm<Record><<<blocks_for(items, fold_span), threads_per_block, 0, s>>>(
        blocks, count, stride, nullptr, {});
  fold_norm<Record><<<1, threads_per_block, 0, s>>>(blocks, count, stride, record, terms);
  check(cudaGetLastError(), "kernel launch");
}

template <class O>
POLYRANK_KERNEL void prepare_numbers(step_numbers<O>* to, typename O::options options,
                                     update_control control) {
  *to = resolve<O>(control, options);
}

template <class O>
void launch_prepare(step_numbers<O>* to, const typename O::options& options,
                    const update_control& control, cudaStream_t s) {
  prepare_numbers<O><<<1, 1, 0, s>>>(to, options, control);
  check(cudaGetLastError(), "kernel launch");
}

template <class O, class V>
POLYRANK_KERNEL void __launch_bounds__(threads_per_block)
    update_shard(zero_batch<V, O::state_count> batch, const step_numbers<O>* numbers,
                 bool stochastic, std::uint64_t seed) {
  unsigned which = 0, end = batch.used;
  while (end - which > 1) {
    const unsigned middle = (which + end) / 2;
    (batch.first[middle] <= blockIdx.x ? which : end) = middle;
  }
  const zero_piece<V, O::state_count> r = batch.pieces[which]; // a reference would copy all of them
  const std::size_t begin =
      static_cast<std::size_t>(blockIdx.x - batch.first[which]) * chunk_elements;

  const auto round = [&](float p, std::size_t i, const step_numbers<O>& n) {
    if constexpr (std::is_same_v<V, bf16>)
      if (stochastic) return stochastic_rounding{seed, n.step}(p, r.logical + i);
    return from_float<V>(p);
  };
  if (begin + chunk_elements <= r.count)
    return update_four<O>(
        r, begin + threadIdx.x * 4, [&] { return *numbers; }, round);
  const step_numbers<O> n = *numbers;
  if (n.skip) return;
  for (std::size_t i = begin + threadIdx.x; i < r.count; i += threads_per_block)
    update_one<O>(r, i, n, round);
}

template <class O, class V>
void launch_zero_update(const zero_batch<V, O::state_count>& batch, const step_numbers<O>* numbers,
                        const std::optional<std::uint64_t>& seed, cudaStream_t s) {
  if (batch.chunks == 0) return;
  update_shard<O, V><<<blocks_for(batch.chunks, 1), threads_per_block, 0, s>>>(
      batch, numbers, seed.has_value(), seed.value_or(0));
  check(cudaGetLastError(), "kernel launch");
}

} // namespace polyrank::cuda::detail

// What does not depend on the optimizer. Once in a program.
#define POLYRANK_INSTANTIATE_CUDA_ZERO()                                                           \
  template void polyrank::cuda::detail::launch_fill<double>(double*, std::size_t, double,          \
                                                            cudaStream_t);                         \
  template void polyrank::cuda::detail::launch_block_squares<float>(const float*, std::size_t,     \
                                                                    double*, cudaStream_t);        \
  POLYRANK_INSTANTIATE_CUDA_ZERO_COUNT(float);                                                     \
  POLYRANK_INSTANTIATE_CUDA_ZERO_COUNT(polyrank::bf16);                                            \
  POLYRANK_INSTANTIATE_CUDA_ZERO_COUNT(polyrank::fp16);                                            \
  template void polyrank::cuda::detail::launch_conclude<polyrank::step_record>(                    \
      double*, std::size_t, polyrank::step_record*, const polyrank::grad_scale_terms&,             \
      cudaStream_t)

#define POLYRANK_INSTANTIATE_CUDA_ZERO_COUNT(T)                                                    \
  template void polyrank::cuda::detail::launch_count_nonfinite<T>(const T*, std::size_t,           \
                                                                  std::uint32_t*, cudaStream_t)

// The numbers of a step of optimizer O. Once in a program for each.
#define POLYRANK_INSTANTIATE_CUDA_ZERO_NUMBERS(O)                                                  \
  template void polyrank::cuda::detail::launch_prepare<O>(                                         \
      polyrank::step_numbers<O>*, const O::options&, const polyrank::update_control&,              \
      cudaStream_t)

// Its update with values of type V. Once in a program for each pair.
#define POLYRANK_INSTANTIATE_CUDA_ZERO_UPDATE(O, V)                                                \
  template void polyrank::cuda::detail::launch_zero_update<O, V>(                                  \
      const polyrank::cuda::detail::zero_batch<V, O::state_count>&,                                \
      const polyrank::step_numbers<O>*, const std::optional<std::uint64_t>&, cudaStream_t)
