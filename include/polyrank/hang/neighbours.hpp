// The processes of this host that a launcher started as ranks, whether they record or not: from
// /proc. For ranks that have not come far enough to be known otherwise.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/place.hpp>
#include <polyrank/hang/process.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace polyrank::hang {

struct rank_process {
  int pid = 0;
  place at;
};

namespace detail {

/// The environment of a process by name; empty where it may not be read. At most 1 MiB.
[[nodiscard]] inline std::map<std::string, std::string, std::less<>> environment_of(int pid) {
  std::string bytes;
  if (std::FILE* f = std::fopen(polyrank::detail::cat("/proc/", pid, "/environ").c_str(), "rbe");
      f != nullptr) {
    char part[4096];
    for (std::size_t n; (n = std::fread(part, 1, sizeof part, f)) > 0 && bytes.size() < (1u << 20);)
      bytes.append(part, n);
    std::fclose(f);
  }
  std::map<std::string, std::string, std::less<>> variables;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t stop = std::min(bytes.find('\0', at), bytes.size());
    const std::string_view line = std::string_view(bytes).substr(at, stop - at);
    if (const std::size_t equal = line.find('='); equal != std::string_view::npos)
      variables.emplace(line.substr(0, equal), line.substr(equal + 1));
    at = stop + 1;
  }
  return variables;
}

/// Whose host name a process has.
[[nodiscard]] inline std::string host_namespace(std::string_view pid) {
  char link[64] = "";
  const ssize_t n =
      ::readlink(polyrank::detail::cat("/proc/", pid, "/ns/uts").c_str(), link, sizeof link);
  return n > 0 ? std::string(link, static_cast<std::size_t>(n)) : std::string();
}

} // namespace detail

/// By job, in rank order; where a rank has started others, the rank itself. Never this process.
[[nodiscard]] inline std::map<std::string, std::vector<rank_process>> find_ranks() {
  std::map<std::string, std::vector<rank_process>> jobs;
  const std::string here = detail::host_namespace("self");
  std::error_code failed;
  for (std::filesystem::directory_iterator it("/proc", failed), end; !failed && it != end;
       it.increment(failed)) {
    const std::string name = it->path().filename().string();
    int pid = 0;
    const auto [rest, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (bad != std::errc{} || rest != name.data() + name.size() || pid == ::getpid() ||
        detail::host_namespace(name) != here)
      continue;
    const auto variables = detail::environment_of(pid);
    const std::string stat = detail::read_small(polyrank::detail::cat("/proc/", pid, "/stat"));
    int parent = 0;
    const std::string_view field = detail::stat_field(stat, 4);
    std::from_chars(field.data(), field.data() + field.size(), parent);
    const auto found = find_place(
        [&](const char* variable) {
          const auto v = variables.find(std::string_view(variable));
          return v != variables.end() ? v->second.c_str() : nullptr;
        },
        parent);
    if (!found) continue;
    std::vector<rank_process>& job = jobs[found->job];
    const auto same = std::find_if(job.begin(), job.end(),
                                   [&](const rank_process& p) { return p.at.rank == found->rank; });
    if (same == job.end())
      job.push_back({pid, *found});
    else if (pid < same->pid)
      *same = {pid, *found};
  }
  for (auto& [name, ranks] : jobs)
    std::sort(ranks.begin(), ranks.end(),
              [](const rank_process& a, const rank_process& b) { return a.at.rank < b.at.rank; });
  return jobs;
}

} // namespace polyrank::hang
