// Training on GPUs, behind an interface that a build without CUDA has too (then it only says so).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train_classifier/config.hpp"
#include "train_classifier/dataset.hpp"
#include "train_classifier/memory_report.hpp"
#include "train_classifier/training_result.hpp"

#include <polyrank/launch/world.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace polyrank::examples {

class cuda_training {
 public:
  /// Why this job cannot run on CUDA, or empty; the same on every rank. @collective
  [[nodiscard]] static std::string refusal(launch::world& world);

  /// Takes a GPU for each rank and makes the NCCL communicator. Only where refusal() is empty.
  /// @collective
  cuda_training(launch::world& world, const config& c);
  ~cuda_training();

  /// "NVIDIA H200, NCCL 2.28.9, bf16"
  [[nodiscard]] std::string text() const;
  /// The precision in use: fp16 where the card has no bf16.
  [[nodiscard]] std::string precision() const;

  /// See train(). Writes the trace that the configuration asks for. @collective
  [[nodiscard]] training_result run(const config& c, const dataset& data, const train_options& o);

  /// Of this rank's GPU.
  [[nodiscard]] memory_state memory() const;
  /// Makes the other ranks' run() throw aborted_error.
  void abort(const std::string& cause);

  /// Bytes that this rank sent over NCCL.
  [[nodiscard]] std::uint64_t wire_bytes() const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

} // namespace polyrank::examples
