// Every reduce policy on NCCL ranks: exact where it promises exactness, within its stated bound
// otherwise; two gradient types in one model.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/ranks.hpp"

#include <polyrank/data_parallel/all_to_all_sum.hpp>
#include <polyrank/data_parallel/error_feedback.hpp>
#include <polyrank/data_parallel/hierarchical.hpp>
#include <polyrank/data_parallel/reduce_scatter_sum.hpp>

using namespace polyrank;
using namespace polyrank::test;
using cuda::stream;
using device = cuda::backend;

namespace {

/// Small integers, exact in bf16 and in their sums over 12 blocks.
float tiny_integer(std::size_t i, std::size_t k, std::size_t block) {
  return static_cast<float>(mix(i * 31 + k * 7 + block) % 13);
}

/// Two steps; which of the other choices a policy meets is spread over the policies, so that every
/// pair of (bucket size, memory, microbatches, policy kind) occurs.
template <class Policy, class Write>
std::size_t wrong_with(cuda::communicator& comm, Policy policy, Write write, int first_case) {
  struct choice {
    std::size_t bucket;
    memory whose;
    std::size_t micros;
  };
  const choice table[] = {
      {1, memory::ours, 1},   {600, memory::users, 3}, {std::size_t{1} << 20, memory::ours, 3},
      {600, memory::ours, 1}, {1, memory::users, 1},   {std::size_t{1} << 20, memory::users, 1}};
  std::size_t bad = 0;
  for (int k = 0; k < 2; ++k) {
    const choice& c = table[(first_case + k) % 6];
    const std::size_t blocks = policy.blocks_per_rank(comm.size());
    if (blocks > 0 && c.whose == memory::users) continue; // refused there
    const std::size_t micros = blocks > 0 ? blocks : c.micros;
    model m(c.whose, comm.rank());
    grad_sync sync(
        comm, m.parameters, policy,
        {.bucket_bytes = c.bucket, .tail_bytes = c.bucket, .leave = gradients_hold::sum});
    for (int repeat = 0; repeat < 2; ++repeat)
      bad += wrong(step(sync, comm, micros, blocks > 0, write),
                   micros * static_cast<std::size_t>(comm.size()), write);
  }
  return bad;
}

} // namespace

TEST_CASE("every policy is exact for integers") {
  auto& comm = shared_comm();
  const auto exact = [&](auto policy, auto write, int first_case) {
    MPI_REQUIRE(MPI_COMM_WORLD, wrong_with(comm, policy, write, first_case) == 0);
  };
  exact(all_reduce_sum{}, integer_gradient, 0);
  exact(reduce_scatter_sum{}, integer_gradient, 1);
  exact(all_to_all_sum<float>{}, integer_gradient, 2);
  exact(all_to_all_sum<bf16>{}, tiny_integer, 3);
  exact(all_to_all_sum<fp16>{}, tiny_integer, 4);
  exact(error_feedback<>{}, tiny_integer, 5);
  if (8 % comm.size() == 0) exact(deterministic{8}, integer_gradient, 2);
  for (const int per_host : {1, 2, comm.size()}) {
    if (comm.size() % per_host != 0) continue;
    cuda::communicator inside = comm.split(comm.rank() / per_host, comm.rank());
    cuda::communicator across = comm.split(inside.rank(), comm.rank());
    exact(hierarchical{inside, across}, integer_gradient, per_host);
    exact(hierarchical{inside, across, all_to_all_sum<bf16>{}}, tiny_integer, per_host + 1);
    if (comm.size() < 4) break;
  }
}

TEST_CASE("a policy that cannot serve the ranks says so on all of them") {
  auto& comm = shared_comm();
  if (comm.size() == 1) return;
  model m(memory::ours, comm.rank());
  cuda::communicator part = comm.split(comm.rank(), 0); // ranks of their own
  hierarchical too_few{part, part};
  CHECK_THROWS_AS(grad_sync(comm, m.parameters, too_few), usage_error);
  CHECK_THROWS_AS(grad_sync(comm, m.parameters, deterministic{6}), usage_error);
}

