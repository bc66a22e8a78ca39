// How the trainer's weights are kept and updated over the ranks. Two ways with one interface:
//
//     replicated   every rank has everything: grad_sync, then the optimizer
//     sharded      ZeRO: sharded_optimizer does both (flags --zero, --offload, --accumulate,
//     --clip,
//                  --optimizer)
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train_classifier/config.hpp"
#include "train_classifier/mlp.hpp"
#include "train_classifier/ops.hpp"
#include "train_classifier/step_plan.hpp"

#include <polyrank/backend/buffer.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/optim/lr_schedule.hpp>
#include <polyrank/optim/sgd.hpp>
#include <polyrank/zero/collect.hpp>
#include <polyrank/zero/sharded_optimizer.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::examples {

/// Factor of the peak learning rate in step `step` (from 0).
[[nodiscard]] inline double rate_at(const step_plan& plan, std::size_t step) {
  return warmup_cosine{.warmup = plan.warmup, .total = plan.horizon}(step);
}

template <communicator Comm, classifier_ops Ops, class Policy>
class replicated {
 public:
  using backend = typename Ops::backend;
  using stream = typename backend::stream;

  replicated(Comm& comm, Ops& ops, const config& c, const std::vector<tensor>& tensors,
             const std::vector<float>& initial, stream& s, Policy policy)
      : ops_(ops), config_(c), tensors_(tensors), weights_(initial.size(), backend::memory()),
        state_(adamw::state_count * initial.size(), backend::memory()),
        sync_(start(comm, initial, s, policy)) {}

  [[nodiscard]] float* weight(std::size_t i, stream&) const noexcept {
    return weights_.data() + tensors_[i].offset;
  }
  [[nodiscard]] float* grad(std::size_t i, stream&) const { return sync_.grad(i); }
  void begin(std::size_t micro, std::size_t n_micro, double /*rate*/) {
    sync_.begin(micro, n_micro);
  }
  void ready(std::size_t i, stream& s) { sync_.ready(i, s); }
  void finish(stream& s) { sync_.finish(s); }

  void update(std::size_t step, double rate, stream& s) {
    const adamw::hyper hyper = adamw::at(
        {.lr = config_.learning_rate, .weight_decay = config_.weight_decay}, step + 1, rate);
    const state_planes<adamw> planes = planes_of<adamw>(state_.span());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const std::size_t at = tensors_[i].offset, n = tensors_[i].count();
      ops_.template update<adamw>(s, weights_.span().subspan(at, n), {sync_.grad(i), n},
                                  {planes[0].subspan(at, n), planes[1].subspan(at, n)}, hyper,
                                  sync_.grad_scale());
    }
  }
  void verify(stream& s) { sync_.verify_replicas(s); }

  /// Everything in layout order, in host memory; state plane by plane.
  void read(stream& s, std::vector<float>& parameters, std::vector<float>& state) {
    ops_.read_back(s, weights_.span(), parameters);
    ops_.read_back(s, state_.span(), state);
  }

 private:
  [[nodiscard]] grad_sync<Comm, float, float, Policy>
  start(Comm& comm, const std::vector<float>& initial, stream& s, Policy policy) {
    ops_.write(s, std::span<const float>(initial), weights_.span());
    backend::fill(state_.span(), 0.0f, s);
    s.synchronize();
    std::vector<parameter<float>> parameters;
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      parameters.push_back(
          {.name = tensors_[i].name, .count = tensors_[i].count(), .value = weight(i, s)});
    return {comm, std::move(parameters), policy, {.leave = gradients_hold::sum}};
  }

  Ops& ops_;
  const config& config_;
  const std::vector<tensor>& tensors_;
  buffer<float> weights_, state_;
  grad_sync<Comm, float, float, Policy> sync_;
};

template <communicator Comm, classifier_ops Ops, elementwise_optimizer O, class Residency>
class sharded {
 public:
  using backend = typename Ops::backend;
  using stream = typename backend::stream;

  sharded(Comm& comm, Ops& ops, const config& c, const std::vector<tensor>& tensors,
          const std::vector<float>& initial, stream& s, Residency home)
      : opt_(comm, parameters_of(tensors), options_of(c), sharding_of(c), home) {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      ops.write(s, std::span(initial).subspan(tensors[i].offset, tensors[i].count()),
                std::span<float>(opt_.value(i), tensors[i].count()));
    opt_.load_values(s);
  }

  [[nodiscard]] float* weight(std::size_t i, stream& s) const {
    opt_.wait_param(i, s);
    return opt_.value(i);
  }
  [[nodiscard]] float* grad(std::size_t i, stream& s) { return opt_.grad(i, s); }
  void begin(std::size_t micro, std::size_t n_micro, double rate) {
    opt_.set_rate(rate);
    opt_.begin(micro, n_micro);
  }
  void ready(std::size_t i, stream& s) { opt_.ready(i, s); }
  void finish(stream& s) { opt_.finish(s); }
  void update(std::size_t, double, stream& s) { opt_.step(s); }
  void verify(stream& s) {
    opt_.wait_all(s);
    verify_replicas(opt_.communicator(), std::span(opt_.parameters()), s);
  }
  void read(stream&, std::vector<float>& parameters, std::vector<float>& state) {
    whole_state all = collect(opt_);
    parameters = std::move(all.masters);
    state = std::move(all.state);
  }

 private:
  [[nodiscard]] static std::vector<parameter<float>>
  parameters_of(const std::vector<tensor>& tensors) {
    std::vector<parameter<float>> all;
    for (const tensor& t : tensors)
      all.push_back({.name = t.name, .count = t.count(), .value = nullptr, .gradient = nullptr});
    return all;
  }
  [[nodiscard]] static typename O::options options_of(const config& c) {
    return {.lr = c.learning_rate, .weight_decay = c.weight_decay};
  }
  [[nodiscard]] static sharded_options sharding_of(const config& c) {
    return {.stage = c.zero.value_or(0),
            .microbatches = c.accumulate,
            .blocks = c.deterministic ? c.blocks : 0,
            .max_norm = static_cast<float>(c.clip)};
  }

  sharded_optimizer<O, Comm, float, float, Residency> opt_;
};

} // namespace polyrank::examples
