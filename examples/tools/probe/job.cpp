// SPDX-License-Identifier: Apache-2.0
#include "job.hpp"

#include <polyrank/core/version.hpp>
#include <polyrank/launch/run.hpp>

#include "gpu_part.hpp"
#include "json.hpp"
#include "step_watch.hpp"

#include "support/files.hpp"
#include "support/flags.hpp"

#include <polyrank/probe/collect_rank_facts.hpp>
#include <polyrank/probe/judge_machine.hpp>
#include <polyrank/probe/rank_bandwidth.hpp>
#include <polyrank/probe/svg.hpp>
#include <polyrank/probe/table.hpp>

#include <cmath>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <unistd.h>

namespace polyrank::examples {

using namespace probe;
using polyrank::detail::cat;

namespace {

/// Reads up to 64 MiB of the files of a folder, started at a place that depends on the rank; sets
/// rate or error.
void read_data(const std::filesystem::path& folder, int rank, rank_facts& f) {
  std::error_code code;
  std::vector<std::filesystem::path> files;
  for (auto i = std::filesystem::recursive_directory_iterator(folder, code);
       !code && i != std::filesystem::recursive_directory_iterator() && files.size() < 10000;
       i.increment(code)) {
    std::error_code ignored;
    if (i->is_regular_file(ignored)) files.push_back(i->path());
  }
  if (code) {
    f.data_error = cat(folder.string(), ": ", code.message());
    return;
  }
  if (files.empty()) {
    f.data_error = cat(folder.string(), ": no files");
    return;
  }
  std::sort(files.begin(), files.end());
  std::vector<char> block(1 << 20);
  std::size_t bytes = 0;
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < files.size() && bytes < (64U << 20); ++i) {
    const auto& file = files[(i + static_cast<std::size_t>(rank) * 17) % files.size()];
    const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      f.data_error = cat(file.string(), ": ", std::strerror(errno));
      return;
    }
    for (ssize_t n; bytes < (64U << 20) && (n = read(fd, block.data(), block.size())) > 0;)
      bytes += static_cast<std::size_t>(n);
    close(fd);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  f.data_bytes_per_s = static_cast<double>(bytes) / std::max(seconds, 1e-6);
}

class job {
 public:
  job(launch::world& world, const job_options& o)
      : world_(world), o_(o), comm_(world.communicator()), watch_(world.label(), o.timeout),
        gpus_(comm_, world.local_rank(), report_, watch_,
              {o.gpu_worker, o.live.nvml_library,
               std::chrono::duration_cast<std::chrono::milliseconds>(o.timeout) / 3,
               o.command != job_options::what::preflight}) {}

  int run() {
    facts();
    const bool ladder_only = o_.command == job_options::what::ladder,
               bandwidth_only = o_.command == job_options::what::bandwidth;
    if (ladder_only || bandwidth_only) report_.findings = gpus_.cuda_findings();
    if (ladder_only) {
      ladder();
    } else if (bandwidth_only) {
      rank_links();
      gpu_bandwidth();
    } else {
      checks(o_.command == job_options::what::preflight);
    }
    return finish();
  }

 private:
  [[nodiscard]] bool failed() const {
    return std::any_of(report_.rungs.begin(), report_.rungs.end(),
                       [](const rung& r) { return r.how == rung::outcome::failed; });
  }

