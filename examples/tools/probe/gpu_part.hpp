// The GPU tests of a job. Each rank asks a worker of its own, in a process that is killed when it
// is late; then all ranks learn all answers over MPI, so all take the same way. Member functions
// that return a result are collective. Needs neither CUDA nor NCCL to build.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "step_watch.hpp"

#include <polyrank/host/communicator.hpp>
#include <polyrank/probe/cuda_facts.hpp>
#include <polyrank/probe/gpu_worker.hpp>
#include <polyrank/probe/report.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace polyrank::examples {

struct gpu_options {
  std::vector<std::string> worker;                ///< command; empty: built without CUDA
  std::string nvml_library = "libnvidia-ml.so.1"; ///< for the PCIe link under load
  std::chrono::milliseconds deadline{20000};      ///< of each test
  bool thorough = true; ///< also copies by the host where the direct ones are good
};

class gpu_part {
 public:
  /// Findings and a few words for the rung.
  struct result {
    std::vector<probe::finding> findings;
    std::string text;
  };

  gpu_part(host::communicator& comm, int local_rank, probe::report& r, step_watch& watch,
           gpu_options o)
      : comm_(comm), local_rank_(local_rank), report_(r), watch_(watch), o_(std::move(o)),
        worker_(o_.worker) {}

  /// What CUDA says to this rank. Not collective.
  [[nodiscard]] probe::gpu_answer facts() { return worker_.ask("facts", o_.deadline); }
  /// Takes the answers of all ranks to facts(); the report holds ranks and machines by now.
  void learn(std::vector<probe::gpu_answer> all);

  /// Every rank has a GPU that CUDA can use.
  [[nodiscard]] bool usable() const noexcept { return why_not_.empty(); }
  [[nodiscard]] const std::string& why_not() const noexcept { return why_not_; }
  /// Some ranks use one GPU together: nothing is timed.
  [[nodiscard]] bool shared() const noexcept { return shared_; }

  /// CUDA starts, and its driver fits.
  [[nodiscard]] std::vector<probe::finding> cuda_findings() const;
  result code();        ///< a kernel of this program runs
  result peers();       ///< copies between all GPUs of a host, direct and by the host
  result host_device(); ///< each way alone, both at once; the PCIe link meanwhile
  result small_win();   ///< a small model's gradients beside the host's
  result gemm();        ///< the rate of matrix products beside that of the peers
  result connect();     ///< NCCL joins all ranks; one verified all-reduce
  result pairs();       ///< NCCL between two ranks at a time
  result collectives(); ///< verified and timed
  /// A verified all-reduce in each group of ranks of one colour (-1: takes no part).
  result group(const std::vector<int>& colours);

 private:
  struct place {
    std::size_t machine = 0, gpu = 0;
    int device = 0; ///< CUDA's number
  };
  using answers = std::vector<probe::gpu_answer>;

  [[nodiscard]] std::size_t me() const { return static_cast<std::size_t>(comm_.rank()); }
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(comm_.size()); }
  /// Asks this rank's worker, unless the question is empty; the answers of all ranks.
  answers ask(const std::string& step, const std::string& question,
              const std::function<void(probe::gpu_answer&)>& ask_me = {});
  answers join(const std::vector<int>& colours);
  /// Ends the workers of every group in which one has not answered well.
  void end_groups(const std::vector<int>& colours, const answers& all);
  [[nodiscard]] result judge(const answers& all, const char* hung, const char* failed) const;
  [[nodiscard]] std::string device_word() const {
    return polyrank::detail::cat(places_[me()].device);
  }

  host::communicator& comm_;
  int local_rank_;
  probe::report& report_;
  step_watch& watch_;
  gpu_options o_;
  probe::gpu_worker worker_;
  answers facts_;
  std::vector<place> places_; // of each rank
  std::string why_not_ = "not asked yet";
  bool shared_ = false;
};

} // namespace polyrank::examples
