// The global norm of gradients, and what a step does about it, without the host.
//
//     cuda::grad_norm<float> norm({g1, g2, ...});                // spans of device memory
//     norm.run({.scale = 1.0f / ranks, .max_norm = 1.0f}, stream);
//     update.step(hyper, norm.control(), stream);                // clipped, or skipped
//
// The sum has a fixed shape. The tensors, laid end to end, are cut into blocks of 4096 elements;
// each block is summed in one order (fp32 within a warp, fp64 between warps), and the blocks are
// folded, 64 at a time, by a tree. So the bits depend on the data and their logical places, not on
// the split into tensors, the grid, or the GPU. Not finite (overflow, NaN) means: skip the step.
//
// Needs POLYRANK_INSTANTIATE_CUDA_NORM(float) in one .cu file, or nvcc and cuda.cuh.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/buffer.hpp>
#include <polyrank/core/dtype.hpp>
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
inline constexpr std::size_t norm_fan = 64;     ///< sums that one fold takes

template <class T>
struct norm_part {
  const T* data = nullptr;
  std::size_t begin = 0; ///< logical place of data[0]
};

/// The levels of the tree: `sums` holds blocks, then folds of 64 of them, and so on to one.
struct norm_tree {
  double* sums = nullptr;
  std::uint32_t* arrived = nullptr; ///< a counter; zero between runs
  std::size_t blocks = 0;
};

/// Where the elements are; all of it is device memory.
template <class T>
struct norm_source {
  const T* const* whole = nullptr;      ///< of block b: its data, or null where it spans tensors,
                                        ///< is cut off, or is not aligned
  const norm_part<T>* parts = nullptr;  ///< closed by an entry at the total count
  const std::uint32_t* first = nullptr; ///< of block b: the part where it begins
};

template <class T>
void launch_norm(norm_source<T> from, norm_tree tree, norm_options o, norm_result* result,
                 cudaStream_t s);

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
    tree_.blocks = (total + detail::norm_block - 1) / detail::norm_block;
    std::vector<std::uint32_t> first(tree_.blocks);
    std::vector<const T*> whole(tree_.blocks);
    for (std::size_t b = 0, part = 0; b < tree_.blocks; ++b) {
      const std::size_t begin = b * detail::norm_block;
      while (parts[part + 1].begin <= begin) ++part;
      first[b] = static_cast<std::uint32_t>(part);
      const T* data = parts[part].data + (begin - parts[part].begin);
      if (begin + detail::norm_block <= parts[part + 1].begin &&
          reinterpret_cast<std::uintptr_t>(data) % (4 * sizeof(T)) == 0)
        whole[b] = data;
    }
    std::size_t sums = tree_.blocks, level = tree_.blocks;
    do {
      level = (level + detail::norm_fan - 1) / detail::norm_fan;
      sums += level;
    } while (level > 1);
    std::pmr::memory_resource& from = memory != nullptr ? *memory : device_memory();
    parts_ = upload(parts, from);
    first_ = upload(first, from);
    whole_ = upload(whole, from);
    sums_ = buffer<double>(sums, from);
    arrived_ = upload(std::vector<std::uint32_t>(1), from);
    result_ = upload(std::vector<norm_result>(1), from);
    tree_.sums = sums_.data();
    tree_.arrived = arrived_.data();
  }

  /// Enqueues the norm. Does not wait.
  void run(const norm_options& o, stream& s) const {
    scoped_device here(s.device());
    detail::launch_norm<T>({whole_.data(), parts_.data(), first_.data()}, tree_, o, result_.data(),
                           s.native());
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

  detail::norm_tree tree_;
  buffer<detail::norm_part<T>> parts_;
  buffer<const T*> whole_;
  buffer<std::uint32_t> first_, arrived_;
  buffer<double> sums_;
  buffer<norm_result> result_;
};

} // namespace polyrank::cuda
