// The guard of a program: watches its job, and if the job hangs prints one verdict for all ranks
// and ends every rank with the verdict's exit code. The only type of the library that prints or
// exits on a verdict, so an application constructs it; launch::run does.
//
//     int main(int argc, char** argv) {
//       hang::guard guard(hang::guard_options::from_environment());   // before MPI_Init
//       launch::world world(argc, argv, {.ring = guard.ring()});
//       guard.running();
//       ...
//       if (world.save_requested()) ...                              // at step boundaries: SIGUSR2
//       guard.leaving();                                             // before MPI_Finalize
//     }
//
// Environment: POLYRANK_HANG_DEADLINE (seconds; 0 switches the guard off; default 120),
// POLYRANK_HANG_DIR (where the rings are; default /dev/shm).
//
// Beside the rings, in the same folder, for each host: JOB.HOST.claim (the one who prints),
// JOB.HOST.verdict (the code with which everybody leaves), JOB.HOST.json and .svg (the report). All
// are mode 0600. A clean end removes everything; after a verdict the files stay for `polyrank_hang
// report`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/place.hpp>
#include <polyrank/hang/report.hpp>
#include <polyrank/hang/watchdog.hpp>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace polyrank::hang {

struct guard_options {
  std::optional<place> where; ///< nothing: no launcher, so there is nobody to wait for
  std::filesystem::path folder = default_folder();
  std::chrono::nanoseconds deadline = std::chrono::seconds(120); ///< 0: off
  std::size_t slots = 4096;
  std::string command{}; ///< run by /bin/sh on a verdict, the JSON report's path is $1
  std::function<void(const verdict&)> on_verdict{}; ///< before the process ends
  /// What somebody else knows of a hang, as findings, within a second. Not asked after a death.
  std::function<std::vector<std::string>()> witness{};
  bool leaves = true; ///< false: print only
  bool signals =
      true; ///< block and take them; false: in somebody else's program, where threads run

  /// As the launcher and POLYRANK_HANG_* say. Throws usage_error for a deadline that is no number.
  [[nodiscard]] static guard_options from_environment() {
    guard_options o;
    o.where = find_place([](const char* name) { return std::getenv(name); }, ::getppid());
    if (const char* text = std::getenv("POLYRANK_HANG_DEADLINE");
        text != nullptr && *text != '\0') {
      const std::string_view digits(text);
      double seconds = -1;
      const auto [end, bad] =
          std::from_chars(digits.data(), digits.data() + digits.size(), seconds);
      expects(bad == std::errc{} && end == digits.data() + digits.size() && seconds >= 0 &&
                  seconds < 1e9,
              "POLYRANK_HANG_DEADLINE is '", digits,
              "'; it must be a number of seconds, 0 switches the guard off");
      o.deadline = std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::duration<double>(seconds));
    }
    if (const char* text = std::getenv("POLYRANK_ON_VERDICT"); text != nullptr) o.command = text;
    return o;
  }
};

class guard {
 public:
  /// Makes the ring, blocks the watched signals in this thread and starts the watchdog. Throws
  /// data_error where the ring cannot be made.
  explicit guard(guard_options o) : options_(std::move(o)) {
    if (!options_.where || options_.deadline.count() == 0) return;
    const place& p = *options_.where;
    if (p.local_rank == 0) { // an earlier job of this name
      ::unlink(path_of("verdict").c_str());
      ::unlink(path_of("claim").c_str());
    }
    ring_ = std::make_unique<hang::ring>(ring_options{.folder = options_.folder,
                                                      .job = p.job,
                                                      .rank = p.rank,
                                                      .size = p.size,
                                                      .local_rank = p.local_rank,
                                                      .local_size = p.local_size,
                                                      .slots = options_.slots});
    ring_->state(host_state::init, "MPI_Init", {});
    watchdog_options w;
    if (options_.signals) {
      w.signals = block_signals();
      saves_itself_ = sigismember(&*w.signals, SIGUSR2) == 0;
    } else {
      w.tick = std::chrono::milliseconds(100); // a launcher kills the others soon after a death
    }
    w.deadline = options_.deadline;
    w.confirm = std::min<std::chrono::nanoseconds>(options_.deadline / 4, std::chrono::seconds(5));
    w.on_verdict = [this](const verdict& v) { pronounce(v); };
    w.on_finding = [this](const verdict& v) { mention(v); };
    w.on_signal = [this](int signal) { take(signal); };
    w.on_tick = [this] { follow(); };
    dog_ = std::make_unique<watchdog>(*ring_, std::move(w));
  }
  guard(const guard&) = delete;
  guard& operator=(const guard&) = delete;
  ~guard() {
    if (dog_ != nullptr) dog_->stop();
  }

  [[nodiscard]] bool on() const noexcept { return ring_ != nullptr; }
  [[nodiscard]] std::chrono::nanoseconds deadline() const noexcept { return options_.deadline; }
  /// Null where the guard is off.
  [[nodiscard]] hang::ring* ring() noexcept { return ring_.get(); }

