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
#include "train_classifier/narrow.hpp"
#include "train_classifier/ops.hpp"
#include "train_classifier/step_plan.hpp"

#include <polyrank/backend/buffer.hpp>
#include <polyrank/checkpoint/reader.hpp>
#include <polyrank/core/partition.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/optim/grad_scale.hpp>
#include <polyrank/optim/lion.hpp>
#include <polyrank/optim/lr_schedule.hpp>
#include <polyrank/optim/sgd.hpp>
#include <polyrank/plan/memory.hpp>
#include <polyrank/zero/collect.hpp>
#include <polyrank/zero/sharded_optimizer.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::examples {

/// Factor of the peak learning rate in step `step` (from 0).
[[nodiscard]] inline double rate_at(const step_plan& plan, std::size_t step) {
  return warmup_cosine{.warmup = plan.warmup, .total = plan.horizon}(step);
}

/// Appends the floats of a fragment of a checkpoint.
inline void append_fragment(checkpoint::reader& from,
                            const std::vector<checkpoint::tensor_info>& tensors,
                            const checkpoint::fragment& f, std::vector<float>& to) {
  to.resize(to.size() + f.count);
  from.read(tensors[f.tensor].name, f.offset, std::as_writable_bytes(std::span(to).last(f.count)));
}

// What a checkpoint asks of both (checkpointing.hpp): its tensors are the weights, then the state
// plane by plane; tensor k is weight k mod n. load() reads on this rank alone, loaded() puts it in
// place on all; fragments() are what this rank saves, at(f) is where it has one of them, or a part.
// Where `updates_early`, update() may have begun before it is called: in backward.

template <communicator Comm, classifier_ops Ops, class Policy>
class replicated {
 public:
  static constexpr std::size_t plane_count = adamw::state_count;
  static constexpr bool updates_early = false;
  using backend = typename Ops::backend;
  using stream = typename backend::stream;

  replicated(Comm& comm, Ops& ops, const config& c, const std::vector<tensor>& tensors,
             const std::vector<float>& initial, stream& s, Policy policy)
      : ops_(ops), config_(c), tensors_(tensors), stream_(s),
        rank_(static_cast<std::size_t>(comm.rank())), ranks_(static_cast<std::size_t>(comm.size())),
        weights_(initial.size(), backend::memory()),
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
  [[nodiscard]] std::vector<memory_line> memory() const {
    const std::size_t n = (tensors_.back().offset + tensors_.back().count()) * sizeof(float);
    return {{"parameters", n, weights_.size_bytes()},
            {"gradients", n, sync_.bytes()},
            {"moments", plane_count * n, state_.size_bytes()}};
  }

  /// Everything in layout order, in host memory; state plane by plane.
  void read(stream& s, std::vector<float>& parameters, std::vector<float>& state) {
    ops_.read_back(s, weights_.span(), parameters);
    ops_.read_back(s, state_.span(), state);
  }
  /// The sums over all ranks that the last finish() left, in layout order.
  void read_gradients(stream& s, std::vector<float>& all) {
    all.clear();
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      ops_.read_back(s, std::span<const float>(sync_.grad(i), tensors_[i].count()), read_);
      all.insert(all.end(), read_.begin(), read_.end());
    }
  }

  void load(checkpoint::reader& from, const std::vector<checkpoint::tensor_info>& tensors) {
    read_.clear();
    for (std::size_t k = 0; k < tensors.size(); ++k)
      append_fragment(from, tensors, {k, 0, tensors[k].count()}, read_);
  }
  [[nodiscard]] step_record record(std::uint64_t step) const {
    step_record r;
    r.applied = step;
    return r;
  }
  void loaded(std::uint64_t /*step*/, const step_record&) {
    const std::span<const float> all(read_);
    ops_.write(stream_, all.first(weights_.size()), weights_.span());
    ops_.write(stream_, all.subspan(weights_.size()), state_.span());
    stream_.synchronize();
    read_ = {};
  }
  [[nodiscard]] std::vector<checkpoint::fragment>
  fragments(const std::vector<checkpoint::tensor_info>& tensors) {
    return checkpoint::even_fragments(tensors, rank_, ranks_);
  }
  [[nodiscard]] std::span<const float> at(const checkpoint::fragment& f) const {
    const std::size_t plane = f.tensor / tensors_.size();
    const std::span<const float> from =
        plane == 0 ? weights_.span()
                   : state_.span().subspan((plane - 1) * weights_.size(), weights_.size());
    return from.subspan(tensors_[f.tensor % tensors_.size()].offset + f.offset, f.count);
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
  stream& stream_;
  std::size_t rank_, ranks_;
  buffer<float> weights_, state_;
  std::vector<float> read_; // in host memory
  grad_sync<Comm, float, float, Policy> sync_;
};

