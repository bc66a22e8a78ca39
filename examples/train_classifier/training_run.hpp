// What both ways to train share, the model whole on every rank (trainer.hpp) and cut over ranks
// (pipeline.hpp): batches from the data set, the window of losses, evaluation, the digest.
//
// A way to train derives from training_run and brings what enqueues a step and a forward.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train_classifier/checkpointing.hpp"
#include "train_classifier/config.hpp"
#include "train_classifier/dataset.hpp"
#include "train_classifier/memory_report.hpp"
#include "train_classifier/mlp.hpp"
#include "train_classifier/ops.hpp"
#include "train_classifier/step_plan.hpp"
#include "train_classifier/training_result.hpp"

#include <polyrank/backend/buffer.hpp>
#include <polyrank/backend/concepts.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/hash.hpp>
#include <polyrank/data/prefetch_loader.hpp>
#include <polyrank/data/sampler.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::examples {

template <communicator Comm, classifier_ops Ops>
class training_run {
 public:
  training_run(const training_run&) = delete;
  training_run& operator=(const training_run&) = delete;

 protected:
  using backend = typename Ops::backend;
  using stream = typename backend::stream;
  using event = typename backend::event;
  using clock = std::chrono::steady_clock;
  static constexpr std::size_t eval_rows = 512;  ///< at a time
  static constexpr std::size_t loss_window = 32; ///< steps between looks at the loss

  /// The pictures of one rank in one step.
  struct batch {
    std::vector<float> x;
    std::vector<std::uint8_t> labels;
  };
  using batch_source = prefetch_loader<batch>;
  /// A step that the stream works on; its batch must stay until `done`.
  struct flight {
    batch data;
    event done;
    bool used = false;
  };

  training_run(Comm& comm, Ops& ops, const config& c, const dataset& data,
               const train_options& options)
      : comm_(comm), ops_(ops), config_(c), data_(data), options_(options),
        plan_(plan_steps(c, static_cast<std::size_t>(comm.size()), data.train.count())),
        shape_{data.train.features(), c.hidden, data.train.classes},
        tensors_(parameters_of(shape_)),
        losses_(loss_window * plan_.blocks_per_rank, backend::memory()),
        best_(eval_rows, backend::memory()), confidence_(eval_rows, backend::memory()),
        stream_(comm.make_stream()) {}
  ~training_run() = default;

  [[nodiscard]] static double since(clock::time_point start) {
    return std::chrono::duration<double>(clock::now() - start).count();
  }
  void say(const std::string& text, bool problem = false) const {
    if (options_.say) options_.say(text, problem);
  }
  void show(std::size_t step, std::size_t made, float loss, double seconds,
            const std::string& more = {}) {
    char text[120];
    std::snprintf(text, sizeof text, "loss %.4f  %.0f samples/s%s  memory %.0f MiB",
                  static_cast<double>(loss),
                  static_cast<double>(made) * static_cast<double>(config_.batch) / seconds,
                  more.c_str(), static_cast<double>(resident_bytes()) / (1 << 20));
    options_.line->show(step, text);
  }

  /// Of the whole model: random ones, or what --init holds of them. @collective
  [[nodiscard]] std::vector<float> first_weights() {
    std::vector<float> values = initial_parameters(shape_, config_.seed);
    if (config_.init.empty()) return values;
    std::string rest;
    checkpoint::together(comm_.control(),
                         [&] { rest = load_weights(config_.init, tensors_, values); });
    say(detail::cat("init     ", config_.init,
                    rest.empty() ? ": every weight of the model" : rest));
    return values;
  }

  /// The batches from step `first` on, cut into `parts`, of which this is for `part`.
  [[nodiscard]] batch_source batches(std::size_t first, std::size_t part, std::size_t parts) const {
    const sampler rows(
        {.count = data_.train.count(), .global_batch = config_.batch, .seed = config_.seed});
    return {{.workers = options_.workers, .depth = 4},
            plan_.steps - first,
            [this, rows, first, mine = rows.shard(part, parts)](std::size_t index, batch& b) {
              b.x.resize(mine.size() * shape_.inputs);
              b.labels.resize(mine.size());
              for (std::size_t i = 0; i < mine.size(); ++i) {
                const std::size_t row = rows.row(first + index, mine.begin + i);
                data_.to_input(data_.train.picture(row), b.x.data() + i * shape_.inputs);
                b.labels[i] = data_.train.labels[row];
              }
            }};
  }
  /// The next batch, in the place of the last but one, which the stream is through with.
  [[nodiscard]] flight& next_flight(std::size_t step, batch_source& from) {
    flight& f = flights_[step % 2];
    if (f.used) {
      f.done.synchronize();
      from.recycle(std::move(f.data));
    }
    f.data = from.next();
    return f;
  }
  void taken_off(flight& f) {
    f.done.record(stream_);
    f.used = true;
  }

