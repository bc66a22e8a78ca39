// SPDX-License-Identifier: Apache-2.0
#include "train_classifier/config.hpp"

#include <polyrank/core/text.hpp>

#include <CLI/CLI.hpp>

namespace polyrank::examples {

namespace {

/// Refuses what no stage of the library is, with the reason.
std::string check_zero(const std::string& text) {
  if (text == "0" || text == "1" || text == "2") return {};
  if (text == "3")
    return "stage 3 shards the weights too, which this program does not do; take 0, 1 (optimizer "
           "state) or 2 (and gradients)";
  return "'" + text +
         "' is no stage; take 0 (nothing is sharded), 1 (optimizer state) or 2 (and gradients)";
}

std::string check_offload(const std::string& text) {
  if (text == "none" || text == "host") return {};
  if (text == "disk")
    return "state goes to host memory (host) or stays (none); a disk of 7 GB/s would take 4 s a "
           "step "
           "for 1e9 parameters (28 bytes each), so this program has no such path";
  return "'" + text + "' is no place; take none or host";
}

std::string check_positive(const std::string& text) {
  double x = 0;
  return CLI::detail::lexical_cast(text, x) && x > 0 && x < 1e30
             ? std::string()
             : "'" + text + "' is no positive number";
}

void add_sharding_flags(CLI::App& app, config& c, std::size_t& zero) {
  app.add_option("--zero", zero, "ZeRO stage: 0, 1 or 2")
      ->type_name("S")
      ->check(CLI::Validator(check_zero, ""));
  auto* offload = app.add_option("--offload", c.offload, "Optimizer state: none, host")
                      ->type_name("WHERE")
                      ->check(CLI::Validator(check_offload, ""));
  app.add_option("--fraction", c.fraction, "Of the state that --offload moves; default 1")
      ->type_name("F")
      ->check(fraction())
      ->needs(offload);
  auto* accumulate =
      app.add_option("--accumulate", c.accumulate, "Microbatches of a rank in a step; default 1")
          ->type_name("K")
          ->check(positive_number());
  accumulate->excludes("--deterministic");
  app.add_option("--clip", c.clip, "Clip the norm of the gradient to X")
      ->type_name("X")
      ->check(CLI::Validator(check_positive, ""));
  auto* fit = app.add_flag("--fit", c.fit, "Find the largest micro-batch that fits, and end");
  for (const char* other : {"--batch", "--steps", "--epochs"}) fit->excludes(other);
  app.add_option("--memory-limit", c.memory_limit, "Of a rank, for --fit; default: what is free")
      ->type_name("MIB")
      ->check(positive_number())
      ->needs(fit);
  app.add_option("--optimizer", c.optimizer, "adamw, sgd or lion; default adamw")
      ->type_name("O")
      ->check(CLI::IsMember({"adamw", "sgd", "lion"}).description(""));
}

void add_checkpoint_flags(CLI::App& app, config& c) {
  auto* directory =
      app.add_option("--checkpoint", c.checkpoint, "Save the whole state in DIR")->type_name("DIR");
  app.add_option("--save-every", c.save_every, "Save every S steps, not only the last")
      ->type_name("S")
      ->check(positive_number())
      ->needs(directory);
  app.add_option("--keep", c.keep, "Checkpoints that stay; default 2")
      ->type_name("K")
      ->check(positive_number())
      ->needs(directory);
  app.add_flag("--resume", c.resume, "Go on from the newest checkpoint in DIR")->needs(directory);
  app.add_option("--init", c.init, "First weights from a safetensors file")->type_name("FILE");
}

void add_pipeline_flags(CLI::App& app, config& c) {
  auto* pipeline =
      app.add_option("--pipeline", c.pipeline, "Cut the layers over p ranks (times replicas)")
          ->type_name("p")
          ->check(positive_number());
  pipeline->excludes("--fit");
  app.add_option("--schedule", c.schedule, "gpipe 1f1b interleaved bfs zb_h1 ...; default 1f1b")
      ->type_name("NAME")
      ->needs(pipeline);
  app.add_option("--microbatches", c.microbatches, "Of a replica in a step; default 2p")
      ->type_name("m")
      ->check(positive_number())
      ->needs(pipeline);
  app.add_option("--chunks", c.chunks, "Stages per rank; default 2 where it may be")
      ->type_name("v")
      ->check(positive_number())
      ->needs(pipeline);
  app.add_option("--svg", c.svg, "Draw a step, predicted over measured, to FILE")
      ->type_name("FILE")
      ->needs(pipeline);
}

} // namespace

std::variant<config, int> parse_config(int argc, char** argv) {
  config c;
  CLI::App app("Trains a classifier of small pictures, data-parallel over all ranks of mpirun.",
               "train_classifier");
  std::size_t steps = 0, workers = 0, zero = 0;
  app.add_option("--data", c.data, "Fashion-MNIST (IDX) or digits.csv.gz")->type_name("DIR");
  auto* out =
      app.add_option("--out", c.out, "Write curves, predictions, metrics to DIR")->type_name("DIR");
  app.add_option("--epochs", c.epochs, "Passes over the data; default 10")
      ->type_name("E")
      ->check(positive_number());
  auto* steps_flag = app.add_option("--steps", steps, "Stop after S steps; the rate aims at E")
                         ->type_name("S")
                         ->check(positive_number());
  app.add_option("--batch", c.batch, "Per step, all ranks; default 512 (digits: 64)")
      ->type_name("B")
      ->check(positive_number());
  app.add_option("--hidden", c.hidden, "Hidden layers; default 256,128")
      ->type_name("W1,W2")
      ->delimiter(',')
      ->check(positive_number());
  app.add_option("--seed", c.seed, "Of weights and order; default 1")
      ->type_name("N")
      ->check(whole_number());
  auto* deterministic =
      app.add_flag("--deterministic", c.deterministic, "Same bits for any number of ranks");
  app.add_option("--blocks", c.blocks, "Blocks of a deterministic step; default 8")
      ->type_name("L")
      ->check(positive_number())
      ->needs(deterministic);
  app.add_flag("--digest", c.digest, "Print a hash of weights and optimizer state");
  app.add_option("--digest-every", c.digest_every, "Hashes of every tensor to DIR, every K steps")
      ->type_name("K")
      ->check(positive_number())
      ->needs(out);
  add_checkpoint_flags(app, c);
  auto* workers_flag = app.add_option("--workers", workers, "Loader threads per rank; 0: none")
                           ->type_name("W")
                           ->check(whole_number());
  app.add_option("--backend", c.backend, "auto, host or cuda; default auto")
      ->type_name("NAME")
      ->check(CLI::IsMember({"auto", "host", "cuda"}).description(""));
  app.add_option("--precision", c.precision,
                 "fp32, bf16, fp16 (see the guide to ZeRO); default fp32")
      ->type_name("P")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}).description(""));
  app.add_option("--trace", c.trace, "Write a Chrome trace of a few steps to FILE")
      ->type_name("FILE");
  add_sharding_flags(app, c, zero);
  add_pipeline_flags(app, c);
  add_guard_flags(app);
  add_common_flags(app, c.common);
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  if (app.count("--zero") > 0) c.zero = zero;
  if (steps_flag->count() > 0) c.steps = steps;
  if (workers_flag->count() > 0) c.workers = workers;
  if (c.microbatches == 0) c.microbatches = 2 * c.pipeline;
  return c;
}

