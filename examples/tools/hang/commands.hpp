// The subcommands of polyrank_hang.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace CLI {
class App;
} // namespace CLI

namespace polyrank::examples {

struct rings_flags {
  std::vector<std::filesystem::path> folders;
  std::string job, json, svg, trace;
  double deadline = 1; ///< seconds
  bool once = false, quiet = false;
};
/// Diagnoses the rings in the folders. Exit code: the verdict's, or 0.
int run_report(const rings_flags& flags);
/// Prints a line for each rank, again and again.
int run_watch(const rings_flags& flags);

struct explain_flags {
  std::string code, log;
  bool table = false;
};
/// Says what a verdict, an exit code or a message in a log means.
int run_explain(const explain_flags& flags);

struct collect_flags {
  std::vector<std::filesystem::path> folders;
  std::filesystem::path to;
  std::string job;
};
/// Copies rings, threads and GPU facts of this host to a folder; under a launcher one process a
/// host does it.
int run_collect(const collect_flags& flags);
/// Looks at the ranks of this host from outside: for jobs without flight recorders.
int run_attach(const collect_flags& flags);

struct inject_flags {
  std::string scenario, backend = "host";
  int rank = 2;
  int steps = 12;
};
/// One rank of a job in which something goes wrong. Under mpirun.
int run_inject(int argc, char** argv, const inject_flags& flags);
int run_inject_cuda(int argc, char** argv, const inject_flags& flags);

struct selftest_flags {
  int ranks = 4;
  int jobs = 1;        ///< scenarios at a time
  double deadline = 2; ///< seconds
  std::vector<std::string> only;
  std::string json, markdown, cluster, mpirun = "mpirun", backend = "host";
  bool quiet = false, list = false;
};
/// Injects each fault into a job of its own and judges the verdict. Exit code 1 if any is wrong.
int run_selftest(const selftest_flags& flags);

} // namespace polyrank::examples
