// report and watch: what the rings of a folder say.
// SPDX-License-Identifier: Apache-2.0
#include "tools/hang/commands.hpp"

#include "support/files.hpp"

#include <polyrank/hang/analyze.hpp>
#include <polyrank/hang/report.hpp>
#include <polyrank/hang/ring.hpp>
#include <polyrank/hang/trace.hpp>

#include <chrono>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

namespace polyrank::examples {
namespace {

using namespace polyrank::hang;
using polyrank::detail::cat;

struct job_rings {
  std::vector<mapped_file> files;
  std::vector<sample> samples;
  std::filesystem::path folder;
};

/// The rings of each job. Broken files are named on stderr.
std::map<std::string, job_rings> read_rings(const rings_flags& flags) {
  std::map<std::string, job_rings> jobs;
  char here[256] = "";
  ::gethostname(here, sizeof here - 1);
  for (const auto& folder : flags.folders)
    for (const auto& path : ring_files(folder, flags.job)) {
      mapped_file file = mapped_file::open(path);
      try {
        const ring_view v(file.bytes());
        job_rings& job = jobs[v.job()];
        sample s{.rank = v.rank(), .ring = v, .host = v.host()};
        if (s.host == here && v.at(layout::f_pid_namespace) == pid_namespace())
          s.process = state_of(v.pid(), v.at(layout::f_started));
        s.now = s.process == process_state::running || s.process == process_state::stopped
                    ? now_ns()
                    : v.at(layout::f_heartbeat_ns);
        if (s.process == process_state::running || s.process == process_state::stopped)
          s.where = whereabouts(v.pid());
        job.folder = folder;
        job.files.push_back(std::move(file));
        job.samples.push_back(std::move(s));
      } catch (const data_error& e) {
        std::fprintf(stderr, "polyrank_hang: %s: %s\n", path.c_str(), e.what());
      }
    }
  for (auto& [name, job] : jobs) {
    std::sort(job.samples.begin(), job.samples.end(),
              [](const sample& a, const sample& b) { return a.rank < b.rank; });
    // Ranks that a verdict ended were alive when it fell: what counts is what they wrote until
    // then.
    std::map<std::string, std::uint64_t> last_beat;
    bool ended = false;
    for (const sample& s : job.samples) {
      auto& beat = last_beat[s.host];
      beat = std::max(beat, s.ring.at(layout::f_heartbeat_ns));
      ended = ended || (s.ring.life() == life::verdict &&
                        s.ring.at(layout::f_verdict) !=
                            static_cast<std::uint64_t>(exit_code(verdict_code::rank_dead)));
    }
    for (sample& s : job.samples) {
      if (s.process == process_state::running || s.process == process_state::stopped) continue;
      s.now = last_beat[s.host];
      if (s.ring.life() == life::verdict) s.process = process_state::unknown;
      const std::uint64_t beat = s.ring.at(layout::f_heartbeat_ns);
      if (ended && s.process == process_state::dead && beat + 1'500'000'000 > s.now)
        s.process = process_state::unknown; // ended together with the others
    }
  }
  return jobs;
}

} // namespace

int run_report(const rings_flags& flags) {
  expects(flags.deadline >= 0 && flags.deadline < 1e9, "--deadline: ", flags.deadline,
          " is no number of seconds");
  const auto jobs = read_rings(flags);
  if (jobs.empty()) {
    std::string list;
    for (const auto& f : flags.folders) list += cat(' ', f.string());
    throw data_error("no flight recorders in" + list +
                     "; the ranks write them to POLYRANK_HANG_DIR or /dev/shm while they run");
  }
  expects(jobs.size() == 1 || (flags.json.empty() && flags.svg.empty() && flags.trace.empty()),
          "there are ", jobs.size(),
          " jobs: choose one by --job NAME for --json, --svg or --trace");
  int code = 0;
  for (const auto& [name, job] : jobs) {
    const verdict v =
        analyze(job.samples, {.deadline_ns = static_cast<std::uint64_t>(flags.deadline * 1e9)});
    if (!flags.quiet)
      std::printf("job %s: %zu of %d ranks recorded\n", name.c_str(), job.samples.size(), v.ranks);
    std::printf("%s", flags.quiet ? (v.headline + '\n').c_str() : report_text(v).c_str());
    for (const sample& s : job.samples)
      if (const auto left = s.ring.at(layout::f_verdict); left != 0 && !flags.quiet) {
        std::printf("at the time the job left with code %llu; its report is polyrank-%s.%s.json\n",
                    static_cast<unsigned long long>(left), name.c_str(), s.host.c_str());
        break;
      }
    const bool dead = std::all_of(job.samples.begin(), job.samples.end(), [](const sample& s) {
      return s.process != process_state::running && s.process != process_state::stopped;
    });
    if (dead && !flags.quiet)
      std::printf("its processes are gone: rm %s removes what it left\n",
                  (job.folder / ("polyrank-" + name + ".*")).c_str());
    if (!flags.json.empty()) write_file(flags.json, report_json(v));
    if (!flags.svg.empty()) write_file(flags.svg, report_svg(v));
    if (!flags.trace.empty()) write_file(flags.trace, chrome_trace(job.samples));
    code = std::max(code, exit_code(v.code));
  }
  return code;
}

int run_watch(const rings_flags& flags) {
  for (;;) {
    const auto jobs = read_rings(flags);
    if (!flags.once && ::isatty(STDOUT_FILENO) != 0) std::printf("\033[H\033[2J");
    if (jobs.empty()) std::printf("no flight recorders\n");
    for (const auto& [name, job] : jobs) {
      std::printf("job %s\n%5s %-16s %8s %9s %10s  %s\n", name.c_str(), "rank", "host", "pid",
                  "beat ago", "operations", "state");
      for (const sample& s : job.samples) {
        hang::detail::scene scene = hang::detail::look(std::span(&s, 1));
        const hang::detail::rank_state& r = scene.ranks[0];
        const std::uint64_t now = now_ns(), beat = s.ring.at(layout::f_heartbeat_ns);
        std::string state = s.process == process_state::dead ? "DEAD " : "";
        state += r.unfinished.empty() ? hang::detail::words_for_last(r)
                                      : cat("in ", hang::detail::words_for(r.unfinished.front()),
                                            " for ", hang::detail::seconds(r.stuck()));
        state += cat("; ", name_of(s.ring.state()));
        std::printf("%5d %-16s %8d %9s %10llu  %s\n", s.rank, s.host.c_str(), s.ring.pid(),
                    hang::detail::seconds(beat < now ? now - beat : 0).c_str(),
                    static_cast<unsigned long long>(s.ring.next()), state.c_str());
      }
      const verdict v =
          analyze(job.samples, {.deadline_ns = static_cast<std::uint64_t>(flags.deadline * 1e9)});
      if (v.code != verdict_code::none) std::printf("%s\n", v.headline.c_str());
    }
    std::fflush(stdout);
    if (flags.once) return 0;
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

} // namespace polyrank::examples
