// The machine that this process runs on: sysfs, then NVML, then what NCCL will make of it. Never
// throws for what is missing, never hangs, and makes no CUDA call.
//
//     std::vector<finding> findings;
//     machine m = read_live({}, findings);
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/interfaces.hpp>
#include <polyrank/probe/nccl_choice.hpp>
#include <polyrank/probe/nvml_reader.hpp>
#include <polyrank/probe/sysfs.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

namespace polyrank::probe {

struct live_options {
  std::filesystem::path sysfs = "/sys";
  std::filesystem::path proc = "/proc";
  std::string nvml_library = "libnvidia-ml.so.1"; ///< empty: do not ask NVML
  std::chrono::milliseconds call_deadline{2000};  ///< of each call into NVML
};

/// "Intel(R) Xeon(R) ..." of the first CPU.
[[nodiscard]] inline std::string cpu_model_of(const std::filesystem::path& proc) {
  std::ifstream in(proc / "cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name"))
      if (const std::size_t colon = line.find(':'); colon != std::string::npos)
        return std::string(trim(std::string_view(line).substr(colon + 1)));
  return {};
}

/// The facts of this machine; adds what is wrong with its driver to `findings`.
[[nodiscard]] inline machine read_live(const live_options& o, std::vector<finding>& findings) {
  machine m = read_sysfs(o.sysfs);
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  m.host = name;
  m.cpu_model = cpu_model_of(o.proc);
  if (m.nics.empty()) // a container: interfaces without a PCI device
    for (const net_interface& i : list_interfaces()) {
      if (!i.up || i.loopback || i.address.empty()) continue;
      nic n;
      n.name = i.name;
      n.label = polyrank::detail::cat("NIC", m.nics.size());
      n.rdma = false;
      n.ports = {{i.name, 0, -1, 0, ""}};
      n.to_gpus.assign(m.gpus.size(), path_class::unknown);
      m.nics.push_back(std::move(n));
    }
  for (nic& n : m.nics) n.to_nics.resize(m.nics.size(), path_class::unknown);
  const std::size_t on_bus = m.gpus.size();
  if (!o.nvml_library.empty()) {
    nvml lib(o.nvml_library, o.call_deadline);
    using polyrank::detail::cat;
    switch (lib.how()) {
    case nvml::state::ready:
      read_nvml(m, lib, findings, o.proc);
      break;
    case nvml::state::hung:
      findings.push_back({"nvml_hung", lib.hung_in(), -1, m.host});
      break;
    case nvml::state::mismatch:
      findings.push_back(
          {"driver_mismatch", "nvmlInit_v2 -> 18 (driver/library version mismatch)", -1, m.host});
      break;
    case nvml::state::no_driver:
      m.notes.push_back(
          cat("NVML is there, but nvmlInit_v2 -> ", lib.init_result(), ": no driver"));
      break;
    case nvml::state::no_library:
      m.notes.push_back(cat("no ", o.nvml_library, ": NVLinks and health are not known"));
      break;
    }
    const bool usable = lib.how() == nvml::state::ready
                            ? !m.gpus.empty()
                            : std::any_of(m.gpus.begin(), m.gpus.end(), [](const gpu& g) {
                                return g.vendor.value_or("") != "NVIDIA"; // needs another driver
                              });
    if (!usable && findings.empty())
      findings.push_back({"no_gpu",
                          cat(on_bus, " on the PCI bus, ",
                              lib.how() == nvml::state::ready ? "none given by NVML" : "no driver"),
                          -1, m.host});
  } else if (m.gpus.empty()) {
    findings.push_back({"no_gpu", "none on the PCI bus", -1, m.host});
  }
  choose_nccl_transport(m, nccl_settings::from_environment());
  return m;
}

} // namespace polyrank::probe
