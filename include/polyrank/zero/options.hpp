// What a user of sharded_optimizer chooses.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/optim/grad_scale.hpp>
#include <polyrank/zero/shard_layout.hpp>

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <vector>

namespace polyrank {

/// When the norm is known that an update is clipped by.
enum class clip_policy : std::uint8_t {
  exact, ///< of this step: every update waits for every gradient. A step with a gradient that
         ///< is not finite is skipped on all ranks, also where max_norm is 0
  previous_step, ///< of the step before: updates need not wait. Nothing is skipped; record.skip
                 ///< tells afterwards that a gradient was not finite. The first step is exact
  none           ///< no norm is computed, nothing is clipped or skipped
};

struct sharded_options {
  std::size_t stage = 1;
  std::vector<placement> placements{}; ///< by parameter; empty: `stage` for all
  std::size_t bucket_bytes = 25 << 20; ///< changes the bits of the norm: keep it for equal runs
  std::size_t tail_bytes = 1 << 20;
  std::size_t microbatches = 1; ///< most per step; more than 1 needs memory to add them up
  std::size_t ring = 3;         ///< bucket buffers where gradients are not kept (stage 2)
  std::size_t blocks = 0;       ///< deterministic mode: L, a power of two that the ranks divide
  float max_norm = 0;           ///< clip to this; 0: do not
  clip_policy clip = clip_policy::exact;
  scaler_options scaler{};                        ///< for fp16
  std::optional<std::uint64_t> stochastic_seed{}; ///< bf16 values are rounded at random
  bool count_bad_gradients = false;               ///< see bad_gradients(); reads them once more
  std::pmr::memory_resource* memory = nullptr;    ///< null: the backend's own
};

/// Optimizer state stays with the gradients.
struct on_device {};

/// Optimizer state, and the update, are on the host (ZeRO-Offload,
/// https://arxiv.org/abs/2101.06840).
struct on_host {
  double fraction = 1;     ///< of the elements; whole buckets, those that backward finishes first
  std::size_t threads = 0; ///< 0: this rank's share of the CPUs in its mask
  std::pmr::memory_resource* memory = nullptr; ///< page-locked for a GPU; null: zero/slab.hpp
};

} // namespace polyrank
