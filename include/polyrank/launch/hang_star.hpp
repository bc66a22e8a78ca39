// The watchdogs' side channel between hosts: a star over TCP with a stand-by.
//
// Rank 0 and the first rank of another host are the centres. The leader of each host (the rank
// whose watchdog works) tells both twice a second what it sees; the answer says whether the job is
// to end. Rank 0's process is in charge; the stand-by takes over when rank 0 does not answer. A
// host that is silent for some seconds is "unreachable".
//
// Everybody learns addresses and a random key over MPI while MPI still works; afterwards MPI is not
// used. Each frame is bounded and carries the key; whoever says something else is dropped. Sockets
// are bound to an address of the job's interface (OMPI_MCA_btl_tcp_if_include, where it names one).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/launch/hang_message.hpp>
#include <polyrank/launch/socket.hpp>
#include <polyrank/launch/world.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sys/random.h>

namespace polyrank::launch {

/// The IPv4 addresses of this host that the job may use, the interfaces of `allowed` (a list of
/// names, or empty for all) only. Never the loopback.
[[nodiscard]] inline std::vector<std::string> own_addresses(std::string_view allowed) {
  std::vector<std::string> found;
  const bool names = !allowed.empty() && allowed.find('/') == std::string_view::npos;
  const std::string list = ',' + std::string(allowed) + ',';
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET ||
        (i->ifa_flags & IFF_LOOPBACK) != 0 || (i->ifa_flags & IFF_UP) == 0)
      continue;
    if (names && list.find(detail::cat(',', i->ifa_name, ',')) == std::string::npos) continue;
    char text[INET_ADDRSTRLEN] = "";
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr, text,
                sizeof text);
    found.emplace_back(text);
  }
  ::freeifaddrs(all);
  return found;
}

class hang_star final : public hang::side_channel {
 public:
  using clock = std::chrono::steady_clock;

  struct member {
    std::string host;
    address at; ///< where it listens; port 0: it does not
  };
  struct setup {
    int rank = 0;
    std::vector<member> ranks{}; ///< of the world
    std::vector<int> centres{};  ///< ranks
    hang_key key{};
    std::chrono::milliseconds silence{3000}; ///< after which a host is unreachable
    socket door{};                           ///< of a centre
  };

  explicit hang_star(setup s) : s_(std::move(s)), answered_(s_.centres.size(), clock::now()) {
    std::map<std::string, int> numbers;
    for (const member& m : s_.ranks) {
      const auto [at, fresh] = numbers.try_emplace(m.host, static_cast<int>(numbers.size()));
      host_of_.push_back(at->second);
      if (fresh) heard_.push_back({});
    }
    for (std::size_t i = 0; i < s_.centres.size(); ++i)
      if (s_.centres[i] == s_.rank) centre_ = static_cast<int>(i);
    talker_ = std::thread([this] { talk(); });
    if (centre_ >= 0) listener_ = std::thread([this] { listen(); });
  }
  ~hang_star() override {
    stop_ = true;
    talker_.join();
    if (listener_.joinable()) listener_.join();
  }

  void publish(std::vector<hang::remote_sample> mine) override {
    host_report r{.host = my_host(), .code = decision_, .ranks = std::move(mine)};
    std::string bytes = pack(r, s_.key);
    const std::lock_guard lock(mutex_);
    news_ = std::move(bytes);
    published_ = clock::now();
  }

  [[nodiscard]] std::vector<hang::remote_sample> others() override {
    const auto now = clock::now();
    const std::lock_guard lock(mutex_);
    std::vector<hang::remote_sample> out;
    const bool cut_off = centre_ < 0 && now - latest_answer() > s_.silence;
    for (std::size_t r = 0; r < s_.ranks.size(); ++r) {
      if (host_of_[r] == my_host()) continue;
      hang::remote_sample sample{.rank = static_cast<int>(r), .host = s_.ranks[r].host};
      const auto& h = heard_[static_cast<std::size_t>(host_of_[r])];
      const auto told = h.ranks.find(static_cast<int>(r));
      if (told != h.ranks.end()) sample = told->second;
      sample.host = s_.ranks[r].host;
      const bool silent = now - std::max(h.at, begun_) > s_.silence;
      if (cut_off || (centre_ >= 0 && silent)) sample.process = hang::process_state::unreachable;
      out.push_back(std::move(sample));
    }
    return out;
  }

