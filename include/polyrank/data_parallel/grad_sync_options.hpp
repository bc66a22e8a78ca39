// What can be chosen about a grad_sync.
//
//     grad_sync sync(comm, parameters, all_reduce_sum{}, {.leave = gradients_hold::sum});
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/core/cost_model.hpp>

#include <cstddef>
#include <memory_resource>
#include <optional>
#include <span>
#include <vector>

namespace polyrank {

/// What finish() leaves in the gradients.
enum class gradients_hold {
  mean, ///< sum / (ranks * microbatches), for an optimizer of your own
  sum   ///< the bare sum; multiply by grad_scale() in the update
};

struct grad_sync_options {
  std::size_t bucket_bytes = 0;     ///< 0: from `cost`
  std::size_t tail_bytes = 1 << 20; ///< of the last bucket
  std::optional<cost_model> cost{}; ///< sizes the buckets; unset: of POLYRANK_COST_MODEL's file
  std::vector<std::size_t> order{}; ///< issue order of parameters; empty: reverse declaration
  gradients_hold leave = gradients_hold::mean;
  float weight = 1;      ///< of this rank in the mean, e.g. its batch size where GPUs are unlike
  bool broadcast = true; ///< parameters and buffers from rank 0 at construction
  std::vector<std::span<std::byte>> buffers{}; ///< further state to broadcast, in backend memory
  bool always_communicate = false;             ///< also with one rank (to measure what it costs)
  std::pmr::memory_resource* memory = nullptr; ///< of arena and scratch; null: the backend's own
  bool window = true; ///< register the arena with NCCL where all ranks can; needs memory == null
};

namespace detail {
template <class Comm>
struct window_of {
  struct type {};
};
template <windowed Comm>
struct window_of<Comm> {
  using type = typename Comm::window;
};
} // namespace detail

} // namespace polyrank
