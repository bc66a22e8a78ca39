// What can be wrong with a job that does not move, and what a diagnosis says about it. Plain data.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/record.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::hang {

enum class verdict_code : std::uint8_t {
  none,
  rank_dead,
  mismatch,
  never_entered,
  order_inversion,
  p2p_cycle,
  gpu_blocked,
  transport,
  host,
  init_timeout,
  straggler,
  watchdog_broken
};

/// What a verdict means, for people.
struct verdict_class {
  verdict_code code;
  std::string_view name;
  int exit_code; ///< of every rank; 0: the job goes on
  std::string_view meaning;
  std::string_view advice;
  std::string_view reference; ///< a public report of the same
};

inline constexpr std::array<verdict_class, 12> verdict_classes{{
    {verdict_code::none, "NONE", 0, "Nothing is wrong as far as the flight recorders tell.", "",
     ""},
    {verdict_code::rank_dead, "RANK_DEAD", 80,
     "A rank was killed, crashed, or left while others wait for it.",
     "look at its last words and last operation; for SIGKILL at `dmesg` (out of memory) and at the "
     "scheduler's limits; a rank that leaves early must take part in every collective first",
     "https://github.com/NVIDIA/nccl/issues/582"},
    {verdict_code::mismatch, "MISMATCH", 81,
     "Ranks issued different operations at the same place of one communicator: other kind, count, "
     "type, operator or root.",
     "compare the two call sites; look for sizes or branches that depend on the rank or on its "
     "data",
     "https://github.com/NVIDIA/nccl/issues/1417"},
    {verdict_code::never_entered, "NEVER_ENTERED", 82,
     "Some ranks wait in an operation that another rank has not issued.",
     "see where that rank is: another branch, a skipped step, a slow loader, a lock, or a stopped "
     "process; `gdb -p PID` shows its stack",
     "https://github.com/jax-ml/jax/issues/38503"},
    {verdict_code::order_inversion, "ORDER_INVERSION", 83,
     "Ranks issue operations on several communicators in different orders, and each waits for the "
     "other.",
     "issue them in one order on all ranks; with NCCL >= 2.26 NCCL_LAUNCH_ORDER_IMPLICIT=1 keeps "
     "the order of the host",
     "https://github.com/NVIDIA/nccl/issues/195"},
    {verdict_code::p2p_cycle, "P2P_CYCLE", 83,
     "Sends and receives wait for each other in a circle.",
     "put the send and the receive into one exchange (ncclGroupStart/End), or let one side receive "
     "first",
     "https://github.com/NVIDIA/nccl/issues/479"},
    {verdict_code::gpu_blocked, "GPU_BLOCKED", 84,
     "An operation was issued, but its stream never comes to it: work before it does not end.",
     "look for a kernel that spins or holds all SMs, an event that nobody records, a frozen GPU "
     "(Xid in dmesg); with CUDA try CUDA_MODULE_LOADING=EAGER",
     "https://github.com/NVIDIA/nccl/issues/2031"},
    {verdict_code::transport, "TRANSPORT", 85,
     "All ranks are in the operation and nothing moves, or a host cannot be reached.",
     "check the network between the named hosts (link, firewall, NCCL_SOCKET_IFNAME, "
     "btl_tcp_if_include), NIC and NVLink errors; run polyrank_probe on them",
     "https://github.com/NVIDIA/nccl/issues/426"},
    {verdict_code::host, "HOST", 86,
     "All operations are done everywhere, but a host thread waits for something else.",
     "see where it waits: a barrier or an agreement that not all ranks reach, MPI calls beside the "
     "library, a lock",
     "https://github.com/NVIDIA/nccl/issues/493"},
    {verdict_code::init_timeout, "INIT_TIMEOUT", 87, "Not all ranks have come through start-up.",
     "see whether the missing ranks were started, wait for a file system, or cannot reach the "
     "first "
     "host; is the same MPI and the same program on all hosts?",
     "https://github.com/NVIDIA/nccl/issues/352"},
    {verdict_code::straggler, "STRAGGLER", 0, "The job moves, but one rank is always the last.",
     "look at its clocks, temperature and power limit, PCIe link, CPU binding and data loader",
     "https://github.com/NVIDIA/nccl/issues/893"},
    {verdict_code::watchdog_broken, "WATCHDOG_BROKEN", 88, "The diagnosis itself failed.",
     "run polyrank_hang report on the rings, and report what it says", ""},
}};

[[nodiscard]] constexpr const verdict_class& about(verdict_code code) noexcept {
  return verdict_classes[static_cast<std::size_t>(code)];
}
[[nodiscard]] constexpr std::string_view name_of(verdict_code code) noexcept {
  return about(code).name;
}
[[nodiscard]] constexpr int exit_code(verdict_code code) noexcept { return about(code).exit_code; }

/// Rank `from` waits for rank `to`, in a record of `comm`.
struct wait_edge {
  int from = 0, to = 0;
};

/// A diagnosis.
struct verdict {
  verdict_code code = verdict_code::none;
  bool certain = false;       ///< seen twice without a change, or beyond doubt at once
  bool tie = false;           ///< the ranks are split evenly: either side may be wrong
  bool has_operation = false; ///< `operation` is what the others wait in, or where ranks differ
  record operation;
  std::vector<int> suspects;      ///< ranks of the world
  std::vector<std::string> hosts; ///< of the suspects, where the host may be to blame
  std::string headline;           ///< one line: `HANG verdict NEVER_ENTERED (confidence high): ...`
  std::vector<std::string> table; ///< at most 12 lines, a rank each, suspects first
  std::vector<std::string> findings; ///< other things worth knowing
  std::vector<wait_edge> waits;      ///< who waits for whom; at most a few hundred
  int ranks = 0;
  std::uint64_t stuck_ns = 0; ///< how long the rank that waits longest has not moved

  [[nodiscard]] bool hang() const noexcept { return exit_code(code) != 0; }
};

} // namespace polyrank::hang
