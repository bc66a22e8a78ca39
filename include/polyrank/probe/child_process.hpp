// A child that answers questions line by line and can be killed when an answer is late: a test of
// a GPU may never return, and a stuck driver call cannot be cancelled in the process that made it.
//
//     child_process child({"/usr/bin/polyrank_probe_gpu"});
//     child.say("facts");
//     if (const auto line = child.hear(std::chrono::seconds(5))) ... else child.kill();
//
// The child is killed by the kernel when the thread that started it ends, however that ends
// (PR_SET_PDEATHSIG), so it never outlives its parent. Its standard error is the parent's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace polyrank::probe {

class child_process {
 public:
  /// Starts `command` (path first), its standard input and output joined to this object.
  /// Throws error where no process can be made; a program that is not there just ends.
  explicit child_process(std::vector<std::string> command) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
      throw error(polyrank::detail::cat("socketpair: ", std::strerror(errno)));
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) { // only calls that are safe after a fork of a program with threads
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127); // it has died before
      dup2(ends[1], 0);
      dup2(ends[1], 1);
#ifdef SYS_close_range
      syscall(SYS_close_range, 3U, ~0U, 4U); // 4: close at exec; nothing of the parent leaks
#endif
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    close(ends[1]);
    socket_ = ends[0];
    if (pid_ < 0) {
      close(socket_);
      throw error(polyrank::detail::cat("fork: ", std::strerror(errno)));
    }
  }
  child_process(child_process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), socket_(std::exchange(other.socket_, -1)),
        heard_(std::move(other.heard_)) {}
  child_process& operator=(child_process&&) = delete;
  ~child_process() { kill(); }

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

  /// Sends one line; false: the child is gone.
  bool say(std::string_view text) {
    const std::string line = std::string(text) + '\n';
    for (std::size_t at = 0; at < line.size();) {
      const ssize_t n = send(socket_, line.data() + at, line.size() - at, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      at += static_cast<std::size_t>(n);
    }
    return true;
  }

  enum class silence : unsigned char { none, late, gone };

  /// The next line; nothing if it is late, or the child has ended (see why_silent). `meanwhile` is
  /// called about every 10 ms.
  [[nodiscard]] std::optional<std::string> hear(std::chrono::milliseconds deadline,
                                                const std::function<void()>& meanwhile = {}) {
    const auto until = std::chrono::steady_clock::now() + deadline;
    for (;;) {
      if (const std::size_t end = heard_.find('\n'); end != std::string::npos) {
        std::string line = heard_.substr(0, end);
        heard_.erase(0, end + 1);
        silence_ = silence::none;
        return line;
      }
      pollfd wait{socket_, POLLIN, 0};
      if (poll(&wait, 1, 10) > 0) {
        std::array<char, 4096> block;
        const ssize_t n = recv(socket_, block.data(), block.size(), 0);
        if (n > 0 && heard_.size() < most) {
          heard_.append(block.data(), static_cast<std::size_t>(n));
          continue;
        }
        if (n >= 0 || errno != EINTR) {
          silence_ = silence::gone;
          return std::nullopt;
        }
      }
      if (std::chrono::steady_clock::now() >= until) {
        silence_ = silence::late;
        return std::nullopt;
      }
      if (meanwhile) meanwhile();
    }
  }
  [[nodiscard]] silence why_silent() const noexcept { return silence_; }

  /// Ends the child. False: the kernel cannot end it within a second, because it is stuck in a
  /// driver; it is left behind.
  bool kill() noexcept {
    if (pid_ <= 0) return true;
    ::kill(pid_, SIGKILL);
    bool dead = false;
    for (int i = 0; i < 100 && !dead; ++i) {
      const pid_t ended = waitpid(pid_, &status_, WNOHANG);
      dead = ended == pid_ || (ended < 0 && errno == ECHILD);
      if (!dead) usleep(10000);
    }
    pid_ = -1;
    close(std::exchange(socket_, -1));
    return dead;
  }

  /// How a child that is gone has ended: "signal 11 (Segmentation fault)", "exit code 127". Waits
  /// for it up to a second.
  [[nodiscard]] std::string end_text() {
    for (int i = 0; i < 100 && pid_ > 0; ++i) {
      if (waitpid(pid_, &status_, WNOHANG) == pid_) {
        pid_ = -1;
        close(std::exchange(socket_, -1));
        break;
      }
      usleep(10000);
    }
    if (pid_ > 0) return "still there";
    if (WIFSIGNALED(status_))
      return polyrank::detail::cat("signal ", WTERMSIG(status_), " (", strsignal(WTERMSIG(status_)),
                                   ')');
    return polyrank::detail::cat("exit code ", WEXITSTATUS(status_));
  }

 private:
  static constexpr std::size_t most = std::size_t{16} << 20; // a child that only talks is cut off

  pid_t pid_ = -1;
  int socket_ = -1, status_ = 0;
  std::string heard_;
  silence silence_ = silence::none;
};

} // namespace polyrank::probe