  [[nodiscard]] bool in_charge() override {
    if (centre_ == 0) return true;
    const std::lock_guard lock(mutex_);
    return centre_ == 1 && clock::now() - answered_[0] > s_.silence;
  }

  [[nodiscard]] bool cut_off() override {
    const std::lock_guard lock(mutex_);
    return centre_ < 0 && clock::now() - latest_answer() > s_.silence;
  }

  /// Returns once the other hosts have heard it, after a second and a half at most.
  void decide(int code) noexcept override {
    if (decision_.exchange(code) == code) return;
    const auto until = clock::now() + std::chrono::milliseconds(1500);
    while (clock::now() < until && !all_told())
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  [[nodiscard]] int decided() noexcept override { return decision_; }

 private:
  static constexpr std::chrono::milliseconds beat{400}, patience{500};

  struct host_state {
    clock::time_point at{};
    std::map<int, hang::remote_sample> ranks;
    bool told = false; // the decision
  };

  [[nodiscard]] int my_host() const noexcept { return host_of_[static_cast<std::size_t>(s_.rank)]; }
  [[nodiscard]] clock::time_point latest_answer() const {
    return *std::max_element(answered_.begin(), answered_.end());
  }
  [[nodiscard]] bool all_told() noexcept {
    const std::lock_guard lock(mutex_);
    if (centre_ < 0) return told_centre_;
    for (std::size_t h = 0; h < heard_.size(); ++h)
      if (static_cast<int>(h) != my_host() && !heard_[h].told &&
          clock::now() - heard_[h].at < s_.silence)
        return false;
    return true;
  }

  /// As long as this process publishes, tells the centres.
  void talk() {
    std::vector<socket> lines(s_.centres.size());
    while (!stop_) {
      std::this_thread::sleep_for(decision_ != 0 ? std::chrono::milliseconds(30) : beat);
      std::string news;
      {
        const std::lock_guard lock(mutex_);
        if (clock::now() - published_ < s_.silence) news = news_;
      }
      if (news.empty()) continue;
      const int code = decision_;
      if (code != 0) news = pack({.host = my_host(), .code = code}, s_.key);
      for (std::size_t c = 0; c < lines.size() && !stop_; ++c) {
        if (s_.centres[c] == s_.rank) continue;
        try {
          if (!lines[c].open())
            lines[c] = socket::connect(s_.ranks[static_cast<std::size_t>(s_.centres[c])].at,
                                       clock::now() + patience);
          lines[c].send(news, clock::now() + patience);
          const std::string answer = lines[c].receive(4096, clock::now() + patience);
          const auto reply = unpack(answer, s_.key);
          if (!reply) throw mismatch_error("hang_star: an answer of another job");
          const std::lock_guard lock(mutex_);
          answered_[c] = clock::now();
          if (code != 0) told_centre_ = true;
          if (reply->code != 0 && decision_ == 0) decision_ = reply->code;
        } catch (const error&) {
          lines[c] = socket();
        }
      }
    }
  }

  /// A centre hears the hosts' leaders and answers.
  void listen() {
    struct line {
      socket to;
      clock::time_point until; // to say something
    };
    std::vector<line> lines;
    const std::size_t limit = (detail::most_image_bytes + 256) * s_.ranks.size() + 256;
    while (!stop_) {
      std::vector<pollfd> polls{{s_.door.native(), POLLIN, 0}};
      for (const line& l : lines) polls.push_back({l.to.native(), POLLIN, 0});
      ::poll(polls.data(), polls.size(), 100);
      for (std::size_t i = lines.size(); i-- > 0;) {
        bool keep = clock::now() < lines[i].until;
        if (polls[i + 1].revents != 0) try {
            keep = hear(lines[i].to.receive(limit, clock::now() + patience), lines[i].to);
            lines[i].until = clock::now() + std::chrono::seconds(10);
          } catch (const error&) {
            keep = false;
          }
        if (!keep) lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (polls[0].revents != 0) {
        socket to = s_.door.accept(clock::now());
        if (to.open() && lines.size() < heard_.size() * 4 + 64)
          lines.push_back({std::move(to), clock::now() + std::chrono::seconds(2)});
      }
    }
  }

  /// Takes a report and answers; false where it is none of ours.
  bool hear(const std::string& bytes, const socket& from) {
    auto report = unpack(bytes, s_.key);
    if (!report || static_cast<std::size_t>(report->host) >= heard_.size()) return false;
    from.send(pack({.host = my_host(), .code = decision_}, s_.key), clock::now() + patience);
    const std::lock_guard lock(mutex_);
    host_state& h = heard_[static_cast<std::size_t>(report->host)];
    h.at = clock::now();
    h.told = h.told || decision_ != 0;
    for (hang::remote_sample& r : report->ranks)
      if (static_cast<std::size_t>(r.rank) < s_.ranks.size() &&
          host_of_[static_cast<std::size_t>(r.rank)] == report->host)
        h.ranks[r.rank] = std::move(r);
    if (report->code != 0 && decision_ == 0) {
      decision_ = report->code;
      h.told = true;
    }
    return true;
  }

  setup s_;
  int centre_ = -1;          // which of the centres this is
  std::vector<int> host_of_; // rank -> host
  const clock::time_point begun_ = clock::now();
  std::atomic<int> decision_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_; // of what follows
  std::vector<host_state> heard_;
  std::vector<clock::time_point> answered_; // by centre
  std::string news_;
  clock::time_point published_{};
  bool told_centre_ = false;
  std::thread talker_, listener_;
};

/// The star of this world's hosts. A host that is silent for half of `hang_deadline` (1.2 to 3 s)
/// counts as unreachable. @collective
[[nodiscard]] inline std::unique_ptr<hang::side_channel>
make_hang_star(world& w, std::chrono::nanoseconds hang_deadline) {
  host::mpi_control control(w.engine(), w.engine().everyone(), w.engine().next_context++,
                            &w.recorder());
  hang_star::setup s{.rank = w.rank()};
  using std::chrono::milliseconds;
  s.silence = std::clamp(std::chrono::duration_cast<milliseconds>(hang_deadline / 2),
                         milliseconds(1200), milliseconds(3000));
  hang_key key{};
  if (::getrandom(key.data(), sizeof key, 0) != sizeof key)
    throw data_error("hang_star: the system gives no random key");
  const char* allowed = std::getenv("OMPI_MCA_btl_tcp_if_include");
  const std::vector<std::string> addresses = own_addresses(allowed != nullptr ? allowed : "");
  std::string at;
  if (w.rank() == 0 || w.local_rank() == 0) { // those that may become a centre
    s.door = socket::listen({addresses.empty() ? w.host() : addresses[0], 0});
    at = address{addresses.empty() ? w.host() : addresses[0], s.door.port()}.text();
  }
  std::string mine(reinterpret_cast<const char*>(key.data()), sizeof key);
  mine += detail::cat(w.host(), '\n', at);
  const std::vector<std::string> words = control.all_gather(mine);
  std::memcpy(s.key.data(), words[0].data(), sizeof s.key);
  for (const std::string& word : words) {
    const std::string_view text = std::string_view(word).substr(sizeof key);
    const std::size_t cut = text.find('\n');
    hang_star::member m{.host = std::string(text.substr(0, cut)), .at = {}};
    if (cut + 1 < text.size()) m.at = address::parse(text.substr(cut + 1));
    s.ranks.push_back(std::move(m));
  }
  s.centres.push_back(0);
  for (std::size_t r = 1; r < s.ranks.size() && s.centres.size() < 2; ++r)
    if (s.ranks[r].host != s.ranks[0].host && s.ranks[r].at.port != 0)
      s.centres.push_back(static_cast<int>(r));
  if (std::find(s.centres.begin(), s.centres.end(), w.rank()) == s.centres.end()) s.door = socket();
  return std::make_unique<hang_star>(std::move(s));
}

} // namespace polyrank::launch
