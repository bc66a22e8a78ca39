// polyrank_hang: says why a distributed job does not move.
//
//     polyrank_hang report /dev/shm            # the rings of a job that hangs or is dead
//     polyrank_hang watch /dev/shm
//     polyrank_hang explain 82
//     polyrank_hang explain --log nccl.log
//     polyrank_hang selftest
//
// SPDX-License-Identifier: Apache-2.0
#include "tools/hang/commands.hpp"

#include "support/flags.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/core/version.hpp>
#include <polyrank/hang/ring.hpp>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

using namespace polyrank::examples;

int main(int argc, char** argv) {
  CLI::App app{"Says why a distributed job does not move", "polyrank_hang"};
  app.set_help_flag("--help", "Print this text and exit");
  app.set_version_flag("--version", "polyrank_hang " POLYRANK_VERSION_STRING,
                       "Print the version and exit");
  app.require_subcommand(1);

  rings_flags rings;
  const auto add_rings = [&](const char* name, const char* text) {
    CLI::App* c = app.add_subcommand(name, text);
    c->set_help_flag("--help", "Print this text and exit");
    c->add_option("DIR", rings.folders,
                  "Folders with rings (default: POLYRANK_HANG_DIR, /dev/shm)");
    c->add_option("--job", rings.job, "Look at this job only")->type_name("NAME");
    c->add_option("--deadline", rings.deadline, "Seconds without a move that count as a hang")
        ->type_name("S");
    return c;
  };
  CLI::App* report =
      add_rings("report", "Diagnose the flight recorders in DIR, of live or dead jobs");
  report->add_option("--json", rings.json, "Write the verdict to FILE")->type_name("FILE");
  report->add_option("--svg", rings.svg, "Draw who waits for whom")->type_name("FILE");
  report->add_option("--trace", rings.trace, "Write all recorded operations as a Chrome trace")
      ->type_name("FILE");
  report->add_flag("--quiet", rings.quiet, "Print the headline only");
  CLI::App* watch = add_rings("watch", "Show each rank's state, again and again");
  watch->add_flag("--once", rings.once, "Show it once and exit");

  collect_flags collect;
  CLI::App* gather = app.add_subcommand(
      "collect", "Copy rings, threads and GPU facts of each host, under mpirun or srun");
  gather->set_help_flag("--help", "Print this text and exit");
  gather->add_option("DIR", collect.folders, "Folders with rings");
  gather->add_option("--to", collect.to, "A folder that all hosts share")
      ->required()
      ->type_name("DIR");
  CLI::App* attach = app.add_subcommand("attach", "Look at ranks of this host that record nothing");
  attach->set_help_flag("--help", "Print this text and exit");
  for (CLI::App* c : {gather, attach})
    c->add_option("--job", collect.job, "This job only")->type_name("NAME");

  explain_flags explain;
  CLI::App* say =
      app.add_subcommand("explain", "Say what a verdict, exit code or NCCL message means");
  say->set_help_flag("--help", "Print this text and exit");
  say->add_option("CODE", explain.code, "An exit code (80-88) or the name of a verdict");
  say->add_option("--log", explain.log, "Look for known messages in FILE (- is stdin)")
      ->type_name("FILE");
  say->add_flag("--table", explain.table, "Print all verdicts as a table");

  inject_flags inject;
  CLI::App* fault =
      app.add_subcommand("inject", "Run a job with a fault, under mpirun; see selftest");
  fault->set_help_flag("--help", "Print this text and exit");
  fault->add_option("SCENARIO", inject.scenario, "What goes wrong")->required();
  fault->add_option("--rank", inject.rank, "The rank at fault")->type_name("R");
  fault->add_option("--steps", inject.steps, "Steps of the job")->type_name("S");
  fault->add_option("--backend", inject.backend, "host (default) or cuda");
  add_guard_flags(*fault);

  selftest_flags self;
  CLI::App* test = app.add_subcommand("selftest", "Inject each fault and judge the verdict");
  test->set_help_flag("--help", "Print this text and exit");
  test->add_option("--ranks", self.ranks, "Ranks of each job (default 4)")
      ->check(positive_number())
      ->type_name("N");
  test->add_option("--deadline", self.deadline, "POLYRANK_HANG_DEADLINE of the jobs (default 2)")
      ->type_name("S");
  test->add_option("--jobs", self.jobs, "Scenarios at a time (default 1); most of them wait")
      ->check(positive_number())
      ->type_name("N");
  test->add_option("--only", self.only, "These scenarios only")
      ->type_name("NAME,...")
      ->delimiter(',');
  test->add_option("--cluster", self.cluster,
                   "Run them on two hosts by this script (scripts/fake_cluster.sh)")
      ->type_name("FILE");
  test->add_option("--mpirun", self.mpirun, "The launcher")->type_name("FILE");
  test->add_option("--backend", self.backend,
                   "host (default), or cuda: ranks with NCCL, which may share a GPU");
  test->add_option("--json", self.json, "Write the results to FILE")->type_name("FILE");
  test->add_option("--markdown", self.markdown, "Write them as a table to FILE")->type_name("FILE");
  test->add_flag("--quiet", self.quiet, "Print failures and the last line only");
  test->add_flag("--list", self.list, "Print the names of the scenarios and exit");

  if (const auto code = parse_flags(app, argc, argv)) return *code;
  try {
    if (collect.folders.empty()) collect.folders.push_back(polyrank::hang::default_folder());
    if (gather->parsed()) return run_collect(collect);
    if (attach->parsed()) return run_attach(collect);
    if (rings.folders.empty()) rings.folders.push_back(polyrank::hang::default_folder());
    if (report->parsed()) return run_report(rings);
    if (watch->parsed()) return run_watch(rings);
    if (say->parsed()) return run_explain(explain);
    if (fault->parsed()) return run_inject(argc, argv, inject);
    return run_selftest(self);
  } catch (const polyrank::usage_error& e) {
    std::fprintf(stderr, "polyrank_hang: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "polyrank_hang: %s\n", e.what());
    return 1;
  }
}