  /// MPI has started.
  void running() noexcept {
    if (!on()) return;
    ring_->state(host_state::compute, {}, {});
    ring_->come_to(life::running);
  }
  /// This rank's work is done; it goes to MPI_Finalize.
  void leaving() noexcept {
    if (!on()) return;
    ring_->state(host_state::exit, "MPI_Finalize", {});
    ring_->come_to(life::leaving);
  }
  /// Looks beyond this host from now on.
  void connect(std::unique_ptr<side_channel> channel) noexcept {
    if (!on()) return;
    channel_owner_ = std::move(channel);
    channel_.store(channel_owner_.get(), std::memory_order_release);
    dog_->connect(channel_owner_.get());
  }

  /// This rank leaves by an error. If the rings explain it (ranks that issued different
  /// operations), prints that verdict and ends the process. Otherwise notes the error as the rank's
  /// last words and returns one line on who waits for it, or nothing.
  [[nodiscard]] std::string failed(std::string_view error, bool may_be_mismatch) {
    if (!on()) return {};
    ring_->fail(error);
    follow();
    if (may_be_mismatch) explain({verdict_code::mismatch, verdict_code::never_entered}, 1);
    ring_->come_to(life::failed);
    verdict v = dog_->look(options_.deadline, false);
    for (int i = 0; i < 10 && !v.has_operation; ++i) { // the others may come to wait in a moment
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      v = dog_->look(options_.deadline, false);
    }
    ring_->remove(); // whoever watches has it in memory
    return v.code == verdict_code::rank_dead && v.has_operation ? v.headline : std::string();
  }

  /// A communication call of the program has failed, and what the program does now is not known. If
  /// another rank is the cause, says so and ends the process, within a second; else returns.
  void heard_error() {
    if (on()) explain({verdict_code::rank_dead, verdict_code::mismatch}, looks_per_second);
  }

  /// This rank leaves because another one has failed, which says so and ends the job. Gives it two
  /// seconds; if the rings tell the reason meanwhile (a rank that left early needs not say
  /// anything), ends the process.
  void released() {
    if (on()) {
      explain({verdict_code::rank_dead, verdict_code::mismatch, verdict_code::never_entered},
              2 * looks_per_second, false);
      ring_->come_to(life::failed);
      ring_->remove();
    } else {
      std::this_thread::sleep_for(std::chrono::seconds(2));
    }
  }

  /// One line if dead jobs have left so many rings in the folder that they are a nuisance; else
  /// nothing.
  [[nodiscard]] std::string left_behind() const {
    constexpr std::size_t nuisance = 256; // half a MiB each
    if (!on()) return {};
    const auto files = ring_files(options_.folder);
    if (files.size() < nuisance) return {};
    std::size_t dead = 0;
    for (const auto& path : files) {
      const mapped_file file = mapped_file::open(path);
      if (!file.open()) continue;
      try {
        const ring_view v(file.bytes());
        dead += v.at(layout::f_pid_namespace) == pid_namespace() &&
                        state_of(v.pid(), v.at(layout::f_started)) == process_state::dead
                    ? 1
                    : 0;
      } catch (const data_error&) { // another version's
      }
    }
    if (dead < nuisance) return {};
    return polyrank::detail::cat(dead, " flight recorders of dead jobs in ",
                                 options_.folder.string(), ": polyrank_hang report ",
                                 options_.folder.string(), " names them and how to remove them");
  }

 private:
  [[nodiscard]] std::string path_of(std::string_view what) const {
    char host[256] = "";
    ::gethostname(host, sizeof host - 1); // hosts may share the folder
    return (options_.folder /
            polyrank::detail::cat("polyrank-", options_.where->job, '.', host, '.', what))
        .string();
  }
  static constexpr int looks_per_second = 20;

