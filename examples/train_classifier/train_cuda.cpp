// cuda_training in a build with CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "train_classifier/train_cuda.hpp"

#include "train_classifier/cuda_ops.hpp"
#include "train_classifier/pipeline.hpp"
#include "train_classifier/tracing.hpp"
#include "train_classifier/trainer.hpp"

#include <polyrank/cuda/communicator.hpp>
#include <polyrank/zero/cuda_ops.hpp>

namespace polyrank::examples {

struct cuda_training::state {
  state(launch::world& world, const config& c)
      : comm(cuda::join(world)), card(cuda::describe(comm.device())) {
    if (c.precision == "bf16") asked = card.has_bf16() ? precision::bf16 : precision::fp16;
    if (c.precision == "fp16") asked = precision::fp16;
    // One precision for all, also where cards are mixed.
    if (comm.control().all_reduce_max(asked == precision::fp16) != 0) asked = precision::fp16;
    for (const std::string& w : comm.warnings())
      if (comm.rank() == 0)
        std::fprintf(stderr, "[%s] warning: %s\n", world.label().c_str(), w.c_str());
  }

  cuda::communicator comm;
  cuda::device_info card;
  examples::precision asked = examples::precision::fp32;
};

std::string cuda_training::refusal(launch::world& world) {
  cuda::control line(world.communicator());
  try {
    static_cast<void>(
        cuda::select_device(line, world.local_rank(), world.local_size(), cuda::sharing_allowed()));
  } catch (const usage_error& e) { // on every rank
    return e.what();
  }
  return {};
}

cuda_training::cuda_training(launch::world& world, const config& c)
    : state_(std::make_unique<state>(world, c)) {}
cuda_training::~cuda_training() = default;

std::string cuda_training::text() const {
  return detail::cat(state_->card.name, ", NCCL ", cuda::nccl_version_text(cuda::loaded_nccl()),
                     ", ", precision());
}

std::string cuda_training::precision() const {
  switch (state_->asked) {
  case examples::precision::fp32:
    return "fp32";
  case examples::precision::bf16:
    return "bf16";
  case examples::precision::fp16:
    break;
  }
  return "fp16";
}

memory_state cuda_training::memory() const { return cuda_ops::memory(); }
void cuda_training::abort(const std::string& cause) { state_->comm.abort(cause); }

std::uint64_t cuda_training::wire_bytes() const { return state_->comm.bytes_sent(); }

training_result cuda_training::run(const config& asked, const dataset& data,
                                   const train_options& o) {
  cuda::communicator& comm = state_->comm;
  config c = asked;
  c.precision = precision(); // what the cards have
  if (c.pipeline > 0) {
    cuda_ops ops(state_->asked);
    return train_pipelined(comm, ops, c, data, o);
  }
  if (c.trace.empty()) {
    cuda_ops ops(state_->asked);
    return train(comm, ops, c, data, o);
  }
  cuda::timeline line;
  cuda::stream s;
  line.start(s);
  const step_plan plan = plan_steps(c, static_cast<std::size_t>(comm.size()), data.train.count());
  cuda_ops ops(state_->asked, &line, trace_window::of(plan.steps));
  return with_trace(comm, line, c.trace, [&] { return train(comm, ops, c, data, o); });
}

} // namespace polyrank::examples
