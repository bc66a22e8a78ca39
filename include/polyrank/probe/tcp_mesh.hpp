// Can every rank open a TCP connection to every other one, at the address that NCCL would use?
//
// Each rank listens, all exchange addresses over MPI, each connects to all others with a deadline
// and reads a greeting that proves who answered. One answer per pair tells a dropped packet (no
// answer), a refusal, an unreachable network, and another program behind the same address apart.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/core/hash.hpp>
#include <polyrank/probe/finding.hpp>
#include <polyrank/probe/interfaces.hpp>
#include <polyrank/probe/judge_ranks.hpp>
#include <polyrank/probe/rank_facts.hpp>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace polyrank::probe {

enum class tcp_outcome : unsigned char {
  ok,
  timed_out,
  refused,
  rejected, ///< by a firewall or a route: EHOSTUNREACH, EPERM, EACCES, EINVAL
  unreachable,
  other_program
};

namespace detail {

class unique_fd {
 public:
  explicit unique_fd(int fd = -1) noexcept : fd_(fd) {}
  unique_fd(unique_fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  unique_fd& operator=(unique_fd&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~unique_fd() {
    if (fd_ >= 0) close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_;
};

struct socket_address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  socket_address(const std::string& text, std::uint16_t port) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
    if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
      v4->sin_family = AF_INET;
      v4->sin_port = htons(port);
      size = sizeof *v4;
    } else if (inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
      v6->sin6_family = AF_INET6;
      v6->sin6_port = htons(port);
      size = sizeof *v6;
    }
  }
  [[nodiscard]] const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
};

} // namespace detail

/// Listens and greets whoever connects, until it goes.
class tcp_greeter {
 public:
  /// Binds `address`; port 0: any. The greeting is `token`.
  /// @throws error if the address cannot be bound
  tcp_greeter(const std::string& address, std::uint16_t port, std::uint64_t token) : token_(token) {
    const detail::socket_address where(address, port);
    listener_ = detail::unique_fd(
        socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int yes = 1;
    setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (where.size == 0 || listener_.get() < 0 ||
        bind(listener_.get(), where.get(), where.size) != 0 || listen(listener_.get(), 512) != 0)
      throw error(polyrank::detail::cat("cannot listen at ", address, " port ", port, ": ",
                                        std::strerror(errno)));
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&bound), &size);
    port_ = ntohs(bound.ss_family == AF_INET
                      ? reinterpret_cast<const sockaddr_in*>(&bound)->sin_port
                      : reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port);
    worker_ = std::thread([this] { serve(); });
  }
  ~tcp_greeter() {
    stop_ = true;
    worker_.join();
  }
  tcp_greeter(const tcp_greeter&) = delete;
  tcp_greeter& operator=(const tcp_greeter&) = delete;
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

 private:
  void serve() {
    while (!stop_) {
      pollfd p{listener_.get(), POLLIN, 0};
      if (poll(&p, 1, 50) <= 0) continue;
      const detail::unique_fd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (peer.get() >= 0)
        static_cast<void>(send(peer.get(), &token_, sizeof token_, MSG_NOSIGNAL));
    }
  }

  std::uint64_t token_;
  detail::unique_fd listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> stop_{false};
  std::thread worker_;
};

/// Connects, and reads the greeting that should be `token`.
[[nodiscard]] inline tcp_outcome tcp_try(const std::string& address, std::uint16_t port,
                                         std::uint64_t token, std::chrono::milliseconds deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  const auto left = [&] {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                        end - std::chrono::steady_clock::now())
                        .count();
    return static_cast<int>(std::max<long long>(ms, 0));
  };
  const detail::socket_address where(address, port);
  const detail::unique_fd fd(
      socket(where.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (where.size == 0 || fd.get() < 0) return tcp_outcome::unreachable;
  const auto why = [](int code) {
    switch (code) {
    case ECONNREFUSED:
    case ECONNRESET:
      return tcp_outcome::refused;
    case ETIMEDOUT:
      return tcp_outcome::timed_out;
    case EHOSTUNREACH:
    case EPERM:
    case EACCES:
    case EINVAL:
      return tcp_outcome::rejected;
    default:
      return tcp_outcome::unreachable;
    }
  };
  if (connect(fd.get(), where.get(), where.size) != 0) {
    if (errno != EINPROGRESS) return why(errno);
    pollfd p{fd.get(), POLLOUT, 0};
    if (poll(&p, 1, left()) <= 0) return tcp_outcome::timed_out;
    int code = 0;
    socklen_t size = sizeof code;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &code, &size);
    if (code != 0) return why(code);
  }
  std::uint64_t answer = 0;
  std::size_t got = 0;
  while (got < sizeof answer) {
    pollfd p{fd.get(), POLLIN, 0};
    if (poll(&p, 1, left()) <= 0) return tcp_outcome::timed_out;
    const ssize_t n =
        recv(fd.get(), reinterpret_cast<char*>(&answer) + got, sizeof answer - got, 0);
    if (n <= 0) return tcp_outcome::refused;
    got += static_cast<std::size_t>(n);
  }
  return answer == token ? tcp_outcome::ok : tcp_outcome::other_program;
}

