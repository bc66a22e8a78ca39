// collect and attach: what a host can tell without the job's help.
// SPDX-License-Identifier: Apache-2.0
#include "tools/hang/commands.hpp"

#include "support/files.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/hang/neighbours.hpp>
#include <polyrank/hang/ring.hpp>
#include <polyrank/hang/words.hpp>
#include <polyrank/launch/ras.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <unistd.h>

namespace polyrank::examples {
namespace {

namespace fs = std::filesystem;
using namespace polyrank::hang;
using polyrank::detail::cat;

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

/// Every thread of a process: name, state, system call, kernel stack where it may be read.
std::string threads_of(int pid) {
  std::string out;
  std::error_code failed;
  for (fs::directory_iterator it(cat("/proc/", pid, "/task"), failed), end; !failed && it != end;
       it.increment(failed)) {
    const std::string base = it->path().string();
    std::string name = hang::detail::read_small(base + "/comm");
    if (!name.empty() && name.back() == '\n') name.pop_back();
    const std::string stat = hang::detail::read_small(base + "/stat");
    out += cat("thread ", it->path().filename().string(), " (", name, ") state ",
               hang::detail::stat_field(stat, 3), "\n  syscall ",
               hang::detail::read_small(base + "/syscall"));
    if (const std::string stack = hang::detail::read_small(base + "/stack"); !stack.empty())
      out += cat("  kernel stack:\n", stack);
  }
  return out;
}

/// A rank, watched for a while.
struct process {
  int pid = 0;
  place at;
  std::string program;
  std::uint64_t ticks = 0; ///< CPU time
  double cpu = 0;          ///< share of a core
  process_state state{};
};

/// What a command prints, at most 1 MiB; it must end by itself.
std::string output_of(const char* command) {
  std::string out;
  if (std::FILE* p = ::popen(command, "r"); p != nullptr) {
    char part[4096];
    for (std::size_t n; (n = std::fread(part, 1, sizeof part, p)) > 0 && out.size() < (1u << 20);)
      out.append(part, n);
    ::pclose(p);
  }
  return out;
}

/// What each GPU seems to do, by its power: NCCL's kernels keep a GPU busy and need little of it.
/// `csv`: index, utilisation, memory utilisation, watts, limit.
void print_power(const std::string& csv) {
  struct gpu {
    int index = 0;
    double busy = 0, memory = 0, watts = 0, limit = 0;
    [[nodiscard]] bool spins() const { return busy >= 95 && memory <= 2 && watts < 0.45 * limit; }
  };
  std::vector<gpu> all;
  for (std::size_t at = 0; at < csv.size(); at = csv.find('\n', at) + 1) {
    gpu g;
    if (std::sscanf(csv.c_str() + at, "%d, %lf, %lf, %lf, %lf", &g.index, &g.busy, &g.memory,
                    &g.watts, &g.limit) == 5)
      all.push_back(g);
    if (csv.find('\n', at) == std::string::npos) break;
  }
  const auto spinning =
      std::count_if(all.begin(), all.end(), [](const gpu& g) { return g.spins(); });
  for (const gpu& g : all)
    std::printf("GPU %d: %.0f%% busy, %.0f of %.0f W: %s\n", g.index, g.busy, g.watts, g.limit,
                g.spins()     ? "waits in a kernel, as in a collective"
                : g.busy < 10 ? "idle"
                              : "computes");
  if (spinning >= 2 && static_cast<std::size_t>(spinning) + 1 == all.size())
    for (const gpu& g : all)
      if (!g.spins())
        std::printf("GPU %d is the odd one out: the others wait in a collective, it does not\n",
                    g.index);
}

std::uint64_t cpu_ticks(int pid) {
  const std::string stat = hang::detail::read_small(cat("/proc/", pid, "/stat"));
  std::uint64_t sum = 0;
  for (const int field : {14, 15}) {
    const std::string_view text = hang::detail::stat_field(stat, field);
    std::uint64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    sum += value;
  }
  return sum;
}

} // namespace

int run_collect(const collect_flags& flags) {
  const char* local = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  if (local == nullptr) local = std::getenv("SLURM_LOCALID");
  if (local != nullptr && std::string_view(local) != "0") return 0; // one a host
  const fs::path to = flags.to / host_name();
  std::size_t rings = 0, stacks = 0;
  for (const auto& folder : flags.folders)
    for (const auto& path : ring_files(folder, flags.job)) {
      const mapped_file file = mapped_file::open(path);
      try {
        const ring_view v(file.bytes());
        const auto image = v.image(v.slots(), now_ns());
        write_file(to / path.filename(), std::as_bytes(std::span(image)));
        ++rings;
        if (state_of(v.pid(), v.at(layout::f_started)) == process_state::dead) continue;
        write_file(to / cat("threads.", v.rank(), ".txt"), threads_of(v.pid()));
        ++stacks;
      } catch (const data_error& e) {
        std::fprintf(stderr, "polyrank_hang: %s: %s\n", path.c_str(), e.what());
      }
    }
  const std::string gpus = output_of("timeout 20 nvidia-smi -q 2>/dev/null");
  if (!gpus.empty()) write_file(to / "nvidia-smi.txt", gpus);
  std::printf("%s: %zu flight recorders, threads of %zu processes%s in %s\n", host_name().c_str(),
              rings, stacks, gpus.empty() ? "" : ", GPU facts", to.c_str());
  return rings > 0 ? 0 : 1;
}

int run_attach(const collect_flags& flags) {
  std::map<std::string, std::vector<process>> jobs;
  for (const auto& [name, ranks] : find_ranks())
    for (const rank_process& r : ranks) {
      process p{.pid = r.pid,
                .at = r.at,
                .program = hang::detail::read_small(cat("/proc/", r.pid, "/comm"))};
      while (!p.program.empty() && p.program.back() == '\n') p.program.pop_back();
      jobs[name].push_back(std::move(p));
    }
  if (!flags.job.empty()) std::erase_if(jobs, [&](const auto& j) { return j.first != flags.job; });
  if (jobs.empty())
    throw data_error(
        "no process of this host was started as a rank by Open MPI, MPICH or Slurm, or "
        "their environment may not be read (run as the same user)");
  for (auto& [name, ranks] : jobs)
    for (process& p : ranks) p.ticks = cpu_ticks(p.pid);
  const auto begun = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begun;
  for (auto& [name, ranks] : jobs) {
    std::printf("job %s on %s\n%5s %8s %6s  %-16s %s\n", name.c_str(), host_name().c_str(), "rank",
                "pid", "CPU", "program", "main thread");
    std::size_t busy = 0, idle = 0;
    for (process& p : ranks) {
      p.cpu = static_cast<double>(cpu_ticks(p.pid) - p.ticks) /
              static_cast<double>(::sysconf(_SC_CLK_TCK)) / time.count();
      p.state = state_of(p.pid, start_time_of(p.pid));
      std::printf("%5d %8d %5.0f%%  %-16s %s\n", p.at.rank, p.pid, 100 * p.cpu, p.program.c_str(),
                  whereabouts(p.pid).c_str());
      (p.cpu > 0.2 ? busy : idle) += 1;
    }
    for (const process& p : ranks)
      if (p.state == process_state::stopped)
        std::printf("rank %d (pid %d) is stopped: kill -CONT %d\n", p.at.rank, p.pid, p.pid);
    if (idle == 1 && busy >= 2)
      for (const process& p : ranks)
        if (p.cpu <= 0.2 && p.state != process_state::stopped)
          std::printf(
              "rank %d is the odd one out: the others spin, as in a collective, it does not; "
              "gdb -p %d shows where it is\n",
              p.at.rank, p.pid);
    if (busy == 1 && idle >= 2)
      for (const process& p : ranks)
        if (p.cpu > 0.2)
          std::printf("rank %d is the odd one out: it computes, the others wait; gdb -p %d shows "
                      "where it is\n",
                      p.at.rank, p.pid);
    const int expected = ranks[0].at.local_size;
    if (expected > 0 && static_cast<int>(ranks.size()) < expected)
      std::printf("%d of %d ranks of this host are gone\n",
                  expected - static_cast<int>(ranks.size()), expected);
  }
  print_power(output_of("timeout 10 nvidia-smi --format=csv,noheader,nounits --query-gpu="
                        "index,utilization.gpu,utilization.memory,power.draw,power.limit "
                        "2>/dev/null"));
  const std::string ras = launch::ras_status(std::chrono::seconds(3));
  if (!ras.empty()) {
    const auto complaints = launch::ras_findings(ras);
    std::printf("NCCL RAS at %s: %zu complaint(s)\n", launch::ras_address().c_str(),
                complaints.size());
    for (const std::string& line : complaints) std::printf("  %s\n", line.c_str());
  } else {
    std::printf("NCCL RAS does not answer at %s (NCCL before 2.24, or NCCL_RAS_ENABLE=0)\n",
                launch::ras_address().c_str());
  }
  std::printf(
      "not known without flight recorders: which operation each rank is in, and what its GPU "
      "does; start the program through launch::run, or see docs/hangs.md\n");
  return 0;
}

} // namespace polyrank::examples