/// V is the type of weights and gradients; the network computes in fp32 (narrow.hpp).
template <communicator Comm, classifier_ops Ops, elementwise_optimizer O, class Residency,
          element V = float>
class sharded {
 public:
  static constexpr std::size_t plane_count = O::state_count;
  static constexpr bool narrow = !std::same_as<V, float>;
  static constexpr bool updates_early = std::same_as<Residency, on_host>;
  using backend = typename Ops::backend;
  using stream = typename backend::stream;

  sharded(Comm& comm, Ops& ops, const config& c, const std::vector<tensor>& tensors,
          const std::vector<float>& initial, stream& s, Residency home)
      : ops_(ops), tensors_(tensors), stream_(s),
        opt_(comm, parameters_of(tensors), options_of(c), sharding_of(c), home) {
    if constexpr (narrow) copies_.emplace(ops, tensors);
    start_from(initial);
  }

  [[nodiscard]] float* weight(std::size_t i, stream& s) {
    if constexpr (narrow) {
      return copies_->weight(i, opt_, s);
    } else {
      opt_.wait_param(i, s);
      return opt_.value(i);
    }
  }
  [[nodiscard]] float* grad(std::size_t i, stream& s) {
    if constexpr (narrow)
      return copies_->grad(i);
    else
      return opt_.grad(i, s);
  }
  void begin(std::size_t micro, std::size_t n_micro, double rate) {
    opt_.set_rate(rate);
    opt_.begin(micro, n_micro);
  }
  void ready(std::size_t i, stream& s) {
    if constexpr (narrow)
      copies_->leave(i, opt_, s);
    else
      opt_.ready(i, s);
  }
  void finish(stream& s) { opt_.finish(s); }
  /// The norm, and the verdict to skip a step, are those of all stages of a pipeline.
  void norm_over(Comm& stages) { opt_.norm_over(stages); }
  void update(std::size_t, double, stream& s) {
    opt_.step(s);
    if constexpr (narrow) copies_->stale();
  }
  void verify(stream& s) {
    opt_.wait_all(s);
    verify_replicas(opt_.communicator(), std::span(opt_.parameters()), s);
  }
  [[nodiscard]] std::vector<memory_line> memory() const {
    std::vector<memory_line> lines;
    const memory_table plan = memory_of(opt_.plan()), real = memory_of(opt_.in_use());
    for (std::size_t k = 0; k < plan.rows().size(); ++k) {
      const memory_row &p = plan.rows()[k], &r = real.rows()[k];
      lines.push_back({std::string(p.what), p.device, r.device});
      if (p.host > 0) lines.push_back({detail::cat(p.what, " (host)"), p.host, r.host});
    }
    if constexpr (narrow) lines.push_back({"fp32 copies", copies_->bytes(), copies_->bytes()});
    return lines;
  }
  void read(stream&, std::vector<float>& parameters, std::vector<float>& state) {
    whole_state all = collect(opt_);
    parameters = std::move(all.masters);
    state = std::move(all.state);
  }

  void load(checkpoint::reader& from, const std::vector<checkpoint::tensor_info>& tensors) {
    weights_.clear();
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      append_fragment(from, tensors, {i, 0, tensors[i].count()}, weights_);
    state_.clear(); // of this rank
    for (const piece& p : pieces(true))
      if (narrow || p.where.tensor >= tensors_.size())
        append_fragment(from, tensors, p.where, state_);
  }
  /// Of the last step: updates made, and the loss scaler. A step whose gradients were not finite
  /// made none.
  [[nodiscard]] step_record record(std::uint64_t /*step*/) { return opt_.record(); }
  void loaded(std::uint64_t step, const step_record& then) {
    start_from(weights_);
    std::span<const float> left(state_);
    for (const piece& p : pieces(true)) // masters too, where weights are their roundings
      if (narrow || p.where.tensor >= tensors_.size()) {
        ops_.write(stream_, left.first(p.data.size()), p.data);
        left = left.subspan(p.data.size());
      }
    stream_.synchronize();
    step_record r = opt_.record();
    r.applied = then.applied;
    r.skipped = then.skipped;
    // A run in other types had no scaler: begin with a new one.
    if (std::same_as<V, fp16> && then.scaler.scale != 1) r.scaler = then.scaler;
    opt_.resume_at(step, r);
    weights_ = {};
    state_ = {};
  }
  [[nodiscard]] std::vector<checkpoint::fragment>
  fragments(const std::vector<checkpoint::tensor_info>&) {
    opt_.synchronize();
    saved_ = pieces(false);
    std::vector<checkpoint::fragment> mine;
    for (const piece& p : saved_) mine.push_back(p.where);
    return mine;
  }
  [[nodiscard]] std::span<const float> at(const checkpoint::fragment& f) const {
    for (const piece& p : saved_)
      if (p.where.tensor == f.tensor && f.offset >= p.where.offset &&
          f.offset + f.count <= p.where.offset + p.where.count)
        return p.data.subspan(f.offset - p.where.offset, f.count);
    throw usage_error("train_classifier: no such fragment here");
  }

