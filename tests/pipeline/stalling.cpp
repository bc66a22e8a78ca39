// stalling HOW: a pipeline of 3 ranks, of which rank 2 in the second step, in F3 of its stage,
//   stalls      sleeps for ever      dies      is killed
//   none        nothing happens
// The hang diagnosis has to name the action.
// SPDX-License-Identifier: Apache-2.0
#include "pipeline/toy_run.hpp"

#include <polyrank/launch/run.hpp>

#include <csignal>
#include <string>
#include <thread>

using namespace polyrank;
using namespace polyrank::pipeline;

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "none";
  return launch::run(argc, argv, [&](launch::world& world) {
    auto comm = world.communicator();
    const auto r = static_cast<std::size_t>(comm.rank());
    const table t = test::lowered(schedule::zb_h1, static_cast<std::size_t>(comm.size()), 6);
    const test::toy_batch batch(6);
    std::vector<test::toy_stage> stages = test::stages_of(t, r, batch);
    int step = 0;
    if (r == 2)
      stages[0].on_work = [&](char kind, std::size_t microbatch) {
        if (how == "none" || step == 0 || kind != 'F' || microbatch != 3) return;
        if (how == "dies") std::raise(SIGKILL);
        std::this_thread::sleep_for(std::chrono::hours(1));
      };
    host::stream compute = comm.make_stream();
    peer_transport link(comm);
    executor run(link, std::span(stages), t, {.ring = world.ring()}, compute);
    for (; step < 2; ++step) {
      run.step();
      run.synchronize();
    }
    if (r == 0) std::printf("done\n");
    return 0;
  });
}
