// Preloaded into a program, makes the disk of rank 1 slow: its first fsync takes
// POLYRANK_TEST_FSYNC seconds.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <utility>

#include <sys/syscall.h>
#include <unistd.h>

extern "C" int fsync(int fd) {
  static bool slow = true;
  const char *rank = std::getenv("OMPI_COMM_WORLD_RANK"),
             *seconds = std::getenv("POLYRANK_TEST_FSYNC");
  if (rank != nullptr && seconds != nullptr && *rank == '1' && std::exchange(slow, false))
    ::usleep(static_cast<useconds_t>(1e6 * std::atof(seconds)));
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
