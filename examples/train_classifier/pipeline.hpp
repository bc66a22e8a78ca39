// Training with the layers cut over the ranks: a pipeline of --pipeline ranks, and as many replicas
// of it as the job has room for. Flags --pipeline, --schedule, --microbatches, --chunks; --svg and
// --trace draw a measured step.
//
//     training_result r = train_pipelined(comm, ops, config, data, options);
//
// Each rank keeps weights, gradients and optimizer of its own stages, over the ranks that have the
// same stages in other replicas, with the classes of parallel.hpp: so --zero works as without.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/files.hpp"
#include "train_classifier/mlp_stage.hpp"
#include "train_classifier/parallel.hpp"
#include "train_classifier/training_run.hpp"

#include <polyrank/launch/mesh.hpp>
#include <polyrank/pipeline/chrome_trace.hpp>
#include <polyrank/pipeline/executor.hpp>
#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/lower.hpp>
#include <polyrank/pipeline/measure.hpp>
#include <polyrank/pipeline/simulate.hpp>
#include <polyrank/pipeline/svg.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::examples {

/// The schedule that the flags name, not lowered. @throws usage_error, the same on every rank
[[nodiscard]] inline pipeline::table schedule_of(const config& c) {
  try {
    return pipeline::generate(pipeline::schedule_from(c.schedule), c.pipeline, c.microbatches,
                              c.chunks);
  } catch (const usage_error& e) {
    throw on_every_rank(usage_error(e.what()));
  }
}

/// Throws usage_error, the same on every rank, where the flags do not go with a pipeline.
inline void check_pipeline(const config& c, std::size_t ranks, std::size_t layers) {
  const auto refuse = [](const auto&... text) {
    throw on_every_rank(usage_error(detail::cat(text...)));
  };
  if (ranks % c.pipeline != 0)
    refuse("--pipeline ", c.pipeline, " does not divide the ", ranks,
           " ranks of the job: each replica of the model takes ", c.pipeline);
  const std::size_t stages = schedule_of(c).shape.stages();
  if (stages > layers)
    refuse("--pipeline ", c.pipeline, " with --schedule ", c.schedule, " has ", stages,
           " stages, but the model only ", layers, " layers; name at least ", stages - 1,
           " widths with --hidden");
  if (c.deterministic)
    refuse("--deterministic works on whole models; it does not go with --pipeline");
  if (c.accumulate > 1)
    refuse("--accumulate does not go with --pipeline; take more --microbatches");
  if (c.sharded() && c.precision != "fp32")
    refuse("--precision ", c.precision,
           " with --zero keeps weights in 16 bits, which stages of a "
           "pipeline do not read; take --precision fp32, or no --zero");
  if (!c.checkpoint.empty() || c.digest_every > 0)
    refuse(
        "--checkpoint and --digest-every are for a model that every rank has whole; they do not go "
        "with --pipeline");
}

/// Parallel of parallel.hpp behind the interface of the stages.
template <class Stream, class Parallel>
struct parallel_adapter final : parallel_weights<Stream> {
  template <class... Arguments>
  explicit parallel_adapter(Arguments&&... arguments)
      : own(std::forward<Arguments>(arguments)...) {}
  float* weight(std::size_t i, Stream& s) override { return own.weight(i, s); }
  float* grad(std::size_t i, Stream& s) override { return own.grad(i, s); }
  void begin(double rate) override { own.begin(0, 1, rate); }
  void ready(std::size_t i, Stream& s) override { own.ready(i, s); }
  void update(std::size_t step, double rate, Stream& s) override {
    own.finish(s);
    own.update(step, rate, s);
  }
  void verify(Stream& s) override { own.verify(s); }
  void read(Stream& s, std::vector<float>& parameters, std::vector<float>& state) override {
    own.read(s, parameters, state);
  }
  Parallel own;
};

template <communicator Comm, classifier_ops Ops>
class pipelined : training_run<Comm, Ops> {
  using base = training_run<Comm, Ops>;
  using base::comm_, base::ops_, base::config_, base::data_, base::options_, base::plan_,
      base::shape_, base::tensors_, base::losses_, base::best_, base::confidence_, base::stream_;
  using base::eval_rows, base::loss_window, base::since, base::gather;
  using typename base::backend, typename base::stream, typename base::batch, typename base::flight,
      typename base::clock;
  static constexpr std::size_t eval_parts = 4; ///< microbatches of a block of eval_rows
  using stage = mlp_stage<Ops>;
  using link = pipeline::peer_transport<Comm>;
  using runner = pipeline::executor<link, stage>;

