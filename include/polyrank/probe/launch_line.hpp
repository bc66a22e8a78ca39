// The command that starts one rank per GPU (or per group of CPUs) on machines like this one, bound
// to the CPUs next to its GPU, each flag explained. Pure.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/model.hpp>
#include <polyrank/probe/network_choice.hpp>

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

/// A command and what its flags do.
struct launch_line {
  std::string command;
  std::vector<std::pair<std::string, std::string>> flags; ///< flag, reason
};

struct launch_request {
  int hosts = 1;
  int ranks_per_host = 0; ///< 0: one per GPU; without GPUs one per CPU, four at most
  std::string program = "PROGRAM";
  std::vector<net_interface> interfaces; ///< of this machine
  bool as_root = false;
};

namespace detail {

[[nodiscard]] inline int ranks_of(const machine& m, const launch_request& r, int cpus) {
  if (r.ranks_per_host > 0) return r.ranks_per_host;
  return m.gpus.empty() ? std::clamp(cpus, 1, 4) : static_cast<int>(m.gpus.size());
}
/// CPUs of the host, 0 if the source says nothing of them: of its NUMA nodes, or next to its GPUs.
[[nodiscard]] inline int cpu_count(const machine& m) {
  std::set<int> all;
  for (const numa_node& node : m.numa_nodes) all.insert(node.cpus.begin(), node.cpus.end());
  for (const gpu& g : m.gpus)
    if (g.cpus.known()) all.insert(g.cpus.value->begin(), g.cpus.value->end());
  return static_cast<int>(all.size());
}
/// "H1:8,H2:8" for two hosts of eight ranks, with dots in the middle of many.
[[nodiscard]] inline std::string hosts_text(int hosts, int ranks) {
  std::string out;
  for (int h = 1; h <= hosts; ++h)
    if (hosts <= 8 || h < 3 || h == hosts)
      out += polyrank::detail::cat(h == 1 ? "H" : ",H", h, ':', ranks);
    else if (h == 3)
      out += ",...";
  return out;
}
/// What `ranks` on each host are.
[[nodiscard]] inline std::string ranks_text(const machine& m, int ranks) {
  if (m.gpus.empty()) return "";
  if (static_cast<int>(m.gpus.size()) == ranks) return ", one per GPU";
  return polyrank::detail::cat(", with ", m.gpus.size(), " GPUs");
}
/// Whether local rank i's GPU is on node i / (ranks / nodes): what mapping by NUMA node does.
[[nodiscard]] inline bool gpus_follow_nodes(const machine& m, int ranks) {
  const std::size_t nodes = m.numa_nodes.size();
  if (nodes == 0 || m.gpus.size() != static_cast<std::size_t>(ranks) || m.gpus.size() % nodes != 0)
    return false;
  for (std::size_t i = 0; i < m.gpus.size(); ++i)
    if (m.gpus[i].numa.value_or(-1) != m.numa_nodes[i / (m.gpus.size() / nodes)].id) return false;
  return true;
}

} // namespace detail

