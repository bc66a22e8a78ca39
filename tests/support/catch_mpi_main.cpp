// main() of the tests under mpirun: every rank runs the same test cases in the same order; failing
// ranks' reports are printed in rank order; all ranks exit with the worst verdict.
// SPDX-License-Identifier: Apache-2.0
#include "support/session.hpp"
#include "support/watchdog.hpp"

#include <polyrank/host/mpi_include.hpp>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

namespace {

int number_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

// A launcher of another MPI starts n programs that each believe to be alone.
bool launched_by_other_mpi(int size) {
  const int ompi = number_from("OMPI_COMM_WORLD_SIZE", size);
  const int pmi = number_from("PMI_SIZE", size);
  if (ompi == size && pmi == size) {
    return false;
  }
  if (number_from("OMPI_COMM_WORLD_RANK", number_from("PMI_RANK", 0)) == 0) {
    std::fprintf(stderr,
                 "the launcher started %d ranks, but MPI sees %d: mpirun belongs to another MPI "
                 "than the one this program is linked with\n",
                 ompi != size ? ompi : pmi, size);
  }
  return true;
}

// Where ranks above 0 write, so that reports do not mix: a file that vanishes with the process.
class report_file {
 public:
  report_file() : fd_(memfd_create("polyrank-test-report", 0)) {}
  ~report_file() { close(fd_); }
  report_file(const report_file&) = delete;
  report_file& operator=(const report_file&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  std::string text() const {
    std::string all;
    char part[4096];
    ssize_t got = 0;
    while ((got = pread(fd_, part, sizeof part, static_cast<off_t>(all.size()))) > 0) {
      all.append(part, static_cast<std::size_t>(got));
    }
    return all;
  }

 private:
  int fd_;
};

// Rank 0 prints the reports of the ranks that failed, in rank order.
void print_failures(MPI_Comm comm, int rank, int size, int verdict, const std::string& report) {
  for (int r = 1; r < size; ++r) {
    int length = rank == r && verdict != 0 ? static_cast<int>(report.size()) : 0;
    MPI_Bcast(&length, 1, MPI_INT, r, comm);
    if (length == 0) {
      continue;
    }
    if (rank == r) {
      MPI_Send(report.data(), length, MPI_CHAR, 0, 0, comm);
    }
    if (rank == 0) {
      std::string text(static_cast<std::size_t>(length), '\0');
      MPI_Recv(text.data(), length, MPI_CHAR, r, 0, comm, MPI_STATUS_IGNORE);
      std::printf("=== rank %d ===\n%s\n", r, text.c_str());
    }
  }
  std::fflush(stdout);
}

} // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (launched_by_other_mpi(size)) {
    MPI_Finalize();
    return 1;
  }
  MPI_Comm comm = MPI_COMM_NULL; // what a failed test leaves behind on the world stays there
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);

  int verdict = 0;
  {
    std::vector<std::string> arguments(argv, argv + argc);
    std::unique_ptr<report_file> report;
    if (rank > 0) {
      report = std::make_unique<report_file>();
      arguments.insert(arguments.end(), {"--out", report->path()});
    }
    const auto own_report = [&] { return report ? report->text() : std::string{}; };
    const polyrank::test::watchdog watchdog(size > 1 ? "rank " + std::to_string(rank) : "",
                                            own_report);
    verdict = polyrank::test::run_session(arguments);
    polyrank::test::watchdog::enter("after the last test case, waiting for the other ranks");
    print_failures(comm, rank, size, verdict, own_report());
    MPI_Allreduce(MPI_IN_PLACE, &verdict, 1, MPI_INT, MPI_MAX, comm);
    MPI_Comm_free(&comm);
    MPI_Finalize();
  }
  return verdict;
}
