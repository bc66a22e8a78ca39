// How much memory training takes on each rank, before it runs. Pure: sizes in, bytes out.
//
//     const auto rows = paper_memory(7.5e9, 64);   // 120, 31.4, 16.6, 1.9 GB for stages 0 to 3
//     const memory_table t = plan_memory(counts, {.ranks = 8, .stage = 2, .value = 2});
//     t.device(), t.host(), t.rows()
//
// Two answers. The formula of the ZeRO paper (Rajbhandari et al. 2020, arXiv 1910.02054, section 3)
// compares stages: of 16 bytes a parameter, 2 are bf16 values, 2 bf16 gradients, 12 fp32 state.
// plan_memory is exact for this library: it adds up the very buffers that sharded_optimizer
// allocates (zero/zero_memory.hpp), with padding, ring buffers and fp32 sums.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/zero/host_limits.hpp>
#include <polyrank/zero/shard_layout.hpp>
#include <polyrank/zero/zero_memory.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank {

/// Bytes a parameter of model state.
struct state_bytes {
  double value = 2, gradient = 2;
  double optimizer = 12; ///< fp32 master, two moments
};

/// Bytes on one rank at stages 0, 1, 2, 3:
/// v + g + o,   v + g + o/N,   v + (g + o)/N,   (v + g + o)/N   times the parameters.
[[nodiscard]] constexpr std::array<double, 4> paper_memory(double parameters, double ranks,
                                                           const state_bytes& b = {}) noexcept {
  return {parameters * (b.value + b.gradient + b.optimizer),
          parameters * (b.value + b.gradient + b.optimizer / ranks),
          parameters * (b.value + (b.gradient + b.optimizer) / ranks),
          parameters * (b.value + b.gradient + b.optimizer) / ranks};
}

/// Bytes that one rank sends for gradients and values in a step with one microbatch; `S` is the
/// bytes of one copy of the model on the wire. Stage 0: all-reduce, 2 (N-1)/N S. Stages 1, 2:
/// reduce-scatter and all-gather, the same. Stage 3 gathers twice: 3 (N-1)/N S.
[[nodiscard]] constexpr double paper_traffic(double model_bytes, double ranks, int stage) noexcept {
  return (stage == 3 ? 3 : 2) * (ranks - 1) / ranks * model_bytes;
}

struct memory_question {
  int ranks = 1, rank = 0;
  std::size_t stage = 1;
  std::size_t value = 2, gradient = 2; ///< bytes: 4 fp32, 2 bf16 or fp16
  bool bf16 = true;                    ///< what 2 bytes mean
  std::size_t states = 2;              ///< planes of optimizer state; AdamW 2, SGD 1
  std::size_t microbatches = 1, blocks = 0, ring = 3;
  std::size_t bucket_bytes = 25 << 20, tail_bytes = 1 << 20;
  bool offload = false;
  double fraction = 1;
  bool adopts_values = false, adopts_gradients = false; ///< the trainer's own memory
  bool on_device = true;                                ///< a GPU; false: the host backend
  bool counts_bad = false;                              ///< sharded_options::count_bad_gradients
  std::size_t groups = 1;                               ///< of parameters, with their own options
  std::size_t activations = 0;                          ///< bytes, as measured or guessed
  std::size_t other = 0; ///< bytes: contexts, libraries, the trainer's own
};

struct memory_row {
  std::string_view what;
  std::size_t device = 0, host = 0; ///< bytes
};

/// Bytes on one rank by category. On the host backend "device" is host memory too.
class memory_table {
 public:
  explicit memory_table(std::vector<memory_row> rows) : rows_(std::move(rows)) {}

  [[nodiscard]] const std::vector<memory_row>& rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t device() const noexcept { return sum(&memory_row::device); }
  /// Page-locked.
  [[nodiscard]] std::size_t host() const noexcept { return sum(&memory_row::host); }

 private:
  [[nodiscard]] std::size_t sum(std::size_t memory_row::*what) const noexcept {
    std::size_t all = 0;
    for (const memory_row& r : rows_) all += r.*what;
    return all;
  }
  std::vector<memory_row> rows_;
};

