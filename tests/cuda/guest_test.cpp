// A program that owns everything - NCCL communicators, streams, events, memory, the current device
// - and lets grad_sync use it.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/ranks.hpp"

using namespace polyrank;
using namespace polyrank::test;
using cuda::stream;

namespace {

ncclComm_t raw_communicator(launch::world& w) {
  ncclUniqueId id{};
  if (w.rank() == 0) cuda::check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t raw = nullptr;
  cuda::check(ncclCommInitRank(&raw, w.size(), id, w.rank()), "ncclCommInitRank");
  return raw;
}

/// A user's pool: counts what is out.
class users_memory final : public std::pmr::memory_resource {
 public:
  std::size_t out = 0, calls = 0;

 private:
  void* do_allocate(std::size_t n, std::size_t alignment) override {
    out += n;
    ++calls;
    return roomy.allocate(n, alignment);
  }
  void do_deallocate(void* p, std::size_t n, std::size_t alignment) override {
    out -= n;
    roomy.deallocate(p, n, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }
};

} // namespace

TEST_CASE("everything is the caller's: communicators, streams, events, memory") {
  shared_comm();
  launch::world& w = shared->w;
  const ncclComm_t ours = raw_communicator(w), theirs = raw_communicator(w);
  cudaStream_t raw = nullptr, raw_theirs = nullptr;
  cudaEvent_t point = nullptr;
  cuda::check(cudaStreamCreate(&raw), "cudaStreamCreate");
  cuda::check(cudaStreamCreateWithFlags(&raw_theirs, cudaStreamNonBlocking), "cudaStreamCreate");
  cuda::check(cudaEventCreate(&point), "cudaEventCreate");
  const int device_before = cuda::current_device();
  users_memory pool;
  const std::size_t n = 30011;
  const auto ranks = static_cast<float>(w.size());
  auto value = roomy_up(std::vector<float>(n, static_cast<float>(w.rank())));
  auto gradient = roomy_up(std::vector<float>(n)), own = roomy_up(std::vector<float>(n, 1.0f));
  {
    auto comm = cuda::communicator::from_native(ours, w.communicator());
    std::vector<parameter<float>> parameters{{"mine", n, value.data(), gradient.data()},
                                             {"arena", 101, value.data()}};
    grad_sync sync(comm, parameters, all_reduce_sum{},
                   {.leave = gradients_hold::sum, .memory = &pool});
    const std::size_t calls = pool.calls;
    MPI_REQUIRE(MPI_COMM_WORLD, pool.out == sync.bytes());
    stream producer = stream::from_native(raw);
    cuda::event written = cuda::event::from_native(point);
    stream user = stream::from_native(raw_theirs);
    float expected = 1;
    for (int k = 0; k < 3; ++k) {
      sync.begin(0, 1);
      for (std::size_t i = 2; i-- > 0;)
        cuda::backend::fill(std::span<float>(sync.grad(i), parameters[i].count),
                            static_cast<float>(k + 1), producer);
      sync.sync_all(producer);
      sync.finish(producer);
      // The caller's own work on its own communicator, in the same order on all ranks.
      written.record(producer);
      user.wait(written);
      cuda::check(ncclAllReduce(own.data(), own.data(), n, ncclFloat, ncclSum, theirs, raw_theirs),
                  "ncclAllReduce");
      expected *= ranks;
      cuda::check(cudaStreamSynchronize(raw), "cudaStreamSynchronize");
      cuda::check(cudaStreamSynchronize(raw_theirs), "cudaStreamSynchronize");
      const float sum = ranks * static_cast<float>(k + 1);
      MPI_REQUIRE(MPI_COMM_WORLD, differences(gradient, std::vector<float>(n, sum)) == 0);
      MPI_REQUIRE(MPI_COMM_WORLD,
                  down(std::span<const float>(sync.grad(1), 101)) == std::vector<float>(101, sum));
      MPI_REQUIRE(MPI_COMM_WORLD, differences(own, std::vector<float>(n, expected)) == 0);
    }
    MPI_REQUIRE(MPI_COMM_WORLD, pool.calls == calls);
    MPI_REQUIRE(MPI_COMM_WORLD, cuda::current_device() == device_before);
    MPI_REQUIRE(MPI_COMM_WORLD, differences(value, std::vector<float>(n)) == 0); // rank 0's
  }
  MPI_REQUIRE(MPI_COMM_WORLD, pool.out == 0);
  MPI_REQUIRE(MPI_COMM_WORLD, cudaEventQuery(point) == cudaSuccess);
  MPI_REQUIRE(MPI_COMM_WORLD, cudaEventDestroy(point) == cudaSuccess);
  MPI_REQUIRE(MPI_COMM_WORLD, cudaStreamDestroy(raw) == cudaSuccess);
  MPI_REQUIRE(MPI_COMM_WORLD, cudaStreamDestroy(raw_theirs) == cudaSuccess);
  MPI_REQUIRE(MPI_COMM_WORLD, ncclCommDestroy(ours) == ncclSuccess);
  MPI_REQUIRE(MPI_COMM_WORLD, ncclCommDestroy(theirs) == ncclSuccess);
}

TEST_CASE("a stream of another GPU is refused") {
  auto& comm = shared_comm();
  if (cuda::device_count() < 2) return; // the check itself: pure_test.cpp
  auto x = roomy_up(std::vector<float>(4, 1.0f));
  const auto there = [&] {
    cuda::scoped_device other((comm.device() + 1) % cuda::device_count());
    return stream();
  };
  stream s = there();
  CHECK_THROWS_AS(comm.all_reduce<float>(x.span(), x.span(), reduce_op::sum, on(s)), usage_error);
}
