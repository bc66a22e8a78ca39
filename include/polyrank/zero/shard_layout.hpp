// Which rank owns which part of the optimizer state. Pure: sizes in, places out.
//
//     bucket    whole parameters, in declaration order; buckets are issued last first, as backward
//               finishes them. Which parameters share a bucket does not depend on the ranks.
//     chunk     round_up(ceil(bucket / ranks), 4096): what one rank owns of a bucket. Chunks have
//     one
//               size, so the last ranks may own little or nothing; the rest of the last chunks is
//               padding, in memory and on the wire only.
//     block     4096 elements from the start of a bucket: the unit of the norm. A block has one
//     owner,
//               so the norm is the same for every number of ranks (optim/grad_norm.hpp).
//
//     const auto l = shard_layout::make(counts, ranks, sizeof(bf16), {.stage = 2});
//     for (const fragment& f : l.fragments(rank)) ...     // of which parameter, from where
//
// Stages: 0 everything is on every rank; 1 optimizer state is sharded; 2 gradients too. A parameter
// marked `whole` is never cut: one rank owns all of it (for optimizers that look at a matrix), and
// whole tensors are spread over the ranks by size.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/core/partition.hpp>
#include <polyrank/data_parallel/layout.hpp>
#include <polyrank/optim/grad_norm.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace polyrank {

/// How one parameter is sharded.
struct placement {
  std::size_t stage = 1;
  bool whole = false;  ///< not cut: one owner; only at stages 1 and 2
  bool counted = true; ///< in the norm; false for a copy of a tied weight that others count
};

struct shard_layout_options {
  std::size_t stage = 1;               ///< of all parameters, unless `placements` says otherwise
  std::vector<placement> placements{}; ///< by parameter; empty: {stage, false} for all
  std::size_t bucket_bytes = 25 << 20;
  std::size_t tail_bytes = 1 << 20; ///< of the last bucket, whose reduction nothing hides
};

/// Throws usage_error, naming the rule, unless `stage` is one that this library shards by.
inline void check_stage(std::size_t stage) {
  expects(stage != 3,
          "ZeRO stage 3 shards the parameters themselves, which needs a forward pass "
          "that gathers each layer; this optimizer has stages 0 (nothing), 1 (optimizer "
          "state) and 2 (and gradients)");
  expects(stage < 3, "ZeRO stage ", stage,
          ": there are 0 (nothing is sharded), 1 (optimizer state) "
          "and 2 (and gradients)");
}

struct shard_bucket {
  std::vector<std::size_t> members{}; ///< parameter indices, ascending
  std::size_t stage = 0;
  int owner = -1;      ///< of a whole tensor; else -1
  bool counted = true; ///< in the norm
  std::size_t count = 0;
  std::size_t chunk = 0;       ///< elements of a rank, padding included; 0 unless cut
  std::size_t base = 0;        ///< place in the padded index of all buckets
  std::size_t padded = 0;      ///< elements with padding: ranks * chunk where it is cut
  std::size_t first_block = 0; ///< of the norm

  [[nodiscard]] bool cut() const noexcept { return chunk != 0; }
  [[nodiscard]] std::size_t blocks() const noexcept { return ceil_div(count, norm_block); }
  /// Elements of the bucket that `rank` updates.
  [[nodiscard]] range shard(int rank) const noexcept {
    if (!cut()) return {0, owner < 0 || owner == rank ? count : 0};
    const auto r = static_cast<std::size_t>(rank);
    return {std::min(count, r * chunk), std::min(count, (r + 1) * chunk)};
  }
};

/// A stretch of one parameter that one rank owns: the unit of checkpoints.
struct fragment {
  std::size_t parameter = 0;
  std::size_t offset = 0; ///< in the parameter
  std::size_t count = 0;
  std::size_t local = 0; ///< place in the rank's own state
};

class shard_layout {
 public:
  shard_layout() = default;