 public:
  pipelined(Comm& comm, Ops& ops, const config& c, const dataset& data,
            const train_options& options)
      : base(comm, ops, c, data, options),
        grid_(comm, {{"pp", static_cast<int>(c.pipeline)}, {"dp", launch::rest}}),
        rank_(static_cast<std::size_t>(grid_.coordinate("pp"))),
        replica_(static_cast<std::size_t>(grid_.coordinate("dp"))),
        replicas_(static_cast<std::size_t>(comm.size()) / c.pipeline),
        compute_table_(schedule_of(c)), own_tensors_(own_tensors()),
        x_(Ops::stages ? std::max(plan_.rows_per_rank(), eval_rows) * shape_.inputs : 0,
           backend::memory()),
        labels_(Ops::stages ? plan_.rows_per_rank() : 0, backend::memory()), stages_(make_stages()),
        parallel_(make_parallel()), link_(grid_.along("pp")),
        train_(link_, std::span(stages_), training_table(), training_options(), stream_),
        evaluate_(link_, std::span(stages_), evaluation_table(), {.rows = {eval_rows / eval_parts}},
                  stream_) {
    for (stage& s : stages_) s.use(*parallel_);
  }

  [[nodiscard]] training_result run() {
    training_result result;
    result.plan = plan_;
    auto loader = base::batches(0, replica_, replicas_);
    // The picture is of a step in full swing, where there are so many.
    const bool draws = !config_.svg.empty() || !config_.trace.empty();
    const std::size_t drawn = std::min<std::size_t>(4, plan_.steps - 1);
    double seconds = 0;
    auto segment = clock::now();
    for (std::size_t step = 0; step < plan_.steps; ++step) {
      flight& f = base::next_flight(step, loader);
      const bool draw = draws && step == drawn;
      if (draw) train_.watch().measure(true);
      enqueue(step, f.data);
      base::taken_off(f);
      if (draw) {
        train_.synchronize();
        picture();
        train_.watch().measure(false);
      }
      const bool epoch_ends = (step + 1) % plan_.steps_per_epoch == 0,
                 last = step + 1 == plan_.steps;
      if ((step + 1) % loss_window == 0 || last) collect_losses(result, step + 1);
      if (options_.line != nullptr && options_.line->due() && !result.losses.empty())
        base::show(step + 1, step + 1, result.final_loss, seconds + since(segment));
      if (!epoch_ends && !last) continue;
      train_.synchronize();
      seconds += since(segment);
      const evaluation e = evaluate(data_.validation);
      result.validation.emplace_back(static_cast<double>(step + 1), e.accuracy);
      if (last) result.final_validation = e;
      parallel_->verify(stream_);
      segment = clock::now();
    }
    result.samples_per_rank = plan_.steps * plan_.rows_per_rank();
    result.samples_per_second =
        static_cast<double>(plan_.steps) * static_cast<double>(config_.batch) / seconds;
    result.train = evaluate(data_.train);
    result.test = evaluate(data_.test);
    collect_state(result);
    return result;
  }