void settle(config& c, const std::string& data_directory, std::size_t training_pictures) {
  c.data = data_directory;
  if (c.batch == 0) c.batch = training_pictures < 10'000 ? 64 : 512;
}

std::string describe(const config& c) {
  std::string text = detail::cat("epochs ", c.epochs, ", steps ", c.steps.value_or(0), ", batch ",
                                 c.batch, ", seed ", c.seed, ", hidden");
  for (const std::size_t h : c.hidden) text += detail::cat(" ", h);
  return text + detail::cat(", deterministic ", c.deterministic, ", blocks ", c.blocks,
                            ", backend ", c.backend, ", precision ", c.precision, ", zero ",
                            c.zero ? detail::cat(*c.zero) : "none", ", offload ", c.offload,
                            ", fraction ", c.fraction, ", accumulate ", c.accumulate, ", clip ",
                            c.clip, ", optimizer ", c.optimizer, ", fit ", c.fit, ", memory-limit ",
                            c.memory_limit, ", checkpoint ", c.checkpoint, ", save-every ",
                            c.save_every, ", keep ", c.keep, ", digest-every ", c.digest_every,
                            ", resume ", c.resume, ", init ", c.init, ", pipeline ", c.pipeline,
                            ", schedule ", c.schedule, ", microbatches ", c.microbatches,
                            ", chunks ", c.chunks, ", svg ", c.svg);
}

} // namespace polyrank::examples
