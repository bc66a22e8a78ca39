// The executor under mpirun: a pairwise selection of what the threads suite covers in full.
// SPDX-License-Identifier: Apache-2.0
#include "support/mpi_require.hpp"

#include "pipeline/toy_run.hpp"

#include <polyrank/launch/world.hpp>

using namespace polyrank;
using namespace polyrank::pipeline;
using namespace polyrank::test;

TEST_CASE("schedules over MPI give the gradients of the model without a pipeline", "[executor]") {
  launch::world world = launch::world::adopt(MPI_COMM_WORLD);
  auto comm = world.communicator();
  const auto p = static_cast<std::size_t>(comm.size());
  constexpr auto one = lane_policy::single, each = lane_policy::per_channel;
  const struct {
    schedule s;
    std::size_t m;
    lane_policy lanes;
    bool recompute;
  } cases[] = {{schedule::gpipe, 1, each, false},
               {schedule::one_f_one_b, p - 1, one, true},
               {schedule::interleaved, 2 * p + 1, one, false},
               {schedule::bfs, p, each, true},
               {schedule::zb_h1, 2 * p + 1, each, false},
               {schedule::zb_h2, p + 1, one, true},
               {schedule::zb_v, 3 * p, one, false},
               {schedule::v_half, p - 1, each, true},
               {schedule::v_min, 2 * p, one, false},
               {schedule::dualpipe_v, 2 * p + 1, one, false},
               {schedule::forward_only, p, one, false}};
  for (const auto& c : cases) {
    if (c.m == 0) continue;
    const table t = lowered(c.s, p, c.m, 0, {.lanes = c.lanes, .recompute = c.recompute});
    const mistakes m =
        run_table<peer_transport<host::communicator>>(comm, t, {.steps = 2, .poison = true});
    INFO(traits_of(c.s).name << ": " << m.text());
    MPI_REQUIRE(MPI_COMM_WORLD, m.all() == 0);
  }
}
