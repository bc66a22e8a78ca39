// Signals that one thread of the process takes, by sigtimedwait or signalfd, though other threads
// may not know of it.
//
//     const sigset_t ours = hang::block_signals();   // before MPI and all threads of ours
//     ... in one of them: sigtimedwait(&ours, nullptr, &time)
//
// A blocked mask holds for this thread and those it starts later. A library that starts threads
// while it is loaded (OpenBLAS does) leaves some that do not block: the kernel would hand the
// signal to one of them, where it ends the process or is ignored. So a handler stands by: in such a
// thread it blocks the signals there, for good, and sends the signal again.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <csignal>

#include <pthread.h>
#include <ucontext.h>
#include <unistd.h>

namespace polyrank::hang {

namespace detail {
inline constexpr int watched[] = {SIGCONT, SIGTERM, SIGUSR1, SIGUSR2};
} // namespace detail

/// The signals that the watchdog takes.
[[nodiscard]] inline sigset_t watched_signals() noexcept {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : detail::watched) sigaddset(&set, s);
  return set;
}

namespace detail {

/// Handler in a thread that does not block `signal`: blocks it there and passes it on.
inline void to_another_thread(int signal, siginfo_t*, void* context) noexcept {
  const int before = errno;
  sigaddset(&static_cast<ucontext_t*>(context)->uc_sigmask, signal);
  ::kill(::getpid(), signal);
  errno = before;
}

/// Blocks `signal` in this thread, and in time in those that do not. A handler that the program has
/// set stays. False where the signal was blocked before.
inline bool keep_for_one_thread(int signal) noexcept {
  sigset_t set, before;
  sigemptyset(&set);
  sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, &before);
  struct sigaction now {};
  if (::sigaction(signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
      (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)) {
    struct sigaction pass_on {};
    pass_on.sa_sigaction = to_another_thread;
    pass_on.sa_flags = SA_SIGINFO | SA_RESTART;
    ::sigaction(signal, &pass_on, nullptr);
  }
  return sigismember(&before, signal) == 0;
}

} // namespace detail

/// Blocks the watched signals in this thread and those it starts. Returns those that were not
/// blocked before: the others belong to the program. A program that execs another one later should
/// unblock them in the child.
inline sigset_t block_signals() noexcept {
  sigset_t ours;
  sigemptyset(&ours);
  for (const int s : detail::watched)
    if (detail::keep_for_one_thread(s)) sigaddset(&ours, s);
  return ours;
}

} // namespace polyrank::hang
