// One optimizer step over any number of tensors in device memory, in one kernel.
//
//     cuda::optimizer<adamw> update({{.value = w, .gradient = g, .state = {m, v}, .count = n},
//     ...}); update.step(adamw::at(options, step), {.factor = 1.0f / ranks}, stream);
//
// The update formula is the optimizer's own, the same that polyrank::apply uses on the host: equal
// bits, whatever the split into tensors. `Work` is the type of the gradients and of an optional
// copy of the values in that type: with Work = bf16 the values are fp32 masters, and `copy` gets
// the weights that the next forward pass reads.
//
// Needs POLYRANK_INSTANTIATE_CUDA_OPTIMIZER(polyrank::adamw, float) in one .cu file, or nvcc and
// cuda.cuh in the file that calls step().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/buffer.hpp>
#include <polyrank/core/dtype.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/hd.hpp>
#include <polyrank/core/partition.hpp>
#include <polyrank/cuda/memory.hpp>
#include <polyrank/cuda/stream.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <span>
#include <vector>

namespace polyrank::cuda {

/// A tensor to be updated; all pointers are device memory.
template <class Work, std::size_t States, class Copy = Work>
struct update_range {
  float* value = nullptr;
  const Work* gradient = nullptr;
  float* state[States == 0 ? 1 : States] = {};
  Copy* copy = nullptr; ///< gets the new values, rounded to Copy; may be null
  std::size_t count = 0;
};

/// What a step multiplies gradients with, and whether it happens at all. The pointers are device
/// memory and may be null: so clipping and skipping need no host.
struct step_control {
  float factor = 1;                     ///< 1 / (ranks * accumulation * loss scale)
  const float* device_factor = nullptr; ///< multiplied to `factor`
  const std::uint32_t* skip = nullptr;  ///< not zero: leave everything as it is
};

namespace detail {

/// Which part of which range a block of the kernel works on.
struct chunk {
  std::uint32_t range = 0, index = 0;
};
/// Elements of a chunk.
inline constexpr std::size_t chunk_elements = 1024;

/// Elements before the first whole line of 128 bytes: a warp that began inside a line would touch
/// one more. The first chunk has these in addition.
POLYRANK_HD inline std::size_t lead_of(const float* p) {
  constexpr std::size_t line = 128 / sizeof(float);
  return (line - (reinterpret_cast<std::uintptr_t>(p) / sizeof(float)) % line) % line;
}

/// `ranges` and `map` are device memory; a lone range is passed by value with `map` null.
/// `device_hyper` (device memory) replaces `hyper` where it is not null.
template <class O, class Work>
void launch_update(const update_range<Work, O::state_count>& lone,
                   const update_range<Work, O::state_count>* ranges, const chunk* map,
                   std::size_t chunks, const typename O::hyper& hyper,
                   const typename O::hyper* device_hyper, const step_control& control,
                   cudaStream_t s);

} // namespace detail

/// O is an elementwise_optimizer; Work one of float, bf16, fp16. Move-only.
template <class O, element Work = float>
class optimizer {
 public:
  using range = update_range<Work, O::state_count>;
  using hyper = typename O::hyper;

  /// Writes the list of tensors to the current device (from `memory`, if given); waits for that.
  explicit optimizer(std::vector<range> ranges, std::pmr::memory_resource* memory = nullptr) {
    std::vector<detail::chunk> map;
    std::size_t used = 0;
    for (std::size_t r = 0; r < ranges.size(); ++r) {
      if (ranges[r].count == 0) continue;
      ++used;
      lone_ = ranges[r];
      const std::size_t lead = std::min(detail::lead_of(ranges[r].value), ranges[r].count);
      const std::size_t chunks =
          std::max<std::size_t>(1, ceil_div(ranges[r].count - lead, detail::chunk_elements));
      expects(chunks <= std::numeric_limits<std::uint32_t>::max(), "optimizer: tensor ", r, " of ",
              ranges[r].count, " elements is too large");
      chunks_ += chunks;
      for (std::size_t c = 0; c < chunks && ranges.size() > 1; ++c)
        map.push_back({static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(c)});
    }
    if (memory != nullptr) memory_ = memory;
    if (used < 2) return;
    ranges_ = upload(ranges, *memory_);
    map_ = upload(map, *memory_);
  }

  /// Updates every tensor. Does not wait.
  void step(const hyper& now, const step_control& control, stream& s) const {
    launch(now, nullptr, control, s);
  }

  /// For a step that is captured in a graph: step() without values in the body, set() before each
  /// launch and before the capture (the first one allocates).
  void set(const hyper& next, stream& s) {
    if (hyper_.data() == nullptr) hyper_ = buffer<hyper>(1, *memory_);
    check(cudaMemcpyAsync(hyper_.data(), &next, sizeof next, cudaMemcpyHostToDevice, s.native()),
          "cudaMemcpyAsync"); // pageable memory: read before the call returns
  }
  void step(const step_control& control, stream& s) const {
    expects(hyper_.data() != nullptr, "optimizer: call set() before the step that is captured");
    launch({}, hyper_.data(), control, s);
  }

  /// Bytes of device memory for the list.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return ranges_.size_bytes() + map_.size_bytes() + hyper_.size_bytes();
  }

 private:
  void launch(const hyper& by_value, const hyper* on_device, const step_control& control,
              stream& s) const {
    if (chunks_ == 0) return;
    scoped_device here(s.device());
    detail::launch_update<O, Work>(lone_, ranges_.data(), map_.data(), chunks_, by_value, on_device,
                                   control, s.native());
  }

  template <class T>
  static buffer<T> upload(const std::vector<T>& from, std::pmr::memory_resource& memory) {
    buffer<T> to(from.size(), memory);
    check(cudaMemcpy(to.data(), from.data(), to.size_bytes(), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    return to;
  }

  std::pmr::memory_resource* memory_ = &device_memory();
  range lone_{};
  std::size_t chunks_ = 0;
  buffer<range> ranges_;
  buffer<detail::chunk> map_;
  buffer<hyper> hyper_;
};

} // namespace polyrank::cuda
