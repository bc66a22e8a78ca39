// What a user of sharded_optimizer chooses.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/dtype.hpp>
#include <polyrank/core/error.hpp>
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

  /// @throws usage_error, with the rule, where options contradict each other or the types; `values`
  /// is the type of the values, `replicas` says that shards have counterparts
  void check(dtype values, bool replicas) const {
    scaler.check();
    expects(clip == clip_policy::exact || !scaler.enabled,
            "the loss scaler skips steps that overflow, which needs clip_policy::exact");
    expects(max_norm == 0 || clip != clip_policy::none, "max_norm is ", max_norm,
            ", but clip_policy::none clips nothing");
    expects(!(max_norm < 0), "max_norm is ", max_norm, "; it must not be negative");
    expects(!stochastic_seed || values == dtype::bf16,
            "stochastic rounding is for values in bf16; here they are ", name_of(values));
    expects(microbatches > 0 && ring > 0, "microbatches (", microbatches, ") and ring (", ring,
            ") must be at least 1");
    expects(blocks == 0 || !replicas,
            "deterministic mode folds over one communicator; it has no replicas");
  }
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
