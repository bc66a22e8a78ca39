// selftest: a job for each fault; the verdict, the ranks, the operation, the exit code, the time,
// and whether every process is gone.
// SPDX-License-Identifier: Apache-2.0
#include "tools/hang/commands.hpp"

#include "support/files.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/core/text.hpp>
#include <polyrank/hang/ring.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace polyrank::examples {
namespace {

using steady = std::chrono::steady_clock;

/// Where a scenario makes sense.
enum class on : std::uint8_t { both, host, cluster, cuda };

struct scenario {
  std::string_view name;
  std::string_view what;
  std::string_view verdict; ///< expected in the headline; empty: there must be none
  std::string_view says;    ///< another part of the headline: the place, the state
  std::vector<int> codes;   ///< exit codes of mpirun that are right
  on where = on::both;
  int rank = 2;           ///< at fault
  bool death = false;     ///< must be told within 2 s, whatever the deadline
  bool names_rank = true; ///< the headline names the rank at fault
};

const std::vector<scenario>& scenarios() {
  // mpirun's own codes: 137 and 134 for a rank that a signal ended.
  static const std::vector<scenario> all{
      {"skip", "skips a collective", "NEVER_ENTERED", "\"bucket 1\"", {82}},
      {"sleep", "sleeps", "NEVER_ENTERED", "\"bucket 0\"", {82}},
      {"spin", "computes for ever", "NEVER_ENTERED", "main thread runs", {82}},
      {"stop", "is stopped", "NEVER_ENTERED", "SIGSTOP", {82}},
      {"stop_first", "rank 0 is stopped", "NEVER_ENTERED", "SIGSTOP", {82}, on::both, 0},
      {"kill", "SIGKILL", "RANK_DEAD", "\"bucket 0\"", {80, 137}, on::both, 2, true},
      {"kill_first", "rank 0: SIGKILL", "RANK_DEAD", "\"bucket 0\"", {80, 137}, on::both, 0, true},
      {"kill_early",
       "SIGKILL while the others compute",
       "RANK_DEAD",
       "\"bucket 0\"",
       {80, 137},
       on::both,
       2,
       true},
      {"abort", "SIGABRT", "RANK_DEAD", "\"bucket 0\"", {80, 134}, on::both, 2, true},
      {"throw", "throws", "RANK_DEAD", "deliberate failure", {1}, on::both, 2, true},
      {"exit", "_exit(0)", "RANK_DEAD", "\"bucket 0\"", {80, 1, 0}, on::both, 2, true},
      {"leave", "returns early", "RANK_DEAD", "left the program", {80}},
      {"count", "another count", "MISMATCH", "x 39999", {81}},
      {"type", "another type", "MISMATCH", "f64", {81}},
      {"op", "another operator", "MISMATCH", "max", {81}},
      {"kind", "another collective", "MISMATCH", "broadcast", {81}},
      {"root", "another root", "MISMATCH", "root 1", {81}},
      // Open MPI 4.1 writes past a receive that is too short where it copies at once: 134.
      {"extra", "one collective too many", "MISMATCH", "\"bucket 2\"", {81, 134}},
      {"order", "two communicators, other order", "ORDER_INVERSION", "\"second\"", {83}},
      {"send_send", "both send first", "P2P_CYCLE", "send to", {83}},
      {"ring", "a ring of sends", "P2P_CYCLE", "\"to next\"", {83}},
      {"pipeline", "a stage never sends", "NEVER_ENTERED", "receive from", {82}, on::both, 1},
      {"subgroup", "sleeps; half of the ranks wait", "NEVER_ENTERED", "\"half\"", {82}},
      {"stream", "its stream is blocked", "GPU_BLOCKED", "\"bucket 0\"", {84}},
      {"graph", "stops replaying a graph", "NEVER_ENTERED", "replay 6", {82}, on::cuda},
      {"barrier", "misses a barrier of MPI", "HOST", "MPI_Barrier", {86}},
      {"control", "misses an exchange of the control channel", "HOST", "control channel", {86}},
      {"apart", "is in the control channel instead", "NEVER_ENTERED", "control channel", {82}},
      {"init", "does not come to MPI_Init", "INIT_TIMEOUT", "MPI_Init", {87}},
      {"join", "does not come to NCCL's start", "INIT_TIMEOUT", "NCCL", {87}, on::cuda},
      {"straggler", "100 ms late in each step", "STRAGGLER", "is last in", {0}},
      {"fork", "forks after start-up", "finding", "child(ren)", {0}},
      {"pause", "a declared pause of 3 deadlines", "", "", {0}, on::both, 2, false, false},
      {"slow", "half a deadline late", "", "", {0}, on::both, 2, false, false},
      {"cut",
       "its host's network is cut",
       "TRANSPORT",
       "dead or unreachable",
       {85},
       on::cluster,
       2,
       false,
       false},
  };
  return all;
}

struct outcome {
  int code = -1;
  std::string output, headline;
  double seconds = -1; ///< from the fault to the headline
  int left = 0;        ///< processes that are still there afterwards
};

/// How many of the processes that wrote their pid are still there after `seconds`.
int still_there(const std::filesystem::path& folder, double seconds) {
  if (!std::filesystem::exists(folder / "pids")) return 0;
  const auto bytes = read_file(folder / "pids");
  std::istringstream list(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  const auto until = steady::now() + std::chrono::duration<double>(seconds);
  int left = 0;
  for (int pid; list >> pid;) {
    while (::kill(pid, 0) == 0 && steady::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    left += ::kill(pid, 0) == 0 ? 1 : 0;
  }
  return left;
}

/// Set by SIGINT and SIGTERM: end the job that runs, then ourselves.
volatile std::sig_atomic_t told_to_stop = 0;

/// Ends the launcher, which ends its ranks; then whatever of them is left.
void end_job(pid_t launcher, const std::filesystem::path& folder) {
  ::kill(-launcher, SIGTERM);
  const auto until = steady::now() + std::chrono::seconds(5);
  siginfo_t gone{};
  while (::waitid(P_PID, static_cast<id_t>(launcher), &gone, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         gone.si_pid == 0 && steady::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ::kill(-launcher, SIGKILL);
  if (!std::filesystem::exists(folder / "pids")) return;
  const auto bytes = read_file(folder / "pids");
  std::istringstream list(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  for (int pid; list >> pid;)
    if (hang::detail::read_small(polyrank::detail::cat("/proc/", pid, "/comm"))
            .starts_with("polyrank_hang"))
      ::kill(pid, SIGKILL);
}

/// Runs the command. `cut`: the launcher hears no more of its other host, so once the ranks have
/// gone it is ended.
outcome run_job(const std::vector<std::string>& command, const std::filesystem::path& folder,
                double limit, bool cut) {
  outcome o;
  std::array<int, 2> ends{};
  expects(::pipe2(ends.data(), O_CLOEXEC) == 0, "selftest: no pipe");
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    ::signal(SIGTERM, SIG_DFL);
    ::signal(SIGINT, SIG_DFL);
    ::dup2(ends[1], 1);
    ::dup2(ends[1], 2);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  const auto begun = steady::now();
  steady::time_point fault = begun;
  for (;;) {
    pollfd p{ends[0], POLLIN, 0};
    ::poll(&p, 1, 100);
    if (p.revents != 0) {
      char part[4096];
      const ssize_t n = ::read(ends[0], part, sizeof part);
      if (n <= 0) break;
      const bool had_fault = o.output.find("fault now\n") != std::string::npos;
      o.output.append(part, static_cast<std::size_t>(n));
      if (!had_fault && o.output.find("fault now\n") != std::string::npos) fault = steady::now();
      std::size_t at = o.output.find("HANG verdict ");
      if (at == std::string::npos) at = o.output.find("HANG finding ");
      if (at == std::string::npos) at = o.output.find("HANG finding: ");
      if (o.headline.empty() && at != std::string::npos &&
          o.output.find('\n', at) != std::string::npos) {
        o.headline = o.output.substr(at, o.output.find('\n', at) - at);
        o.seconds = std::chrono::duration<double>(steady::now() - fault).count();
      }
    }
    if (cut && !o.headline.empty()) break;
    if (told_to_stop != 0 || std::chrono::duration<double>(steady::now() - begun).count() > limit) {
      end_job(child, folder);
      o.output += "selftest: no end\n";
      break;
    }
  }
  if (cut) {
    o.left = still_there(folder, limit / 3);
    ::kill(-child, SIGTERM);
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  o.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (!cut) o.left = still_there(folder, 3);
  return o;
}

/// What is wrong with the outcome; empty: nothing.
std::string judge(const scenario& s, const outcome& o, int rank, double deadline) {
  std::string wrong;
  const auto bad = [&](const std::string& what) { wrong += (wrong.empty() ? "" : "; ") + what; };
  if (s.verdict.empty()) {
    if (!o.headline.empty()) bad("a false verdict");
  } else {
    if (o.headline.find(' ' + std::string(s.verdict)) == std::string::npos)
      bad("verdict is not " + std::string(s.verdict));
    if (o.headline.find(s.says) == std::string::npos) bad("headline lacks " + std::string(s.says));
    const std::string number = std::to_string(rank);
    if (s.names_rank && o.headline.find("rank " + number) == std::string::npos &&
        o.headline.find("ranks " + number) == std::string::npos)
      bad("headline does not name rank " + number);
    const bool has_site = o.headline.find(" at inject_job.hpp:") != std::string::npos;
    if (!has_site && s.verdict != "HOST" && s.verdict != "INIT_TIMEOUT" && s.verdict != "finding" &&
        s.verdict != "TRANSPORT")
      bad("no call site");
    const double most = s.death ? 2 : 2 * deadline;
    if (s.verdict != "STRAGGLER" && s.verdict != "finding" && o.seconds > most)
      bad("told after " + std::to_string(o.seconds) + " s");
  }
  if (s.where != on::cluster && std::find(s.codes.begin(), s.codes.end(), o.code) == s.codes.end())
    bad("exit code " + std::to_string(o.code));
  if (o.left != 0) bad(std::to_string(o.left) + " processes left");
  return wrong;
}

/// The job of a scenario, with its rings in `folder`.
std::vector<std::string> command_of(const scenario& s, int rank, const selftest_flags& flags,
                                    const std::filesystem::path& folder) {
  using polyrank::detail::cat;
  std::vector<std::string> words{"env", cat("POLYRANK_HANG_DIR=", folder.string()),
                                 cat("POLYRANK_HANG_DEADLINE=", flags.deadline),
                                 cat("POLYRANK_SELFTEST_PIDS=", (folder / "pids").string())};
  const auto add = [&](std::initializer_list<std::string> more) {
    words.insert(words.end(), more.begin(), more.end());
  };
  if (flags.cluster.empty())
    add({flags.mpirun, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-n",
         std::to_string(flags.ranks)});
  else
    add({flags.cluster, "2", std::to_string((flags.ranks + 1) / 2), "--"});
  std::string_view fault = s.name;
  if (fault.ends_with("_first")) fault.remove_suffix(6);
  add({std::filesystem::read_symlink("/proc/self/exe").string(), "inject", std::string(fault),
       "--rank", std::to_string(rank), "--backend", flags.backend});
  if (s.name == "straggler" || s.name == "fork" || s.name == "op")
    add({"--steps", s.name == "straggler" ? "60" : "120"});
  return words;
}

std::vector<scenario> chosen(const selftest_flags& flags) {
  for (const std::string& name : flags.only)
    expects(std::any_of(scenarios().begin(), scenarios().end(),
                        [&](const scenario& s) { return s.name == name; }),
            "selftest: no scenario '", name, "'; --list shows them");
  std::vector<scenario> list;
  for (const scenario& s : scenarios()) {
    const bool named = std::find(flags.only.begin(), flags.only.end(), s.name) != flags.only.end();
    const bool fits = s.where == on::both || (s.where == on::cluster && !flags.cluster.empty()) ||
                      (s.where == on::cuda && flags.backend == "cuda");
    if (flags.only.empty() ? fits : named) list.push_back(s);
  }
  return list;
}

} // namespace

int run_selftest(const selftest_flags& flags) {
  namespace fs = std::filesystem;
  if (flags.list) {
    for (const scenario& s : scenarios()) std::printf("%s\n", std::string(s.name).c_str());
    return 0;
  }
  expects(flags.backend == "host" || flags.backend == "cuda",
          "selftest: --backend is host or cuda, not '", flags.backend, "'");
  expects(flags.ranks >= 3, "selftest: a majority needs at least 3 ranks, got ", flags.ranks);
  const std::vector<scenario> list = chosen(flags);
  // Where rings lie by default: GPUs cannot write into a file on a disk.
  std::string folder = (hang::default_folder() / "polyrank_selftest_XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) throw data_error("selftest: cannot make " + folder);
  for (const int s : {SIGINT, SIGTERM}) ::signal(s, [](int) { told_to_stop = 1; });

  struct result {
    outcome is;
    std::string verdict, wrong, seconds;
  };
  std::vector<result> results(list.size());
  std::atomic<std::size_t> next{0};
  std::mutex printing;
  const auto work = [&] {
    for (std::size_t i; told_to_stop == 0 && (i = next.fetch_add(1)) < list.size();) {
      const scenario& s = list[i];
      const int rank = std::min(s.rank, flags.ranks - 1);
      const fs::path own = fs::path(folder) / s.name;
      fs::create_directory(own);
      result& r = results[i];
      r.is = run_job(command_of(s, rank, flags, own), own, 20 + 8 * flags.deadline,
                     s.where == on::cluster);
      r.verdict = s.verdict.empty() ? "none" : s.verdict;
      r.wrong = judge(s, r.is, rank, flags.deadline);
      char seconds[32];
      std::snprintf(seconds, sizeof seconds, r.is.seconds < 0 ? "-" : "%.2f", r.is.seconds);
      r.seconds = seconds;
      const std::lock_guard lock(printing);
      if (flags.quiet && r.wrong.empty()) continue;
      std::printf("%-12s %-16s %6s s  exit %3d  %s\n", std::string(s.name).c_str(),
                  r.verdict.c_str(), seconds, r.is.code, r.wrong.empty() ? "ok" : r.wrong.c_str());
      if (!r.wrong.empty()) std::printf("%s\n", r.is.output.c_str());
      std::fflush(stdout);
    }
  };
  std::vector<std::thread> workers;
  for (int i = 0; i < flags.jobs; ++i) workers.emplace_back(work);
  for (std::thread& w : workers) w.join();
  fs::remove_all(folder);
  if (told_to_stop != 0) throw data_error("selftest: told to stop");

  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::string table = "| fault | verdict | seconds | exit code | |\n|---|---|---|---|---|\n";
  std::size_t right = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const result& r = results[i];
    right += r.wrong.empty() ? 1 : 0;
    table += polyrank::detail::cat("| ", list[i].name, ": ", list[i].what, " | ", r.verdict, " | ",
                                   r.seconds, " | ", r.is.code, " | ",
                                   r.wrong.empty() ? "ok" : r.wrong, " |\n");
    rows.push_back({{"fault", list[i].name},
                    {"verdict", r.verdict},
                    {"seconds", r.is.seconds},
                    {"exit_code", r.is.code},
                    {"headline", r.is.headline},
                    {"wrong", r.wrong}});
  }
  if (!flags.json.empty()) write_file(flags.json, rows.dump(2) + "\n");
  if (!flags.markdown.empty()) write_file(flags.markdown, table);
  std::printf("selftest: %zu of %zu right, %d ranks, deadline %s s\n", right, list.size(),
              flags.ranks, polyrank::detail::cat(flags.deadline).c_str());
  return right == list.size() ? 0 : 1;
}

} // namespace polyrank::examples
