// failing_rank HOW: rank 2 fails while the others wait in a collective.
//   throw        a polyrank error        throw_plain  an exception of another kind
//   unwind       the world goes by an exception that main catches
//   collective   every rank throws the same error
//   code         every rank returns 7    none         nothing happens
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/launch/run.hpp>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

using namespace polyrank;

namespace {

void work(launch::world& world, std::string_view how) {
  auto comm = world.communicator();
  host::stream s = comm.make_stream();
  std::vector<float> x(200000);
  for (int i = 0; i < 5; ++i)
    comm.all_reduce<float>(x, std::span(x), reduce_op::sum, on(s, "warm-up"));
  s.synchronize();
  if (how == "collective") throw on_every_rank(usage_error("same everywhere"));
  if (how != "none" && how != "code" && comm.rank() == 2) {
    if (how == "throw_plain") throw std::runtime_error("deliberate failure");
    throw data_error("deliberate failure");
  }
  comm.all_reduce<float>(x, std::span(x), reduce_op::sum, on(s, "the one that hangs"));
  s.synchronize();
}

} // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "none";
  if (how == "unwind") {
    try {
      launch::world world(argc, argv);
      work(world, how);
    } catch (const std::exception& e) {
      const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
      std::fprintf(stderr, "caught on rank %s: %s\n", rank != nullptr ? rank : "?", e.what());
      return 1;
    }
    return 0;
  }
  return launch::run(argc, argv, [&](launch::world& world) {
    if (world.rank() == 0) {
      std::printf("%d rank%s, launcher %s\n", world.size(), world.size() == 1 ? "" : "s",
                  world.launcher() ? std::string(world.launcher()->name).c_str() : "none");
      for (const std::string& warning : world.warnings()) std::printf("%s\n", warning.c_str());
    }
    work(world, how);
    return how == "code" ? 7 : 0;
  });
}
