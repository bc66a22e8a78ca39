// Gathers the facts of this process: environment, limits, CPU mask, /dev/shm, libraries.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/bounded_call.hpp>
#include <polyrank/probe/live.hpp>
#include <polyrank/probe/rank_facts.hpp>
#include <polyrank/probe/tcp_mesh.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include <dlfcn.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

namespace polyrank::probe {

namespace detail {

[[nodiscard]] inline bool interesting(std::string_view name) {
  for (const std::string_view prefix :
       {"NCCL_", "CUDA_", "UCX_", "FI_", "OMPI_MCA_btl", "OMPI_MCA_pml", "OMPI_MCA_mtl",
        "OMPI_MCA_coll", "OMP_NUM_THREADS", "LD_LIBRARY_PATH", "LD_PRELOAD", "POLYRANK_"})
    if (name.starts_with(prefix)) return true;
  return false;
}

inline void read_nccl_conf(const std::filesystem::path& file, rank_facts& f) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line) && f.env.size() < 1000;) {
    const std::string_view text = trim(line);
    const std::size_t equal = text.find('=');
    if (text.starts_with('#') || equal == std::string_view::npos) continue;
    f.env.try_emplace("nccl.conf:" + std::string(trim(text.substr(0, equal))),
                      trim(text.substr(equal + 1)));
  }
}

/// Libraries of CUDA, NCCL and MPI that are mapped into this process.
[[nodiscard]] inline std::vector<std::string> loaded_libraries(const std::filesystem::path& maps) {
  std::vector<std::string> out;
  std::ifstream in(maps);
  for (std::string line; std::getline(in, line);) {
    const std::size_t slash = line.find('/');
    if (slash == std::string::npos) continue;
    const std::string path = line.substr(slash), name = path.substr(path.rfind('/') + 1);
    for (const std::string_view stem :
         {"libcuda.so", "libcudart.so", "libcublas.so", "libnccl.so", "libmpi.so"})
      if (name.starts_with(stem) && std::find(out.begin(), out.end(), path) == out.end())
        out.push_back(path);
  }
  return out;
}

/// NCCL's version, by opening it: "2.28.9"; "" where there is none.
[[nodiscard]] inline std::string nccl_version(std::chrono::milliseconds deadline) {
  const auto answer = bounded_call(
      [] {
        void* const lib = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
        const auto f = lib != nullptr
                           ? reinterpret_cast<int (*)(int*)>(dlsym(lib, "ncclGetVersion"))
                           : nullptr;
        int version = 0;
        if (f == nullptr || f(&version) != 0) return 0;
        return version;
      },
      deadline);
  const int v = answer.value_or(0);
  // From 2.9 on: 10000 * high + 100 * low + patch; before: 1000 * high + ...
  if (v >= 10000) return polyrank::detail::cat(v / 10000, '.', v / 100 % 100, '.', v % 100);
  return v > 0 ? polyrank::detail::cat(v / 1000, '.', v / 100 % 10, '.', v % 100) : "";
}

/// The GPU that a program takes by its local rank, CUDA_VISIBLE_DEVICES applied.
[[nodiscard]] inline const gpu* gpu_of_local_rank(const machine& m, int local_rank) {
  std::vector<const gpu*> visible;
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    for (const gpu& g : m.gpus) visible.push_back(&g);
  } else {
    std::string_view rest = list;
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      const std::string_view item = trim(rest.substr(0, comma));
      rest.remove_prefix(std::min(comma + 1, rest.size()));
      std::size_t index = m.gpus.size();
      const auto [end, code] = std::from_chars(item.data(), item.data() + item.size(), index);
      const bool numeric = code == std::errc() && end == item.data() + item.size();
      if (!numeric)
        for (index = 0;
             index < m.gpus.size() && (item.empty() || !m.gpus[index].uuid.starts_with(item));)
          ++index;
      if (index >= m.gpus.size()) break; // CUDA ignores what follows an unknown device
      visible.push_back(&m.gpus[index]);
    }
  }
  if (visible.empty()) return nullptr;
  return visible[static_cast<std::size_t>(local_rank) % visible.size()];
}

} // namespace detail

