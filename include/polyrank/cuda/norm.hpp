// The global norm of gradients, and what a step does about it, without the host.
//
//     cuda::grad_norm<float> norm({g1, g2, ...});                // spans of device memory
//     norm.run({.scale = 1.0f / ranks, .max_norm = 1.0f}, stream);
//     update.step(hyper, norm.control(), stream);                // clipped, or skipped
//
// The sum has a fixed shape. The tensors, laid end to end, are cut into blocks of 4096 elements;
// each block is summed in one order (fp32 within a warp, fp64 between warps), and so are the sums
// of pairs of blocks (fp64, norm.cuh). So the bits depend on the data and their logical places, not
// on the split into tensors, their alignment, the grid, or the GPU. Not finite (overflow, NaN)
// means: skip the step.
//
// Needs POLYRANK_INSTANTIATE_CUDA_NORM(float) in one .cu file, or nvcc and cuda.cuh.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/buffer.hpp>
#include <polyrank/core/dtype.hpp>
#include <polyrank/core/partition.hpp>
#include <polyrank/cuda/optimizer.hpp>

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

namespace polyrank::cuda {

/// What the device knows after a norm.
struct norm_result {
  double squares = 0;     ///< sum of squares of the raw gradients
  float norm = 0;         ///< scale * sqrt(squares)
  float factor = 0;       ///< scale, times max_norm / norm where norm is larger
  std::uint32_t skip = 0; ///< 1 where norm is not finite
};

struct norm_options {
  float scale = 1;    ///< turns sums into means: 1 / (ranks * accumulation * loss scale)
  float max_norm = 0; ///< clip to this; 0: do not clip
};

namespace detail {

inline constexpr std::size_t norm_block = 4096; ///< elements
inline constexpr std::size_t norm_pair = 2;     ///< blocks whose sums are added at once

template <class T>
struct norm_part {
  const T* data = nullptr;
  std::size_t begin = 0; ///< logical place of data[0]
};

/// Where the elements are; all of it is device memory.
template <class T>
struct norm_source {
  const T* const* whole = nullptr;      ///< of block b: its data, or null where it spans tensors or
                                        ///< is cut off
  const norm_part<T>* parts = nullptr;  ///< closed by an entry at the total count
  const std::uint32_t* first = nullptr; ///< of block b: the part where it begins
};

template <class T>
void launch_norm(norm_source<T> from, std::size_t blocks, double* sums, norm_options o,
                 norm_result* result, cudaStream_t s);

} // namespace detail

template <element T>
class grad_norm {
 public:
  /// Writes the list of tensors to the current device (from `memory`, if given); waits for that.
  explicit grad_norm(const std::vector<std::span<const T>>& tensors,
                     std::pmr::memory_resource* memory = nullptr) {
    std::vector<detail::norm_part<T>> parts;
    std::size_t total = 0;
    for (const auto t : tensors) {
      if (t.empty()) continue;
      parts.push_back({t.data(), total});
      total += t.size();
    }
    parts.push_back({nullptr, total});
    blocks_ = ceil_div(total, detail::norm_block);
    std::vector<std::uint32_t> first(blocks_);
    std::vector<const T*> whole(blocks_);
    for (std::size_t b = 0, part = 0; b < blocks_; ++b) {
      const std::size_t begin = b * detail::norm_block;
      while (parts[part + 1].begin <= begin) ++part;
      first[b] = static_cast<std::uint32_t>(part);
      if (begin + detail::norm_block <= parts[part + 1].begin)
        whole[b] = parts[part].data + (begin - parts[part].begin);
    }
    std::pmr::memory_resource& from = memory != nullptr ? *memory : device_memory();
    parts_ = upload(parts, from);
    first_ = upload(first, from);
    whole_ = upload(whole, from);
    sums_ = buffer<double>(ceil_div(blocks_, detail::norm_pair), from);
    result_ = upload(std::vector<norm_result>(1), from);
  }

  /// Enqueues the norm. Does not wait.
  void run(const norm_options& o, stream& s) const {
    scoped_device here(s.device());
    detail::launch_norm<T>({whole_.data(), parts_.data(), first_.data()}, blocks_, sums_.data(), o,
                           result_.data(), s.native());
  }

  /// For the optimizer: the factor and the verdict of the last run, on the device.
  [[nodiscard]] step_control control() const noexcept {
    return {.factor = 1, .device_factor = &result_.data()->factor, .skip = &result_.data()->skip};
  }
  /// The result in device memory.
  [[nodiscard]] const norm_result* device_result() const noexcept { return result_.data(); }
  /// The result on the host. Waits for `s`.
  [[nodiscard]] norm_result result(stream& s) const {
    norm_result r;
    check(cudaMemcpyAsync(&r, result_.data(), sizeof r, cudaMemcpyDeviceToHost, s.native()),
          "cudaMemcpyAsync");
    s.synchronize();
    return r;
  }

 private:
  template <class U>
  static buffer<U> upload(const std::vector<U>& from, std::pmr::memory_resource& memory) {
    buffer<U> to(from.size(), memory);
    check(cudaMemcpy(to.data(), from.data(), to.size_bytes(), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    return to;
  }

  std::size_t blocks_ = 0;
  buffer<detail::norm_part<T>> parts_;
  buffer<const T*> whole_;
  buffer<std::uint32_t> first_;
  buffer<double> sums_;
  buffer<norm_result> result_;
};

} // namespace polyrank::cuda