/// For Open MPI.
[[nodiscard]] inline launch_line mpirun_line(const machine& m, const launch_request& r) {
  using polyrank::detail::cat;
  const int cpus = detail::cpu_count(m), ranks = detail::ranks_of(m, r, cpus);
  launch_line out;
  out.command = "mpirun";
  const auto add = [&](const std::string& flag, const std::string& why) {
    out.command += ' ' + flag;
    out.flags.emplace_back(flag, why);
  };
  add(cat("-n ", static_cast<long long>(r.hosts) * ranks),
      cat("ranks in all: ", r.hosts, r.hosts == 1 ? " host x " : " hosts x ", ranks,
          detail::ranks_text(m, ranks)));
  if (r.hosts > 1)
    add("--host " + detail::hosts_text(r.hosts, ranks), "the hosts and the ranks that each takes");
  const int each = cpus / ranks;
  if (each > 0 && detail::gpus_follow_nodes(m, ranks)) {
    const int per_node = ranks / static_cast<int>(m.numa_nodes.size());
    add(cat("--map-by ppr:", per_node, ":numa:PE=", each, " --use-hwthread-cpus"),
        cat(per_node, " ranks per NUMA node, ", each,
            " CPUs each: GPU i and local rank i are then on the same node"));
    add("--bind-to hwthread", "keeps each rank on those CPUs");
  } else {
    add("--map-by :OVERSUBSCRIBE",
        "ranks in order, host by host, even where they outnumber the cores");
    add("--bind-to none",
        m.gpus.empty()
            ? "each rank has several threads; binding it to one core would make them take turns"
        : m.numa_nodes.empty()
            ? "the NUMA nodes of the GPUs are not known; bind inside of the program instead"
        : static_cast<int>(m.gpus.size()) != ranks
            ? "the ranks are not one per GPU; bind inside of the program instead"
            : "the GPUs do not follow the NUMA nodes in order, so binding by node would put ranks "
              "far from their GPU; bind inside of the program instead");
  }
  if (const auto i = choose_interface(r.interfaces, ""); i && r.hosts > 1) {
    const std::string& name = r.interfaces[*i].name;
    add(cat("--mca btl_tcp_if_include ", name, " --mca oob_tcp_if_include ", name),
        "the interface between the hosts, so that no docker or loopback address is announced");
    if (!m.gpus.empty())
      add(cat("-x NCCL_SOCKET_IFNAME==", name), "the same for NCCL's own sockets");
  }
  if (r.as_root) {
    out.command = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " + out.command;
    out.flags.insert(out.flags.begin(),
                     {"OMPI_ALLOW_RUN_AS_ROOT...", "Open MPI refuses root unless told twice"});
  }
  out.command += ' ' + r.program;
  return out;
}

/// For Slurm.
[[nodiscard]] inline launch_line srun_line(const machine& m, const launch_request& r) {
  using polyrank::detail::cat;
  const int cpus = detail::cpu_count(m), ranks = detail::ranks_of(m, r, cpus);
  launch_line out;
  out.command = "srun";
  const auto add = [&](const std::string& flag, const std::string& why) {
    out.command += ' ' + flag;
    out.flags.emplace_back(flag, why);
  };
  add("--mpi=pmix", "how Open MPI learns its rank from Slurm");
  add(cat("--nodes=", r.hosts), "hosts");
  add(cat("--ntasks-per-node=", ranks), "ranks on each host" + detail::ranks_text(m, ranks));
  if (cpus >= ranks)
    add(cat("--cpus-per-task=", cpus / ranks), "all CPUs of the host, shared out");
  else if (cpus > 0)
    add("--overcommit", "more ranks than CPUs");
  if (!m.gpus.empty()) {
    add(cat("--gpus-per-node=", m.gpus.size()),
        "every rank sees all GPUs of its host and takes the one of its local rank");
    add("--gpu-bind=none", "NCCL needs to see its peers' GPUs for P2P");
  }
  bool all_known = !m.gpus.empty() && static_cast<int>(m.gpus.size()) == ranks;
  for (const gpu& g : m.gpus) all_known = all_known && g.cpus.known() && !(*g.cpus).empty();
  if (all_known) {
    std::string masks;
    for (const gpu& g : m.gpus) {
      std::string hex;
      const int last = (*g.cpus).back();
      for (int digit = last / 4; digit >= 0; --digit) {
        int v = 0;
        for (const int c : *g.cpus)
          if (c / 4 == digit) v |= 1 << c % 4;
        hex += "0123456789abcdef"[v];
      }
      masks += (masks.empty() ? "0x" : ",0x") + hex;
    }
    add("--cpu-bind=mask_cpu:" + masks, "each rank on the CPUs next to its GPU");
  }
  out.command += ' ' + r.program;
  return out;
}

[[nodiscard]] inline std::string launch_text(const launch_line& l) {
  std::size_t width = 0;
  for (const auto& [flag, why] : l.flags)
    width = std::max(width, std::min<std::size_t>(flag.size(), 44));
  std::string out = l.command + "\n";
  for (const auto& [flag, why] : l.flags)
    out += "  " + flag +
           (flag.size() > width ? "\n  " + std::string(width, ' ')
                                : std::string(width - flag.size(), ' ')) +
           "  " + why + '\n';
  return out;
}

} // namespace polyrank::probe