  /// Host values of every rank, in rank order. @collective
  template <class T>
  [[nodiscard]] static std::vector<std::vector<T>> gather(Comm& comm, const std::vector<T>& own) {
    std::vector<std::vector<T>> all;
    for (const std::string& bytes : comm.control().all_gather(
             {reinterpret_cast<const char*>(own.data()), own.size() * sizeof(T)})) {
      all.emplace_back(bytes.size() / sizeof(T));
      if (!bytes.empty()) std::memcpy(all.back().data(), bytes.data(), bytes.size());
    }
    return all;
  }

  /// Appends the losses of the steps since the last call: means over all blocks, added in block
  /// order, so that they too are the same for any number of ranks. `has_loss`: losses_ is filled on
  /// this rank. @collective
  void collect_losses(training_result& result, std::size_t upto, bool has_loss = true) {
    const std::size_t first = result.first_step + result.losses.size();
    if (first == upto) return;
    std::vector<float> own;
    if (has_loss) ops_.read_back(stream_, losses_.span(), own);
    const std::vector<std::vector<float>> all = gather(comm_, own);
    const std::size_t blocks = plan_.blocks_per_rank;
    for (std::size_t step = first; step < upto; ++step) {
      double sum = 0;
      for (const std::vector<float>& of_rank : all)
        for (std::size_t b = 0; b < blocks && !of_rank.empty(); ++b)
          sum += static_cast<double>(of_rank[step % loss_window * blocks + b]);
      const auto mean = static_cast<float>(sum / static_cast<double>(plan_.blocks));
      if (!std::isfinite(mean))
        throw on_every_rank(error(detail::cat("the loss of step ", step + 1, " is not finite")));
      result.losses.push_back(mean);
      result.final_loss = mean;
    }
  }

  /// Each of `parts` looks at its share of the pictures; all ranks get the whole answer.
  /// `forward(x, rows)` runs the model on the first rows of a block; where it returns true, best_
  /// and confidence_ have the answers. @collective
  template <class Forward>
  [[nodiscard]] evaluation evaluate(const labelled_images& images, std::size_t part,
                                    std::size_t parts, Forward forward) {
    const range mine = evaluation_shard(images.count(), part, parts);
    std::vector<float> x(eval_rows * shape_.inputs), best, confidence;
    std::vector<float> answers; // predicted and confidence in turn
    for (std::size_t at = mine.begin; at < mine.end; at += eval_rows) {
      const std::size_t rows = std::min(eval_rows, mine.end - at);
      for (std::size_t i = 0; i < rows; ++i)
        data_.to_input(images.picture(at + i), x.data() + i * shape_.inputs);
      if (!forward(std::span<const float>(x), rows)) continue;
      ops_.read_back(stream_, best_.span().first(rows), best);
      ops_.read_back(stream_, confidence_.span().first(rows), confidence);
      for (std::size_t i = 0; i < rows; ++i)
        answers.insert(answers.end(), {best[i], confidence[i]});
    }
    evaluation e;
    std::size_t right = 0;
    for (const std::vector<float>& of_rank : gather(comm_, answers))
      for (std::size_t i = 0; i < of_rank.size(); i += 2) {
        right += of_rank[i] == static_cast<float>(images.labels[e.predicted.size()]) ? 1 : 0;
        e.predicted.push_back(static_cast<std::uint8_t>(of_rank[i]));
        e.confidence.push_back(of_rank[i + 1]);
      }
    e.accuracy = static_cast<double>(right) / std::max(1.0, static_cast<double>(images.count()));
    return e;
  }

  /// Of the parameters and the state in `r`, which must be the same on every rank. @collective
  [[nodiscard]] std::uint64_t digest(const training_result& r) {
    std::uint64_t h = hash_bytes(r.parameters.data(), r.parameters.size() * sizeof(float));
    h = hash_bytes(r.state.data(), r.state.size() * sizeof(float), h);
    const auto all = gather(comm_, std::vector<std::uint64_t>{h});
    for (std::size_t other = 0; other < all.size(); ++other)
      if (all[other] != all[0])
        throw on_every_rank(
            mismatch_error(detail::cat("after training, rank ", other, " has the digest ",
                                       hex16(all[other][0]), ", rank 0 has ", hex16(all[0][0]))));
    return h;
  }

  Comm& comm_;
  Ops& ops_;
  const config& config_;
  const dataset& data_;
  train_options options_;
  step_plan plan_;
  mlp_shape shape_;
  std::vector<tensor> tensors_; // of the whole model
  buffer<float> losses_;        // of loss_window steps
  buffer<float> best_, confidence_;
  stream stream_;
  flight flights_[2]; // the host runs at most two steps ahead of the stream
};

} // namespace polyrank::examples
