// The optimizer kernel, for nvcc. See optimizer.hpp.
//
// Bound by memory (AdamW in fp32: 28 bytes an element). Each block updates one chunk of 1024
// elements, 4 consecutive ones a thread. Chunks begin where a line of 128 bytes of the values does;
// each array that is aligned to 16 bytes there is accessed so, others element by element.
// All loads are issued before the first use.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/ieee.hpp>
#include <polyrank/cuda/lanes.cuh>
#include <polyrank/cuda/optimizer.hpp>

namespace polyrank::cuda::detail {

/// Four elements from `at`, at once or one by one.
template <class T>
__device__ __forceinline__ pack_of<T, 4> load_four(const T* at) {
  if (aligned(at, 4 * sizeof(T))) return load_pack<T, 4>(at);
  return {{at[0], at[1], at[2], at[3]}};
}
template <class T>
__device__ __forceinline__ void store_four(const pack_of<T, 4>& value, T* at) {
  if (aligned(at, 4 * sizeof(T))) {
    store_pack<T, 4>(value, at);
  } else {
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) at[k] = value.at[k];
  }
}

/// Element `i` of `r`. `n` has `factor` and `hyper`; `round(p, i, n)` is what the copy gets.
template <class O, class G, class V, class Numbers, class Round>
__device__ __forceinline__ void update_one(const update_range<G, O::state_count, V>& r,
                                           std::size_t i, const Numbers& n, Round round) {
  constexpr unsigned states = O::state_count;
  float state[states == 0 ? 1 : states];
#pragma unroll
  for (unsigned k = 0; k < states; ++k) state[k] = r.state[k][i];
  const float p =
      O::update(r.value[i], ieee::mul(n.factor, to_float(r.gradient[i])), state, n.hyper);
  r.value[i] = p;
#pragma unroll
  for (unsigned k = 0; k < states; ++k) r.state[k][i] = state[k];
  if (r.copy != nullptr) r.copy[i] = round(p, i, n);
}

/// Elements `i` to `i + 3`, all loads before the first use. `numbers()` is called behind them and
/// gives `n`; with `n.skip` nothing is stored.
template <class O, class G, class V, class Numbers, class Round>
__device__ __forceinline__ void update_four(const update_range<G, O::state_count, V>& r,
                                            std::size_t i, Numbers numbers, Round round) {
  constexpr unsigned states = O::state_count, width = 4;
  pack_of<float, width> p = load_four(r.value + i);
  const pack_of<G, width> g = load_four(r.gradient + i);
  pack_of<float, width> s[states == 0 ? 1 : states];
#pragma unroll
  for (unsigned k = 0; k < states; ++k) s[k] = load_four(r.state[k] + i);
  const auto n = numbers();
  pack_of<V, width> copy;
#pragma unroll
  for (unsigned e = 0; e < width; ++e) {
    float state[states == 0 ? 1 : states];
#pragma unroll
    for (unsigned k = 0; k < states; ++k) state[k] = s[k].at[e];
    p.at[e] = O::update(p.at[e], ieee::mul(n.factor, to_float(g.at[e])), state, n.hyper);
#pragma unroll
    for (unsigned k = 0; k < states; ++k) s[k].at[e] = state[k];
    copy.at[e] = round(p.at[e], i + e, n);
  }
  if (n.skip) return;
  store_four(p, r.value + i);
#pragma unroll
  for (unsigned k = 0; k < states; ++k) store_four(s[k], r.state[k] + i);
  if (r.copy != nullptr) store_four(copy, r.copy + i);
}

template <class O, class Work>
POLYRANK_KERNEL void __launch_bounds__(threads_per_block)
    update(update_range<Work, O::state_count> r, const update_range<Work, O::state_count>* ranges,
           const chunk* map, typename O::hyper hyper, const typename O::hyper* device_hyper,
           step_control control) {
  if (device_hyper != nullptr) hyper = *device_hyper;
  std::size_t index = blockIdx.x;
  if (map != nullptr) {
    const chunk c = map[blockIdx.x];
    r = ranges[c.range];
    index = c.index;
  }
  const struct {
    float factor;
    typename O::hyper hyper;
    bool skip;
  } n{control.device_factor != nullptr ? ieee::mul(control.factor, *control.device_factor)
                                       : control.factor,
      hyper, control.skip != nullptr && *control.skip != 0};
  const auto round = [](float p, std::size_t, const auto&) { return from_float<Work>(p); };
  const std::size_t lead = lead_of(r.value), begin = lead + index * chunk_elements;

  if (begin + chunk_elements <= r.count)
    update_four<O>(
        r, begin + threadIdx.x * 4, [&] { return n; }, round);
  else if (!n.skip)
    for (std::size_t i = begin + threadIdx.x; i < r.count; i += threads_per_block)
      update_one<O>(r, i, n, round);
  if (index == 0 && threadIdx.x < lead && threadIdx.x < r.count && !n.skip)
    update_one<O>(r, threadIdx.x, n, round);
}

template <class O, class Work>
void launch_update(const update_range<Work, O::state_count>& lone,
                   const update_range<Work, O::state_count>* ranges, const chunk* map,
                   std::size_t chunks, const typename O::hyper& hyper,
                   const typename O::hyper* device_hyper, const step_control& control,
                   cudaStream_t s) {
  static_assert(chunk_elements == threads_per_block * 4);
  update<O, Work><<<blocks_for(chunks, 1), threads_per_block, 0, s>>>(lone, ranges, map, hyper,
                                                                      device_hyper, control);
  check(cudaGetLastError(), "kernel launch");
}

} // namespace polyrank::cuda::detail

// Instantiates the step of optimizer O with gradients of type Work. Once in a program for each.
#define POLYRANK_INSTANTIATE_CUDA_OPTIMIZER(O, Work)                                               \
  template void polyrank::cuda::detail::launch_update<O, Work>(                                    \
      const polyrank::cuda::update_range<Work, O::state_count>&,                                   \
      const polyrank::cuda::update_range<Work, O::state_count>*,                                   \
      const polyrank::cuda::detail::chunk*, std::size_t, const O::hyper&, const O::hyper*,         \
      const polyrank::cuda::step_control&, cudaStream_t)
