// What is wrong with the ranks of a job, judged from their facts: each alone, then against each
// other. Pure; it runs before any NCCL call, because NCCL itself compares only its own version.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/finding.hpp>
#include <polyrank/probe/network_choice.hpp>
#include <polyrank/probe/rank_facts.hpp>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

namespace detail {

[[nodiscard]] inline std::string ranks_text(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + cpu_text(cpu_list(ranks.begin(), ranks.end()));
}

/// "x" on ranks 0-3, "y" on rank 4: for values that should be equal; "" where they are.
template <class Value>
[[nodiscard]] std::string disagreement(const std::vector<rank_facts>& ranks, Value value) {
  std::map<std::string, std::vector<int>> groups;
  std::map<std::string, std::set<std::string>> hosts;
  for (const rank_facts& f : ranks) {
    const std::string v = value(f);
    groups[v].push_back(f.rank);
    hosts[v].insert(f.host);
  }
  if (groups.size() < 2) return {};
  std::string out;
  for (auto& [v, who] : groups) {
    std::sort(who.begin(), who.end());
    std::string where;
    for (const std::string& h : hosts[v]) where += (where.empty() ? "" : ", ") + h;
    out += polyrank::detail::cat(out.empty() ? "" : ", ", v.empty() ? "unset" : '"' + v + '"',
                                 " on ", ranks_text(who), " (", where, ")");
  }
  return out;
}

/// Variables that are each rank's own affair, or that launchers set differently by design.
[[nodiscard]] inline bool may_differ(std::string_view name) {
  for (const std::string_view n :
       {"NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG_FILE", "NCCL_RAS_ADDR",
        "CUDA_VISIBLE_DEVICES", "NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE"})
    if (name == n) return true;
  return !(name.starts_with("NCCL_") || name.starts_with("CUDA_") || name.starts_with("UCX_") ||
           name.starts_with("FI_") || name.starts_with("OMPI_MCA_") ||
           name.starts_with("nccl.conf:"));
}

} // namespace detail