/// Facts of this process. `m`: its machine.
[[nodiscard]] inline rank_facts collect_rank_facts(int rank, int local_rank, const machine& m) {
  rank_facts f;
  f.rank = rank;
  f.local_rank = local_rank;
  f.host = m.host;
  f.boot_id = detail::first_line("/proc/sys/kernel/random/boot_id");
  f.pid = getpid();
  f.host_cpus = static_cast<int>(std::thread::hardware_concurrency());
  if (const long online = sysconf(_SC_NPROCESSORS_ONLN); online > 0)
    f.host_cpus = static_cast<int>(online);
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0)
    for (int c = 0; c < CPU_SETSIZE; ++c)
      if (CPU_ISSET(c, &mask)) f.cpus.push_back(c);
  f.cpu_model = m.cpu_model;
  utsname names{};
  if (uname(&names) == 0) f.kernel = names.release;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry = *e;
    const std::size_t equal = entry.find('=');
    if (equal != std::string_view::npos && detail::interesting(entry.substr(0, equal)))
      f.env[std::string(entry.substr(0, equal))] = entry.substr(equal + 1);
  }
  if (const char* home = std::getenv("HOME"); home != nullptr)
    detail::read_nccl_conf(std::filesystem::path(home) / ".nccl.conf", f);
  detail::read_nccl_conf("/etc/nccl.conf", f);
  const auto limit = [&](const char* name, int which) {
    rlimit l{};
    if (getrlimit(static_cast<__rlimit_resource_t>(which), &l) == 0)
      f.limits[name] = l.rlim_cur == RLIM_INFINITY ? -1 : static_cast<std::int64_t>(l.rlim_cur);
  };
  limit("memlock", RLIMIT_MEMLOCK);
  limit("nofile", RLIMIT_NOFILE);
  limit("stack", RLIMIT_STACK);
  // Of a container (cgroup 2): bytes, and percent of one CPU.
  const auto quota = [](const char* file) -> std::vector<std::int64_t> {
    std::ifstream in(file);
    std::vector<std::int64_t> numbers; // "max" is none
    for (std::int64_t n = 0; in >> n;) numbers.push_back(n);
    return numbers;
  };
  if (const auto bytes = quota("/sys/fs/cgroup/memory.max"); !bytes.empty())
    f.limits["container memory"] = bytes[0];
  if (const auto cpu = quota("/sys/fs/cgroup/cpu.max"); cpu.size() == 2 && cpu[1] > 0)
    f.limits["container CPU percent"] = cpu[0] * 100 / cpu[1];
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    f.shm_bytes = static_cast<std::int64_t>(shm.f_blocks * shm.f_frsize);
    f.shm_free = static_cast<std::int64_t>(shm.f_bavail * shm.f_frsize);
    const bool jobs_run =
        !m.gpus.empty() && std::any_of(m.gpus.begin(), m.gpus.end(), [](const gpu& g) {
          return g.processes.value_or("none") != "none";
        });
    if (!jobs_run)
      for (const std::string& name : detail::names_in("/dev/shm"))
        if (name.starts_with("nccl-")) ++f.shm_stale;
  }
  if (std::string v = detail::nccl_version(std::chrono::seconds(10)); !v.empty())
    f.versions["nccl"] = std::move(v);
  if (!m.driver.empty()) f.versions["nvidia driver"] = m.driver;
  f.libraries = detail::loaded_libraries("/proc/self/maps");
  f.interfaces = list_interfaces();
  for (const nic& n : m.nics)
    if (n.rdma) f.rdma_nics.push_back(n.name);
  if (const gpu* g = detail::gpu_of_local_rank(m, local_rank); g != nullptr) {
    f.gpu_uuid = !g->uuid.empty() ? g->uuid : g->address ? pci_text(*g->address) : g->name;
    f.gpu_model = g->model;
    f.gpu_cpus = g->cpus.value_or(cpu_list{});
  }
  return f;
}

} // namespace polyrank::probe
