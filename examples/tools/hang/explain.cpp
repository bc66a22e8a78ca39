// explain: what a verdict, an exit code or a message of NCCL or MPI means, and what to do.
// SPDX-License-Identifier: Apache-2.0
#include "tools/hang/commands.hpp"

#include "support/files.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/core/text.hpp>
#include <polyrank/hang/verdict.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace polyrank::examples {
namespace {

using polyrank::hang::verdict_class;
using polyrank::hang::verdict_classes;

/// What a message is worth: a cause; what others see of it; or only that something is wrong.
enum class worth : std::uint8_t { cause, symptom, general };

/// A text that logs hold literally.
struct known_message {
  std::string_view text, cause, cure, reference;
  worth is = worth::cause;
};

constexpr std::array<known_message, 29> known{{
    {"Duplicate GPU detected", "two ranks use one GPU",
     "choose the GPU by the local rank (OMPI_COMM_WORLD_LOCAL_RANK); several ranks on one GPU need "
     "NCCL >= 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1",
     "NVIDIA/nccl#1716"},
    {"unhandled system error", "a call into the system failed inside NCCL",
     "the lines above it with NCCL_DEBUG=INFO name it: often /dev/shm is too small (docker "
     "--shm-size=1g), memlock or nofile limits, or a wrong interface",
     "NVIDIA/nccl#290", worth::general},
    {"No space left on device", "/dev/shm is full",
     "docker --shm-size=1g; remove stale nccl-* files", "NVIDIA/nccl#525"},
    {"Error while creating shared memory segment", "/dev/shm is too small or full",
     "docker --shm-size=1g, or an emptyDir of medium Memory; remove stale nccl-* files",
     "NVIDIA/nccl#342"},
    {"system not yet initialized", "the Fabric Manager of the NVSwitches does not run",
     "systemctl enable --now nvidia-fabricmanager, of the driver's version",
     "NVIDIA/nccl-tests#264"},
    {"ibv_reg_mr", "memory cannot be pinned: RLIMIT_MEMLOCK",
     "ulimit -l unlimited inside the rank, and restart the daemon that starts it",
     "NVIDIA/nccl-tests#206"},
    {"ibv_poll_cq", "an InfiniBand or RoCE transfer failed",
     "error 12 with vendor error 129 is a timeout: link, GID index (NCCL_IB_GID_INDEX), or a "
     "switch; compare NCCL_IB_HCA on all hosts",
     "NVIDIA/nccl#426"},
    {"Got completion from peer", "an InfiniBand or RoCE transfer failed",
     "status 12 is a timeout: the peer is dead or the link is down; look for the first rank that "
     "complained",
     "NVIDIA/nccl#426"},
    {"Connection refused",
     "nobody listens where a rank looks for another one: that process is dead, the NCCL id is of "
     "an "
     "earlier job, or the address is of another interface",
     "look which rank died first; make a new id for each job; check NCCL_SOCKET_IFNAME",
     "NVIDIA/nccl#352", worth::symptom},
    {"remote process exited or there was a network error", "a peer ended, or the network was cut",
     "look for the rank that died first; this one only noticed", "NVIDIA/nccl#582", worth::general},
    {"Failed to initialize any NET plugin",
     "NCCL_NET (or a plugin) names a network that this host does not have",
     "unset NCCL_NET, or install its driver; NCCL_NET=Socket always works", "NVIDIA/nccl#195"},
    {"Connection timed out", "a firewall drops packets, or the wrong interface was chosen",
     "open the ephemeral ports between the hosts; set NCCL_SOCKET_IFNAME", "NVIDIA/nccl#352"},
    {"No route to host", "a firewall or a wrong interface",
     "set NCCL_SOCKET_IFNAME (and btl_tcp_if_include for Open MPI)", "horovod/horovod#310"},
    {"Connection closed by remote peer", "a peer process ended or was killed",
     "look for the rank that died first; this one only noticed", "NVIDIA/nccl#582", worth::symptom},
    {"socketProgress", "a TCP connection of NCCL broke: a peer ended or the network was cut",
     "look for the rank that died first; this one only noticed", "NVIDIA/nccl#582", worth::general},
    {"no socket interface found", "NCCL_SOCKET_IFNAME names no interface of this host",
     "unset it, or name one that `ip addr` shows on every host", "horovod/horovod#700"},
    {"Mismatched NCCL version", "the ranks use different NCCL libraries",
     "put the same library first in LD_LIBRARY_PATH on all hosts", "NVIDIA/nccl#447"},
    {"NCCL WARN Cuda failure", "a CUDA call failed, often an error of an earlier kernel",
     "run with CUDA_LAUNCH_BLOCKING=1 on one rank, or compute-sanitizer", "NVIDIA/nccl#582",
     worth::general},
    {"out of memory", "a GPU or the host has too little memory",
     "the rank that says so first is the cause; the others wait for it", "NVIDIA/nccl#582"},
    {"Cuda failure 'invalid argument'",
     "often NVLink multicast after a restart of the Fabric Manager",
     "reset the GPUs or reboot the host; NCCL_NVLS_ENABLE=0 avoids it", "NVIDIA/nccl#1488"},
    {"invalid root", "the root of a broadcast or reduce is no rank of the communicator",
     "number roots within the communicator, not within the job", "NVIDIA/nccl#1417"},
    {"invalid argument (run with", "wrong arguments of an NCCL call",
     "NCCL_DEBUG=WARN prints which one; counts, roots and the device must fit", "NVIDIA/nccl#1417",
     worth::general},
    {"invalid usage", "wrong arguments of an NCCL call, or a wrong set-up",
     "NCCL_DEBUG=WARN prints which one; counts, roots and the device must fit", "NVIDIA/nccl#1716",
     worth::general},
    {"peer mapping resources exhausted", "too many peers for P2P over PCIe",
     "at most 8 GPUs without NVSwitch can be peers; set CUDA_VISIBLE_DEVICES per rank",
     "NVIDIA/nccl#48"},
    {"Watchdog caught collective operation timeout", "PyTorch: a rank did not join a collective",
     "the rank that is missing is the cause: compare the last collective of all ranks",
     "pytorch/pytorch#50925"},
    {"There are not enough slots available", "Open MPI counts cores and refuses more ranks",
     "mpirun --map-by :OVERSUBSCRIBE", "open-mpi/ompi#12618"},
    {"MPI_ERR_TRUNCATE",
     "a message is longer than the receiver expects: the ranks issued "
     "operations of different sizes",
     "compare the counts of the ranks; run under the guard for the call sites", "NVIDIA/nccl#1417"},
    {"Message truncated", "the ranks issued operations of different sizes",
     "compare the counts of the ranks; run under the guard for the call sites", "NVIDIA/nccl#1417"},
    {"exited on signal 9", "a rank was killed, most often by the kernel for want of memory",
     "dmesg | grep -i oom; fewer loader workers, or a larger memory limit", "NVIDIA/nccl#582"},
}};

void print_class(const verdict_class& c) {
  std::printf("%s", std::string(c.name).c_str());
  if (c.exit_code != 0) std::printf(" (exit code %d)", c.exit_code);
  std::printf(": %s\n", std::string(c.meaning).c_str());
  if (!c.advice.empty()) std::printf("  try: %s\n", std::string(c.advice).c_str());
  if (!c.reference.empty()) std::printf("  see: %s\n", std::string(c.reference).c_str());
}

std::string text_of(const std::string& name) {
  if (name != "-") {
    const auto bytes = read_file(name);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string text;
  char part[4096];
  for (std::size_t n; (n = std::fread(part, 1, sizeof part, stdin)) > 0;) text.append(part, n);
  return text;
}

/// The line of `text` that holds position `at`: its number from 1, and where it begins.
struct line_of {
  line_of(const std::string& text, std::size_t at)
      : number(1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n')),
        begin(at == 0 ? 0 : text.rfind('\n', at - 1) + 1), // npos + 1 is 0
        whole(text.substr(begin, text.find('\n', at) - begin)) {}
  std::ptrdiff_t number;
  std::size_t begin;
  std::string whole;
};

struct hit {
  line_of line;
  const known_message* what;
  std::size_t times;
};

/// Each known message of the log once: causes first, then what others saw of them, then what only
/// says that something is wrong; of one kind in the order of the log. A line that tells a cause
/// says no more than that.
std::vector<hit> known_messages_of(const std::string& text) {
  std::vector<hit> hits;
  for (const known_message& k : known) {
    std::size_t times = 0, first = 0;
    for (std::size_t at = text.find(k.text); at != std::string::npos;
         at = text.find(k.text, at + 1))
      if (times++ == 0) first = at;
    if (times > 0) hits.push_back({line_of(text, first), &k, times});
  }
  std::sort(hits.begin(), hits.end(), [](const hit& a, const hit& b) {
    return std::tie(a.what->is, a.line.begin) < std::tie(b.what->is, b.line.begin);
  });
  std::vector<hit> told;
  for (hit& h : hits)
    if (std::none_of(told.begin(), told.end(), [&](const hit& t) {
          return t.what->is < h.what->is && h.line.whole.find(t.what->text) != std::string::npos;
        }))
      told.push_back(std::move(h));
  return told;
}

/// Communicators that some ranks began to make and none completed, as NCCL_DEBUG=INFO tells.
std::vector<std::string> unfinished_starts_of(const std::string& text) {
  struct start {
    std::set<int> ranks;
    int size = 0;
    bool complete = false;
  };
  std::map<std::string, start> starts; // by commId
  for (std::size_t at = text.find("commId 0x"); at != std::string::npos;
       at = text.find("commId 0x", at + 1)) {
    const std::string line = line_of(text, at).whole;
    const bool begins = line.find("Init START") != std::string::npos;
    if (!begins && line.find("Init COMPLETE") == std::string::npos) continue;
    const std::size_t id = line.find("commId 0x"), rank = line.find(" rank "),
                      size = line.find(" nranks ");
    start& s = starts[line.substr(id, line.find(' ', id + 7) - id)];
    s.complete = s.complete || !begins;
    if (rank != std::string::npos) s.ranks.insert(std::atoi(line.c_str() + rank + 6));
    if (size != std::string::npos) s.size = std::atoi(line.c_str() + size + 8);
  }
  std::vector<std::string> told;
  for (const auto& [id, s] : starts) {
    if (s.complete || s.size <= 1 || s.size > 1 << 20) continue;
    std::string missing;
    for (int r = 0, named = 0; r < s.size; ++r)
      if (!s.ranks.contains(r) && named++ < 8) missing += polyrank::detail::cat(' ', r);
    told.push_back(
        missing.empty()
            ? polyrank::detail::cat(id, ": all ", s.size,
                                    " ranks began to make the communicator, none came through: the "
                                    "network between them; check NCCL_SOCKET_IFNAME and firewalls")
            : polyrank::detail::cat(id, ": ", s.ranks.size(), " of ", s.size,
                                    " ranks began to make the communicator; missing: rank", missing,
                                    " (or its log): see where it is, `polyrank_hang attach`"));
  }
  return told;
}

int explain_log(const std::string& name) {
  const std::string text = text_of(name);
  const auto hits = known_messages_of(text);
  const auto starts = unfinished_starts_of(text);
  const bool explained = !hits.empty() && hits[0].what->is == worth::cause;
  if (explained)
    std::printf("most likely: %s\n", std::string(hits[0].what->cause).c_str());
  else if (!starts.empty() && hits.empty())
    std::printf("most likely: not all ranks came to make a communicator\n");
  else if (!hits.empty())
    std::printf("most likely: %s\n", std::string(hits[0].what->cause).c_str());
  for (const hit& h : hits)
    std::printf("line %td (%zu time%s): %.160s\n  cause: %s\n  try: %s\n  see: %s\n", h.line.number,
                h.times, h.times == 1 ? "" : "s", h.line.whole.c_str(),
                std::string(h.what->cause).c_str(), std::string(h.what->cure).c_str(),
                std::string(h.what->reference).c_str());
  if (!explained)
    for (const std::string& s : starts) std::printf("%s\n", s.c_str());
  if (const std::size_t v = text.find("HANG verdict"); v != std::string::npos) {
    const std::string line = text.substr(v, text.find('\n', v) - v);
    std::printf("%s\n", line.c_str());
    for (const verdict_class& c : verdict_classes)
      if (line.starts_with("HANG verdict " + std::string(c.name) + ' ')) print_class(c);
    return 0;
  }
  if (hits.empty() && starts.empty()) {
    std::printf("no known message; with NCCL_DEBUG=INFO the log says more\n");
    return 1;
  }
  return 0;
}

} // namespace

int run_explain(const explain_flags& flags) {
  if (flags.table) {
    std::printf("| verdict | exit code | meaning | what to try |\n|---|---|---|---|\n");
    for (const verdict_class& c : verdict_classes)
      if (c.code != hang::verdict_code::none)
        std::printf("| %s | %s | %s | %s |\n", std::string(c.name).c_str(),
                    c.exit_code != 0 ? std::to_string(c.exit_code).c_str() : "-",
                    std::string(c.meaning).c_str(), std::string(c.advice).c_str());
    return 0;
  }
  if (!flags.log.empty()) return explain_log(flags.log);
  expects(!flags.code.empty(), "explain: give an exit code, the name of a verdict, or --log FILE");
  std::string name = flags.code;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  bool any = false;
  for (const verdict_class& c : verdict_classes)
    if (c.name == name || (c.exit_code != 0 && std::to_string(c.exit_code) == name)) {
      print_class(c);
      any = true;
    }
  constexpr struct {
    std::string_view code, text;
  } others[] = {{"1", "a failure of files or environment; the message is on stderr"},
                {"2", "wrong flags or sizes"},
                {"75", "saved on request; start the job again and it goes on"},
                {"77", "skipped"},
                {"134", "a rank aborted (SIGABRT): look for its last words on stderr"},
                {"137", "a rank was killed (SIGKILL), most often for want of memory"},
                {"139", "a rank crashed (SIGSEGV)"},
                {"143", "a rank got SIGTERM: the scheduler or mpirun ended the job"}};
  for (const auto& o : others)
    if (o.code == name) {
      std::printf("exit code %s: %s\n", name.c_str(), std::string(o.text).c_str());
      any = true;
    }
  expects(any, "explain: '", flags.code, "' is no verdict and no exit code of ours");
  return 0;
}

} // namespace polyrank::examples
