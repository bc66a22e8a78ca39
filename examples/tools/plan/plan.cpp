// polyrank_plan: answers questions about a training job before it runs.
//
//     polyrank_plan schedule --compare --stages 4 --microbatches 8
//     polyrank_plan memory --parameters 7.5e9 --ranks 64
//
// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/memory.hpp"
#include "tools/plan/schedule.hpp"

#include "support/flags.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/core/version.hpp>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

using namespace polyrank::examples;

int main(int argc, char** argv) {
  CLI::App app{"Plans a training job: schedules of pipelines, their time and memory",
               "polyrank_plan"};
  app.set_help_flag("--help", "Print this text and exit");
  app.set_version_flag("--version", "polyrank_plan " POLYRANK_VERSION_STRING,
                       "Print the version and exit");
  app.require_subcommand(1);
  schedule_flags flags;
  add_schedule(app, flags);
  memory_flags memory;
  const CLI::App* memory_command = add_memory(app, memory);
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  try {
    return memory_command->parsed() ? run_memory(memory) : run_schedule(flags);
  } catch (const polyrank::usage_error& e) {
    std::fprintf(stderr, "polyrank_plan: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "polyrank_plan: %s\n", e.what());
    return 1;
  }
}
