// The training loop: data-parallel over any communicator, on any device that has the operations of
// ops.hpp. What makes it parallel are six lines: the construction of grad_sync, begin, grad,
// ready, finish and grad_scale.
//
//     host_ops ops;
//     training_result r = train(comm, ops, config, data, {.workers = 2, .line = &progress});
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train_classifier/checkpointing.hpp"
#include "train_classifier/digest_log.hpp"
#include "train_classifier/mlp.hpp"
#include "train_classifier/parallel.hpp"
#include "train_classifier/training_run.hpp"

#include <polyrank/backend/buffer.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/optim/lion.hpp>
#include <polyrank/optim/sgd.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace polyrank::examples {

/// One run with one way to keep weights over the ranks (parallel.hpp). Use train().
template <communicator Comm, classifier_ops Ops, class Parallel>
class trainer : training_run<Comm, Ops> {
  using base = training_run<Comm, Ops>;
  using base::comm_, base::ops_, base::config_, base::data_, base::options_, base::plan_,
      base::shape_, base::tensors_, base::losses_, base::best_, base::confidence_, base::stream_;
  using base::eval_rows, base::loss_window, base::since, base::say, base::collect_losses;
  using typename base::backend, typename base::stream, typename base::batch, typename base::flight,
      typename base::clock;

 public:
  /// `how` is what Parallel wants to know beside the configuration: a policy, or where state lives.
  template <class How>
  trainer(Comm& comm, Ops& ops, const config& c, const dataset& data, const train_options& options,
          How how)
      : base(comm, ops, c, data, options), ranks_(static_cast<std::size_t>(comm.size())),
        rank_(static_cast<std::size_t>(comm.rank())),
        model_(ops, shape_, std::max(plan_.rows_per_block, eval_rows)),
        input_(Ops::stages ? std::max(plan_.rows_per_block, eval_rows) * shape_.inputs : 0,
               backend::memory()),
        labels_(Ops::stages ? plan_.rows_per_block : 0, backend::memory()),
        parallel_(comm, ops, c, tensors_, base::first_weights(), stream_, how) {}

  /// Queued work refers to members: it runs (or is skipped, after a failure) before they go.
  ~trainer() {
    try {
      stream_.synchronize();
    } catch (...) { // reported by whoever asked for results
    }
  }

  [[nodiscard]] training_result run() {
    training_result result;
    result.plan = plan_;
    std::optional<saves> keeper;
    if (!config_.checkpoint.empty()) {
      keeper.emplace(comm_.control(), config_, data_.train.count(), tensors_, parallel_,
                     typename saves::options{&ops_.copy_memory(), options_.ring},
                     [this](const std::string& text, bool problem) { say(text, problem); });
      if (const auto from = keeper->resume()) {
        result.first_step = static_cast<std::size_t>(from->step);
        result.final_loss = from->loss;
      }
    }
    say_memory();
    const std::size_t first = result.first_step;
    if (first > plan_.steps)
      throw on_every_rank(usage_error(detail::cat("--resume: the checkpoint has made ", first,
                                                  " steps, this run ends after ", plan_.steps,
                                                  "; take more --steps")));
    auto loader = base::batches(first, rank_, ranks_);
    std::optional<digest_log> digests;
    if (config_.digest_every > 0 && rank_ == 0) digests.emplace(config_.out, first > 0);
    double waited_ms = 0;
    auto segment = clock::now(); // time in evaluation is not counted
    double seconds = 0;
    std::size_t made = 0;
    for (std::size_t step = first; step < plan_.steps && !result.stopped; ++step) {
      flight& f = base::next_flight(step, loader);
      if (made >= 2) waited_ms += ops_.elapsed(2 * (step % 2), 2 * (step % 2) + 1);
      ops_.begin_step(made);
      enqueue_step(step, f.data, keeper);
      base::taken_off(f);
      ++made;
      if (options_.watch) {
        stream_.synchronize();
        options_.watch(step + 1);
      }
      if (config_.digest_every > 0 && (step + 1) % config_.digest_every == 0)
        note_digests(digests, step + 1);

      const bool epoch_ends = (step + 1) % plan_.steps_per_epoch == 0,
                 last = step + 1 == plan_.steps;
      if (keeper) {
        keeper->poll();
        result.stopped = stop_requested() && !last;
        if (keeper->due(step + 1) || last || result.stopped) {
          collect_losses(result, step + 1);
          keeper->save(step + 1, result.final_loss, stream_);
        }
        if (result.stopped) break;
      }
      if ((step + 1) % loss_window == 0 || last) collect_losses(result, step + 1);
      if (options_.line != nullptr && options_.line->due() && !result.losses.empty()) {
        char waits[40];
        std::snprintf(waits, sizeof waits, "  comm %.2f ms", waited_ms / static_cast<double>(made));
        base::show(step + 1, made, result.final_loss, seconds + since(segment), waits);
      }
      if (!epoch_ends && !last) continue;
      stream_.synchronize();
      seconds += since(segment);
      ops_.begin_step(no_step);
      if (epoch_ends || last) {
        const evaluation e = evaluate(data_.validation);
        result.validation.emplace_back(static_cast<double>(step + 1), e.accuracy);
        if (last) result.final_validation = e;
      }
      parallel_.verify(stream_);
      segment = clock::now();
    }
    if (keeper) result.save_error = keeper->finish();
    result.samples_per_rank = made * plan_.rows_per_rank();
    if (result.stopped) return result;
    if (made == 0) { // all steps were made before
      result.final_validation = evaluate(data_.validation);
      result.validation.emplace_back(static_cast<double>(plan_.steps),
                                     result.final_validation.accuracy);
    }
    const auto steps = static_cast<double>(made);
    if (made > 0) result.samples_per_second = steps * static_cast<double>(config_.batch) / seconds;
    result.communication_ms = waited_ms / std::max(1.0, steps - 2);
    result.train = evaluate(data_.train);
    result.test = evaluate(data_.test);
    parallel_.read(stream_, result.parameters, result.state);
    result.digest = base::digest(result);
    if (options_.watch) options_.watch(plan_.steps + 1);
    return result;
  }

