// Trains a classifier of product photos on all ranks of mpirun:
//
//     mpirun -n 4 build/bin/train_classifier --out run --json run/result.json
//
// The parallel part is trainer.hpp; here are flags, start-up lines, results and files.
// SPDX-License-Identifier: Apache-2.0
#include "support/files.hpp"
#include "support/progress.hpp"
#include "train_classifier/checkpoint.hpp"
#include "train_classifier/config.hpp"
#include "train_classifier/dataset.hpp"
#include "train_classifier/fit.hpp"
#include "train_classifier/gemm.hpp"
#include "train_classifier/host_ops.hpp"
#include "train_classifier/pipeline.hpp"
#include "train_classifier/report.hpp"
#include "train_classifier/tracing.hpp"
#include "train_classifier/train_cuda.hpp"
#include "train_classifier/trainer.hpp"

#include <polyrank/backend/agree.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/hash.hpp>
#include <polyrank/core/partition.hpp>
#include <polyrank/core/version.hpp>
#include <polyrank/launch/run.hpp>
#include <polyrank/launch/save_request.hpp>
#include <polyrank/plan/memory.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>

using namespace polyrank;
using namespace polyrank::examples;

namespace {

/// Reads the data set on every rank; if a rank cannot, or reads something else, all of them learn
/// it and one says so.
dataset load_everywhere(host::communicator& comm, const std::filesystem::path& where) {
  dataset d;
  std::string failure;
  try {
    d = load_dataset(where);
  } catch (const std::exception& e) {
    failure = e.what();
  }
  const std::vector<std::string> all = comm.control().all_gather(failure);
  for (std::size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty())
      throw on_every_rank(data_error(r == 0 ? all[0] : detail::cat("rank ", r, ": ", all[r])));
  std::string content;
  for (const labelled_images* part : {&d.train, &d.validation, &d.test})
    content += detail::cat(d.name, " of ", part->count(), " pictures with the hash ",
                           hex16(hash_bytes(part->labels.data(), part->labels.size(),
                                            hash_bytes(part->pixels.data(), part->pixels.size()))),
                           '\n');
  agree(comm.control(), "the ranks read different data", content);
  return d;
}

void say_start(launch::world& world, const config& c, const dataset& d, const step_plan& plan,
               std::size_t workers, const std::string& backend) {
  const mlp_shape shape{d.train.features(), c.hidden, d.train.classes};
  std::printf("train_classifier %s\n", POLYRANK_VERSION_STRING);
  std::printf("backend  %s\n", backend.c_str());
  std::printf("ranks    %d on %d host%s%s\n", world.size(), world.hosts(),
              world.hosts() == 1 ? "" : "s",
              world.launcher() ? "" : "; started without mpirun (mpirun -n N runs N ranks)");
  std::printf("data     %s from %s: %zu training, %zu validation, %zu test pictures of %zux%zu\n",
              d.name.c_str(), d.where.c_str(), d.train.count(), d.validation.count(),
              d.test.count(), d.train.rows, d.train.columns);
  std::printf("model    %s, %zu parameters, seed %llu\n", shape.text().c_str(),
              parameter_count(shape), static_cast<unsigned long long>(c.seed));
  std::printf(
      "batch    %zu = %zu %s%s x %zu; %zu steps (%zu an epoch), %zu loader thread%s a rank\n",
      c.batch, c.batch / plan.rows_per_rank(), c.pipeline > 0 ? "replica" : "rank",
      c.batch == plan.rows_per_rank() ? "" : "s", plan.rows_per_rank(), plan.steps,
      plan.steps_per_epoch, workers, workers == 1 ? "" : "s");
  if (c.pipeline > 0)
    std::printf("mode     pipeline of %zu ranks, %s, %zu replica%s, %zu microbatches of %zu\n",
                c.pipeline, c.schedule.c_str(), plan.blocks / c.microbatches,
                plan.blocks == c.microbatches ? "" : "s", c.microbatches, plan.rows_per_block);
  if (c.deterministic)
    std::printf("mode     deterministic: %zu blocks of %zu pictures a step, %zu on each rank\n",
                plan.blocks, plan.rows_per_block, plan.blocks_per_rank);
  std::fflush(stdout);
}

/// What a run is like, for the planner's advice.
memory_question question_of(const config& c, int ranks) {
  const std::size_t width = c.sharded() && c.precision != "fp32" ? 2 : 4;
  return {.ranks = ranks,
          .stage = c.zero.value_or(0),
          .value = width,
          .gradient = width,
          .microbatches = c.accumulate,
          .offload = c.offload == "host"};
}

std::string advice(const config& c, int ranks) {
  std::string text = "to go further, in this order:";
  std::size_t number = 0;
  for (const std::string& what : what_to_try(question_of(c, ranks)))
    text += detail::cat(++number == 1 ? " " : "; ", number, ". ", what);
  return text;
}

/// --fit. `run` trains with a configuration; `memory` tells what is in use. @collective
int find_fit(launch::world& world, const config& c, const dataset& data, bool on_cuda,
             const std::function<training_result(const config&, const train_options&)>& run,
             const std::function<memory_state()>& memory,
             const std::function<void(const std::string&)>& abort) {
  const auto ranks = static_cast<std::size_t>(world.size());
  if (world.hosts() > 1 && c.checkpoint.empty())
    throw on_every_rank(usage_error("--fit saves too: on several hosts give it a --checkpoint "
                                    "directory that all of them see"));
  host::communicator comm = world.communicator();
  const std::string number = comm.control().all_gather(detail::cat(getpid()))[0];
  const std::filesystem::path scratch =
      (c.checkpoint.empty() ? std::filesystem::temp_directory_path()
                            : std::filesystem::path(c.checkpoint)) /
      ("polyrank-fit-" + number);
  const std::size_t blocks = c.deterministic ? c.blocks : ranks * c.accumulate;
  const memory_state at_start = memory();
  const std::size_t share =
      at_start.free / (on_cuda ? 1 : static_cast<std::size_t>(world.local_size()));
  const std::size_t limit = c.memory_limit > 0 ? c.memory_limit << 20 : at_start.used + share;

  const auto attempt = [&](std::size_t micro_batch) {
    config t = c;
    t.batch = micro_batch * blocks;
    t.epochs = ceil_div(fit_steps * t.batch, data.train.count() - data.train.count() % t.batch);
    t.steps = fit_steps;
    t.checkpoint = scratch;
    t.resume = false;
    fit_trial trial{.micro_batch = micro_batch};
    std::size_t early = 0;
    train_options options{.workers = 1};
    options.watch = [&](std::size_t steps) {
      const std::size_t used = memory().used;
      trial.bytes = std::max(trial.bytes, used);
      if (steps == 5) early = used;
      if (steps == fit_steps) trial.why = growth(early, used);
    };
    bool lost = false; // the ranks cannot talk any more
    try {
      const training_result r = run(t, options);
      if (!r.save_error.empty()) trial.why = r.save_error;
    } catch (const usage_error&) {
      throw;
    } catch (const error& e) {
      if (!on_cuda) throw;
      trial.why = e.what();
      lost = ranks > 1;
      if (lost) abort(trial.why);
    }
    if (!lost) { // the rank with the most speaks for all
      trial.bytes = static_cast<std::size_t>(
          comm.control().all_reduce_max(static_cast<std::int64_t>(trial.bytes)));
      for (const std::string& why : comm.control().all_gather(trial.why))
        if (trial.why.empty()) trial.why = why;
      if (world.rank() == 0) {
        std::error_code ignored;
        std::filesystem::remove_all(scratch, ignored);
      }
      comm.control().barrier(std::chrono::minutes(5));
    }
    return trial;
  };
  const std::size_t most = data.train.count() / blocks;
  const std::int64_t agreed = -comm.control().all_reduce_max(-static_cast<std::int64_t>(limit));
  const fit_result r = fit_micro_batch(most, static_cast<std::size_t>(agreed), !on_cuda, attempt,
                                       [&](const fit_trial& t) {
                                         if (world.rank() != 0 || c.common.quiet) return;
                                         std::printf("%s\n", fit_text(t).c_str());
                                         std::fflush(stdout);
                                       });
  if (world.rank() != 0) return r.best > 0 ? 0 : 1;
  std::error_code ignored;
  std::filesystem::remove_all(scratch, ignored); // of a trial after which the ranks could not talk
  const fit_trial& last = r.trials.back();
  if (r.best == 0)
    std::printf("fit      no micro-batch fits\n");
  else
    std::printf("fit      largest micro-batch %zu: --batch %zu (%zu x %zu)%s\n", r.best,
                r.best * blocks, blocks, r.best,
                last.why.empty() ? ", as many pictures as there are" : "");
  if (!last.why.empty()) std::printf("fit      %s\n", advice(c, world.size()).c_str());
  if (!c.common.json.empty()) write_file(c.common.json, fit_json(r, r.best * blocks));
  std::fflush(stdout);
  return r.best > 0 ? 0 : 1;
}

void say_result(const training_result& r, const config& c) {
  std::printf("result   loss %.4f  accuracy: training %.4f, validation %.4f, test %.4f\n",
              static_cast<double>(r.final_loss), r.train.accuracy, r.final_validation.accuracy,
              r.test.accuracy);
  std::printf("speed    %.0f samples/s", r.samples_per_second);
  // A sharded optimizer waits for nothing here: the next forward pass waits, layer by layer.
  if (!c.sharded() && c.pipeline == 0)
    std::printf(", %.2f ms a step waiting for gradients", r.communication_ms);
  std::printf("\n");
  if (r.trace) std::printf("trace    %s: %s\n", c.trace.c_str(), describe(*r.trace).c_str());
}

int body(launch::world& world, config c, launch::save_request* stop) {
  const bool speaks = world.rank() == 0, talks = speaks && !c.common.quiet;
  for (const std::string& warning : world.warnings())
    if (!c.common.quiet)
      std::fprintf(stderr, "[%s] warning: %s\n", world.label().c_str(), warning.c_str());
  host::communicator comm = world.communicator();
  agree(comm.control(), "the ranks were started with different flags", describe(c));
  const dataset data = load_everywhere(comm, c.data.empty() ? default_data_directory()
                                                            : std::filesystem::path(c.data));
  settle(c, data.where.string(), data.train.count());
  if (c.fit) // from the smallest
    c.batch = c.deterministic ? c.blocks : static_cast<std::size_t>(world.size()) * c.accumulate;
  // CUDA if it is asked for, or if all ranks can use it; else why not.
  const std::string no_cuda = c.backend == "host" ? "as asked for" : cuda_training::refusal(world);
  const bool on_cuda = c.backend != "host" && no_cuda.empty();
  if (c.backend == "cuda" && !on_cuda)
    throw on_every_rank(
        error(detail::cat("--backend cuda: ", no_cuda, "; --backend host trains on the CPU")));
  if (c.pipeline > 0)
    check_pipeline(c, static_cast<std::size_t>(world.size()), c.hidden.size() + 1);
  if (!on_cuda && c.precision != "fp32" && !c.sharded())
    throw on_every_rank(usage_error(detail::cat(
        "--precision ", c.precision,
        " needs the CUDA backend (or --zero 0, 1 or 2), but this is the host backend: ", no_cuda)));
  if (c.sharded() && c.precision != "fp32" && c.optimizer != "adamw")
    throw on_every_rank(
        usage_error(detail::cat("--precision ", c.precision, " with --optimizer ", c.optimizer,
                                ": 16-bit weights are trained with "
                                "adamw here; take it, or --precision fp32")));
  const step_plan plan = plan_steps(c, static_cast<std::size_t>(world.size()), data.train.count());
  const std::size_t workers =
      c.workers.value_or(default_workers(static_cast<std::size_t>(launch::usable_cpus()),
                                         static_cast<std::size_t>(world.local_size())));
  std::unique_ptr<cuda_training> gpu;
  if (on_cuda) gpu = std::make_unique<cuda_training>(world, c);
  if (talks)
    say_start(world, c, data, plan, workers,
              on_cuda
                  ? detail::cat("cuda (", gpu->text(), ")",
                                gpu->precision() != c.precision ? ": this card has no bf16" : "")
                  : detail::cat("host (", gemm_library(), "): ", no_cuda));

  if (talks && c.sharded() && c.pipeline == 0)
    std::printf("zero     stage %zu, %s, weights in %s\n", c.zero.value_or(0),
                c.offload == "host" ? "state in host memory" : "state beside the weights",
                c.precision.c_str());
  host_ops plain;
  const auto run = [&](const config& of_run, const train_options& o) {
    if (on_cuda) return gpu->run(of_run, data, o);
    if (of_run.pipeline > 0) return train_pipelined(comm, plain, of_run, data, o);
    if (of_run.trace.empty()) return train(comm, plain, of_run, data, o);
    host::timeline spans;
    host_ops ops(spans, trace_window::of(plan.steps));
    return with_trace(comm, spans, of_run.trace, [&] { return train(comm, ops, of_run, data, o); });
  };
  if (c.fit)
    return find_fit(
        world, c, data, on_cuda, run, [&] { return on_cuda ? gpu->memory() : host_ops::memory(); },
        [&](const std::string& cause) { gpu->abort(cause); });
  progress line({.total = plan.steps, .enabled = talks});
  train_options options{.workers = workers, .line = speaks ? &line : nullptr, .ring = world.ring()};
  // Where the job is watched, the watchdog hears the signal first.
  if (stop != nullptr) options.stop = [&] { return world.save_requested() || stop->pending(); };
  if (speaks)
    options.say = [&](const std::string& text, bool problem) {
      if (!problem && !talks) return;
      line.end();
      if (problem)
        std::fprintf(stderr, "[%s] warning: %s\n", world.label().c_str(), text.c_str());
      else
        std::printf("%s\n", text.c_str());
      std::fflush(stdout);
    };
  const training_result result = [&] {
    try {
      return run(c, options);
    } catch (const out_of_memory& e) {
      throw error(detail::cat(e.what(), "; ", advice(c, world.size())));
    }
  }();
  const auto judge_saves = [&result] {
    if (!result.save_error.empty())
      throw on_every_rank(
          data_error(detail::cat("the last checkpoint was not saved: ", result.save_error)));
  };
  constexpr int requeue = 75;
  if (!speaks || result.stopped) judge_saves();
  if (!speaks) return result.stopped ? requeue : 0;

  line.end();
  if (result.stopped) {
    std::fprintf(stderr,
                 "[%s] asked to stop: saved in %s; the same command with --resume goes on\n",
                 world.label().c_str(), c.checkpoint.c_str());
    return requeue;
  }
  const run_facts facts{.backend = on_cuda ? "cuda" : "host",
                        .ranks = static_cast<std::size_t>(world.size()),
                        .wire_bytes =
                            world.engine().bytes_sent() + (on_cuda ? gpu->wire_bytes() : 0)};
  if (talks) say_result(result, c);
  const auto wrote = [talks](const std::filesystem::path& path) {
    if (talks) std::printf("wrote    %s\n", path.c_str());
  };
  for (const std::string& picture : {c.svg, c.pipeline > 0 ? c.trace : std::string()})
    if (!picture.empty()) wrote(picture);
  if (!c.out.empty()) {
    const std::filesystem::path out = c.out;
    write_file(out / "learning_curve.svg", learning_curve(result, data));
    wrote(out / "learning_curve.svg");
    write_file(out / "predictions.svg", contact_sheet(result.test, data));
    wrote(out / "predictions.svg");
    write_file(out / "metrics.csv", metrics_csv(result, c));
    wrote(out / "metrics.csv");
  }
  if (!c.checkpoint.empty()) {
    const std::filesystem::path weights = std::filesystem::path(c.checkpoint) / "model.safetensors";
    save_weights(weights, parameters_of({data.train.features(), c.hidden, data.train.classes}),
                 result.parameters);
    wrote(weights);
  }
  if (!c.common.json.empty()) {
    write_file(c.common.json, result_json(result, c, data, facts));
    wrote(c.common.json);
  }
  if (c.digest) std::printf("digest=%s\n", hex16(result.digest).c_str());
  if (c.common.quiet && !c.digest)
    std::printf("val_accuracy=%.4f test_accuracy=%.4f samples_per_second=%.0f\n",
                result.final_validation.accuracy, result.test.accuracy, result.samples_per_second);
  std::fflush(stdout);
  judge_saves();
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  const auto parsed = parse_config(argc, argv);
  if (const int* code = std::get_if<int>(&parsed)) return *code;
  const config& c = std::get<config>(parsed);
  std::optional<launch::save_request> stop; // before any thread is started
  if (!c.checkpoint.empty()) stop.emplace();
  return launch::run(argc, argv,
                     [&](launch::world& world) { return body(world, c, stop ? &*stop : nullptr); });
}