 private:
  /// A fragment of the checkpoint, and where this rank has it.
  struct piece {
    checkpoint::fragment where;
    std::span<float> data;
  };

  /// What this rank has of weights (as masters) and state; of what every rank has only a part, so
  /// that all ranks write, unless it asks for the `whole`.
  [[nodiscard]] std::vector<piece> pieces(bool whole) const {
    std::vector<piece> all;
    const shard_layout& l = opt_.layout();
    const auto& comm = opt_.communicator();
    opt_.for_each_fragment([&](const polyrank::fragment& f, const auto& s) {
      const shard_bucket& b = l.buckets()[l.slots()[f.parameter].bucket];
      const range mine = whole || b.cut() || b.owner >= 0
                             ? range{0, f.count}
                             : partition(f.count, static_cast<std::size_t>(comm.size()),
                                         static_cast<std::size_t>(comm.rank()));
      const auto add = [&](std::size_t plane, std::span<float> data) {
        all.push_back({{plane * tensors_.size() + f.parameter, f.offset + mine.begin, mine.size()},
                       data.subspan(mine.begin, mine.size())});
      };
      add(0, s.master);
      if constexpr (plane_count > 0)
        for (std::size_t k = 0; k < plane_count; ++k) add(k + 1, s.state[k]);
    });
    return all;
  }

  void start_from(const std::vector<float>& values) {
    std::vector<V> rounded;
    if constexpr (narrow) {
      for (const float x : values) rounded.push_back(static_cast<V>(x));
      copies_->stale();
    } else {
      rounded = values;
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      backend::template copy<V>(std::span(rounded).subspan(tensors_[i].offset, tensors_[i].count()),
                                std::span<V>(opt_.value(i), tensors_[i].count()), stream_);
    opt_.load_values(stream_); // waits
  }

  [[nodiscard]] static std::vector<parameter<V>> parameters_of(const std::vector<tensor>& tensors) {
    std::vector<parameter<V>> all;
    for (const tensor& t : tensors)
      all.push_back({.name = t.name, .count = t.count(), .value = nullptr, .gradient = nullptr});
    return all;
  }
  /// The configuration's rate is AdamW's; what the others usually want beside it.
  [[nodiscard]] static typename O::options options_of(const config& c) {
    if constexpr (std::same_as<O, sgd>)
      return {.lr = 25 * c.learning_rate, .momentum = 0.9, .weight_decay = c.weight_decay / 10};
    else if constexpr (std::same_as<O, lion>)
      return {.lr = c.learning_rate / 10, .weight_decay = c.weight_decay * 10};
    else
      return {.lr = c.learning_rate, .weight_decay = c.weight_decay};
  }
  [[nodiscard]] static sharded_options sharding_of(const config& c) {
    return {.stage = c.zero.value_or(0),
            .microbatches = c.accumulate,
            // A pipeline has the gradients of all its stages open until the end of the step.
            .ring = c.pipeline > 0 ? std::size_t{1} << 16 : sharded_options{}.ring,
            .blocks = c.deterministic ? c.blocks : 0,
            .max_norm = static_cast<float>(c.clip),
            .scaler = {.enabled = std::same_as<V, fp16>}};
  }

  Ops& ops_;
  const std::vector<tensor>& tensors_;
  stream& stream_;
  sharded_optimizer<O, Comm, V, V, Residency> opt_;
  std::optional<narrow_copies<Ops, V>> copies_;
  std::vector<piece> saved_;
  std::vector<float> weights_, state_; // in host memory
};

} // namespace polyrank::examples