TEST_CASE("local_only leaves every rank its own gradients") {
  auto& comm = shared_comm();
  model m(memory::ours, comm.rank());
  grad_sync sync(comm, m.parameters, local_only{}, {.leave = gradients_hold::sum});
  const auto mine = [&](std::size_t i, std::size_t k, std::size_t) {
    return integer_gradient(i, k, static_cast<std::size_t>(comm.rank()));
  };
  MPI_REQUIRE(MPI_COMM_WORLD, wrong(step(sync, comm, 1, false, mine), 1, mine) == 0);
}

namespace {

/// Largest |got - sum| / bound over the elements of one step; `bound(sum, sum of sizes)`.
template <class Policy, class Write, class Bound>
double worst(cuda::communicator& comm, Policy policy, Write write, Bound bound) {
  model m(memory::ours, comm.rank());
  grad_sync sync(comm, m.parameters, policy, {.bucket_bytes = 4096, .leave = gradients_hold::sum});
  const auto got = step(sync, comm, 1, false, write);
  double most = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < odd_counts.size(); ++i)
    for (std::size_t k = 0; k < odd_counts[i]; ++k) {
      double sum = 0, size = 0;
      for (int r = 0; r < comm.size(); ++r) {
        const double x = static_cast<double>(write(i, k, static_cast<std::size_t>(r)));
        sum += x;
        size += std::abs(x);
      }
      most = std::max(most, std::abs(static_cast<double>(got[at++]) - sum) / bound(sum, size));
    }
  return most;
}

float wave(std::size_t i, std::size_t k, std::size_t r) {
  return 0.01f + std::abs(std::sin(static_cast<float>(i * 3 + k * 17 + r * 5 + 1)));
}

/// What all_to_all_sum.hpp states for unit roundoff u.
auto stated(double u, int ranks) {
  return [u, ranks](double sum, double size) {
    return u * (size + std::abs(sum) + u * size) + ranks * 0x1p-24 * size;
  };
}

} // namespace

TEST_CASE("policies stay within their stated bounds") {
  auto& comm = shared_comm();
  const int n = comm.size();
  const auto fp32 = [n](double, double size) { return n * 0x1p-24 * size; };
  MPI_REQUIRE(MPI_COMM_WORLD, worst(comm, all_reduce_sum{}, wave, fp32) <= 1);
  MPI_REQUIRE(MPI_COMM_WORLD, worst(comm, reduce_scatter_sum{}, wave, fp32) <= 1);
  MPI_REQUIRE(MPI_COMM_WORLD, worst(comm, all_to_all_sum<float>{}, wave, fp32) <= 1);
  MPI_REQUIRE(MPI_COMM_WORLD, worst(comm, all_to_all_sum<bf16>{}, wave, stated(0x1p-8, n)) <= 1);
  MPI_REQUIRE(MPI_COMM_WORLD, worst(comm, all_to_all_sum<fp16>{}, wave, stated(0x1p-11, n)) <= 1);
  MPI_REQUIRE(MPI_COMM_WORLD, worst(comm, error_feedback<>{}, wave, stated(0x1p-8, n)) <= 1);
}

namespace {

/// 64 microbatches: 2^-9 everywhere but 1 on rank 0 in the first. A sum that adds them one by one
/// in bf16 keeps 1.
template <class Policy>
double pattern_sum(cuda::communicator& comm, Policy policy) {
  std::vector<parameter<float>> one{{"p", 33}};
  grad_sync sync(comm, one, policy, {.leave = gradients_hold::sum, .broadcast = false});
  const auto small = roomy_up(std::vector<float>(33, 0x1p-9f));
  stream s;
  const std::span<float> g(sync.grad(0), 33);
  for (std::size_t m = 0; m < 64; ++m) {
    sync.begin(m, 64);
    if (m == 0)
      device::fill(g, comm.rank() == 0 ? 1.0f : 0x1p-9f, s);
    else
      device::add<float>(g, small.span(), g, s);
    sync.ready(0, s);
    sync.finish(s);
  }
  s.synchronize();
  return static_cast<double>(down(std::span<const float>(g))[32]);
}

} // namespace

