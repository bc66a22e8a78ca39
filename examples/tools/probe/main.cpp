// polyrank_probe: what is linked how, and is this machine fit to train.
// SPDX-License-Identifier: Apache-2.0
#include "job.hpp"
#include "topo.hpp"

#include "support/flags.hpp"

#include <polyrank/core/error.hpp>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

/// The command of the child that calls CUDA for us, beside this program; empty where there is none,
/// because no CUDA toolkit was there to build it.
std::vector<std::string> gpu_worker_command() {
  std::error_code code;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", code);
  const std::string path = (self.parent_path() / "polyrank_probe_gpu").string();
  if (code || access(path.c_str(), X_OK) != 0) return {};
  return {path};
}

int command(int argc, char** argv) {
  using namespace polyrank::examples;
  CLI::App app{"Shows how this machine is linked and whether it is fit to train", "polyrank_probe"};
  common_flags common;
  add_common_flags(app, common);
  app.require_subcommand(1);
  app.fallthrough();
  app.footer("Under mpirun: preflight, bandwidth, ladder, all. Exit codes: 0 ok, 1 failure, 2 "
             "usage, 10 warnings,\n"
             "20 a failed finding, 21 P2P, 22 ranks disagree, 23 no GPU. Guide: docs/probe.md");

  topo_options topo;
  CLI::App* topo_command =
      app.add_subcommand("topo", "GPUs, NICs and links of this machine or of a file");
  topo_command
      ->add_option("--from", topo.from,
                   "Read FILE: NCCL or RCCL XML, lstopo XML, nvidia-smi topo -m or -p2p, lspci "
                   "-tv, our JSON")
      ->type_name("FILE");
  topo_command
      ->add_option("--numa", topo.numa,
                   "NUMA node of a host bridge in an lspci file, such as 0000:20=1")
      ->type_name("BRIDGE=NODE");

  job_options job;
  CLI::App* preflight_command = app.add_subcommand(
      "preflight", "Checks the ranks step by step; stops at the first that fails");
  CLI::App* all_command =
      app.add_subcommand("all", "Topology, all checks, and all that bandwidth measures");
  CLI::App* bandwidth_command = app.add_subcommand(
      "bandwidth", "Bandwidth and integrity of links: ranks over MPI, host and GPU, GPUs, NCCL");
  CLI::App* ladder_command = app.add_subcommand(
      "ladder", "The same sum with 1 rank, 2, each host, all: which step fails first");
  for (CLI::App* sub : {topo_command, all_command})
    sub->add_option("--svg", topo.svg, "Draw the topology into FILE")->type_name("FILE");
  for (CLI::App* sub : {all_command, bandwidth_command})
    sub->add_option("--cost-model", job.cost_model,
                    "Write the cost model of the measured links into FILE")
        ->type_name("FILE");
  for (CLI::App* sub : {preflight_command, all_command}) {
    sub->add_option("--memory", job.memory_gib, "Free memory that each rank needs on its GPU")
        ->type_name("GIB")
        ->check(CLI::Range(0.0, 1e6));
    sub->add_option("--data", job.data, "Read DIR by all ranks at once")->type_name("DIR");
    sub->add_option("--tcp-port", job.tcp_port,
                    "Test TCP at P + local rank (default: any free port)")
        ->type_name("P")
        ->check(CLI::Range(1, 64000));
  }
  int timeout = 60;
  for (CLI::App* sub : {preflight_command, all_command, bandwidth_command, ladder_command})
    sub->add_option("--timeout", timeout, "Give up a step after S seconds")
        ->type_name("S")
        ->check(CLI::Range(1, 86400))
        ->capture_default_str();

  std::string before, after;
  CLI::App* diff_command =
      app.add_subcommand("diff", "What changed between two descriptions of a machine");
  diff_command->add_option("A", before, "Before")->required();
  diff_command->add_option("B", after, "After")->required();

  launch_options launch;
  CLI::App* launch_command = app.add_subcommand(
      "launch-line", "The command that starts ranks on machines like this one, explained");
  launch_command->add_option("--from", launch.from, "The machine of FILE instead of this one")
      ->type_name("FILE");
  launch_command->add_option("--hosts", launch.hosts, "Number of hosts")
      ->type_name("H")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  launch_command
      ->add_option("--ranks-per-host", launch.ranks, "Ranks on each (default: one per GPU)")
      ->type_name("R")
      ->check(CLI::Range(1, 4096));
  launch_command->add_option("--launcher", launch.launcher, "mpirun, srun or both")
      ->check(CLI::IsMember({"mpirun", "srun", "both"}))
      ->capture_default_str();
  launch_command->add_option("--program", launch.program, "What to start")->capture_default_str();

  std::string code;
  CLI::App* explain_command = app.add_subcommand(
      "explain", "What a finding means and what to do; without CODE the table of all");
  explain_command->add_option("CODE", code, "Such as port_blocked");

  for (CLI::App* sub : app.get_subcommands({}))
    sub->set_help_flag("--help", "Print this text and exit");
  if (const auto end = parse_flags(app, argc, argv)) return *end;
  if (*topo_command) {
    topo.json = common.json;
    topo.quiet = common.quiet;
    topo.gpu_worker = gpu_worker_command();
    return run_topo(topo);
  }
  if (*diff_command) return run_diff(before, after, common.json, common.quiet);
  if (*launch_command) return run_launch_line(launch);
  if (*explain_command) return run_explain(code);
  job.command = *all_command         ? job_options::what::all
                : *ladder_command    ? job_options::what::ladder
                : *bandwidth_command ? job_options::what::bandwidth
                                     : job_options::what::preflight;
  job.json = common.json;
  job.quiet = common.quiet;
  job.svg = topo.svg;
  job.timeout = std::chrono::seconds(timeout);
  job.gpu_worker = gpu_worker_command();
  return run_job(argc, argv, job);
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
