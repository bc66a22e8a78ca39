// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/memory.hpp"

#include "support/files.hpp"

#include <polyrank/plan/memory.hpp>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace polyrank::examples {

using json = nlohmann::ordered_json;

namespace {

double gb(std::size_t bytes) { return static_cast<double>(bytes) / 1e9; }

state_bytes bytes_of(const memory_flags& f) {
  const double planes = static_cast<double>(f.states) * 4;
  if (f.precision == "fp32") return {.value = 4, .gradient = 4, .optimizer = planes};
  return {.value = 2, .gradient = 2, .optimizer = 4 + planes};
}

memory_question question_of(const memory_flags& f, std::size_t stage) {
  const std::size_t width = f.precision == "fp32" ? 4 : 2;
  return {.ranks = static_cast<int>(f.ranks),
          .stage = stage,
          .value = width,
          .gradient = width,
          .bf16 = f.precision == "bf16",
          .states = f.states,
          .microbatches = f.microbatches,
          .blocks = f.blocks,
          .bucket_bytes = f.bucket_mib << 20,
          .offload = f.offload == "host",
          .fraction = f.fraction,
          .activations = static_cast<std::size_t>(f.activations_gb * 1e9),
          .other = static_cast<std::size_t>(f.other_gb * 1e9)};
}

void check(const memory_flags& f) {
  expects(f.parameters >= 1 && f.parameters <= 1e15, "--parameters ", f.parameters,
          ": it must be from 1 to 1e15, such as 7.5e9");
  expects(f.ranks <= 1'000'000, "--ranks ", f.ranks, ": it must be at most 1000000");
  expects(f.offload == "host" || f.fraction == 1, "--fraction needs --offload host");
}

/// The first stage of which a rank fits, or nothing; with device memory given.
std::string verdict(const memory_flags& f, const std::vector<memory_table>& exact) {
  for (std::size_t stage = 0; stage < exact.size(); ++stage)
    if (gb(exact[stage].device()) <= f.device_gb)
      return polyrank::detail::cat("fits from stage ", stage, " on");
  return "fits at no stage; what to try, in this order:";
}

} // namespace

CLI::App* add_memory(CLI::App& app, memory_flags& f) {
  CLI::App* sub = app.add_subcommand("memory", "Memory per rank at each ZeRO stage, and what fits");
  add_common_flags(*sub, f.common);
  sub->add_option("--parameters", f.parameters, "Elements of the model, such as 7.5e9")
      ->type_name("P")
      ->required();
  sub->add_option("--ranks", f.ranks, "Data-parallel ranks N (default: 1)")
      ->type_name("N")
      ->check(positive_number());
  sub->add_option("--ranks-per-host", f.ranks_per_host, "For host memory (default: 8)")
      ->type_name("N")
      ->check(positive_number());
  sub->add_option("--precision", f.precision,
                  "bf16, fp16 or fp32 values and gradients (default: bf16)")
      ->type_name("P")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}).description(""));
  sub->add_option("--states", f.states, "Floats of optimizer state: AdamW 2, SGD 1 (default: 2)")
      ->type_name("S")
      ->check(whole_number());
  sub->add_option("--offload", f.offload, "Optimizer state: none, host (default: none)")
      ->type_name("WHERE")
      ->check(CLI::IsMember({"none", "host"}).description(""));
  sub->add_option("--fraction", f.fraction, "Of the state that --offload moves (default: 1)")
      ->type_name("F")
      ->check(fraction());
  sub->add_option("--accumulate", f.microbatches, "Microbatches in a step (default: 1)")
      ->type_name("K")
      ->check(positive_number());
  sub->add_option("--blocks", f.blocks, "Deterministic mode with L blocks (default: off)")
      ->type_name("L")
      ->check(whole_number());
  sub->add_option("--bucket-mib", f.bucket_mib, "Size of a bucket (default: 25)")
      ->type_name("MIB")
      ->check(positive_number());
  sub->add_option("--device-gb", f.device_gb, "Memory of a GPU in GB: says what fits")
      ->type_name("GB")
      ->check(CLI::NonNegativeNumber.description(""));
  sub->add_option("--activations-gb", f.activations_gb, "Activations in GB (default: 0)")
      ->type_name("GB")
      ->check(CLI::NonNegativeNumber.description(""));
  sub->add_option("--other-gb", f.other_gb, "Context, libraries and the rest in GB (default: 1)")
      ->type_name("GB")
      ->check(CLI::NonNegativeNumber.description(""));
  return sub;
}

