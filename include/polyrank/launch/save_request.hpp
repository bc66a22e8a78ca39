// "Save and stop": SIGUSR2, which mpirun passes on to its ranks and batch systems send before the
// time is up, asked for at step boundaries.
//
//     int main(int argc, char** argv) {
//       launch::save_request stop;                    // before any thread: they inherit the mask
//       return launch::run(argc, argv, [&](launch::world& world) {
//         for (...) {
//           ...
//           // The signal does not reach all ranks at one moment, so they agree.
//           if (comm.control().all_reduce_max(stop.pending() ? 1 : 0) != 0) { save(); return 75; }
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/hang/signals.hpp>

#include <cerrno>
#include <csignal>
#include <system_error>

#include <sys/signalfd.h>
#include <unistd.h>

namespace polyrank::launch {

class save_request {
 public:
  /// In the main thread. Blocks SIGUSR2 for it and the threads that it starts, for good.
  save_request() {
    hang::detail::keep_for_one_thread(SIGUSR2);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    fd_ = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd_ < 0)
      throw error(
          detail::cat("cannot listen for SIGUSR2: ", std::generic_category().message(errno)));
  }
  save_request(const save_request&) = delete;
  save_request& operator=(const save_request&) = delete;
  ~save_request() { ::close(fd_); }

  /// True from the first look after the signal on.
  [[nodiscard]] bool pending() noexcept {
    signalfd_siginfo heard{};
    if (!pending_ && ::read(fd_, &heard, sizeof heard) == sizeof heard) pending_ = true;
    return pending_;
  }

 private:
  int fd_ = -1;
  bool pending_ = false;
};

} // namespace polyrank::launch
