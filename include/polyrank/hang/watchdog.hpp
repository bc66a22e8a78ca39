// The watchdog: a thread that looks at the rings of all ranks of this host and says what is wrong.
//
//     hang::ring mine({.job = "42", .rank = r, .size = n});
//     hang::watchdog dog(mine, {.deadline = 60s, .on_verdict = [](const hang::verdict& v) { ...
//     }});
//
// It makes no MPI and no CUDA call, takes no lock that another thread holds, and reads its peers
// from memory and /proc. The lowest rank whose watchdog beats is the leader of its host and does
// the work; if it is killed or stopped, the next one takes over. `on_verdict` is called once, in
// the watchdog's thread, on the leader; `on_finding` at
// most once for each kind of finding, such as a straggler. `signals` must be blocked in all threads
// (block_signals() before MPI starts): the watchdog takes them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/analyze.hpp>
#include <polyrank/hang/neighbours.hpp>
#include <polyrank/hang/ring.hpp>
#include <polyrank/hang/side_channel.hpp>
#include <polyrank/hang/signals.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <time.h>

namespace polyrank::hang {

struct watchdog_options {
  std::chrono::nanoseconds deadline = std::chrono::seconds(120);
  std::chrono::nanoseconds tick = std::chrono::milliseconds(250);
  std::chrono::nanoseconds confirm = std::chrono::milliseconds(600); ///< until the second look
  std::optional<sigset_t> signals{}; ///< what block_signals() returned
  std::function<void(const verdict&)> on_verdict{};
  std::function<void(const verdict&)> on_finding{};
  std::function<void(int)> on_signal{}; ///< SIGUSR1, SIGUSR2; SIGTERM where no peer is dead
  std::function<void()> on_tick{};      ///< before each look
};

class watchdog {
 public:
  watchdog(ring& mine, watchdog_options o)
      : mine_(mine), options_(std::move(o)), own_(mine.view()), host_(own_.host()) {
    mine_.put(layout::f_pid_namespace, pid_namespace());
    thread_ = std::thread([this] { watch(); });
  }
  watchdog(const watchdog&) = delete;
  watchdog& operator=(const watchdog&) = delete;
  ~watchdog() { stop(); }

  /// Ends the thread; what it is doing is finished.
  void stop() noexcept {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    bell_.notify_all();
    if (options_.signals) ::pthread_kill(thread_.native_handle(), SIGCONT); // blocked: only wakes
    thread_.join();
  }

  /// Looks beyond this host. The channel must outlive the watchdog.
  void connect(side_channel* channel) noexcept {
    channel_.store(channel, std::memory_order_release);
  }

  /// What the rings say now, as a verdict; `deadline` zero looks for what is wrong already.
  /// `failed_too`: a rank that has reported its error itself is one. Any thread.
  [[nodiscard]] verdict look(std::chrono::nanoseconds deadline, bool second_look,
                             bool failed_too = true) {
    const std::lock_guard lock(look_mutex_);
    find_peers();
    return judge(0, deadline, second_look, failed_too);
  }

 private:
  struct peer {
    mapped_file file;
    ring_view ring;
  };