TEST_CASE("small contributions do not vanish, over ranks and microbatches") {
  auto& comm = shared_comm();
  const int n = comm.size();
  const double sum = 1 + (64 * n - 1) * 0x1p-9;
  const double low = stated(0x1p-8, n)(sum, sum);
  const auto error = [&](auto policy) { return std::abs(pattern_sum(comm, policy) - sum); };
  MPI_REQUIRE(MPI_COMM_WORLD, error(all_reduce_sum{}) == 0);
  MPI_REQUIRE(MPI_COMM_WORLD, error(reduce_scatter_sum{}) == 0);
  MPI_REQUIRE(MPI_COMM_WORLD, error(all_to_all_sum<float>{}) == 0);
  MPI_REQUIRE(MPI_COMM_WORLD, error(all_to_all_sum<bf16>{}) <= low);
  MPI_REQUIRE(MPI_COMM_WORLD, error(all_to_all_sum<fp16>{}) <= low / 8);
  MPI_REQUIRE(MPI_COMM_WORLD, error(error_feedback<>{}) <= low);
}

TEST_CASE("error feedback delivers late what rounding took away") {
  auto& comm = shared_comm();
  if (comm.size() == 1) return; // nothing is sent
  // 1 + 2^-10 is 1 in bf16. What 16 steps deliver is right to one rounding a rank; without feedback
  // 2^-6 would be missing from each.
  std::vector<parameter<float>> one{{"p", 70}};
  grad_sync sync(comm, one, error_feedback<>{}, {.leave = gradients_hold::sum, .broadcast = false});
  stream s;
  const std::span<float> g(sync.grad(0), 70);
  double delivered = 0;
  for (int k = 0; k < 16; ++k) {
    sync.begin(0, 1);
    device::fill(g, 1.0f + 0x1p-10f, s);
    sync.ready(0, s);
    sync.finish(s);
    s.synchronize();
    delivered += static_cast<double>(down(std::span<const float>(g))[69]);
  }
  const double n = comm.size();
  // ... and twice half a unit of the sum, where n is no power of two.
  MPI_REQUIRE(MPI_COMM_WORLD, std::abs(delivered - 16 * n * (1 + 0x1p-10)) <= n * 0x1p-8 + 0x1p-6);
}

TEST_CASE("two gradient types in one model share a communicator") {
  auto& comm = shared_comm();
  const auto n = static_cast<std::size_t>(comm.size());
  std::vector<parameter<float>> wide{{"norm", 37}, {"bias", 1001}};
  std::vector<parameter<bf16, float>> narrow{{"w1", 4099}, {"w2", 65}};
  const grad_sync_options o{.bucket_bytes = 256, .leave = gradients_hold::sum, .broadcast = false};
  grad_sync a(comm, wide, all_reduce_sum{}, o);
  grad_sync b(comm, narrow, all_reduce_sum{}, o);
  stream s, t;
  const auto me = static_cast<float>(comm.rank() + 1);
  for (int repeat = 1; repeat <= 3; ++repeat) {
    a.begin(0, 1);
    b.begin(0, 1);
    for (std::size_t i = 2; i-- > 0;) { // the same order of ready calls on all ranks
      device::fill(std::span<float>(a.grad(i), wide[i].count), me * static_cast<float>(repeat), s);
      a.ready(i, s);
      device::fill(std::span<bf16>(b.grad(i), narrow[i].count), bf16(me), t);
      b.ready(i, t);
    }
    a.finish(s);
    b.finish(s);
    s.synchronize();
    const auto sum = static_cast<float>(n * (n + 1) / 2);
    std::size_t bad = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      for (const float x : down(std::span<const float>(a.grad(i), wide[i].count)))
        bad += x != sum * static_cast<float>(repeat);
      for (const bf16 x : down(std::span<const bf16>(b.grad(i), narrow[i].count)))
        bad += float(x) != sum;
    }
    MPI_REQUIRE(MPI_COMM_WORLD, bad == 0);
  }
}
