// The commands that run under mpirun: preflight, all, ladder; and launch-line.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/live.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace polyrank::examples {

struct job_options {
  enum class what { preflight, all, ladder, bandwidth };
  what command = what::preflight;
  std::string json, svg, data, cost_model;
  double memory_gib = 0; ///< that each rank will need on its GPU
  bool quiet = false;
  int tcp_port = 0; ///< of local rank 0; 0: any
  std::chrono::milliseconds tcp_deadline{2000};
  std::chrono::seconds timeout{60};    ///< of each rung; a third of it for each test of a GPU
  std::vector<std::string> gpu_worker; ///< starts a worker; empty: built without CUDA
  probe::live_options live;
};

/// Starts MPI. @returns the exit code, the same on every rank
int run_job(int argc, char** argv, const job_options& o);

} // namespace polyrank::examples
