// How much host memory a process may take: what the machine and the control group leave. Reading is
// separate from judging, so the judgement can be tested.
//
//     const host_limits here = read_host_limits();
//     const std::string problem = why_not(bytes, ranks_of_host, here);
//
// The limit on locked memory (`ulimit -l`) does not judge beforehand: CUDA's driver pins pages
// without counting them against it (os_lock_user_pages in NVIDIA's open-gpu-kernel-modules). If one
// does refuse, its error says what the limit is: about_memlock().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/text.hpp>

#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>

#if defined(__linux__)
#include <sys/resource.h>
#endif

namespace polyrank {

struct host_limits {
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  std::size_t available = none;    ///< bytes that the machine can still give
  std::size_t cgroup_limit = none; ///< of all processes of the control group together
  std::size_t cgroup_used = 0;
  std::size_t memlock = none; ///< bytes that this process may lock (ulimit -l)

  /// Bytes that can still be had.
  [[nodiscard]] std::size_t free() const noexcept {
    const std::size_t group = cgroup_limit == none         ? none
                              : cgroup_limit > cgroup_used ? cgroup_limit - cgroup_used
                                                           : 0;
    return available < group ? available : group;
  }
};

/// MemAvailable of /proc/meminfo in bytes; `none` where it is missing.
[[nodiscard]] inline std::size_t parse_available(std::string_view meminfo) noexcept {
  const std::size_t at = meminfo.find("MemAvailable:");
  if (at == std::string_view::npos) return host_limits::none;
  std::string_view rest = meminfo.substr(at + 13);
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  std::size_t kib = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), kib);
  return error == std::errc{} ? kib * 1024 : host_limits::none;
}

/// A number of bytes as control groups write it; `none` for "max" and for what is no number.
[[nodiscard]] inline std::size_t parse_bytes(std::string_view text) noexcept {
  std::size_t bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  // Version 1 says "no limit" by a number near 2^63.
  return error == std::errc{} && bytes < (std::size_t{1} << 62) ? bytes : host_limits::none;
}

/// Of this process; whatever cannot be read is no limit.
[[nodiscard]] inline host_limits read_host_limits() {
  host_limits l;
#if defined(__linux__)
  const auto read = [](const char* path) {
    std::string text(4096, '\0');
    std::FILE* f = std::fopen(path, "re");
    text.resize(f != nullptr ? std::fread(text.data(), 1, text.size(), f) : 0);
    if (f != nullptr) static_cast<void>(std::fclose(f));
    return text;
  };
  l.available = parse_available(read("/proc/meminfo"));
  l.cgroup_limit = parse_bytes(read("/sys/fs/cgroup/memory.max"));
  l.cgroup_used = parse_bytes(read("/sys/fs/cgroup/memory.current"));
  if (l.cgroup_limit == host_limits::none) {
    l.cgroup_limit = parse_bytes(read("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
    l.cgroup_used = parse_bytes(read("/sys/fs/cgroup/memory/memory.usage_in_bytes"));
  }
  if (l.cgroup_used == host_limits::none) l.cgroup_used = 0;
  rlimit lock{};
  if (getrlimit(RLIMIT_MEMLOCK, &lock) == 0 && lock.rlim_cur != RLIM_INFINITY)
    l.memlock = lock.rlim_cur;
#endif
  return l;
}

/// Rounded up.
[[nodiscard]] inline std::string in_mib(std::size_t bytes) {
  return detail::cat((bytes >> 20) + (bytes % (1u << 20) != 0 ? 1 : 0), " MiB");
}

/// Why each of `ranks` ranks of a host cannot have `bytes` bytes; empty if they can.
[[nodiscard]] inline std::string why_not(std::size_t bytes, std::size_t ranks,
                                         const host_limits& l) {
  if (bytes <= host_limits::none / ranks && bytes * ranks <= l.free()) return {};
  return detail::cat(ranks, ranks == 1 ? " rank needs " : " ranks of this host need ",
                     in_mib(bytes), ranks == 1 ? "" : " each", " of host memory, but only ",
                     in_mib(l.free()),
                     l.cgroup_limit != host_limits::none && l.free() < l.available
                         ? " are left by the control group's limit"
                         : " are free",
                     "; lower the fraction, use fewer ranks per host, or raise the limit");
}

/// What the limit on locked memory means for `bytes` of it; empty where it allows them.
[[nodiscard]] inline std::string about_memlock(std::size_t bytes, const host_limits& l) {
  if (bytes <= l.memlock) return {};
  return detail::cat(
      "`ulimit -l` is ", in_mib(l.memlock),
      ", which CUDA's driver usually does not count against; if yours does, raise it "
      "(`ulimit -l unlimited`, LimitMEMLOCK of the service, or the container's "
      "--ulimit memlock=-1)");
}

} // namespace polyrank
