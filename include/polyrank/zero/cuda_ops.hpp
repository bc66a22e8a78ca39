// The sharded optimizer on CUDA: include this before sharded_optimizer is used with
// cuda::communicator. The kernels are in cuda_ops.cuh; a program has one .cu file with
//
//     #include <polyrank/cuda.cuh>
//     POLYRANK_INSTANTIATE_CUDA_OPS();
//     POLYRANK_INSTANTIATE_CUDA_ZERO();                              // once
//     POLYRANK_INSTANTIATE_CUDA_ZERO_NUMBERS(polyrank::adamw);               // for each optimizer
//     POLYRANK_INSTANTIATE_CUDA_ZERO_UPDATE(polyrank::adamw, polyrank::bf16); // and type of values
//
// or is compiled by nvcc and includes cuda.cuh.
//
// Nothing here waits: the record, the numbers of the step and the verdict stay on the device. An
// update takes its pieces as kernel arguments, so no list of them is kept in device memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/backend.hpp>
#include <polyrank/cuda/optimizer.hpp>
#include <polyrank/zero/ops.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace polyrank {

namespace cuda::detail {

/// A shard_piece as pointers to device memory. No copy: the masters are the values.
template <class V, std::size_t States>
struct zero_piece : update_range<float, States, V> {
  std::size_t logical = 0;
};

/// Pieces that one launch updates; block b of the kernel works on the last piece with first <= b.
template <class V, std::size_t States>
struct zero_batch {
  static constexpr std::size_t room = 32; ///< kernel arguments may have 4 KiB
  zero_piece<V, States> pieces[room];
  std::uint32_t first[room] = {};
  std::uint32_t used = 0, chunks = 0;
};

/// out[b] = sum of squares of block b of 4096 elements, in fp64.
template <class T>
void launch_block_squares(const T* from, std::size_t count, double* out, cudaStream_t s);
/// *counter += elements that are not finite
template <class T>
void launch_count_nonfinite(const T* from, std::size_t count, std::uint32_t* counter,
                            cudaStream_t s);
/// Folds the blocks by the tree of optim/grad_norm.hpp and concludes the record.
template <class Record>
void launch_conclude(double* blocks, std::size_t count, Record* record,
                     const grad_scale_terms& terms, cudaStream_t s);
template <class O>
void launch_prepare(step_numbers<O>* to, const typename O::options& options,
                    const update_control& control, cudaStream_t s);
template <class O, class V>
void launch_zero_update(const zero_batch<V, O::state_count>& batch, const step_numbers<O>* numbers,
                        const std::optional<std::uint64_t>& seed, cudaStream_t s);

} // namespace cuda::detail

template <>
struct zero_ops<cuda::backend> {
  using stream = cuda::stream;

  template <element G>
  static void count_nonfinite(std::span<const G> g, std::uint32_t* counter, stream& s) {
    cuda::scoped_device here(s.device());
    cuda::detail::launch_count_nonfinite<G>(g.data(), g.size(), counter, s.native());
  }

  /// fp64 in another order than the host's: the same bits for every number of ranks, and on every
  /// GPU; within rounding of the host's.
  static void squares(std::span<const float> from, std::span<double> blocks, stream& s) {
    expects(blocks.size() == ceil_div(from.size(), norm_block), "squares: ", from.size(),
            " elements, ", blocks.size(), " blocks");
    cuda::scoped_device here(s.device());
    cuda::detail::launch_block_squares<float>(from.data(), from.size(), blocks.data(), s.native());
  }

  static void conclude(std::span<double> blocks, step_record* record, const grad_scale_terms& terms,
                       stream& s) {
    cuda::scoped_device here(s.device());
    cuda::detail::launch_conclude<step_record>(blocks.data(), blocks.size(), record, terms,
                                               s.native());
  }

  template <elementwise_optimizer O>
  static void prepare(step_numbers<O>* to, const typename O::options& options,
                      const update_control& control, stream& s) {
    cuda::scoped_device here(s.device());
    cuda::detail::launch_prepare<O>(to, options, control, s.native());
  }

  template <elementwise_optimizer O, element V>
  static void update(std::span<const shard_piece<O, float, V>> pieces,
                     const step_numbers<O>* numbers, const std::optional<std::uint64_t>& seed,
                     stream& s) {
    using batch_type = cuda::detail::zero_batch<V, O::state_count>;
    cuda::scoped_device here(s.device());
    batch_type batch;
    const auto launch = [&] {
      if (batch.used > 0) cuda::detail::launch_zero_update<O, V>(batch, numbers, seed, s.native());
      batch = {};
    };
    for (const auto& p : pieces) {
      if (batch.used == batch_type::room) launch();
      auto& to = batch.pieces[batch.used];
      to.value = p.data.master.data();
      to.gradient = p.data.gradient.data();
      for (std::size_t k = 0; k < p.data.state.size(); ++k) to.state[k] = p.data.state[k].data();
      to.copy = p.data.value.data();
      to.count = p.data.master.size();
      to.logical = p.logical;
      batch.first[batch.used++] = batch.chunks;
      batch.chunks += static_cast<std::uint32_t>(ceil_div(to.count, cuda::detail::chunk_elements));
    }
    launch();
  }

  /// The closure runs on a thread of the driver and must not call CUDA.
  template <class F>
  static void on_cpu(F&& f, stream& s) {
    using body = std::decay_t<F>;
    auto closure = std::make_unique<body>(std::forward<F>(f));
    cuda::check(cudaLaunchHostFunc(
                    s.native(),
                    [](void* what) {
                      const std::unique_ptr<body> mine(static_cast<body*>(what));
                      (*mine)();
                    },
                    closure.get()),
                "cudaLaunchHostFunc");
    static_cast<void>(closure.release());
  }

  /// Page-locks host memory for every GPU of the process.
  [[nodiscard]] static slab_hooks transfers() noexcept { return {.pin = pin, .unpin = unpin}; }

 private:
  static void pin(void* p, std::size_t bytes) {
    const cudaError_t code = cudaHostRegister(p, bytes, cudaHostRegisterPortable);
    if (code == cudaSuccess) return;
    static_cast<void>(cudaGetLastError());
    const host_limits here = read_host_limits();
    const std::string limit = about_memlock(bytes, here);
    throw out_of_memory(
        polyrank::detail::cat("page-locked memory (cudaHostRegister: ", cudaGetErrorString(code),
                              limit.empty() ? "" : "; ", limit, ")"),
        bytes, here.free());
  }
  static void unpin(void* p, std::size_t) { static_cast<void>(cudaHostUnregister(p)); }
};

} // namespace polyrank