  /// @param width bytes of a gradient element; sizes the buckets
  /// @throws usage_error for an unknown stage, a whole tensor at stage 0, sizes that overflow
  [[nodiscard]] static shard_layout make(std::span<const std::size_t> counts, int ranks,
                                         std::size_t width, const shard_layout_options& o = {}) {
    shard_layout l;
    l.ranks_ = ranks;
    std::vector<placement> placements = o.placements;
    if (placements.empty()) placements.assign(counts.size(), {.stage = o.stage});
    expects(placements.size() == counts.size(), "shard_layout: ", placements.size(),
            " placements for ", counts.size(), " parameters");
    check_stage(o.stage);
    std::vector<std::size_t> groups;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      check_stage(placements[i].stage);
      expects(!placements[i].whole || placements[i].stage > 0, "shard_layout: parameter ", i,
              " is marked whole at stage 0, where every rank has all of it anyway; take stage 1 "
              "or 2, or do not mark it");
      groups.push_back(placements[i].whole     ? 6 + i
                       : placements[i].counted ? placements[i].stage
                                               : 3 + placements[i].stage);
    }
    const layout order = layout::make(
        counts, width,
        {.bucket_bytes = o.bucket_bytes, .tail_bytes = o.tail_bytes, .groups = std::move(groups)});
    l.slots_ = order.slots();
    for (const bucket& b : order.buckets()) l.add(order, b, placements);
    l.choose_owners();
    return l;
  }

  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  /// In issue order.
  [[nodiscard]] const std::vector<shard_bucket>& buckets() const noexcept { return buckets_; }
  /// By parameter: `bucket`, `logical_offset`, and `arena_offset` in the padded index.
  [[nodiscard]] const std::vector<slot>& slots() const noexcept { return slots_; }
  /// Elements of all buckets, padding included.
  [[nodiscard]] std::size_t padded_count() const noexcept { return padded_; }
  [[nodiscard]] std::size_t block_count() const noexcept { return blocks_; }
  [[nodiscard]] std::size_t largest_padded() const noexcept {
    return largest(&shard_bucket::padded);
  }
  [[nodiscard]] std::size_t largest_chunk() const noexcept { return largest(&shard_bucket::chunk); }

  /// Where the state of bucket b begins in the state of `rank`; [buckets().size()] is its size.
  /// Each begins at a multiple of 16 elements.
  [[nodiscard]] std::vector<std::size_t> local_offsets(int rank) const {
    std::vector<std::size_t> at{0};
    for (const shard_bucket& b : buckets_)
      at.push_back(at.back() + round_up(b.shard(rank).size(), 16));
    return at;
  }

  /// What `rank` owns, bucket by bucket.
  [[nodiscard]] std::vector<fragment> fragments(int rank) const {
    std::vector<fragment> all;
    const std::vector<std::size_t> local = local_offsets(rank);
    for (std::size_t k = 0; k < buckets_.size(); ++k) {
      const range mine = buckets_[k].shard(rank);
      for (const std::size_t i : buckets_[k].members) {
        const std::size_t at = slots_[i].arena_offset - buckets_[k].base;
        const range part = intersect(mine, {at, at + slots_[i].count});
        if (!part.empty())
          all.push_back({i, part.begin - at, part.size(), local[k] + part.begin - mine.begin});
      }
    }
    return all;
  }

  /// Where a fragment of `rank` begins in the rank's shard of its bucket.
  [[nodiscard]] std::size_t in_shard(const fragment& f, int rank) const {
    const shard_bucket& b = buckets_[slots_[f.parameter].bucket];
    return slots_[f.parameter].arena_offset - b.base + f.offset - b.shard(rank).begin;
  }

  /// Lines that must be equal on all ranks.
  [[nodiscard]] std::string describe() const {
    std::string text;
    for (const shard_bucket& b : buckets_)
      text += detail::cat("bucket of ", b.members.size(), " parameters from ", b.members.front(),
                          ", ", b.count, " elements, stage ", b.stage, ", chunk ", b.chunk,
                          ", owner ", b.owner, b.counted ? "" : ", not counted", '\n');
    return text;
  }

 private:
  [[nodiscard]] std::size_t largest(std::size_t shard_bucket::*what) const noexcept {
    std::size_t most = 0;
    for (const shard_bucket& b : buckets_) most = std::max(most, b.*what);
    return most;
  }

  void add(const layout& order, const bucket& from, const std::vector<placement>& placements) {
    shard_bucket b{.base = padded_, .first_block = blocks_};
    for (std::size_t k = from.first; k < from.last; ++k) b.members.push_back(order.order()[k]);
    std::sort(b.members.begin(), b.members.end());
    for (const std::size_t i : b.members) {
      slots_[i].arena_offset = b.base + b.count;
      slots_[i].bucket = buckets_.size();
      b.count += slots_[i].count;
    }
    b.stage = placements[b.members.front()].stage;
    b.counted = placements[b.members.front()].counted;
    if (placements[b.members.front()].whole) b.owner = 0; // chosen below
    const auto n = static_cast<std::size_t>(ranks_);
    if (b.stage > 0 && b.owner < 0 && ranks_ > 1)
      b.chunk = round_up(ceil_div(b.count, n), norm_block);
    b.padded = b.cut() ? n * b.chunk : round_up(b.count, 64);
    padded_ += b.padded;
    blocks_ += b.blocks();
    buckets_.push_back(std::move(b));
  }

  /// Longest first, each to the rank with the least so far (Graham 1969): at most 4/3 of the best.
  void choose_owners() {
    std::vector<std::size_t> whole, load(static_cast<std::size_t>(ranks_), 0);
    for (std::size_t k = 0; k < buckets_.size(); ++k)
      if (buckets_[k].owner >= 0) whole.push_back(k);
    std::stable_sort(whole.begin(), whole.end(), [this](std::size_t a, std::size_t b) {
      return buckets_[a].count > buckets_[b].count;
    });
    for (const std::size_t k : whole) {
      const auto least = std::min_element(load.begin(), load.end());
      buckets_[k].owner = static_cast<int>(least - load.begin());
      *least += buckets_[k].count;
    }
  }

  int ranks_ = 1;
  std::vector<shard_bucket> buckets_;
  std::vector<slot> slots_;
  std::size_t padded_ = 0, blocks_ = 0;
};

} // namespace polyrank