  /// The rungs in their order. `stops`: at the first that fails; else all that make sense run.
  void checks(bool stops) {
    const auto go = [&] { return !stops || !failed(); };
    std::vector<finding> machines = machine_findings_;
    for (finding& f : gpus_.cuda_findings()) machines.push_back(std::move(f));
    for (finding& f : judge_memory()) machines.push_back(std::move(f));
    judge("driver and GPUs",
          {"no_gpu", "driver_mismatch", "nvml_hung", "gpu_lost", "cuda_hung", "cuda_unusable"},
          machines);
    if (go()) judge("driver fits the runtime", {"driver_too_old"}, machines);
    if (go()) gpu_rung("code for this GPU", &gpu_part::code);
    if (go()) judge("GPU health", {}, machines);
    const std::vector<finding> found = judge_ranks(report_.ranks);
    if (go()) judge("libraries", {"library_twice", "launcher_mismatch"}, found);
    if (go())
      judge("ranks agree",
            {"env_differs", "version_differs", "limits_differ", "cpu_differs", "gpu_differs",
             "gpu_twice", "nics_differ", "uneven_hosts"},
            found);
    if (go()) judge("environment of each rank", {}, found);
    if (go()) tcp();
    if (stops ? go() : tcp_good_) rank_links();
    if (go()) gpu_rung("copies between GPUs", &gpu_part::peers);
    if (go()) gpu_rung("NCCL", &gpu_part::connect);
    if (go()) gpu_rung("small win", &gpu_part::small_win);
    if (go()) gpu_rung("matrix products", &gpu_part::gemm);
    if (!stops) {
      gpu_rung("host and GPU", &gpu_part::host_device);
      gpu_rung("pairs over NCCL", &gpu_part::pairs);
      gpu_rung("collectives over NCCL", &gpu_part::collectives);
    }
    if (!o_.data.empty() && go()) data();
  }

  void gpu_bandwidth() {
    for (const auto& [name, test] : {std::pair("host and GPU", &gpu_part::host_device),
                                     std::pair("copies between GPUs", &gpu_part::peers),
                                     std::pair("pairs over NCCL", &gpu_part::pairs),
                                     std::pair("collectives over NCCL", &gpu_part::collectives)})
      gpu_rung(name, test);
  }

  /// A rung that needs a GPU on every rank and code of ours on it.
  void gpu_rung(const std::string& name, gpu_part::result (gpu_part::*test)()) {
    if (!gpus_.usable() || no_code_) {
      report_.rungs.push_back(
          {name, rung::outcome::not_run, no_code_ ? "no code for this GPU" : gpus_.why_not(), 0});
      return;
    }
    enter(name);
    const gpu_part::result r = (gpus_.*test)();
    bool good = true;
    for (const finding& f : r.findings) {
      good = good && f.kind().level() == severity::warning;
      no_code_ = no_code_ || f.code == "no_code";
      report_.findings.push_back(f);
    }
    leave(name, good, r.findings.empty() ? r.text : r.findings[0].code);
  }

  /// GPUs of ranks with less free memory than --memory asks for.
  [[nodiscard]] std::vector<finding> judge_memory() const {
    std::vector<finding> out;
    for (const rank_facts& f : report_.ranks)
      for (const machine& m : report_.machines)
        for (const gpu& g : m.gpus)
          if (m.host == f.host && !g.uuid.empty() && g.uuid == f.gpu_uuid &&
              g.memory_free.known() &&
              static_cast<double>(*g.memory_free) < o_.memory_gib * (1 << 30))
            out.push_back({"memory_short",
                           cat("rank ", f.rank, ": ", g.name, " has ", gib_text(*g.memory_free),
                               " free, --memory asks for ", o_.memory_gib, " GiB"),
                           f.rank, f.host});
    return out;
  }

  void enter(const std::string& step) {
    watch_.enter(step);
    start_ = std::chrono::steady_clock::now();
  }
  void leave(const std::string& name, bool good, const std::string& text) {
    report_.rungs.push_back(
        {name, good ? rung::outcome::passed : rung::outcome::failed, text,
         std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count()});
  }
  /// A rung of findings that are known already: those of `codes`, or with none, all that no rung
  /// has taken yet.
  void judge(const std::string& name, const std::vector<std::string_view>& codes,
             const std::vector<finding>& all) {
    enter(name);
    std::string text;
    bool good = true;
    for (const finding& f : all) {
      const bool listed = std::find(codes.begin(), codes.end(), f.code) != codes.end();
      const bool taken =
          std::any_of(report_.findings.begin(), report_.findings.end(), [&](const finding& g) {
            return g.code == f.code && g.evidence == f.evidence && g.host == f.host;
          });
      if (taken || (!codes.empty() && !listed)) continue;
      report_.findings.push_back(f);
      if (text.find(f.code) == std::string::npos) text += (text.empty() ? "" : ", ") + f.code;
      good = good && f.kind().level() == severity::warning;
    }
    leave(name, good, text);
  }