 private:
  // What this rank has: its stages, chunk by chunk.
  [[nodiscard]] range layers(std::size_t stage_index) const {
    return partition(shape_.layers(), compute_table_.shape.stages(), stage_index);
  }
  [[nodiscard]] range layers_of_chunk(std::size_t rank, std::size_t chunk) const {
    return layers(compute_table_.shape.stage_of(rank, chunk));
  }
  [[nodiscard]] std::vector<tensor> own_tensors() const {
    std::vector<tensor> own;
    std::size_t offset = 0;
    for (std::size_t c = 0; c < compute_table_.shape.chunks; ++c) {
      const range l = layers_of_chunk(rank_, c);
      for (std::size_t i = 2 * l.begin; i < 2 * l.end; ++i) {
        own.push_back(tensors_[i]);
        own.back().offset = offset;
        offset += own.back().count();
      }
    }
    return own;
  }
  [[nodiscard]] std::vector<float> own_part(const std::vector<float>& all) const {
    std::vector<float> own;
    for (std::size_t c = 0; c < compute_table_.shape.chunks; ++c) {
      const range l = layers_of_chunk(rank_, c);
      for (std::size_t i = 2 * l.begin; i < 2 * l.end; ++i) {
        const auto from = all.begin() + static_cast<std::ptrdiff_t>(tensors_[i].offset);
        own.insert(own.end(), from, from + static_cast<std::ptrdiff_t>(tensors_[i].count()));
      }
    }
    return own;
  }
  [[nodiscard]] std::vector<stage> make_stages() {
    std::vector<stage> all;
    std::size_t first = 0;
    for (std::size_t c = 0; c < compute_table_.shape.chunks; ++c) {
      const range l = layers_of_chunk(rank_, c);
      all.emplace_back(ops_, shape_, l, first,
                       std::max(plan_.rows_per_block, eval_rows / eval_parts), config_.microbatches,
                       work_);
      first += 2 * l.size();
    }
    return all;
  }
  template <class Parallel, class How>
  [[nodiscard]] std::unique_ptr<parallel_weights<stream>> parallel_as(How how) {
    auto made = std::make_unique<parallel_adapter<stream, Parallel>>(
        grid_.along("dp"), ops_, config_, own_tensors_, own_part(base::first_weights()), stream_,
        how);
    if constexpr (requires { made->own.norm_over(comm_); }) made->own.norm_over(grid_.along("pp"));
    return made;
  }
  template <elementwise_optimizer O>
  [[nodiscard]] std::unique_ptr<parallel_weights<stream>> sharded_by() {
    if (config_.offload == "host")
      return parallel_as<sharded<Comm, Ops, O, on_host>>(on_host{.fraction = config_.fraction});
    return parallel_as<sharded<Comm, Ops, O, on_device>>(on_device{});
  }
  [[nodiscard]] std::unique_ptr<parallel_weights<stream>> make_parallel() {
    if (!config_.sharded())
      return parallel_as<replicated<Comm, Ops, all_reduce_sum>>(all_reduce_sum{});
    if (config_.optimizer == "sgd") return sharded_by<sgd>();
    if (config_.optimizer == "lion") return sharded_by<lion>();
    return sharded_by<adamw>();
  }
  [[nodiscard]] pipeline::table training_table() const {
    return pipeline::lower(compute_table_, pipeline::even_costs(compute_table_.shape, 1, 1, 1, 0.1),
                           {.reduce = true, .optimizer = true});
  }
  [[nodiscard]] pipeline::table evaluation_table() const {
    pipeline::shape s = compute_table_.shape;
    s.microbatches = eval_parts;
    return pipeline::lower(pipeline::generate(pipeline::schedule::forward_only, s),
                           pipeline::even_costs(s, 1, 1, 1, 0.1));
  }
  [[nodiscard]] pipeline::executor_options<stream> training_options() {
    return {
        .rows = {plan_.rows_per_block},
        .hooks = {.reduce =
                      [this](std::size_t s, stream& on) {
                        const range t = stages_[compute_table_.shape.chunk_of(s)].tensors();
                        for (std::size_t i = t.end; i-- > t.begin;) parallel_->ready(i, on);
                      },
                  .optimizer =
                      [this](stream& on) { parallel_->update(step_, rate_at(plan_, step_), on); }},
        .ring = options_.ring};
  }

  void enqueue(std::size_t step, const batch& b) {
    step_ = step;
    work_ = {.x = ops_.stage(stream_, std::span(b.x), x_.span()),
             .labels = ops_.stage(stream_, std::span(b.labels), labels_.span()),
             .losses = losses_.data() + step % loss_window * config_.microbatches};
    parallel_->begin(rate_at(plan_, step));
    // Replicas take means over each other, so the seed counts the rows of one.
    train_.step(1 / static_cast<float>(plan_.rows_per_rank()));
  }

  [[nodiscard]] bool has_loss() const {
    return rank_ == compute_table_.shape.rank_of(compute_table_.shape.stages() - 1);
  }

