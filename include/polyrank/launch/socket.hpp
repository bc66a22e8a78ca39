// TCP sockets that cannot hang: every call has a deadline and a bound on what it takes in.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace polyrank::launch {

/// Host name or address, and port.
struct address {
  std::string host;
  std::uint16_t port = 0;

  /// "node1:29500". Throws usage_error.
  [[nodiscard]] static address parse(std::string_view text) {
    const std::size_t colon = text.rfind(':');
    unsigned port = 0;
    if (colon != std::string_view::npos)
      std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
    expects(colon != std::string_view::npos && colon > 0 && port > 0 && port < 65536, "'", text,
            "' is no address; it must be HOST:PORT, e.g. node1:29500");
    return {std::string(text.substr(0, colon)), static_cast<std::uint16_t>(port)};
  }
  [[nodiscard]] std::string text() const { return detail::cat(host, ':', port); }
};

using deadline = std::chrono::steady_clock::time_point;

/// A connected or listening socket. Move-only.
class socket {
 public:
  socket() = default;
  explicit socket(int descriptor) : descriptor_(descriptor) {}
  socket(socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  socket& operator=(socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  [[nodiscard]] bool open() const noexcept { return descriptor_ >= 0; }
  [[nodiscard]] int native() const noexcept { return descriptor_; }

  /// Listens on `port` (0: any) of `host`. Throws comm_error naming the address.
  [[nodiscard]] static socket listen(const address& at) {
    socket s;
    int code = 0;
    const std::string unknown = for_each_address(at, AI_PASSIVE, [&](const addrinfo& a) {
      socket candidate(::socket(a.ai_family, a.ai_socktype | SOCK_CLOEXEC, a.ai_protocol));
      const int yes = 1;
      ::setsockopt(candidate.native(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      if (::bind(candidate.native(), a.ai_addr, a.ai_addrlen) == 0 &&
          ::listen(candidate.native(), 1024) == 0)
        s = std::move(candidate);
      else
        code = errno;
      return s.open();
    });
    if (!s.open())
      throw comm_error(detail::cat("listen on ", at.text()), code,
                       unknown.empty() ? reason(code) : unknown);
    return s;
  }

  /// Connects, again and again until `until`: the other side may start later. Throws timeout_error
  /// naming the address and what was wrong at the last try.
  [[nodiscard]] static socket connect(const address& to, deadline until) {
    int code = ETIMEDOUT;
    for (;;) {
      socket s;
      const std::string unknown = for_each_address(to, 0, [&](const addrinfo& a) {
        socket candidate(
            ::socket(a.ai_family, a.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a.ai_protocol));
        if (::connect(candidate.native(), a.ai_addr, a.ai_addrlen) != 0) {
          code = errno;
          if (code != EINPROGRESS) return false;
          if (!wait(candidate.native(), POLLOUT,
                    std::min(until, std::chrono::steady_clock::now() + std::chrono::seconds(2)))) {
            code = ETIMEDOUT;
            return false;
          }
          socklen_t size = sizeof code;
          ::getsockopt(candidate.native(), SOL_SOCKET, SO_ERROR, &code, &size);
          if (code != 0) return false;
        }
        s = std::move(candidate);
        return true;
      });
      if (s.open()) {
        s.tune();
        return s;
      }
      if (std::chrono::steady_clock::now() >= until)
        throw timeout_error(
            unknown.empty()
                ? detail::cat(
                      "cannot reach ", to.text(), ": ", reason(code),
                      "; is rank 0 running there, and does a firewall let the port through?")
                : detail::cat("cannot reach ", to.text(), ": ", unknown));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  /// The next connection, or a closed socket after `until`.
  [[nodiscard]] socket accept(deadline until) const {
    if (!wait(descriptor_, POLLIN, until)) return {};
    socket s(::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (s.open()) s.tune();
    return s;
  }

  /// The port that a listening socket got.
  [[nodiscard]] std::uint16_t port() const {
    sockaddr_storage at{};
    socklen_t size = sizeof at;
    ::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&at), &size);
    return ntohs(at.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&at)->sin6_port
                                          : reinterpret_cast<sockaddr_in*>(&at)->sin_port);
  }

  /// Sends a frame: length, then bytes. Throws timeout_error, comm_error.
  void send(std::string_view bytes, deadline until) const {
    const std::uint64_t length = bytes.size();
    write(reinterpret_cast<const char*>(&length), sizeof length, until);
    write(bytes.data(), bytes.size(), until);
  }
  /// Receives a frame of at most `limit` bytes. Throws timeout_error, comm_error; mismatch_error
  /// where the other side announces more.
  [[nodiscard]] std::string receive(std::size_t limit, deadline until) const {
    std::uint64_t length = 0;
    read(reinterpret_cast<char*>(&length), sizeof length, until);
    if (length > limit)
      throw mismatch_error(detail::cat("a message of ", length, " bytes was announced, at most ",
                                       limit, " are taken"));
    std::string bytes(length, '\0');
    read(bytes.data(), bytes.size(), until);
    return bytes;
  }

 private:
  static std::string reason(int code) { return std::generic_category().message(code); }

  void tune() const noexcept {
    const int yes = 1;
    ::setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }

  /// Calls `f(addrinfo)` for each address until it returns true. Returns why there is none.
  template <class F>
  static std::string for_each_address(const address& a, int flags, F f) {
    addrinfo hints{}, *list = nullptr;
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    const std::string port = detail::cat(a.port);
    const int unknown =
        ::getaddrinfo(a.host.empty() ? nullptr : a.host.c_str(), port.c_str(), &hints, &list);
    if (unknown != 0) return ::gai_strerror(unknown);
    for (const addrinfo* i = list; i != nullptr; i = i->ai_next)
      if (f(*i)) break;
    ::freeaddrinfo(list);
    return {};
  }

  static bool wait(int descriptor, short what, deadline until) noexcept {
    for (;;) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now())
              .count();
      pollfd p{descriptor, what, 0};
      const int ready = ::poll(&p, 1, static_cast<int>(std::clamp<long long>(left, 0, 1000)));
      if (ready > 0) return true;
      if (left <= 0 || (ready < 0 && errno != EINTR)) return false;
    }
  }

  void write(const char* data, std::size_t bytes, deadline until) const {
    while (bytes > 0) {
      const ssize_t done = ::send(descriptor_, data, bytes, MSG_NOSIGNAL);
      if (done > 0) {
        data += done;
        bytes -= static_cast<std::size_t>(done);
      } else if (done < 0 && (errno == EAGAIN || errno == EINTR)) {
        if (!wait(descriptor_, POLLOUT, until))
          throw timeout_error("the other side does not take a message");
      } else {
        throw comm_error("send", errno, reason(errno));
      }
    }
  }
  void read(char* data, std::size_t bytes, deadline until) const {
    while (bytes > 0) {
      const ssize_t done = ::recv(descriptor_, data, bytes, 0);
      if (done > 0) {
        data += done;
        bytes -= static_cast<std::size_t>(done);
      } else if (done < 0 && (errno == EAGAIN || errno == EINTR)) {
        if (!wait(descriptor_, POLLIN, until)) throw timeout_error("no answer in time");
      } else {
        throw comm_error("recv", done == 0 ? ECONNRESET : errno,
                         done == 0 ? "the connection was closed" : reason(errno));
      }
    }
  }

  int descriptor_ = -1;
};

} // namespace polyrank::launch