  /// Every rank's facts and every host's machine, on every rank.
  void facts() {
    enter("facts of this host");
    std::vector<finding> driver;
    machine m = read_live(o_.live, driver);
    rank_facts f = collect_rank_facts(world_.rank(), world_.local_rank(), m);
    const gpu_answer cuda = gpus_.facts();
    if (cuda.good()) take_cuda(read_cuda_facts(cuda), m, f);
    char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(mpi, &length);
    const std::string_view version(mpi, static_cast<std::size_t>(length));
    f.versions["mpi"] = version.substr(0, version.find(','));
    f.versions["polyrank"] = POLYRANK_VERSION_STRING;
    if (const auto i = choose_interface(f.interfaces, f.env.contains("NCCL_SOCKET_IFNAME")
                                                          ? f.env["NCCL_SOCKET_IFNAME"]
                                                          : "")) {
      f.announced_by = f.interfaces[*i].name;
      f.announced = f.interfaces[*i].address;
      try {
        const int port = o_.tcp_port == 0 ? 0 : o_.tcp_port + world_.local_rank();
        greeter_.emplace(f.announced, static_cast<std::uint16_t>(port), tcp_token(f));
        f.port = greeter_->port();
      } catch (const error& e) {
        listen_error_ = e.what();
      }
    }
    report mine;
    if (world_.local_rank() == 0) {
      mine.machines.push_back(std::move(m));
      mine.findings = driver;
      for (finding& one : judge_machine(mine.machines[0])) mine.findings.push_back(std::move(one));
    }
    enter("exchange of facts over MPI");
    for (const std::string& words : comm_.control().all_gather(encode(f)))
      report_.ranks.push_back(decode_facts(words));
    for (const std::string& words : comm_.control().all_gather(report_json(mine))) {
      report theirs = read_report_json(words, "facts of a host");
      for (machine& one : theirs.machines) report_.machines.push_back(std::move(one));
      for (finding& one : theirs.findings) machine_findings_.push_back(std::move(one));
    }
    std::vector<gpu_answer> answers;
    for (const std::string& words : comm_.control().all_gather(encode(cuda)))
      answers.push_back(decode_answer(words));
    gpus_.learn(std::move(answers));
  }

  /// What this program is linked with, and the GPU that CUDA gives to this rank.
  void take_cuda(const cuda_facts& c, const machine& m, rank_facts& f) {
    f.versions["cuda driver"] = cuda_version_text(c.driver);
    f.versions["cuda runtime"] = cuda_version_text(c.runtime);
    if (!c.cublas.empty()) f.versions["cublas"] = c.cublas;
    if (!c.nccl.empty()) f.versions["nccl"] = c.nccl;
    for (const std::string& path : c.libraries)
      if (std::find(f.libraries.begin(), f.libraries.end(), path) == f.libraries.end())
        f.libraries.push_back(path);
    if (c.devices.empty()) return;
    const cuda_device& d =
        c.devices[static_cast<std::size_t>(world_.local_rank()) % c.devices.size()];
    f.gpu_uuid = d.uuid;
    f.gpu_model = d.name;
    for (const gpu& g : m.gpus)
      if (g.address == d.address) {
        if (!g.uuid.empty()) f.gpu_uuid = g.uuid; // of NVML: also of MIG slices
        f.gpu_cpus = g.cpus.value_or(cpu_list{});
      }
  }