  void watch() {
    for (;;) {
      int heard = 0;
      if (options_.signals) {
        const auto ns = options_.tick.count();
        const timespec time{static_cast<time_t>(ns / 1'000'000'000),
                            static_cast<long>(ns % 1'000'000'000)};
        heard = ::sigtimedwait(&*options_.signals, nullptr, &time);
      } else {
        std::unique_lock lock(mutex_);
        bell_.wait_for(lock, options_.tick, [this] { return stop_; });
      }
      {
        const std::lock_guard lock(mutex_);
        if (stop_) return;
      }
      mine_.beat();
      if (options_.on_tick) options_.on_tick();
      if ((heard == SIGUSR1 || heard == SIGUSR2) && options_.on_signal) options_.on_signal(heard);
      bool said = said_;
      try {
        const std::lock_guard lock(look_mutex_);
        said = turn(heard);
      } catch (const std::exception& e) {
        if (!said_ && ++broken_ == 20) report_broken(e.what());
      }
      if (heard == SIGTERM && !said && options_.on_signal) options_.on_signal(heard);
    }
  }

  /// One look, after the signal `heard` or 0; true if a verdict was given, now or before.
  bool turn(int heard) {
    if (said_) return true;
    find_peers();
    if (++turns_ % 8 == 0 && own_.life() == life::running)
      mine_.put(layout::f_forks, forked_children().size());
    const bool leads = leader();
    if (!leads && heard != SIGTERM && heard != SIGCONT) return false;
    side_channel* channel = channel_.load(std::memory_order_acquire);
    // What other hosts tell is old by a beat or two: compare with more of our own past.
    verdict v = judge(channel != nullptr ? 8 * image_slots : image_slots, options_.deadline, false);
    if (leads && channel != nullptr) channel->publish(publishable(v.stuck_ns > 1'000'000'000));
    if (!leads && v.code != verdict_code::rank_dead) return false;
    if (v.code == verdict_code::none) {
      suspected_ = verdict_code::none;
      report_forks(v);
      return false;
    }
    if (!v.hang()) {
      report_once(v);
      return false;
    }
    // The hosts' leaders leave slow hangs to the one in charge, as long as there is one.
    const bool urgent = v.code == verdict_code::rank_dead;
    if (channel != nullptr && !urgent && !channel->in_charge() && !(channel->cut_off() && alone(v)))
      return false;
    // A death of which nobody has become aware: they are about to come to where it matters.
    const bool early = urgent && !v.has_operation && heard != SIGTERM;
    if (!v.certain || early) {
      if (v.code != suspected_ || v.suspects != suspects_) {
        suspected_ = v.code;
        suspects_ = v.suspects;
        since_ = std::chrono::steady_clock::now();
        return false;
      }
      const auto wait = early ? std::min(options_.tick, options_.confirm) : options_.confirm;
      if (std::chrono::steady_clock::now() - since_ < wait) return false;
    }
    const verdict whole = judge(0, options_.deadline, true); // all records, not only the last
    if (whole.hang())
      v = whole;
    else if (!v.certain)
      return false;
    said_ = true;
    if (options_.on_verdict) options_.on_verdict(v);
    return true;
  }

  /// Maps the rings of this host that are not mapped yet.
  void find_peers() {
    const int expected = static_cast<int>(own_.at(layout::f_local_size));
    if (expected > 0 && static_cast<int>(peers_.size()) >= expected) return;
    const std::string job = own_.job();
    for (const auto& path : ring_files(mine_.path().parent_path(), job)) {
      peer p;
      p.file = mapped_file::open(path);
      if (!p.file.open()) continue;
      try {
        p.ring = ring_view(p.file.bytes());
      } catch (const data_error&) {
        continue; // not finished, or not ours
      }
      if (p.ring.job() == job && p.ring.host() == host_)
        peers_.try_emplace(p.ring.rank(), std::move(p));
    }
  }

  [[nodiscard]] process_state state_of_peer(const ring_view& r) const {
    if (r.at(layout::f_pid_namespace) == own_.at(layout::f_pid_namespace))
      return state_of(r.pid(), r.at(layout::f_started));
    const std::uint64_t beat = r.at(layout::f_heartbeat_ns), now = now_ns(); // another container
    return beat + 10'000'000'000 > now ? process_state::running : process_state::unknown;
  }

  /// Whether no lower rank of this host watches.
  [[nodiscard]] bool leader() const {
    const auto fresh = static_cast<std::uint64_t>(
        std::max<std::chrono::nanoseconds>(5 * options_.tick, std::chrono::milliseconds(1500))
            .count());
    for (const auto& [rank, p] : peers_) {
      if (rank >= own_.rank()) return true;
      const life l = p.ring.life();
      if ((l == life::starting || l == life::running || l == life::leaving) &&
          p.ring.at(layout::f_heartbeat_ns) + fresh > now_ns() &&
          state_of_peer(p.ring) == process_state::running)
        return false;
    }
    return true;
  }

  /// Whether the job is stuck for so long that whoever is in charge should have acted.
  [[nodiscard]] bool alone(const verdict& v) const noexcept {
    const auto limit = options_.deadline + options_.deadline / 2;
    return v.stuck_ns > static_cast<std::uint64_t>(limit.count()) + 500'000'000;
  }

  static constexpr std::size_t image_slots = 64; ///< records of a rank in a routine look

  /// Samples this host's ranks and what is known of the others. `slots` 0: whole rings.
  verdict judge(std::size_t slots, std::chrono::nanoseconds deadline, bool second_look,
                bool failed_too = false) {
    images_.clear();
    std::vector<sample> samples;
    const std::uint64_t now = now_ns();
    for (const auto& [rank, p] : peers_) {
      sample s{.rank = rank,
               .ring = p.ring,
               .now = now,
               .process = state_of_peer(p.ring),
               .host = host_};
      if (s.process == process_state::stopped || slots == 0 || deadline.count() == 0)
        s.where = whereabouts(p.ring.pid());
      if (s.process == process_state::dead) s.where.clear();
      if (slots != 0) {
        images_.push_back(p.ring.image(slots, now));
        s.ring = ring_view(std::as_bytes(std::span(images_.back())));
      }
      samples.push_back(std::move(s));
    }
    for (sample& s : missing_neighbours()) samples.push_back(std::move(s));
    remotes_.clear();
    bool everyone = own_.at(layout::f_local_size) == own_.at(layout::f_size);
    if (side_channel* channel = channel_.load(std::memory_order_acquire); channel != nullptr) {
      remotes_ = channel->others();
      for (const remote_sample& r : remotes_)
        if (!peers_.contains(r.rank)) samples.push_back(r.view());
      everyone = true;
    }
    std::sort(samples.begin(), samples.end(),
              [](const sample& a, const sample& b) { return a.rank < b.rank; });
    return analyze(samples, {.deadline_ns = static_cast<std::uint64_t>(deadline.count()),
                             .world = everyone ? own_.size() : 0,
                             .late_ns = 500'000'000,
                             .second_look = second_look,
                             .complete = everyone,
                             .failed_too = failed_too});
  }

  /// Ranks of this host that were started and have not come to MPI_Init, once the others wait for
  /// half a deadline there: known by their processes only.
  [[nodiscard]] std::vector<sample> missing_neighbours() const {
    std::vector<sample> found;
    if (own_.life() != life::starting ||
        peers_.size() >= static_cast<std::size_t>(own_.at(layout::f_local_size)) ||
        now_ns() - own_.at(layout::f_created_ns) <
            static_cast<std::uint64_t>(options_.deadline.count()) / 2)
      return found;
    const auto jobs = find_ranks();
    const auto mine = jobs.find(own_.job());
    if (mine == jobs.end()) return found;
    for (const rank_process& p : mine->second)
      if (!peers_.contains(p.at.rank))
        found.push_back({.rank = p.at.rank,
                         .process = state_of(p.pid, start_time_of(p.pid)),
                         .where = polyrank::detail::cat("pid ", p.pid, ' ', whereabouts(p.pid)),
                         .host = host_});
    return found;
  }

  /// This host's ranks, for the other hosts.
  [[nodiscard]] std::vector<remote_sample> publishable(bool stuck) const {
    std::vector<remote_sample> out;
    for (const auto& [rank, p] : peers_) {
      remote_sample r{.rank = rank, .process = state_of_peer(p.ring), .host = host_};
      if (r.process == process_state::stopped || stuck) r.where = whereabouts(p.ring.pid());
      if (r.process == process_state::dead) r.where.clear();
      r.image = p.ring.image(image_slots, now_ns());
      out.push_back(std::move(r));
    }
    return out;
  }

  void report_once(const verdict& v) {
    if (found_ == v.code || !options_.on_finding) return;
    found_ = v.code;
    options_.on_finding(v);
  }
  void report_forks(const verdict& v) {
    if (v.findings.empty() || forks_told_ || !options_.on_finding) return;
    forks_told_ = true;
    options_.on_finding(v);
  }
  void report_broken(const char* why) {
    said_ = true;
    verdict v;
    v.code = verdict_code::watchdog_broken;
    v.certain = true;
    v.headline = polyrank::detail::cat("HANG verdict WATCHDOG_BROKEN (confidence high): ", why);
    if (options_.on_verdict) options_.on_verdict(v);
  }

  ring& mine_;
  watchdog_options options_;
  ring_view own_;
  std::string host_;
  std::map<int, peer> peers_;
  std::vector<std::vector<std::uint64_t>> images_;
  std::vector<remote_sample> remotes_;
  std::uint64_t turns_ = 0;
  int broken_ = 0;
  bool said_ = false, forks_told_ = false;
  verdict_code suspected_ = verdict_code::none, found_ = verdict_code::none;
  std::vector<int> suspects_;
  std::chrono::steady_clock::time_point since_;
  std::atomic<side_channel*> channel_{nullptr};
  std::mutex look_mutex_; // of all that a look uses
  std::mutex mutex_;
  std::condition_variable bell_;
  bool stop_ = false; // under mutex_
  std::thread thread_;
};

} // namespace polyrank::hang
