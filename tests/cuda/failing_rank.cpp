// failing_rank throw|die|stop: the last rank fails while the others wait in a collective on the
// GPU. All must be gone soon, with the cause on stderr.
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/backend/buffer.hpp>
#include <polyrank/cuda/communicator.hpp>
#include <polyrank/launch/run.hpp>

#include <csignal>
#include <string_view>

int main(int argc, char** argv) {
  using namespace polyrank;
  const std::string_view how = argc > 1 ? argv[1] : "throw";
  return launch::run(argc, argv, [&](launch::world& world) {
    cuda::communicator comm = cuda::join(world);
    cuda::stream s = comm.make_stream();
    buffer<float> x(1 << 20, cuda::device_memory());
    comm.all_reduce<float>(x.span(), x.span(), reduce_op::sum, on(s, "together"));
    s.synchronize();
    if (world.rank() + 1 == world.size()) {
      if (how == "throw") throw data_error("file 7 is truncated");
      if (how == "die") std::raise(SIGKILL);
      return 3; // leaves without the others
    }
    comm.all_reduce<float>(x.span(), x.span(), reduce_op::sum, on(s, "alone"));
    s.synchronize();
    return 0;
  });
}