  void collect_losses(training_result& result, std::size_t upto) {
    train_.synchronize();
    base::collect_losses(result, upto, has_loss());
  }

  /// @collective
  [[nodiscard]] evaluation evaluate(const labelled_images& images) {
    return base::evaluate(images, replica_, replicas_, [&](std::span<const float> x, std::size_t) {
      work_ = {.x = ops_.stage(stream_, x, x_.span()),
               .best = best_.data(),
               .confidence = confidence_.data()};
      evaluate_.step(); // rows of an earlier block behind the last are not looked at
      evaluate_.synchronize();
      return has_loss();
    });
  }

  /// Weights and state of the whole model, in layout order, on every rank.
  void collect_state(training_result& result) {
    std::vector<float> own, own_state;
    parallel_->read(stream_, own, own_state);
    const std::size_t planes = own_state.size() / std::max<std::size_t>(1, own.size());
    own.insert(own.end(), own_state.begin(), own_state.end());
    const auto all = gather(grid_.along("pp"), own);
    const std::size_t total = parameter_count(shape_);
    std::vector<float> whole((1 + planes) * total);
    for (std::size_t r = 0; r < all.size(); ++r) {
      const std::size_t per_plane = all[r].size() / (1 + planes);
      std::size_t from = 0;
      for (std::size_t c = 0; c < compute_table_.shape.chunks; ++c) {
        const range l = layers_of_chunk(r, c);
        for (std::size_t i = 2 * l.begin; i < 2 * l.end; ++i) {
          const std::size_t n = tensors_[i].count();
          for (std::size_t k = 0; k <= planes; ++k)
            std::copy_n(all[r].begin() + static_cast<std::ptrdiff_t>(k * per_plane + from), n,
                        whole.begin() +
                            static_cast<std::ptrdiff_t>(k * total + tensors_[i].offset));
          from += n;
        }
      }
    }
    result.parameters.assign(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(total));
    result.state.assign(whole.begin() + static_cast<std::ptrdiff_t>(total), whole.end());
    result.digest = base::digest(result);
  }

  /// The measured step beside the one that its own costs predict. @collective
  void picture() {
    if constexpr (pipeline::action_watch<backend>::can_measure) {
      const pipeline::report real = pipeline::measured(train_);
      const pipeline::costs c = pipeline::profile(real, train_.memory());
      const pipeline::report planned = pipeline::simulate(train_.table(), c, {.timeline = true});
      if (comm_.rank() != 0) return;
      const pipeline::named_report both[] = {{"predicted", &planned}, {"measured", &real}};
      const std::string title =
          detail::cat(config_.schedule, ", ", config_.pipeline, " ranks, ", config_.microbatches,
                      " microbatches: seconds of a training step");
      if (!config_.svg.empty()) write_file(config_.svg, pipeline::svg(both, {.title = title}));
      if (!config_.trace.empty())
        write_file(config_.trace, pipeline::chrome_trace(both, {.memory = &c}));
      base::say(detail::cat("step     ", milliseconds(real.makespan), " ms measured, ",
                            milliseconds(planned.makespan), " ms predicted from its own times"));
    }
  }
  [[nodiscard]] static std::string milliseconds(double seconds) {
    return pipeline::detail::fixed(1e3 * seconds, 2);
  }

  launch::mesh<Comm> grid_;
  std::size_t rank_, replica_, replicas_;
  pipeline::table compute_table_;
  std::vector<tensor> own_tensors_;
  buffer<float> x_;
  buffer<std::uint8_t> labels_;
  mlp_work work_;
  std::size_t step_ = 0;
  std::vector<stage> stages_;
  std::unique_ptr<parallel_weights<stream>> parallel_;
  link link_;
  runner train_, evaluate_;
};

/// Trains with a pipeline, and evaluates. @collective
/// @throws usage_error (the same on every rank) where the flags do not fit each other
template <communicator Comm, classifier_ops Ops>
[[nodiscard]] training_result train_pipelined(Comm& comm, Ops& ops, const config& c,
                                              const dataset& data, const train_options& options) {
  check_pipeline(c, static_cast<std::size_t>(comm.size()), c.hidden.size() + 1);
  return pipelined<Comm, Ops>(comm, ops, c, data, options).run();
}

} // namespace polyrank::examples