  void tcp() {
    enter("TCP between all ranks");
    const std::size_t n = report_.ranks.size(), me = static_cast<std::size_t>(world_.rank());
    std::string mine(n, '\0');
    std::vector<std::thread> workers;
    // One thread per host that is asked: a silent host costs one deadline, not one per rank.
    std::map<std::string, std::vector<std::size_t>> by_host;
    for (std::size_t b = 0; b < n; ++b)
      if (b != me) by_host[report_.ranks[b].host].push_back(b);
    for (const auto& [host, peers] : by_host)
      workers.emplace_back([&, &list = peers] {
        int late = 0;
        for (const std::size_t b : list) {
          const rank_facts& to = report_.ranks[b];
          const auto deadline = late < 3 ? o_.tcp_deadline : o_.tcp_deadline / 10;
          const tcp_outcome how = to.port == 0
                                      ? tcp_outcome::unreachable
                                      : tcp_try(to.announced, static_cast<std::uint16_t>(to.port),
                                                tcp_token(to), deadline);
          late += how == tcp_outcome::timed_out ? 1 : 0;
          mine[b] = static_cast<char>(how);
        }
      });
    for (std::thread& t : workers) t.join();
    std::vector<std::vector<tcp_outcome>> outcomes;
    for (const std::string& words : comm_.control().all_gather(mine)) {
      outcomes.emplace_back();
      for (const char c : words) outcomes.back().push_back(static_cast<tcp_outcome>(c));
    }
    greeter_.reset();
    const std::vector<finding> found = judge_tcp(report_.ranks, outcomes);
    tcp_good_ = found.empty();
    for (const finding& f : found) report_.findings.push_back(f);
    leave("TCP between all ranks", found.empty(),
          found.empty() ? cat(n * (n - 1), " connections") : found[0].code);
  }

  void rank_links() {
    enter("data, latency and bandwidth between ranks");
    report_.rank_links = measure_rank_links(comm_, report_.ranks);
    report_.costs.inside = fit_cost_model(report_.rank_links, true);
    report_.costs.between = fit_cost_model(report_.rank_links, false);
    const std::vector<finding> found = judge_rank_links(report_.rank_links, report_.ranks);
    bool good = true;
    for (const finding& f : found) {
      good = good && f.kind().level() == severity::warning;
      report_.findings.push_back(f);
    }
    leave("data between ranks", good,
          cat(report_.rank_links.size(), report_.rank_links.size() == 1 ? " pair" : " pairs"));
  }

  void data() {
    enter("reading the data directory");
    rank_facts f = report_.ranks[static_cast<std::size_t>(world_.rank())];
    comm_.control().barrier(o_.timeout);
    read_data(o_.data, world_.rank(), f);
    report_.ranks.clear();
    for (const std::string& words : comm_.control().all_gather(encode(f)))
      report_.ranks.push_back(decode_facts(words));
    double slowest = 0;
    for (const rank_facts& r : report_.ranks)
      if (r.data_bytes_per_s > 0)
        slowest = slowest == 0 ? r.data_bytes_per_s : std::min(slowest, r.data_bytes_per_s);
    bool good = true;
    for (const finding& one : judge_ranks(report_.ranks))
      if (one.code == "data_unreadable" || one.code == "data_slow") {
        report_.findings.push_back(one);
        good = good && one.code == "data_slow";
      }
    leave("data directory", good,
          cat("all at once, the slowest ", static_cast<std::int64_t>(slowest / 1e6), " MB/s"));
  }

