// Every rank contributes its number; every rank learns the sum.
//     mpirun --map-by :OVERSUBSCRIBE --bind-to none -n 4 build/bin/hello_allreduce
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/launch/run.hpp>
#include <polyrank/polyrank.hpp>

#include <cstdio>
#include <vector>

using namespace polyrank;

int main(int argc, char** argv) {
  return launch::run(argc, argv, [](launch::world& world) {
    auto comm = world.communicator();         // all ranks of mpirun
    host::stream stream = comm.make_stream(); // an in-order queue, as on a GPU

    std::vector<float> mine{static_cast<float>(world.rank())}, sum(1);
    comm.all_reduce<float>(mine, sum, reduce_op::sum, on(stream, "hello"));
    stream.synchronize(); // all_reduce returned at once; now it is done

    if (world.rank() == 0)
      std::printf("%d ranks agree: the sum of all ranks is %g\n", world.size(), sum[0]);
    return 0;
  });
}