/// Findings about one rank alone. `local_ranks`: ranks on its host.
[[nodiscard]] inline std::vector<finding> judge_rank(const rank_facts& f, int local_ranks,
                                                     bool has_gpu) {
  using polyrank::detail::cat;
  std::vector<finding> out;
  const auto found = [&](const char* code, const std::string& evidence) {
    out.push_back({code, cat("rank ", f.rank, ": ", evidence), f.rank, f.host});
  };
  const auto env = [&](const char* name) -> std::string {
    const auto i = f.env.find(name);
    return i == f.env.end() ? "" : i->second;
  };
  if (!f.launcher_problem.empty()) found("launcher_mismatch", f.launcher_problem);
  // Libraries: one stem, two files.
  std::map<std::string, std::set<std::string>> copies;
  for (const std::string& path : f.libraries) {
    const std::string name = path.substr(path.rfind('/') + 1);
    copies[name.substr(0, name.find(".so"))].insert(path);
  }
  for (const auto& [name, paths] : copies)
    if (paths.size() > 1) {
      std::string text;
      for (const std::string& p : paths) text += (text.empty() ? "" : " and ") + p;
      found("library_twice", text);
    }
  if (f.cpus.size() == 1 && f.host_cpus > 1)
    found("one_cpu", cat("CPU ", cpu_text(f.cpus), " of ", f.host_cpus));
  if (!f.gpu_cpus.empty() && !f.cpus.empty() && common_cpus(f.cpus, f.gpu_cpus).empty())
    found("cpus_far",
          cat("runs on CPUs ", cpu_text(f.cpus), ", its GPU is at ", cpu_text(f.gpu_cpus)));
  const std::string ifname = env("NCCL_SOCKET_IFNAME");
  if (!ifname.empty() && !choose_interface(f.interfaces, ifname))
    found("env_interface", cat("NCCL_SOCKET_IFNAME=", ifname, " fits no interface that is up"));
  if (ifname.starts_with('^') &&
      !detail::listed("lo", ifname.substr(ifname.starts_with("^=") ? 2 : 1), false))
    found("env_loopback", cat("NCCL_SOCKET_IFNAME=", ifname));
  if (env("CUDA_LAUNCH_BLOCKING") == "1") found("env_blocking", "CUDA_LAUNCH_BLOCKING=1");
  if (env("POLYRANK_SHARE_GPU") != "1") { // ranks that share a GPU have no fast path to lose
    for (const char* name : {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"})
      if (env(name) == "1" && has_gpu) found("env_slow", cat(name, "=1"));
    if (env("NCCL_IB_DISABLE") == "1" && !f.rdma_nics.empty())
      found("env_slow", "NCCL_IB_DISABLE=1, with RDMA NICs");
  }
  const auto limit = [&](const char* name) {
    const auto i = f.limits.find(name);
    return i == f.limits.end() ? std::int64_t{-1} : i->second;
  };
  if (const auto n = limit("nofile"); n >= 0 && n < 4096) found("nofile_low", cat("nofile = ", n));
  if (const auto n = limit("memlock");
      n >= 0 && n < (std::int64_t{1} << 30) && !f.rdma_nics.empty())
    found("memlock_low", cat("memlock = ", n, " bytes, with RDMA NICs"));
  if (const auto nccl = f.versions.find("nccl"); f.limits.contains("stack") &&
                                                 limit("stack") == -1 && nccl != f.versions.end() &&
                                                 nccl->second < "2.28")
    found("stack_unlimited", cat("stack unlimited, NCCL ", nccl->second));
  if (const auto n = limit("container CPU percent");
      f.local_rank == 0 && n >= 0 && n < 100 * local_ranks)
    found("cpus_shared", cat("the container may use ", n, " % of one CPU, for ", local_ranks,
                             local_ranks == 1 ? " rank" : " ranks"));
  if (f.local_rank == 0 && f.shm_bytes >= 0) {
    constexpr std::int64_t mib = std::int64_t{1} << 20;
    const std::int64_t need = std::max(16 * mib, (has_gpu ? 33 : 8) * mib * local_ranks);
    if (f.shm_free <= need)
      found("shm_too_low",
            cat("/dev/shm has ", f.shm_free / mib, " MiB free of ", f.shm_bytes / mib, " MiB; ",
                local_ranks, " ranks need ", need / mib, " MiB"));
    else if (f.shm_bytes < (std::int64_t{1} << 30))
      found("shm_tight", cat("/dev/shm has ", f.shm_bytes / mib, " MiB"));
    if (f.shm_stale > 0) found("shm_stale", cat(f.shm_stale, " files nccl-* in /dev/shm"));
  }
  if (!f.data_error.empty()) found("data_unreadable", f.data_error);
  return out;
}

/// Findings about all ranks together, those of each rank included.
[[nodiscard]] inline std::vector<finding> judge_ranks(const std::vector<rank_facts>& ranks) {
  using polyrank::detail::cat;
  std::vector<finding> out;
  std::map<std::string, int> per_host;
  for (const rank_facts& f : ranks) ++per_host[f.host];
  for (const rank_facts& f : ranks)
    for (finding& one : judge_rank(f, per_host[f.host], !f.gpu_uuid.empty()))
      out.push_back(std::move(one));

  std::set<std::string> variables, versions, limits;
  for (const rank_facts& f : ranks) {
    for (const auto& [name, value] : f.env) variables.insert(name);
    for (const auto& [name, value] : f.versions) versions.insert(name);
    for (const auto& [name, value] : f.limits) limits.insert(name);
  }
  const auto differs = [&](const char* code, const std::string& name, auto value) {
    const std::string text = detail::disagreement(ranks, value);
    if (!text.empty()) out.push_back({code, name + ": " + text, -1, ""});
  };
  for (const std::string& name : variables)
    if (!detail::may_differ(name))
      differs("env_differs", name, [&](const rank_facts& f) {
        const auto i = f.env.find(name);
        return i == f.env.end() ? std::string() : i->second;
      });
  for (const std::string& name : versions)
    differs("version_differs", name, [&](const rank_facts& f) {
      const auto i = f.versions.find(name);
      return i == f.versions.end() ? std::string("not there") : i->second;
    });
  for (const std::string& name : limits)
    differs("limits_differ", name, [&](const rank_facts& f) {
      const auto i = f.limits.find(name);
      return i == f.limits.end() ? std::string("?")
             : i->second < 0     ? std::string("unlimited")
                                 : cat(i->second);
    });
  differs("cpu_differs", "CPU", [](const rank_facts& f) { return f.cpu_model; });
  differs("gpu_differs", "GPU", [](const rank_facts& f) { return f.gpu_model; });
  differs("nics_differ", "RDMA NICs", [](const rank_facts& f) { return cat(f.rdma_nics.size()); });
  if (per_host.size() > 1)
    differs("uneven_hosts", "ranks on the host",
            [&](const rank_facts& f) { return cat(per_host[f.host]); });

  // Two ranks on one GPU; ranks that share too few CPUs.
  std::map<std::string, std::vector<int>> users;
  std::map<std::string, std::set<int>> cpus;
  for (const rank_facts& f : ranks) {
    const auto share = f.env.find("POLYRANK_SHARE_GPU"); // meant, for tests
    if (!f.gpu_uuid.empty() && (share == f.env.end() || share->second != "1"))
      users[f.boot_id + f.gpu_uuid].push_back(f.rank);
    cpus[f.host].insert(f.cpus.begin(), f.cpus.end());
  }
  for (auto& [key, who] : users)
    if (who.size() > 1) {
      const auto first = std::find_if(ranks.begin(), ranks.end(),
                                      [&](const rank_facts& f) { return f.rank == who[0]; });
      out.push_back(
          {"gpu_twice", cat(detail::ranks_text(who), " on ", first->gpu_uuid), -1, first->host});
    }
  for (const auto& [host, set] : cpus)
    if (!set.empty() && static_cast<int>(set.size()) < per_host[host])
      out.push_back(
          {"cpus_shared", cat(per_host[host], " ranks on ", set.size(), " CPUs"), -1, host});

  double fastest = 0;
  for (const rank_facts& f : ranks) fastest = std::max(fastest, f.data_bytes_per_s);
  for (const rank_facts& f : ranks)
    if (f.data_bytes_per_s > 0 && f.data_bytes_per_s < fastest / 10)
      out.push_back(
          {"data_slow",
           cat("rank ", f.rank, " reads ", static_cast<std::int64_t>(f.data_bytes_per_s / 1e6),
               " MB/s, another ", static_cast<std::int64_t>(fastest / 1e6)),
           f.rank, f.host});
  return out;
}

} // namespace polyrank::probe