 private:
  using saves =
      checkpointing<std::remove_cvref_t<decltype(std::declval<Comm&>().control())>, Parallel>;
  static constexpr std::size_t no_step = ~std::size_t{0}; ///< evaluation: not in a trace

  /// Whether any rank was asked to save and stop. @collective
  [[nodiscard]] bool stop_requested() {
    return comm_.control().all_reduce_max(options_.stop && options_.stop() ? 1 : 0) != 0;
  }

  void say_memory() {
    std::vector<memory_line> lines = parallel_.memory();
    const std::size_t rows = std::max(plan_.rows_per_block, eval_rows);
    lines.push_back({"activations", mlp<Ops>::bytes_for(shape_, rows), model_.bytes()});
    say(memory_text(lines, ops_.memory()));
  }

  void enqueue_step(std::size_t step, const batch& b, const std::optional<saves>& keeper) {
    const auto weights = [this](std::size_t i) { return parallel_.weight(i, stream_); };
    const auto grad = [this](std::size_t i) { return parallel_.grad(i, stream_); };
    const auto ready = [this](std::size_t i) { parallel_.ready(i, stream_); };
    const double rate = rate_at(plan_, step);
    const std::size_t rows = plan_.rows_per_block, mark = 2 * (step % 2);
    for (std::size_t block = 0; block < plan_.blocks_per_rank; ++block) {
      const float* x = ops_.stage(
          stream_, std::span(b.x).subspan(block * rows * shape_.inputs, rows * shape_.inputs),
          input_.span());
      const std::uint8_t* labels =
          ops_.stage(stream_, std::span(b.labels).subspan(block * rows, rows), labels_.span());
      float* loss = losses_.data() + step % loss_window * plan_.blocks_per_rank + block;
      parallel_.begin(block, plan_.blocks_per_rank, rate);
      model_.forward(stream_, weights, x, rows);
      model_.loss(stream_, labels, loss, rows);
      model_.backward(stream_, weights, x, rows, grad, ready);
      ops_.mark(stream_, mark);
      parallel_.finish(stream_);
    }
    ops_.mark(stream_, mark + 1);
    if (keeper) keeper->hold(stream_);
    parallel_.update(step, rate, stream_);
  }

  /// @collective
  [[nodiscard]] evaluation evaluate(const labelled_images& images) {
    return base::evaluate(images, rank_, ranks_, [&](std::span<const float> x, std::size_t rows) {
      const float* input = ops_.stage(stream_, x.first(rows * shape_.inputs), input_.span());
      model_.forward(
          stream_, [this](std::size_t i) { return parallel_.weight(i, stream_); }, input, rows);
      ops_.classify(stream_, model_.logits(), best_.data(), confidence_.data(), rows,
                    shape_.classes);
      return true;
    });
  }

  /// @collective
  void note_digests(std::optional<digest_log>& log, std::size_t step) {
    std::vector<float> gradients, weights, state;
    if constexpr (requires { parallel_.read_gradients(stream_, gradients); })
      parallel_.read_gradients(stream_, gradients);
    parallel_.read(stream_, weights, state);
    if (log) log->add(step, tensors_, gradients, weights, state);
  }

  std::size_t ranks_, rank_;
  mlp<Ops> model_;
  buffer<float> input_;
  buffer<std::uint8_t> labels_;
  Parallel parallel_;
};

/// With sharded_optimizer.
template <elementwise_optimizer O, element V, communicator Comm, classifier_ops Ops>
[[nodiscard]] training_result train_sharded(Comm& comm, Ops& ops, const config& c,
                                            const dataset& data, const train_options& options) {
  if (c.offload == "host")
    return trainer<Comm, Ops, sharded<Comm, Ops, O, on_host, V>>(comm, ops, c, data, options,
                                                                 on_host{.fraction = c.fraction})
        .run();
  return trainer<Comm, Ops, sharded<Comm, Ops, O, on_device, V>>(comm, ops, c, data, options,
                                                                 on_device{})
      .run();
}

/// Trains and evaluates. @collective
/// @throws usage_error if ranks, blocks and batch do not fit, or the backend lacks what the flags
/// ask for (the same on every rank)
template <communicator Comm, classifier_ops Ops>
[[nodiscard]] training_result train(Comm& comm, Ops& ops, const config& c, const dataset& data,
                                    const train_options& options = {}) {
  if (c.sharded()) {
    if (c.precision == "bf16") return train_sharded<adamw, bf16>(comm, ops, c, data, options);
    if (c.precision == "fp16") return train_sharded<adamw, fp16>(comm, ops, c, data, options);
    if (c.optimizer == "sgd") return train_sharded<sgd, float>(comm, ops, c, data, options);
    if (c.optimizer == "lion") return train_sharded<lion, float>(comm, ops, c, data, options);
    return train_sharded<adamw, float>(comm, ops, c, data, options);
  }
  if (c.deterministic)
    return trainer<Comm, Ops, replicated<Comm, Ops, deterministic>>(
               comm, ops, c, data, options, deterministic{.blocks = c.blocks})
        .run();
  return trainer<Comm, Ops, replicated<Comm, Ops, all_reduce_sum>>(comm, ops, c, data, options,
                                                                   all_reduce_sum{})
      .run();
}

} // namespace polyrank::examples
