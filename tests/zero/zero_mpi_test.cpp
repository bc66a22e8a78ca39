// The sharded optimizer over MPI: a pairwise table of stages, microbatches, residency, precision
// and clipping; each row must give the bits of one rank.
// SPDX-License-Identifier: Apache-2.0
#include "support/mpi_require.hpp"

#include "zero/zero_cases.hpp"

#include <polyrank/launch/world.hpp>
#include <polyrank/zero/collect.hpp>

using namespace polyrank;
using namespace polyrank::test;

namespace {

constexpr adamw::options rates{.lr = 0.01};

/// Wrong elements on this rank after two steps.
template <class V, class Residency>
std::size_t wrong_elements(host::communicator& comm, std::size_t stage, std::size_t micros,
                           std::size_t bucket, Residency home) {
  const std::size_t blocks = static_cast<std::size_t>(comm.size()) * micros;
  const auto expected =
      rounded_to<V>(serial<adamw>(zero_counts, rates, 2, blocks, 1e9f, gradient_at));
  host::stream s = comm.make_stream();
  sharded_optimizer<adamw, host::communicator, V, V, Residency> opt(
      comm, parameters_of<V>(zero_counts), rates,
      {.stage = stage, .bucket_bytes = bucket, .microbatches = micros, .max_norm = 1e9f}, home);
  start(opt, s, comm.rank());
  for (int step = 0; step < 2; ++step) train_step(opt, s, comm.rank(), micros, gradient_at);
  opt.synchronize();
  return wrong(opt, expected);
}

} // namespace

TEST_CASE("over MPI: stages, microbatches, residency and precision", "[zero][mpi]") {
  launch::world world = launch::world::adopt(MPI_COMM_WORLD);
  auto comm = world.communicator();
  const on_host half{.fraction = 0.5, .threads = 2}, all{.fraction = 1, .threads = 1};
  const std::size_t bad[] = {wrong_elements<float>(comm, 0, 1, 20000, on_device{}),
                             wrong_elements<float>(comm, 1, 2, 300, half),
                             wrong_elements<float>(comm, 2, 4, 20000, on_device{}),
                             wrong_elements<bf16>(comm, 2, 1, 20000, all),
                             wrong_elements<bf16>(comm, 0, 4, 300, half),
                             wrong_elements<bf16>(comm, 1, 1, 1u << 22, on_device{})};
  for (const std::size_t b : bad) MPI_REQUIRE(MPI_COMM_WORLD, b == 0);
}

TEST_CASE("over MPI: wire bytes of a step are the formula's", "[zero][mpi]") {
  launch::world world = launch::world::adopt(MPI_COMM_WORLD);
  auto comm = world.communicator();
  const auto n = static_cast<std::size_t>(comm.size());
  for (const std::size_t stage : {0, 1, 2})
    for (const std::size_t micros : {1, 3}) {
      host::stream s = comm.make_stream();
      // One bucket that the ranks divide.
      const std::size_t count = 16 * norm_block * n;
      sharded_optimizer<adamw, host::communicator> opt(comm, parameters_of<float>({count}), rates,
                                                       {.stage = stage,
                                                        .bucket_bytes = 1u << 30,
                                                        .microbatches = micros,
                                                        .clip = clip_policy::none});
      opt.load_values(s);
      comm.control().barrier(std::chrono::seconds(60));
      const std::uint64_t before = world.engine().bytes_sent();
      train_step(opt, s, comm.rank(), micros, gradient_at);
      opt.synchronize();
      const std::uint64_t sent = world.engine().bytes_sent() - before;
      // Reduced once, at stage 2 in every microbatch; and the values.
      const std::size_t passes = stage == 2 ? micros + 1 : 2;
      MPI_REQUIRE(MPI_COMM_WORLD, sent == passes * (n - 1) * count / n * sizeof(float));
    }
}

TEST_CASE("over MPI: collect puts the shards together", "[zero][mpi]") {
  launch::world world = launch::world::adopt(MPI_COMM_WORLD);
  auto comm = world.communicator();
  host::stream s = comm.make_stream();
  sharded_optimizer<adamw, host::communicator, bf16> opt(
      comm, parameters_of<bf16>(zero_counts), rates, {.placements = [] {
        std::vector<placement> mix;
        for (std::size_t i = 0; i < zero_counts.size(); ++i) mix.push_back({.stage = i % 3});
        return mix;
      }()});
  start(opt, s, comm.rank());
  const whole_state all = collect(opt);
  std::size_t bad = 0, at = 0;
  for (std::size_t i = 0; i < zero_counts.size(); ++i)
    for (std::size_t k = 0; k < zero_counts[i]; ++k, ++at)
      bad += all.masters[at] == initial_value(i, k) && all.state[at] == 0 ? 0 : 1;
  MPI_REQUIRE(MPI_COMM_WORLD, bad == 0);
  MPI_REQUIRE(MPI_COMM_WORLD, all.masters.size() == at);
  MPI_REQUIRE(MPI_COMM_WORLD, all.state.size() == 2 * at);
}