/// By category, from the buffers of a sharded optimizer.
[[nodiscard]] inline memory_table memory_of(const zero_memory& m, std::size_t activations = 0,
                                            std::size_t other = 0) {
  const std::size_t f = sizeof(float);
  // A ring and what passes through are traffic; slots of their own and sums are gradients.
  const std::size_t ring = m.shape.gradient * m.ring_slots * m.ring_slot;
  const std::size_t passing = ring + m.shape.gradient * m.wire + f * m.scratch;
  std::vector<memory_row> rows{
      {"parameters", m.value_bytes(), m.shape.value * m.host_values},
      {"gradients", m.gradient_bytes() - passing, m.transfer * m.host_gradients},
      {"master", f * m.device_masters, f * m.host_masters},
      {"moments", f * m.device_state, f * m.host_state},
      {"buckets", passing + m.transfer * m.rounded, 0},
      {"norm and record", m.control_bytes(), m.host_masters > 0 ? sizeof(step_record) : 0}};
  if (m.adopted_bytes() > 0) rows.push_back({"the trainer's own", m.adopted_bytes(), 0});
  if (activations > 0) rows.push_back({"activations", activations, 0});
  if (other > 0) rows.push_back({"other", other, 0});
  return memory_table(std::move(rows));
}

/// Exact bytes on rank `q.rank` for parameters of `counts` elements.
/// @throws usage_error for a stage that the library does not have, blocks that the ranks do not
/// divide
[[nodiscard]] inline memory_table plan_memory(std::span<const std::size_t> counts,
                                              const memory_question& q) {
  expects(q.ranks > 0 && q.rank >= 0 && q.rank < q.ranks, "plan: rank ", q.rank, " of ", q.ranks);
  expects(q.blocks % static_cast<std::size_t>(q.ranks) == 0, "plan: ", q.ranks,
          " ranks do not divide ", q.blocks, " blocks");
  const shard_layout l = shard_layout::make(
      counts, q.ranks, q.gradient,
      {.stage = q.stage, .bucket_bytes = q.bucket_bytes, .tail_bytes = q.tail_bytes});
  return memory_of(zero_memory::of(l, q.rank,
                                   {.gradient = q.gradient,
                                    .value = q.value,
                                    .states = q.states,
                                    .microbatches = q.microbatches,
                                    .ring = q.ring,
                                    .blocks_per_rank = q.blocks / static_cast<std::size_t>(q.ranks),
                                    .adopts_values = q.adopts_values,
                                    .adopts_gradients = q.adopts_gradients,
                                    .offload = q.offload,
                                    .fraction = q.fraction,
                                    .on_device = q.on_device,
                                    .counts_bad = q.counts_bad,
                                    .groups = q.groups},
                                   q.bf16 && q.gradient == 2),
                   q.activations, q.other);
}

/// A transformer-like list of tensors of `parameters` elements together, for plans before there is
/// a model: 200 equal ones.
[[nodiscard]] inline std::vector<std::size_t> even_counts(std::size_t parameters) {
  constexpr std::size_t tensors = 200;
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i < tensors; ++i)
    counts.push_back(partition(parameters, tensors, i).size());
  return counts;
}

/// What to change when memory runs out, in this order, as far as it applies.
[[nodiscard]] inline std::vector<std::string> what_to_try(const memory_question& q) {
  std::vector<std::string> all{"end other processes on the same GPU (nvidia-smi)",
                               "a smaller batch (--batch)", "smaller inputs (pictures, sequences)"};
  if (q.value == 4) all.emplace_back("bf16 values and gradients (--precision bf16)");
  all.emplace_back("more microbatches, each smaller, of the same global batch (--accumulate)");
  all.emplace_back("recompute activations in backward instead of keeping them");
  if (!q.offload) all.emplace_back("optimizer state in host memory (--offload host)");
  if (q.stage < 2 && q.ranks > 1)
    all.emplace_back(detail::cat("ZeRO stage ", q.stage + 1, " (--zero ", q.stage + 1, ")"));
  if (q.ranks > 1 && q.stage > 0) all.emplace_back("more ranks: shards shrink with their number");
  return all;
}

} // namespace polyrank