  /// The same small sum with 1 rank, 2 ranks, each host alone, all: the first that fails tells
  /// where to look.
  void ladder() {
    const auto sum = [&](const std::string& name, int colour, bool takes_part) {
      if (failed()) return;
      enter(name);
      auto part = comm_.split(takes_part ? colour : -1 - world_.rank(), world_.rank());
      bool good = true;
      int ranks = 0;
      if (takes_part) {
        ranks = part.size();
        auto stream = part.make_stream();
        for (const std::size_t n : {std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20}) {
          std::vector<float> in(n, static_cast<float>(part.rank() + 1)), out(n);
          part.template all_reduce<float>(in, out, reduce_op::sum, on(stream, "ladder"));
          stream.synchronize();
          const float want = static_cast<float>(ranks * (ranks + 1) / 2);
          good = good && std::all_of(out.begin(), out.end(), [&](float v) { return v == want; });
        }
      }
      const bool all_good = comm_.control().all_reduce_max(good ? 0 : 1) == 0;
      const auto most = comm_.control().all_reduce_max(ranks);
      leave(name, all_good,
            cat("all_reduce with ", most, most == 1 ? " rank" : " ranks",
                all_good ? "" : ": wrong sums"));
    };
    std::map<std::string, int> host_number;
    for (const rank_facts& f : report_.ranks)
      host_number.try_emplace(f.host, static_cast<int>(host_number.size()));
    const int host = host_number[world_.host()];
    sum("1 rank", world_.rank(), true);
    if (world_.size() > 1) sum("2 ranks", 0, world_.rank() < 2);
    sum("each host alone", host, true);
    if (host_number.size() > 1) sum("all ranks", 0, true);
    if (failed()) {
      report_.findings.push_back(
          {"rank_data_corrupt", "all_reduce in step " + report_.rungs.back().name, -1, ""});
      return;
    }
    if (o_.gpu_worker.empty()) return;
    // The same over NCCL.
    const auto nccl = [&](const std::string& name, const auto& colour_of) {
      if (failed()) return;
      if (!gpus_.usable()) {
        report_.rungs.push_back({name, rung::outcome::not_run, gpus_.why_not(), 0});
        return;
      }
      enter(name);
      std::vector<int> colours;
      for (const rank_facts& f : report_.ranks) colours.push_back(colour_of(f));
      const gpu_part::result r = gpus_.group(colours);
      for (finding f : r.findings) {
        f.evidence = name + ": " + f.evidence;
        report_.findings.push_back(std::move(f));
      }
      leave(name, r.findings.empty(), r.text);
    };
    nccl("NCCL, 1 rank", [](const rank_facts& f) { return f.rank; });
    if (world_.size() > 1)
      nccl("NCCL, 2 ranks", [](const rank_facts& f) { return f.rank < 2 ? 0 : -1; });
    nccl("NCCL, each host alone", [&](const rank_facts& f) { return host_number[f.host]; });
    if (host_number.size() > 1) nccl("NCCL, all ranks", [](const rank_facts&) { return 0; });
  }

  /// Rungs that did not run are named, in their order.
  void name_missing() {
    if (o_.command == job_options::what::ladder || o_.command == job_options::what::bandwidth)
      return;
    std::vector<std::string> all{"driver and GPUs",
                                 "driver fits the runtime",
                                 "code for this GPU",
                                 "GPU health",
                                 "libraries",
                                 "ranks agree",
                                 "environment of each rank",
                                 "TCP between all ranks",
                                 "data between ranks",
                                 "copies between GPUs",
                                 "NCCL",
                                 "small win",
                                 "matrix products"};
    if (o_.command == job_options::what::all)
      for (const char* name : {"host and GPU", "pairs over NCCL", "collectives over NCCL"})
        all.emplace_back(name);
    if (!o_.data.empty()) all.emplace_back("data directory");
    for (const std::string& name : all)
      if (std::none_of(report_.rungs.begin(), report_.rungs.end(),
                       [&](const rung& r) { return r.name == name; }))
        report_.rungs.push_back({name, rung::outcome::not_run, "", 0});
  }

  int finish() {
    name_missing();
    watch_.enter("report");
    const int code = exit_code(report_.findings);
    const auto costs = report_.costs.complete();
    if (world_.rank() == 0) {
      if (!listen_error_.empty())
        std::fprintf(stderr, "[%s] %s\n", world_.label().c_str(), listen_error_.c_str());
      if (!o_.json.empty()) write_file(o_.json, report_json(report_));
      if (!o_.cost_model.empty() && costs) write_file(o_.cost_model, cost_model_text(*costs));
      if (!o_.svg.empty() && !report_.machines.empty())
        write_file(o_.svg, topology_svg(report_.machines[0]));
      std::fputs(text().c_str(), stdout);
      std::fflush(stdout);
    }
    comm_.control().barrier(o_.timeout);         // nobody leaves before the report is out
    const bool grave = code >= 20 && code <= 22; // then that is what the caller must learn
    if (!o_.cost_model.empty() && !costs && !grave)
      throw on_every_rank(
          usage_error(cat("--cost-model: no cost model, since no link could be timed (",
                          world_.size() == 1 ? "one rank"
                          : gpus_.shared()   ? "ranks share a GPU"
                                             : "see above",
                          ')')));
    return code;
  }

