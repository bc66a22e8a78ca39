// The commands that need one process only: topo, diff, launch-line, explain.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/report.hpp>

#include <map>
#include <string>
#include <vector>

namespace polyrank::examples {

struct topo_options {
  std::string from;              ///< a file; empty: this machine
  std::vector<std::string> numa; ///< "0000:20=1", for lspci files
  std::string svg, json;
  bool quiet = false;
  std::vector<std::string> gpu_worker; ///< asks CUDA; empty: built without
};

struct launch_options {
  std::string from; ///< a file; empty: this machine
  int hosts = 1, ranks = 0;
  std::string launcher = "both", program = "PROGRAM";
};

int run_launch_line(const launch_options& o);
/// One kind of finding, or the table of all as Markdown.
int run_explain(const std::string& code);

/// @returns the exit code
int run_topo(const topo_options& o);
/// 0: nothing changed; 10: something did
int run_diff(const std::string& before, const std::string& after, const std::string& json,
             bool quiet);

} // namespace polyrank::examples
