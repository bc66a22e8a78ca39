// polyrank_probe: what is linked how, and is this machine fit to train.
// SPDX-License-Identifier: Apache-2.0
#include "topo.hpp"

#include "support/flags.hpp"

#include <polyrank/core/error.hpp>

#include <CLI/CLI.hpp>

#include <cstdio>

namespace {

int command(int argc, char** argv) {
  using namespace polyrank::examples;
  CLI::App app{"Shows how this machine is linked and whether it is fit to train", "polyrank_probe"};
  common_flags common;
  add_common_flags(app, common);
  app.require_subcommand(1);
  app.fallthrough();
  app.footer("Exit codes: 0 ok, 1 failure, 2 usage, 10 warnings, 20 a failed finding, 21 P2P, "
             "22 ranks disagree, 23 no GPU. Guide: docs/probe.md");

  topo_options topo;
  CLI::App* topo_command =
      app.add_subcommand("topo", "GPUs, NICs and links of this machine or of a file");
  topo_command
      ->add_option("--from", topo.from,
                   "Read FILE: NCCL or RCCL XML, lstopo XML, nvidia-smi topo "
                   "-m or -p2p, lspci -tv, our JSON")
      ->required()
      ->type_name("FILE");
  topo_command
      ->add_option("--numa", topo.numa,
                   "NUMA node of a host bridge in an lspci file, such as 0000:20=1")
      ->type_name("BRIDGE=NODE");
  topo_command->add_option("--svg", topo.svg, "Draw the topology into FILE")->type_name("FILE");

  std::string before, after;
  CLI::App* diff_command =
      app.add_subcommand("diff", "What changed between two descriptions of a machine");
  diff_command->add_option("A", before, "Before")->required();
  diff_command->add_option("B", after, "After")->required();

  for (CLI::App* sub : {topo_command, diff_command})
    sub->set_help_flag("--help", "Print this text and exit");
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  topo.json = common.json;
  topo.quiet = common.quiet;
  if (*topo_command) return run_topo(topo);
  return run_diff(before, after, common.json, common.quiet);
}

} // namespace

int main(int argc, char** argv) {
  try {
    return command(argc, argv);
  } catch (const polyrank::usage_error& e) {
    std::fprintf(stderr, "polyrank_probe: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "polyrank_probe: %s\n", e.what());
    return 1;
  }
}