  /// If the rings say for certain that one of `codes` is why a call failed, prints that, unless
  /// another rank does, and ends the process. What other hosts tell is old by a beat or two, and
  /// one of them is in charge: it has a second to speak first.
  void explain(std::initializer_list<verdict_code> codes, int looks, bool failed_too = true) {
    const bool alone = channel_.load(std::memory_order_acquire) == nullptr;
    if (!alone) looks = std::max(looks, looks_per_second);
    for (int i = 0; i < looks; ++i) {
      if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1000 / looks_per_second));
      follow();
      if (alone ? i % 5 != 0 : i + 1 < looks) continue;
      const verdict v = dog_->look(std::chrono::nanoseconds(0), false, failed_too);
      if (!v.certain || std::find(codes.begin(), codes.end(), v.code) == codes.end()) continue;
      pronounce(v);
      for (int n = 0; n < 2 * looks_per_second; ++n) { // another rank is about to say so
        std::this_thread::sleep_for(std::chrono::milliseconds(1000 / looks_per_second));
        follow();
      }
    }
  }
  static void print(const std::string& text) noexcept {
    std::string_view rest = text;
    while (!rest.empty()) {
      const ssize_t n = ::write(STDERR_FILENO, rest.data(), rest.size());
      if (n <= 0) return;
      rest.remove_prefix(static_cast<std::size_t>(n));
    }
  }
  /// Makes a file of ours; false where it is there already.
  static bool make(const std::string& path, std::string_view text, bool replace) noexcept {
    const int f =
        ::open(path.c_str(),
               O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (replace ? O_TRUNC : O_EXCL), 0600);
    if (f < 0) return false;
    const bool whole = ::write(f, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::close(f);
    return whole;
  }

  /// Prints the verdict, unless another rank of this host has, and ends the job.
  void pronounce(verdict v) {
    const int code = exit_code(v.code);
    if (options_.leaves && !make(path_of("claim"), "", false)) return; // it is being said
    if (options_.witness && v.code != verdict_code::rank_dead)
      for (std::string& said : options_.witness()) v.findings.push_back(std::move(said));
    print(report_text(v));
    const std::string json = path_of("json"), svg = path_of("svg");
    if (make(json, report_json(v), true) && make(svg, report_svg(v), true))
      print(polyrank::detail::cat("  report: ", json, ", ", svg, "\n"));
    if (options_.on_verdict) options_.on_verdict(v);
    if (!options_.command.empty()) run_command(json);
    if (!options_.leaves) return;
    if (side_channel* c = channel_.load(std::memory_order_acquire); c != nullptr) c->decide(code);
    publish_code(code);
    leave(code);
  }
  /// Tells this host's ranks.
  void publish_code(int code) const {
    const std::string half = path_of("verdict") + polyrank::detail::cat('.', ::getpid());
    if (make(half, polyrank::detail::cat(code, '\n'), true))
      ::rename(half.c_str(), path_of("verdict").c_str());
  }

  void mention(const verdict& v) {
    if (v.code == verdict_code::straggler)
      print(v.headline + "\n  try: " + std::string(about(v.code).advice) + '\n');
    else
      for (const std::string& f : v.findings) print("HANG finding: " + f + '\n');
  }

  /// Leaves if another rank, or another host, has given a verdict.
  void follow() noexcept {
    if (!options_.leaves) return;
    side_channel* channel = channel_.load(std::memory_order_acquire);
    int code = channel != nullptr ? channel->decided() : 0;
    if (code == 0) {
      const int f = ::open(path_of("verdict").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
      if (f < 0) return;
      char text[8]{};
      const ssize_t n = ::read(f, text, sizeof text - 1);
      ::close(f);
      if (n > 0) std::from_chars(text, text + n, code);
    }
    if (code < 80 || code > 88) return;
    if (channel != nullptr) {
      channel->decide(code); // other hosts may know it from us only
      publish_code(code);
    }
    leave(code);
  }
  [[noreturn]] void leave(int code) noexcept {
    ring_->put(layout::f_verdict, static_cast<std::uint64_t>(code));
    ring_->come_to(life::verdict);
    ::_exit(code); // not exit(): destructors would wait for what hangs
  }

  void take(int signal) {
    if (signal == SIGUSR1) {
      print(polyrank::detail::cat("[rank ", ring_->view().rank(), " pid ", ::getpid(),
                                  "] last operations:\n", ring_->recorder().text(16)));
    } else if (signal == SIGUSR2) {
      ring_->put(layout::f_save, 1);
    } else if (ring_->view().at(layout::f_saves) != 0) {
      ring_->put(layout::f_save, 1);
    } else if (saves_itself_) { // the program listens for SIGUSR2 in its own way
      ::kill(::getpid(), SIGUSR2);
    } else { // SIGTERM, and the program does not save: as if nobody had taken it
      ring_->fail("SIGTERM");
      ring_->come_to(life::failed);
      ring_->remove();
      ::signal(SIGTERM, SIG_DFL);
      sigset_t set;
      sigemptyset(&set);
      sigaddset(&set, SIGTERM);
      ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
      ::kill(::getpid(), SIGTERM);
    }
  }

  /// `command` with the report's path, for at most a second: mpirun may be ending us.
  void run_command(const std::string& report) const {
    const pid_t child = ::fork();
    if (child == 0) {
      const sigset_t set = watched_signals();
      ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
      ::execl("/bin/sh", "sh", "-c", options_.command.c_str(), "polyrank", report.c_str(),
              static_cast<char*>(nullptr));
      ::_exit(127);
    }
    for (int i = 0; child > 0 && i < 100 && ::waitpid(child, nullptr, WNOHANG) == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  guard_options options_;
  bool saves_itself_ = false;
  std::unique_ptr<hang::ring> ring_;
  std::unique_ptr<side_channel> channel_owner_;
  std::atomic<side_channel*> channel_{nullptr};
  std::unique_ptr<watchdog> dog_;
};

} // namespace polyrank::hang
