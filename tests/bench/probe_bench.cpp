// How long it takes to read descriptions: a JSON of 1,024 GPUs in 128 hosts, and a matrix of
// `nvidia-smi topo -m`. Prints one JSON line per case; asserts nothing.
// SPDX-License-Identifier: Apache-2.0
#include "json.hpp"
#include "timing.hpp"

#include <polyrank/probe/read_topology.hpp>

#include <cstdio>
#include <string>
#include <vector>

namespace {

template <class Work>
double median_ms(Work work) {
  std::vector<double> ms;
  for (int i = 0; i < 7; ++i) ms.push_back(polyrank::bench::milliseconds(work));
  return polyrank::bench::median(ms);
}

std::string matrix(int n) {
  std::string text = "\t";
  for (int i = 0; i < n; ++i) text += "GPU" + std::to_string(i) + "\t";
  text += "CPU Affinity\tNUMA Affinity\n";
  for (int i = 0; i < n; ++i) {
    text += "GPU" + std::to_string(i);
    for (int j = 0; j < n; ++j) text += i == j ? "\t X " : "\tNV18";
    text += "\t0-63\t0\n";
  }
  return text;
}

} // namespace

int main() {
  using namespace polyrank;
  probe::report r;
  for (int h = 0; h < 128; ++h) {
    probe::machine m = probe::read_topology(matrix(8), "host" + std::to_string(h));
    for (int i = 0; i < 8; ++i) {
      probe::nic n;
      n.name = "mlx5_" + std::to_string(i);
      n.to_gpus.assign(8, probe::path_class::sys);
      n.to_nics.assign(8, probe::path_class::sys);
      m.nics.push_back(n);
    }
    r.machines.push_back(std::move(m));
  }
  const std::string json = examples::report_json(r);
  const double parse =
      median_ms([&] { static_cast<void>(examples::read_report_json(json, "bench")); });
  std::printf("{\"bench\": \"probe_read_json\", \"gpus\": 1024, \"bytes\": %zu, \"ms\": %.2f}\n",
              json.size(), parse);
  const std::string wide = matrix(144);
  std::printf("{\"bench\": \"probe_read_topo_m\", \"gpus\": 144, \"bytes\": %zu, \"ms\": %.2f}\n",
              wide.size(),
              median_ms([&] { static_cast<void>(probe::read_topology(wide, "bench")); }));
}
