// The training loop: data-parallel over any communicator, on any device that has the operations of
// ops.hpp. What makes it parallel are six lines: the construction of grad_sync, begin, grad,
// ready, finish and grad_scale.
//
//     host_ops ops;
//     training_result r = train(comm, ops, config, data, {.workers = 2, .line = &progress});
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/progress.hpp"
#include "train_classifier/checkpointing.hpp"
#include "train_classifier/config.hpp"
#include "train_classifier/dataset.hpp"
#include "train_classifier/digest_log.hpp"
#include "train_classifier/mlp.hpp"
#include "train_classifier/ops.hpp"
#include "train_classifier/parallel.hpp"
#include "train_classifier/step_plan.hpp"

#include <polyrank/backend/buffer.hpp>
#include <polyrank/backend/concepts.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/hash.hpp>
#include <polyrank/data/prefetch_loader.hpp>
#include <polyrank/data/sampler.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/hang/ring.hpp>
#include <polyrank/monitor/trace.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/optim/lr_schedule.hpp>
#include <polyrank/optim/optimizer.hpp>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::examples {

/// What the network says about a set of pictures.
struct evaluation {
  std::vector<std::uint8_t> predicted; ///< by picture
  std::vector<float> confidence;       ///< probability of the predicted class
  double accuracy = 0;
};

/// Equal on every rank but for `samples_per_second` and `communication_ms`.
struct training_result {
  std::size_t first_step = 0; ///< steps made before this run, which resumed
  bool stopped = false;       ///< saved and stopped on request, before the last step; not evaluated
  std::string save_error;     ///< why the last checkpoint was not saved; empty: it was
  float final_loss = 0;       ///< of the last step, also if it was made before this run
  std::vector<float> losses;  ///< mean over each step's global batch
  std::vector<std::pair<double, double>> validation; ///< (step, accuracy) after each epoch
  evaluation train, final_validation, test;
  double samples_per_second = 0;
  double communication_ms = 0; ///< mean time per step in which compute waited for gradients
  std::size_t samples_per_rank = 0;
  std::optional<trace_report> trace; ///< see tracing.hpp
  std::uint64_t digest = 0;          ///< of parameters and optimizer state in layout order
  step_plan plan;
  std::vector<float> parameters, state; ///< in layout order; state plane by plane
};

struct train_options {
  std::size_t workers = 1;
  progress* line = nullptr;     ///< of rank 0
  std::function<bool()> stop{}; ///< whether this rank was asked to save and stop
  hang::ring* ring = nullptr;   ///< of this rank, where it is watched: pauses, place in a pipeline
  std::function<void(const std::string& line, bool problem)> say{}; ///< of rank 0
  std::function<void(std::size_t steps)> watch{}; ///< called after each step, and at the end
};

/// One run with one way to keep weights over the ranks (parallel.hpp). Use train().
template <communicator Comm, classifier_ops Ops, class Parallel>
class trainer {
 public:
  using backend = typename Ops::backend;
  using stream = typename backend::stream;
  using event = typename backend::event;

  /// `how` is what Parallel wants to know beside the configuration: a policy, or where state lives.
  template <class How>
  trainer(Comm& comm, Ops& ops, const config& c, const dataset& data, const train_options& options,
          How how)
      : comm_(comm), ops_(ops), config_(c), data_(data), options_(options),
        ranks_(to_size(comm.size())), rank_(to_size(comm.rank())),
        plan_(plan_steps(c, ranks_, data.train.count())),
        shape_{data.train.features(), c.hidden, data.train.classes},
        tensors_(parameters_of(shape_)),
        losses_(loss_window * plan_.blocks_per_rank, backend::memory()),
        stream_(comm.make_stream()), model_(ops, shape_, std::max(plan_.rows_per_block, eval_rows)),
        input_(Ops::stages ? std::max(plan_.rows_per_block, eval_rows) * shape_.inputs : 0,
               backend::memory()),
        labels_(Ops::stages ? plan_.rows_per_block : 0, backend::memory()),
        best_(eval_rows, backend::memory()), confidence_(eval_rows, backend::memory()),
        parallel_(comm, ops, c, tensors_, first_weights(), stream_, how) {}

  /// Queued work refers to members: it runs (or is skipped, after a failure) before they go.
  ~trainer() {
    try {
      stream_.synchronize();
    } catch (...) { // reported by whoever asked for results
    }
  }
  trainer(const trainer&) = delete;
  trainer& operator=(const trainer&) = delete;

