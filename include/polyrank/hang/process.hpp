// What /proc tells about a process of this host: whether it still lives, and where it waits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/text.hpp>

#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace polyrank::hang {

enum class process_state : std::uint8_t { unknown, running, stopped, dead, unreachable };

namespace detail {

/// The first 4 KiB of a small file; empty where there is none.
[[nodiscard]] inline std::string read_small(const std::string& path) {
  const int f = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (f < 0) return {};
  std::array<char, 4096> bytes{};
  const ssize_t n = ::read(f, bytes.data(), bytes.size());
  ::close(f);
  return n > 0 ? std::string(bytes.data(), static_cast<std::size_t>(n)) : std::string();
}

/// Field `n` (3 = state) of /proc/PID/stat. The name in field 2 may hold anything.
[[nodiscard]] inline std::string_view stat_field(std::string_view stat, int n) {
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) return {};
  stat.remove_prefix(name_end + 1);
  for (int i = 2; i < n; ++i) {
    const std::size_t space = stat.find(' ');
    if (space == std::string_view::npos) return {};
    stat.remove_prefix(space + 1);
  }
  return stat.substr(0, stat.find(' '));
}

} // namespace detail

/// Start time of a process in clock ticks since boot, 0 where there is none. With the pid it names
/// one process for ever.
[[nodiscard]] inline std::uint64_t start_time_of(int pid) {
  const std::string stat = detail::read_small(polyrank::detail::cat("/proc/", pid, "/stat"));
  const std::string_view field = detail::stat_field(stat, 22);
  std::uint64_t ticks = 0;
  std::from_chars(field.data(), field.data() + field.size(), ticks);
  return ticks;
}

/// The pid namespace of this process, as a number: pids of another one mean nothing here.
[[nodiscard]] inline std::uint64_t pid_namespace() {
  struct stat s {};
  return ::stat("/proc/self/ns/pid", &s) == 0 ? s.st_ino : 0;
}

/// Whether process `pid`, begun at `started`, lives. A zombie is dead.
[[nodiscard]] inline process_state state_of(int pid, std::uint64_t started) {
  const std::string stat = detail::read_small(polyrank::detail::cat("/proc/", pid, "/stat"));
  if (stat.empty()) return process_state::dead;
  const std::string_view state = detail::stat_field(stat, 3), begun = detail::stat_field(stat, 22);
  std::uint64_t ticks = 0;
  std::from_chars(begun.data(), begun.data() + begun.size(), ticks);
  if (ticks != started || state.empty()) return process_state::dead;
  switch (state[0]) {
  case 'Z':
  case 'X':
    return process_state::dead;
  case 'T':
  case 't':
    return process_state::stopped;
  default:
    return process_state::running;
  }
}

/// Where the main thread of a process is, in words: "runs", "sleeps in futex", "stopped by a
/// signal", ...
[[nodiscard]] inline std::string whereabouts(int pid) {
  const std::string base = polyrank::detail::cat("/proc/", pid);
  const std::string stat = detail::read_small(base + "/stat");
  const std::string_view state = detail::stat_field(stat, 3);
  if (state.empty()) return "gone";
  std::string in;
#if defined(__x86_64__)
  constexpr struct {
    int number;
    std::string_view name;
  } calls[] = {{0, "read"},
               {1, "write"},
               {7, "poll"},
               {16, "ioctl"},
               {23, "select"},
               {34, "pause"},
               {35, "nanosleep"},
               {45, "recvfrom"},
               {47, "recvmsg"},
               {61, "wait4"},
               {74, "fsync"},
               {202, "futex"},
               {230, "clock_nanosleep"},
               {232, "epoll_wait"},
               {271, "ppoll"},
               {281, "epoll_pwait"}};
  const std::string call = detail::read_small(base + "/syscall");
  int number = -1;
  std::from_chars(call.data(), call.data() + call.size(), number);
  for (const auto& c : calls)
    if (c.number == number) in = polyrank::detail::cat(" in ", c.name);
#endif
  switch (state[0]) {
  case 'R':
    return "runs";
  case 'D':
    return "waits for the kernel (disk, driver)" + in;
  case 'T':
    return "stopped (SIGSTOP or SIGTSTP)";
  case 't':
    return "stopped by a debugger";
  case 'Z':
  case 'X':
    return "dead";
  default:
    return "sleeps" + in;
  }
}

/// Children of this process that run the same program: forks without exec.
[[nodiscard]] inline std::vector<int> forked_children() {
  std::vector<int> forks;
  const int me = ::getpid();
  std::array<char, 512> mine{}, theirs{};
  const ssize_t length = ::readlink("/proc/self/exe", mine.data(), mine.size());
  if (length <= 0) return forks;
  const std::string list =
      detail::read_small(polyrank::detail::cat("/proc/", me, "/task/", me, "/children"));
  for (const char *p = list.data(), *end = p + list.size(); p < end;) {
    int pid = 0;
    const auto [after, bad] = std::from_chars(p, end, pid);
    if (bad != std::errc{}) break;
    p = after + 1;
    const ssize_t n = ::readlink(polyrank::detail::cat("/proc/", pid, "/exe").c_str(),
                                 theirs.data(), theirs.size());
    if (n == length && std::string_view(mine.data(), static_cast<std::size_t>(n)) ==
                           std::string_view(theirs.data(), static_cast<std::size_t>(n)))
      forks.push_back(pid);
  }
  return forks;
}

} // namespace polyrank::hang