/// The greeting of a rank in one run of the probe.
[[nodiscard]] inline std::uint64_t tcp_token(const rank_facts& f) {
  return hash_text(polyrank::detail::cat(f.host, ' ', f.pid, ' ', f.rank), 0x706f6c7972616e6bULL);
}

namespace detail {

/// Which kind of finding a failed attempt is.
[[nodiscard]] inline const char* tcp_cause(const rank_facts& from, const rank_facts& to,
                                           tcp_outcome how) {
  const auto interface_of = [&](const std::string& name) {
    return std::find_if(to.interfaces.begin(), to.interfaces.end(),
                        [&](const net_interface& n) { return n.name == name; });
  };
  const auto its = interface_of(to.announced_by);
  const bool local = to.announced.empty() || (its != to.interfaces.end() &&
                                              (its->loopback || its->name.starts_with("docker")));
  // It announces another interface than its peer, though it has that one too.
  const auto like_peer = interface_of(from.announced_by);
  const bool odd_choice = to.announced_by != from.announced_by &&
                          like_peer != to.interfaces.end() && like_peer->up && !like_peer->loopback;
  const bool wrong =
      from.host != to.host &&
      (local || odd_choice || how == tcp_outcome::other_program || how == tcp_outcome::unreachable);
  if (wrong) return "wrong_interface";
  return how == tcp_outcome::timed_out || how == tcp_outcome::rejected ? "port_blocked"
                                                                       : "port_refused";
}

} // namespace detail

/// Findings from the outcomes of all pairs: outcomes[a][b] is a's attempt to reach b.
[[nodiscard]] inline std::vector<finding>
judge_tcp(const std::vector<rank_facts>& ranks,
          const std::vector<std::vector<tcp_outcome>>& outcomes) {
  using polyrank::detail::cat;
  std::map<std::pair<std::string, std::string>, std::pair<std::vector<int>, std::vector<int>>>
      groups;
  for (std::size_t a = 0; a < outcomes.size(); ++a)
    for (std::size_t b = 0; b < outcomes[a].size(); ++b) {
      if (a == b || outcomes[a][b] == tcp_outcome::ok) continue;
      const rank_facts &from = ranks[a], &to = ranks[b];
      const char* code = detail::tcp_cause(from, to, outcomes[a][b]);
      auto& [sources, targets] = groups[{
          code, cat(to.host, " at ", to.announced, " (", to.announced_by, ") from ", from.host)}];
      if (std::find(sources.begin(), sources.end(), from.rank) == sources.end())
        sources.push_back(from.rank);
      if (std::find(targets.begin(), targets.end(), to.rank) == targets.end())
        targets.push_back(to.rank);
    }
  std::vector<finding> out;
  for (const auto& [key, who] : groups) {
    std::string ports;
    for (const int r : who.second)
      ports += cat(ports.empty() ? "" : ", ", ranks[static_cast<std::size_t>(r)].port);
    out.push_back({std::string(key.first),
                   cat(detail::ranks_text(who.first), " cannot reach ",
                       detail::ranks_text(who.second), " on ", key.second, ", TCP port ", ports),
                   who.second.size() == 1 ? who.second[0] : -1,
                   ranks[static_cast<std::size_t>(who.second[0])].host});
  }
  return out;
}

} // namespace polyrank::probe