  [[nodiscard]] training_result run() {
    const sampler rows(
        {.count = data_.train.count(), .global_batch = config_.batch, .seed = config_.seed});
    const range mine = rows.shard(rank_, ranks_);
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
    prefetch_loader<batch> loader(
        {.workers = options_.workers, .depth = 4}, plan_.steps - first,
        [&](std::size_t step, batch& b) { assemble(rows, mine, first + step, b); });
    std::optional<digest_log> digests;
    if (config_.digest_every > 0 && rank_ == 0) digests.emplace(config_.out, first > 0);
    double waited_ms = 0;
    auto segment = clock::now(); // time in evaluation is not counted
    double seconds = 0;
    std::size_t made = 0;
    for (std::size_t step = first; step < plan_.steps && !result.stopped; ++step) {
      flight& f = flights_[step % 2];
      if (f.used) {
        f.done.synchronize();
        waited_ms += ops_.elapsed(2 * (step % 2), 2 * (step % 2) + 1);
        loader.recycle(std::move(f.data));
      }
      f.data = loader.next();
      ops_.begin_step(made);
      enqueue_step(step, f.data, keeper);
      f.done.record(stream_);
      f.used = true;
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
        const double so_far = seconds + since(segment);
        show(step + 1, made, result.final_loss, so_far, waited_ms / static_cast<double>(made));
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
    result.digest = digest(result);
    if (options_.watch) options_.watch(plan_.steps + 1);
    return result;
  }

 private:
  using clock = std::chrono::steady_clock;
  using saves =
      checkpointing<std::remove_cvref_t<decltype(std::declval<Comm&>().control())>, Parallel>;
  static constexpr std::size_t eval_rows = 512;
  static constexpr std::size_t no_step = ~std::size_t{0}; ///< evaluation: not in a trace
  static constexpr std::size_t loss_window = 32;          ///< steps between looks at the loss

  /// The pictures of one rank in one step.
  struct batch {
    std::vector<float> x;
    std::vector<std::uint8_t> labels;
  };
  /// A step that the stream works on; its batch must stay until `done`.
  struct flight {
    batch data;
    event done;
    bool used = false;
  };

  [[nodiscard]] static std::size_t to_size(int n) noexcept { return static_cast<std::size_t>(n); }
  [[nodiscard]] static double since(clock::time_point start) {
    return std::chrono::duration<double>(clock::now() - start).count();
  }

  /// Random ones, or what --init holds of them. @collective
  [[nodiscard]] std::vector<float> first_weights() {
    std::vector<float> values = initial_parameters(shape_, config_.seed);
    if (config_.init.empty()) return values;
    std::string rest;
    checkpoint::together(comm_.control(),
                         [&] { rest = load_weights(config_.init, tensors_, values); });
    say(detail::cat("init     ", config_.init, rest.empty() ? ": every weight of the model" : rest),
        false);
    return values;
  }

  /// Whether any rank was asked to save and stop. @collective
  [[nodiscard]] bool stop_requested() {
    return comm_.control().all_reduce_max(options_.stop && options_.stop() ? 1 : 0) != 0;
  }

  void say(const std::string& text, bool problem) const {
    if (options_.say) options_.say(text, problem);
  }

  void say_memory() {
    std::vector<memory_line> lines = parallel_.memory();
    const std::size_t rows = std::max(plan_.rows_per_block, eval_rows);
    lines.push_back({"activations", mlp<Ops>::bytes_for(shape_, rows), model_.bytes()});
    say(memory_text(lines, ops_.memory()), false);
  }

  void assemble(const sampler& rows, range mine, std::size_t step, batch& b) const {
    const std::size_t features = shape_.inputs;
    b.x.resize(mine.size() * features);
    b.labels.resize(mine.size());
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const std::size_t row = rows.row(step, mine.begin + i);
      data_.to_input(data_.train.picture(row), b.x.data() + i * features);
      b.labels[i] = data_.train.labels[row];
    }
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

  /// Appends the losses of the steps since the last call: means over all blocks, added in block
  /// order, so that they too are the same for any number of ranks.
  void collect_losses(training_result& result, std::size_t upto) {
    std::vector<float>& losses = result.losses;
    const std::size_t first = result.first_step + losses.size(), count = upto - first;
    if (count == 0) return;
    std::vector<float> own;
    ops_.read_back(stream_, losses_.span(), own);
    const std::vector<std::vector<float>> all = gather(own);
    for (std::size_t s = 0; s < count; ++s) {
      double sum = 0;
      for (const std::vector<float>& of_rank : all)
        for (std::size_t b = 0; b < plan_.blocks_per_rank; ++b)
          sum +=
              static_cast<double>(of_rank[(first + s) % loss_window * plan_.blocks_per_rank + b]);
      const auto mean = static_cast<float>(sum / static_cast<double>(plan_.blocks));
      if (!std::isfinite(mean))
        throw on_every_rank(
            error(detail::cat("the loss of step ", first + s + 1, " is not finite")));
      losses.push_back(mean);
      result.final_loss = mean;
    }
  }

  /// Host values of every rank, in rank order. @collective
  template <class T>
  [[nodiscard]] std::vector<std::vector<T>> gather(const std::vector<T>& own) {
    std::vector<std::vector<T>> all;
    for (const std::string& bytes : comm_.control().all_gather(
             {reinterpret_cast<const char*>(own.data()), own.size() * sizeof(T)})) {
      all.emplace_back(bytes.size() / sizeof(T));
      if (!bytes.empty()) std::memcpy(all.back().data(), bytes.data(), bytes.size());
    }
    return all;
  }

  /// Every rank looks at its shard; all of them get the whole answer. @collective
  [[nodiscard]] evaluation evaluate(const labelled_images& images) {
    const range mine = evaluation_shard(images.count(), rank_, ranks_);
    const std::size_t features = shape_.inputs;
    std::vector<float> x, best, confidence, answers; // predicted and confidence in turn
    for (std::size_t at = mine.begin; at < mine.end; at += eval_rows) {
      const std::size_t rows = std::min(eval_rows, mine.end - at);
      x.resize(rows * features);
      for (std::size_t i = 0; i < rows; ++i)
        data_.to_input(images.picture(at + i), x.data() + i * features);
      const float* input = ops_.stage(stream_, std::span<const float>(x), input_.span());
      model_.forward(
          stream_, [this](std::size_t i) { return parallel_.weight(i, stream_); }, input, rows);
      ops_.classify(stream_, model_.logits(), best_.data(), confidence_.data(), rows,
                    shape_.classes);
      ops_.read_back(stream_, best_.span().first(rows), best);
      ops_.read_back(stream_, confidence_.span().first(rows), confidence);
      for (std::size_t i = 0; i < rows; ++i)
        answers.insert(answers.end(), {best[i], confidence[i]});
    }
    evaluation e;
    for (const std::vector<float>& of_rank : gather(answers))
      for (std::size_t i = 0; i < of_rank.size(); i += 2) {
        e.predicted.push_back(static_cast<std::uint8_t>(of_rank[i]));
        e.confidence.push_back(of_rank[i + 1]);
      }
    std::size_t right = 0;
    for (std::size_t i = 0; i < images.count(); ++i)
      right += e.predicted[i] == images.labels[i] ? 1 : 0;
    e.accuracy =
        images.count() == 0 ? 0 : static_cast<double>(right) / static_cast<double>(images.count());
    return e;
  }

  /// @collective
  void note_digests(std::optional<digest_log>& log, std::size_t step) {
    std::vector<float> gradients, weights, state;
    if constexpr (requires { parallel_.read_gradients(stream_, gradients); })
      parallel_.read_gradients(stream_, gradients);
    parallel_.read(stream_, weights, state);
    if (log) log->add(step, tensors_, gradients, weights, state);
  }

  [[nodiscard]] std::uint64_t digest(const training_result& r) {
    std::uint64_t h = hash_bytes(r.parameters.data(), r.parameters.size() * sizeof(float));
    h = hash_bytes(r.state.data(), r.state.size() * sizeof(float), h);
    const auto all = gather(std::vector<std::uint64_t>{h});
    for (std::size_t other = 0; other < all.size(); ++other)
      if (all[other] != all[0])
        throw on_every_rank(
            mismatch_error(detail::cat("after training, rank ", other, " has the digest ",
                                       hex16(all[other][0]), ", rank 0 has ", hex16(all[0][0]))));
    return h;
  }

  void show(std::size_t step, std::size_t made, float loss, double seconds, double waited_ms) {
    char text[120];
    std::snprintf(text, sizeof text, "loss %.4f  %.0f samples/s  comm %.2f ms  memory %.0f MiB",
                  static_cast<double>(loss),
                  static_cast<double>(made) * static_cast<double>(config_.batch) / seconds,
                  waited_ms, static_cast<double>(resident_bytes()) / (1 << 20));
    options_.line->show(step, text);
  }

  Comm& comm_;
  Ops& ops_;
  const config& config_;
  const dataset& data_;
  train_options options_;
  std::size_t ranks_, rank_;
  step_plan plan_;
  mlp_shape shape_;
  std::vector<tensor> tensors_;
  buffer<float> losses_;
  stream stream_;
  mlp<Ops> model_;
  buffer<float> input_;
  buffer<std::uint8_t> labels_;
  buffer<float> best_, confidence_;
  flight flights_[2]; // the host runs at most two steps ahead of the stream
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
