// polyrank_probe's job over GPUs that are not there: NVML with synthetic answers, and a worker that
// answers as POLYRANK_FAKE_GPU says. So every rung and every finding of the GPU tests can be seen
// without a GPU.
//
//     mpirun -n 2 probe.fake_gpu preflight|bandwidth|ladder TIMEOUT
//
// SPDX-License-Identifier: Apache-2.0
#include "job.hpp"

#include <polyrank/probe/gpu_worker.hpp>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include <unistd.h>

namespace {

using polyrank::detail::cat;
using polyrank::probe::gpu_answer;

/// Eight GPUs at the addresses of the synthetic NVML's `nvswitch`.
std::map<std::string, std::string> facts() {
  std::map<std::string, std::string> out{{"driver", "13000"},
                                         {"runtime", "12080"},
                                         {"nccl", "2.28.9"},
                                         {"cublas", "12.8.4"},
                                         {"libraries", "/lib/libcudart.so.12"}};
  for (int g = 0; g < 8; ++g) {
    char bus[16];
    std::snprintf(bus, sizeof bus, "0000:%02X:00.0", 0x10 * (g + 1) + 1);
    out[cat("device", g)] = cat(bus, "|GPU-synthetic-", g, "|Synthetic GPU|90|85899345920");
    for (int other = g + 1; other < 8; ++other) out[cat("peer", g, '.', other)] = "1|1|0";
  }
  return out;
}

gpu_answer answer(const std::string& scenario, int rank, const std::string& line) {
  std::istringstream words(line);
  std::string question, first, second;
  words >> question >> first >> second;
  const auto is = [&](const char* name, const char* asked) {
    return scenario == name && question == asked;
  };
  const auto failed = [](int code, const char* text) {
    gpu_answer a;
    a.how = gpu_answer::outcome::failed;
    a.code = code;
    a.text = text;
    return a;
  };
  const bool first_pair = first == "0" && second == "1";
  if (is("cuda_hangs", "facts") || (is("nccl_hangs", "join") && rank == 1) ||
      (is("pair_hangs", "peer") && first_pair && line.ends_with("direct")) ||
      (is("swap_hangs", "swap") && rank == 1))
    sleep(3600);
  if (is("crash", "small_win") && rank == 1) abort();
  if (is("old_driver", "facts"))
    return failed(35, "the driver supports CUDA 12.2, this program was built with 13.0");
  if (is("no_code", "code")) return failed(209, "cudaErrorNoKernelImageForDevice");
  gpu_answer a;
  a.how = gpu_answer::outcome::ok;
  a.values["data"] =
      is("pair_corrupts", "peer") && first_pair && line.ends_with("direct") ? "changed" : "ok";
  using list = std::initializer_list<std::pair<const std::string, std::string>>;
  const auto add = [&](list values) { a.values.insert(values); };
  if (question == "facts")
    a.values = facts();
  else if (question == "nccl_id")
    add({{"id", "00"}});
  else if (question == "host_device")
    add({{"to_device", scenario == "slow_link" && rank == 1 ? "20e9" : "54e9"},
         {"from_device", "55e9"},
         {"both_ways", "90e9"},
         {"latency", "2e-6"}});
  else if (question == "peer")
    add({{"access", "1"}, {"bandwidth", "390e9"}, {"latency", "3e-6"}});
  else if (question == "swap")
    add({{"bandwidth", "350e9"}, {"both_ways", "600e9"}, {"latency", "8e-6"}});
  else if (question == "collective") // of a ring with alpha 5 us and beta 300 GB/s, two ranks
    add({{"bytes", second}, {"seconds", cat(1e-5 + std::stod(second) / 300e9)}});
  else if (question == "small_win")
    add({{"loss", "2.3"},
         {"loss_on_host", "2.3"},
         {"worst", scenario == "wrong" && rank == 1 ? "0.5" : "1e-6"},
         {"free_before", "85000000000"},
         {"free_after", "85000000000"}});
  else if (question == "gemm")
    add({{"flops", scenario == "slow" && rank == 1 ? "3e14" : "7e14"}, {"type", "bf16"}});
  return a;
}

int work(const std::string& scenario) {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  for (std::string line; std::getline(std::cin, line);)
    std::cout << encode(answer(scenario, rank != nullptr ? std::atoi(rank) : 0, line)) << std::endl;
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  using polyrank::examples::job_options;
  const char* scenario = std::getenv("POLYRANK_FAKE_GPU");
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "gpu-worker") return work(scenario != nullptr ? scenario : "");
  setenv("POLYRANK_FAKE_NVML", "nvswitch", 1);
  job_options o;
  o.command = command == "bandwidth" ? job_options::what::bandwidth
              : command == "ladder"  ? job_options::what::ladder
                                     : job_options::what::preflight;
  o.timeout = std::chrono::seconds(argc > 2 ? std::atoi(argv[2]) : 60);
  o.gpu_worker = {"/proc/self/exe", "gpu-worker"};
  o.live.sysfs = "/polyrank/no/such/folder";
  o.live.nvml_library = POLYRANK_FAKE_NVML_LIBRARY;
  if (argc > 3) o.cost_model = argv[3];
  return polyrank::examples::run_job(argc, argv, o);
}
