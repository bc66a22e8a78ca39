// The flags of train_classifier.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/flags.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace polyrank::examples {

struct config {
  common_flags common;
  std::string data;           ///< empty: default_data_directory()
  std::string out;            ///< directory for pictures; empty: none are written
  std::string checkpoint;     ///< directory; empty: none is written
  std::size_t save_every = 0; ///< steps between checkpoints; 0: only after the last
  std::size_t keep = 2;       ///< newest checkpoints that stay
  bool resume = false;        ///< go on from the newest checkpoint, if there is one
  std::string init;           ///< safetensors file with the first weights; empty: random ones
  std::string backend = "auto";
  std::string precision = "fp32"; ///< fp32, bf16, fp16: of matrix products on GPUs
  std::string trace;              ///< file for a Chrome trace of four steps; empty: none
  std::size_t epochs = 10;
  std::optional<std::size_t> steps; ///< stops earlier; the learning rate still aims at `epochs`
  std::size_t batch = 0;            ///< over all ranks; 0: settle() chooses
  std::vector<std::size_t> hidden{256, 128};
  std::uint64_t seed = 1;
  bool deterministic = false;
  std::size_t blocks = 8;
  bool digest = false;
  std::size_t digest_every = 0; ///< steps between lines of <out>/digests.csv; 0: none
  std::optional<std::size_t> workers;
  std::optional<std::size_t> zero; ///< ZeRO stage; none: grad_sync, or stage 0 where it is needed
  std::string offload = "none";    ///< none, host
  double fraction = 1;             ///< of the optimizer state in host memory
  bool fit = false;                ///< find the largest micro-batch, then end
  std::size_t memory_limit = 0;    ///< MiB of a rank that --fit may use; 0: what is free
  std::size_t accumulate = 1;      ///< microbatches of a rank in a step
  double clip = 0;                 ///< the norm of the gradient is clipped to this; 0: it is not
  std::string optimizer = "adamw"; ///< adamw, sgd, lion
  double learning_rate = 2e-3;
  double weight_decay = 1e-2;
  double warmup_epochs = 0.5;
  std::size_t pipeline = 0; ///< ranks over which the layers are cut; 0: every rank has them all
  std::string schedule = "1f1b";
  std::size_t microbatches = 0; ///< of a replica in a step; parse_config: 2 * pipeline if not named
  std::size_t chunks = 0;       ///< stages per rank; 0: the schedule's default
  std::string svg;              ///< file for the picture of a measured step; empty: none

  /// Whether sharded_optimizer trains (at stage 0, if only its other abilities were asked for).
  [[nodiscard]] bool sharded() const noexcept {
    return zero.has_value() || offload != "none" || accumulate > 1 || clip > 0 ||
           optimizer != "adamw";
  }
};

/// The configuration, or the exit code with which the program is to end now.
[[nodiscard]] std::variant<config, int> parse_config(int argc, char** argv);

/// Fills in what depends on the data: its directory, and the batch where none was asked for, which
/// is 512, or 64 where there are fewer than 10,000 training pictures (else an epoch would be 2
/// steps).
void settle(config& c, const std::string& data_directory, std::size_t training_pictures);

/// What the ranks must agree on, as one line for people and for comparison.
[[nodiscard]] std::string describe(const config& c);

} // namespace polyrank::examples
