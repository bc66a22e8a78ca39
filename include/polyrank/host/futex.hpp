// Sleeping and waking on one 32-bit word, straight from the kernel.
//
// Not std::atomic::wait: its implementation touches shared bookkeeping, which would order threads
// that the program did not order, and so hide data races from ThreadSanitizer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace polyrank::host::detail {

using futex_word = std::atomic<std::uint32_t>;
static_assert(sizeof(futex_word) == 4);

/// Tells the processor that this is a spin loop.
inline void cpu_relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Sleeps while `word` holds `expected`, at most `timeout`. May return early: check again.
inline void futex_wait(futex_word& word, std::uint32_t expected,
                       std::chrono::nanoseconds timeout = std::chrono::hours(1)) noexcept {
#if defined(__linux__)
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec limit{static_cast<std::time_t>(seconds.count()),
                       static_cast<long>((timeout - seconds).count())};
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, &limit,
          nullptr, 0);
#else
  if (word.load(std::memory_order_relaxed) == expected)
    std::this_thread::sleep_for(
        std::min<std::chrono::nanoseconds>(timeout, std::chrono::microseconds(50)));
#endif
}

/// Wakes every thread that sleeps on `word`.
inline void futex_wake(futex_word& word) noexcept {
#if defined(__linux__)
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX,
          nullptr, nullptr, 0);
#else
  (void)word;
#endif
}

/// A flag that is raised once (until reset by its owner) and slept on by any number of threads.
///
/// raise -> wait is the only order it creates: a waiter sees what the raiser did before, and
/// nothing flows the other way.
class flag {
 public:
  void raise() noexcept {
    if (word_.exchange(up, std::memory_order_release) == sleeping) futex_wake(word_);
  }
  [[nodiscard]] bool raised() const noexcept { return word_.load(std::memory_order_acquire) == up; }
  void reset() noexcept { word_.store(down, std::memory_order_relaxed); }

  /// Waits until the flag is up or `timeout` has passed; returns whether it is up.
  bool wait(std::chrono::nanoseconds timeout = std::chrono::hours(24 * 365)) noexcept {
    for (int spin = 0; spin < 64; ++spin) {
      if (raised()) return true;
      cpu_relax();
    }
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!raised()) {
      const auto left = deadline - std::chrono::steady_clock::now();
      if (left <= std::chrono::nanoseconds(0)) return false;
      std::uint32_t expected = down;
      word_.compare_exchange_strong(expected, sleeping, std::memory_order_relaxed);
      if (expected != up)
        futex_wait(word_, sleeping,
                   std::min<std::chrono::nanoseconds>(left, std::chrono::hours(1)));
    }
    return true;
  }

 private:
  static constexpr std::uint32_t down = 0, up = 1, sleeping = 2;
  futex_word word_{down};
};

} // namespace polyrank::host::detail
