// cuda_training in a build without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "train_classifier/train_cuda.hpp"

namespace polyrank::examples {

struct cuda_training::state {};

std::string cuda_training::refusal(launch::world&) { return "this build has no CUDA backend"; }
cuda_training::cuda_training(launch::world&, const config&) {
  throw on_every_rank(error("this build has no CUDA backend"));
}
cuda_training::~cuda_training() = default;
std::string cuda_training::text() const { return {}; }
std::string cuda_training::precision() const { return {}; }
memory_state cuda_training::memory() const { return {}; }
void cuda_training::abort(const std::string&) {}
std::uint64_t cuda_training::wire_bytes() const { return 0; }
training_result cuda_training::run(const config&, const dataset&, const train_options&) {
  return {};
}

} // namespace polyrank::examples
