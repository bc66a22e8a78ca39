// Which rows each rank trains on: pure functions of (seed, step, rank), so that a run on other
// ranks sees the same global batches.
//
//     sampler rows({.count = 55'000, .global_batch = 512, .seed = 1});
//     const range mine = rows.shard(rank, ranks);                  // positions in the global batch
//     for (std::size_t i = mine.begin; i < mine.end; ++i) use(rows.row(step, i));
//
// The rows of an epoch are put in random order; the global batch of a step is a contiguous piece of
// that order, rank r takes its r-th slice, and an incomplete last batch is dropped.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/core/partition.hpp>
#include <polyrank/data/permutation.hpp>

#include <cstddef>
#include <cstdint>

namespace polyrank {

class sampler {
 public:
  struct options {
    std::size_t count = 0;        ///< rows in the training set
    std::size_t global_batch = 1; ///< rows of one step, over all ranks
    std::uint64_t seed = 0;
  };

  /// @throws usage_error if the batch is empty or larger than the training set
  explicit sampler(const options& o) : options_(o) {
    expects(o.global_batch > 0, "sampler: the global batch must have at least one row");
    expects(o.global_batch <= o.count, "sampler: a global batch of ", o.global_batch,
            " rows is more than the ", o.count, " rows of the training set; take a smaller batch");
  }

  [[nodiscard]] std::size_t global_batch() const noexcept { return options_.global_batch; }
  [[nodiscard]] std::size_t steps_per_epoch() const noexcept {
    return options_.count / options_.global_batch;
  }
  /// The pass over the data that `step` (0, 1, 2, ... over the whole run) belongs to.
  [[nodiscard]] std::size_t epoch(std::size_t step) const noexcept {
    return step / steps_per_epoch();
  }

  /// The row at `position` (0 ... global_batch) of the global batch of `step`.
  [[nodiscard]] std::uint64_t row(std::size_t step, std::size_t position) const {
    expects(position < options_.global_batch, "sampler: position ", position,
            " is beyond the global batch of ", options_.global_batch);
    const permutation order(options_.count, options_.seed, epoch(step));
    return order(step % steps_per_epoch() * options_.global_batch + position);
  }

  /// The positions of rank `rank` in every global batch.
  /// @throws usage_error unless `ranks` divides the global batch
  [[nodiscard]] range shard(std::size_t rank, std::size_t ranks) const {
    expects(ranks > 0 && rank < ranks, "sampler: rank ", rank, " of ", ranks);
    expects(options_.global_batch % ranks == 0, "sampler: ", ranks,
            " ranks do not divide the global batch of ", options_.global_batch,
            "; take a multiple of ", ranks, ", such as ", round_up(options_.global_batch, ranks));
    const std::size_t rows = options_.global_batch / ranks;
    return {rank * rows, (rank + 1) * rows};
  }

 private:
  options options_;
};

/// The rows that rank `rank` evaluates: every row of `count` once, shards differ by at most one.
[[nodiscard]] constexpr range evaluation_shard(std::size_t count, std::size_t rank,
                                               std::size_t ranks) noexcept {
  return partition(count, ranks, rank);
}

} // namespace polyrank