int run_memory(const memory_flags& f) {
  check(f);
  const auto paper = paper_memory(f.parameters, static_cast<double>(f.ranks), bytes_of(f));
  const std::vector<std::size_t> counts = even_counts(static_cast<std::size_t>(f.parameters));
  std::vector<memory_table> exact;
  for (std::size_t stage = 0; stage < 3; ++stage)
    exact.push_back(plan_memory(counts, question_of(f, stage)));

  if (!f.common.quiet) {
    std::printf("%.4g parameters on %zu rank%s, %s, %zu floats of optimizer state\n\n",
                f.parameters, f.ranks, f.ranks == 1 ? "" : "s", f.precision.c_str(), f.states);
    std::printf("Model state, by formula (ZeRO paper), GB per rank\n");
    std::printf("  stage 0  nothing is sharded   %8.1f\n", paper[0] / 1e9);
    std::printf("  stage 1  optimizer state      %8.1f\n", paper[1] / 1e9);
    std::printf("  stage 2  and gradients        %8.1f\n", paper[2] / 1e9);
    std::printf("  stage 3  and parameters       %8.1f\n\n", paper[3] / 1e9);
    std::printf(
        "What sharded_optimizer allocates, GB on rank 0 (device / page-locked host)\n  %-18s", "");
    for (std::size_t stage = 0; stage < 3; ++stage) std::printf("      stage %zu     ", stage);
    std::printf("\n");
    for (std::size_t row = 0; row < exact[0].rows().size(); ++row) {
      std::printf("  %-18s", std::string(exact[0].rows()[row].what).c_str());
      for (const memory_table& t : exact)
        std::printf(" %8.2f / %-8.2f", gb(t.rows()[row].device), gb(t.rows()[row].host));
      std::printf("\n");
    }
    std::printf("  %-18s", "together");
    for (const memory_table& t : exact)
      std::printf(" %8.2f / %-8.2f", gb(t.device()), gb(t.host()));
    std::printf("\n");
    if (f.device_gb > 0) {
      std::printf("  %-18s", "free");
      for (const memory_table& t : exact)
        std::printf(" %8.2f           ", f.device_gb - gb(t.device()));
      const std::string fits = verdict(f, exact);
      std::printf("\n\n%.0f GB of device memory: %s\n", f.device_gb, fits.c_str());
      if (fits.find("no stage") != std::string::npos)
        for (const std::string& advice : what_to_try(question_of(f, 2)))
          std::printf("  %s\n", advice.c_str());
    }
    if (f.offload == "host") {
      const std::size_t per_host = std::min(f.ranks, f.ranks_per_host);
      const host_limits here = read_host_limits();
      const std::string problem = why_not(exact[2].host(), per_host, here);
      const std::string locked = about_memlock(exact[2].host(), here);
      std::printf(
          "\nHost memory at stage 2, %zu rank%s a host: %.1f GB a host. On this machine: %s%s%s\n",
          per_host, per_host == 1 ? "" : "s", gb(exact[2].host()) * static_cast<double>(per_host),
          problem.empty() ? "it can be had" : problem.c_str(),
          locked.empty() ? "" : "; page-locked: ", locked.c_str());
    }
  } else {
    std::printf("%.1f %.1f %.1f %.1f\n", paper[0] / 1e9, paper[1] / 1e9, paper[2] / 1e9,
                paper[3] / 1e9);
  }

  if (!f.common.json.empty()) {
    json out{{"parameters", f.parameters}, {"ranks", f.ranks}, {"precision", f.precision}};
    for (std::size_t stage = 0; stage < 4; ++stage) {
      json s{{"stage", stage}, {"formula_bytes", paper[stage]}};
      if (stage < exact.size()) {
        s["device_bytes"] = exact[stage].device();
        s["host_bytes"] = exact[stage].host();
        for (const memory_row& r : exact[stage].rows())
          s["rows"].push_back({{"what", r.what}, {"device", r.device}, {"host", r.host}});
      }
      out["stages"].push_back(std::move(s));
    }
    write_file(f.common.json, out.dump(1) + "\n");
  }
  return 0;
}

} // namespace polyrank::examples
