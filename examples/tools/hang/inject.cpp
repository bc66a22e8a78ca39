// inject on the host backend, and what all backends have in common.
// SPDX-License-Identifier: Apache-2.0
#include "tools/hang/inject_job.hpp"

namespace polyrank::examples {
namespace {

struct host_side {
  using communicator = host::communicator;
  using stream = host::stream;

  static communicator join(launch::world& world) { return world.communicator(); }
  static std::pmr::memory_resource& memory() { return host::backend::memory(); }
  static void block(stream& s) {
    s.enqueue([] { sleep_forever(); });
  }
  template <class Body>
  static void capture(stream&, Body) {
    throw usage_error("inject: graphs need --backend cuda");
  }
  static void replay(stream&) {}
};

} // namespace

int run_inject(int argc, char** argv, const inject_flags& flags) {
  if (const char* pids = std::getenv("POLYRANK_SELFTEST_PIDS"); pids != nullptr)
    if (std::FILE* f = std::fopen(pids, "a"); f != nullptr) {
      std::fprintf(f, "%d\n", static_cast<int>(::getpid()));
      std::fclose(f);
    }
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (flags.scenario == "init" && rank != nullptr && std::atoi(rank) == flags.rank) {
    announce();
    sleep_forever();
  }
  if (flags.backend == "cuda") return run_inject_cuda(argc, argv, flags);
  expects(flags.backend == "host", "inject: --backend is host or cuda, not '", flags.backend, "'");
  return launch::run(argc, argv,
                     [&](launch::world& world) { return job<host_side>(world, flags).run(); });
}

} // namespace polyrank::examples