  [[nodiscard]] std::string text() const {
    std::string out;
    if (!o_.quiet) {
      if (o_.command == job_options::what::all) {
        for (const machine& m : report_.machines) out += topology_text(m) + '\n';
        std::vector<std::vector<std::string>> rows{{"rank", "host", "CPUs", "address", "GPU"}};
        for (const rank_facts& f : report_.ranks)
          rows.push_back({cat(f.rank), f.host, cpu_text(f.cpus),
                          cat(f.announced, " (", f.announced_by, ")"),
                          f.gpu_uuid.empty() ? "-" : f.gpu_uuid});
        out += probe::detail::columns_text(rows) + '\n';
      }
      if (!report_.rank_links.empty() && report_.rank_links.size() <= 120) {
        std::vector<std::vector<std::string>> rows{
            {"ranks", "where", "latency", "bandwidth", "data"}};
        for (const rank_link& l : report_.rank_links)
          rows.push_back({cat(l.a, "-", l.b), l.same_host ? "one host" : "two hosts",
                          cat(static_cast<std::int64_t>(l.seconds * 1e6 + 0.5), " us"),
                          cat(static_cast<std::int64_t>(l.bytes_per_s / 1e6 + 0.5), " MB/s"),
                          l.data_ok ? "ok" : "CHANGED"});
        out += probe::detail::columns_text(rows) + '\n';
      }
      out += gpu_text();
      std::vector<std::vector<std::string>> rows;
      for (const rung& r : report_.rungs)
        rows.push_back({std::string(outcome_text(r.how)), r.name, r.text});
      out += probe::detail::columns_text(rows) + '\n';
    }
    if (!report_.findings.empty() || !o_.quiet) out += findings_text(report_.findings);
    std::size_t bad = 0;
    for (const rung& r : report_.rungs) bad += r.how == rung::outcome::failed ? 1 : 0;
    return out + cat("polyrank_probe: ", bad == 0 ? "ok" : "FAILED",
                     " hosts=", report_.machines.size(), " ranks=", report_.ranks.size(),
                     " findings=", report_.findings.size(), " exit=", exit_code(report_.findings),
                     '\n');
  }

  /// Tables of measured links and collectives.
  [[nodiscard]] std::string gpu_text() const {
    const auto gb = [](double v) { return v > 0 ? cat(std::round(v / 1e8) / 10) : "-"; };
    const auto us = [](double v) { return v > 0 ? cat(std::round(v * 1e7) / 10) : "-"; };
    std::string out;
    if (!report_.gpu_links.empty() && report_.gpu_links.size() <= 200) {
      std::vector<std::vector<std::string>> rows{
          {"host", "from", "to", "how", "link", "us", "GB/s", "usual", "ratio", "verdict"}};
      for (const gpu_link& l : report_.gpu_links)
        rows.push_back({l.host, l.a, l.b.empty() ? "host" : l.b, std::string(kind_text(l.kind)),
                        l.route, us(l.seconds), gb(l.bytes_per_s), gb(l.usual),
                        l.ratio() > 0 ? cat(std::round(l.ratio() * 100) / 100) : "-",
                        std::string(l.verdict())});
      out += probe::detail::columns_text(rows) + '\n';
    }
    if (!report_.collectives.empty()) {
      std::vector<std::vector<std::string>> rows{
          {"collective", "bytes", "us", "algbw GB/s", "busbw GB/s", "data"}};
      for (const collective_rate& c : report_.collectives)
        rows.push_back({c.name, cat(c.bytes), us(c.seconds), gb(c.algbw()), gb(c.busbw()),
                        c.data_ok ? "ok" : "CHANGED"});
      out += probe::detail::columns_text(rows) + '\n';
    }
    return out;
  }

  launch::world& world_;
  const job_options& o_;
  host::communicator comm_;
  step_watch watch_;
  std::chrono::steady_clock::time_point start_;
  report report_;
  gpu_part gpus_;
  bool no_code_ = false;
  std::vector<finding> machine_findings_;
  std::optional<tcp_greeter> greeter_;
  std::string listen_error_;
  bool tcp_good_ = false; // a dropped port would hang MPI too
};

} // namespace

int run_job(int argc, char** argv, const job_options& o) {
  return launch::run(argc, argv, [&](launch::world& world) { return job(world, o).run(); });
}

} // namespace polyrank::examples
