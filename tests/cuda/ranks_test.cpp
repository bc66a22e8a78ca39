// The NCCL communicator and grad_sync on it; run by scripts/gpu_ranks.sh with 1, 2 and 4 ranks.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/ranks.hpp"

#include <cstdio>
#include <thread>

using namespace polyrank;
using namespace polyrank::test;
using namespace std::chrono_literals;
using cuda::stream;
using device = cuda::backend;
using launch::world;

namespace {

template <class T>
std::vector<T> values(int rank, std::size_t count) {
  std::vector<T> x;
  for (std::size_t i = 0; i < count; ++i)
    x.push_back(T(static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 11)));
  return x;
}

template <class T>
std::size_t check_all_reduce(cuda::communicator& comm, stream& s, std::size_t count, reduce_op op,
                             bool in_place) {
  auto in = roomy_up(values<T>(comm.rank(), count)), out = roomy_up(std::vector<T>(count));
  auto& to = in_place ? in : out;
  comm.all_reduce<T>(in.span(), to.span(), op, on(s));
  s.synchronize();
  std::vector<T> expected = values<T>(0, count);
  for (int r = 1; r < comm.size(); ++r) {
    const auto x = values<T>(r, count);
    for (std::size_t i = 0; i < count; ++i) {
      const float a = static_cast<float>(expected[i]), b = static_cast<float>(x[i]);
      expected[i] = T(op == reduce_op::sum   ? a + b
                      : op == reduce_op::min ? std::min(a, b)
                                             : std::max(a, b));
    }
  }
  return differences(to, expected);
}

std::size_t check_everything(cuda::communicator& comm, stream& s, std::size_t count) {
  const auto n = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank());
  std::size_t bad = 0;
  bad += check_all_reduce<float>(comm, s, count, reduce_op::sum, true);
  bad += check_all_reduce<bf16>(comm, s, count, reduce_op::sum, false);
  bad += check_all_reduce<fp16>(comm, s, count, reduce_op::max, true);
  bad += check_all_reduce<std::int64_t>(comm, s, count, reduce_op::min, false);
  bad += check_all_reduce<double>(comm, s, count, reduce_op::sum, true);
  { // reduce_scatter and all_gather, in place
    auto all = roomy_up(values<float>(comm.rank(), count * n));
    const auto mine = all.span().subspan(me * count, count);
    comm.reduce_scatter<float>(all.span(), mine, reduce_op::sum, on(s));
    comm.all_gather<float>(mine, all.span(), on(s));
    s.synchronize();
    std::vector<float> expected(count * n);
    for (int r = 0; r < comm.size(); ++r) {
      const auto x = values<float>(r, count * n);
      for (std::size_t i = 0; i < x.size(); ++i) expected[i] += x[i];
    }
    bad += differences(all, expected);
  }
  { // all_to_all
    std::vector<std::int32_t> give(count * n), expected(count * n);
    for (std::size_t i = 0; i < give.size(); ++i)
      give[i] = static_cast<std::int32_t>(me * 1000000 + i);
    for (std::size_t r = 0; r < n; ++r)
      for (std::size_t i = 0; i < count; ++i)
        expected[r * count + i] = static_cast<std::int32_t>(r * 1000000 + me * count + i);
    const auto in = roomy_up(give);
    auto out = roomy_up(std::vector<std::int32_t>(count * n));
    comm.all_to_all<std::int32_t>(in.span(), out.span(), on(s));
    s.synchronize();
    bad += differences(out, expected);
  }
  for (int root = 0; root < comm.size(); ++root) {
    auto data = roomy_up(values<bf16>(comm.rank(), count));
    comm.broadcast(data.span(), root, on(s));
    s.synchronize();
    bad += differences(data, values<bf16>(root, count));
  }
  { // everybody sends to everybody, itself included
    auto out = roomy_up(values<float>(comm.rank(), count * n)),
         in = roomy_up(std::vector<float>(count * n));
    std::vector<transfer<float>> batch;
    for (std::size_t r = 0; r < n; ++r) {
      batch.push_back(send_to(static_cast<int>(r), out.span().subspan(r * count, count)));
      batch.push_back(receive_from(static_cast<int>(r), in.span().subspan(r * count, count)));
    }
    comm.exchange(std::span<const transfer<float>>(batch), on(s));
    s.synchronize();
    std::vector<float> expected;
    for (std::size_t r = 0; r < n; ++r) {
      const auto x = values<float>(static_cast<int>(r), count * n);
      for (std::size_t i = 0; i < count; ++i) expected.push_back(x[me * count + i]);
    }
    bad += differences(in, expected);
  }
  return bad;
}

} // namespace

TEST_CASE("every collective is right for every size") {
  auto& comm = shared_comm();
  stream s = comm.make_stream();
  for (const std::string& w : comm.warnings()) WARN(w);
  for (const std::size_t count : {0u, 1u, 3u, 1000u, 30011u})
    MPI_REQUIRE(MPI_COMM_WORLD, check_everything(comm, s, count) == 0);
}

TEST_CASE("operations run in host order, whatever stream each names") {
  auto& comm = shared_comm();
  stream a = comm.make_stream(), b = comm.make_stream();
  const float n = static_cast<float>(comm.size());
  auto x = roomy_up(std::vector<float>(1000, 1.0f));
  test::delay(a, 20ms); // the first operation is late; the second must still come after it
  comm.all_reduce<float>(x.span(), x.span(), reduce_op::sum, on(a));
  comm.all_reduce<float>(x.span(), x.span(), reduce_op::sum, on(b));
  b.synchronize();
  MPI_REQUIRE(MPI_COMM_WORLD, differences(x, std::vector<float>(1000, n * n)) == 0);
}

TEST_CASE("a group is one launch of several operations") {
  auto& comm = shared_comm();
  stream s = comm.make_stream();
  auto x = roomy_up(values<float>(comm.rank(), 500)), y = roomy_up(values<float>(comm.rank(), 77));
  comm.group(s, [&] {
    comm.broadcast(x.span(), 0, on(s));
    comm.broadcast(y.span(), comm.size() - 1, on(s));
  });
  s.synchronize();
  MPI_REQUIRE(MPI_COMM_WORLD, differences(x, values<float>(0, 500)) == 0);
  MPI_REQUIRE(MPI_COMM_WORLD, differences(y, values<float>(comm.size() - 1, 77)) == 0);
}

TEST_CASE("parts of a split work on their own") {
  auto& comm = shared_comm();
  cuda::communicator part = comm.split(comm.rank() % 2, -comm.rank());
  stream s = part.make_stream();
  MPI_REQUIRE(MPI_COMM_WORLD, part.size() == (comm.size() + 1 - comm.rank() % 2) / 2);
  MPI_REQUIRE(MPI_COMM_WORLD, part.rank() == part.size() - 1 - comm.rank() / 2);
  MPI_REQUIRE(MPI_COMM_WORLD, check_everything(part, s, 997) == 0);
}

TEST_CASE("the caller's own communicator is used, beside ours, and left alone") {
  shared_comm();
  world& w = shared->w;
  ncclUniqueId id{};
  if (w.rank() == 0) cuda::check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t raw = nullptr;
  cuda::check(ncclCommInitRank(&raw, w.size(), id, w.rank()), "ncclCommInitRank");
  {
    auto mine = cuda::communicator::from_native(raw, w.communicator());
    stream s = mine.make_stream(), t = shared_comm().make_stream();
    MPI_REQUIRE(MPI_COMM_WORLD, check_everything(mine, s, 1009) == 0);
    MPI_REQUIRE(MPI_COMM_WORLD, check_everything(shared_comm(), t, 1009) == 0);
  }
  MPI_REQUIRE(MPI_COMM_WORLD, ncclCommDestroy(raw) == ncclSuccess);
}

TEST_CASE("the caller's device and the flight recorder see every operation") {
  auto& comm = shared_comm();
  auto& recorder = shared->w.recorder();
  const auto before = recorder.size();
  stream s = comm.make_stream();
  auto x = roomy_up(std::vector<float>(10, 1.0f));
  comm.all_reduce<float>(x.span(), x.span(), reduce_op::sum, on(s, "bucket 3"));
  s.synchronize();
  std::this_thread::sleep_for(50ms); // the watcher stamps
  hang::flight_recorder::record r;
  MPI_REQUIRE(MPI_COMM_WORLD, recorder.size() == before + 1);
  MPI_REQUIRE(MPI_COMM_WORLD, recorder.read(before, r));
  MPI_REQUIRE(MPI_COMM_WORLD, std::string(r.what.tag) == "bucket 3");
  MPI_REQUIRE(MPI_COMM_WORLD, std::string(r.what.site.file) == "ranks_test.cpp");
  MPI_REQUIRE(MPI_COMM_WORLD, r.done_ns != 0);
}

TEST_CASE("integer gradients are exact, with and without accumulation, in anybody's memory") {
  auto& comm = shared_comm();
  for (const memory whose : {memory::ours, memory::users})
    for (const std::size_t micros : {1u, 3u})
      for (const std::size_t bucket_bytes : {256u, 1u << 20}) {
        model m(whose, comm.rank());
        grad_sync sync(comm, m.parameters, all_reduce_sum{},
                       {.bucket_bytes = bucket_bytes, .leave = gradients_hold::sum});
        const std::size_t blocks = micros * static_cast<std::size_t>(comm.size());
        for (int repeat = 0; repeat < 2; ++repeat)
          MPI_REQUIRE(MPI_COMM_WORLD, wrong(step(sync, comm, micros, false, integer_gradient),
                                            blocks, integer_gradient) == 0);
        std::size_t differ = 0; // all have rank 0's values
        for (const auto& v : m.values) differ += differences(v, std::vector<float>(v.size()));
        MPI_REQUIRE(MPI_COMM_WORLD, differ == 0);
      }
}

namespace {

/// A reduce policy that keeps the communication stream busy before each bucket.
template <class Policy>
struct late : Policy {
  std::chrono::microseconds time{0};

  void issue(cuda::communicator& comm, std::span<float> data, std::span<float> scratch,
             on<stream> where) const {
    if (time.count() > 0) test::delay(where.stream, time);
    Policy::issue(comm, data, scratch, where);
  }
};

} // namespace

TEST_CASE("no bit depends on when producers and collectives run") {
  auto& comm = shared_comm();
  if (8 % comm.size() != 0) return; // deterministic mode has 8 blocks
  model m(memory::ours, comm.rank());
  const auto run = [&](std::chrono::microseconds producer, std::chrono::microseconds collective) {
    grad_sync sync(comm, m.parameters, late<deterministic>{{8}, collective},
                   {.bucket_bytes = 4096});
    return step(sync, comm, 8 / static_cast<std::size_t>(comm.size()), true, rough_gradient,
                producer);
  };
  const auto plain = run(0us, 0us);
  MPI_REQUIRE(MPI_COMM_WORLD, same_bits(plain, run(300us, 0us)));
  MPI_REQUIRE(MPI_COMM_WORLD, same_bits(plain, run(0us, 500us)));
  MPI_REQUIRE(MPI_COMM_WORLD, same_bits(plain, run(200us, 300us)));
}

TEST_CASE("deterministic mode gives one digest for every number of ranks") {
  auto& comm = shared_comm();
  if (8 % comm.size() != 0) return;
  model m(memory::ours, comm.rank());
  grad_sync sync(comm, m.parameters, deterministic{8}, {.bucket_bytes = 4096});
  const auto g = step(sync, comm, 8 / static_cast<std::size_t>(comm.size()), true, rough_gradient);
  const std::uint64_t mine = hash_bytes(g.data(), g.size() * sizeof(float));
  const auto all = comm.control().all_gather({reinterpret_cast<const char*>(&mine), sizeof mine});
  for (const auto& one : all) MPI_REQUIRE(MPI_COMM_WORLD, one == all[0]);
  if (comm.rank() == 0) std::printf("gradients digest=%s\n", hex16(mine).c_str());
  // The tree on the host: the same bits.
  std::size_t bad = 0, at = 0;
  for (std::size_t i = 0; i < odd_counts.size(); ++i)
    for (std::size_t k = 0; k < odd_counts[i]; ++k) {
      float leaf[8];
      for (std::size_t b = 0; b < 8; ++b) leaf[b] = rough_gradient(i, k, b);
      for (std::size_t width = 4; width > 0; width /= 2)
        for (std::size_t b = 0; b < width; ++b) leaf[b] = leaf[2 * b] + leaf[2 * b + 1];
      bad += g[at++] != leaf[0] * 0.125f;
    }
  MPI_REQUIRE(MPI_COMM_WORLD, bad == 0);
}

namespace {

/// Device memory that counts.
class counting_memory final : public std::pmr::memory_resource {
 public:
  std::size_t calls = 0, bytes = 0;

 private:
  void* do_allocate(std::size_t n, std::size_t alignment) override {
    ++calls;
    bytes += n;
    return cuda::device_memory().allocate(n, alignment);
  }
  void do_deallocate(void* p, std::size_t n, std::size_t alignment) override {
    bytes -= n;
    cuda::device_memory().deallocate(p, n, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }
};

} // namespace

TEST_CASE("memory comes from the caller's resource, all of it at construction") {
  auto& comm = shared_comm();
  counting_memory pool;
  {
    model m(memory::ours, comm.rank());
    grad_sync sync(comm, m.parameters, all_reduce_sum{},
                   {.bucket_bytes = 4096, .leave = gradients_hold::sum, .memory = &pool});
    const std::size_t calls = pool.calls;
    MPI_REQUIRE(MPI_COMM_WORLD, pool.bytes == sync.bytes());
    MPI_REQUIRE(MPI_COMM_WORLD,
                wrong(step(sync, comm, 2, false, integer_gradient),
                      2 * static_cast<std::size_t>(comm.size()), integer_gradient) == 0);
    MPI_REQUIRE(MPI_COMM_WORLD, pool.calls == calls);
  }
  MPI_REQUIRE(MPI_COMM_WORLD, pool.bytes == 0);
}

TEST_CASE("the GPU itself tells the recorder what has begun and what is done") {
  auto& comm = shared_comm();
  for (const std::string& w : comm.warnings()) // or it cannot write; others may have come before
    MPI_REQUIRE(MPI_COMM_WORLD, w.find("no progress of the GPU") == std::string::npos);
  auto& recorder = shared->w.recorder();
  stream s = comm.make_stream();
  auto x = up(std::vector<float>(1000, 1.0f));
  const auto sum = [&] {
    comm.all_reduce<float>(x.span(), x.span(), reduce_op::sum, on(s, "sum"));
  };
  const auto last = [&](std::uint64_t back = 0) {
    hang::record r;
    REQUIRE(recorder.read(recorder.size() - 1 - back, r));
    return r;
  };
  sum();
  s.synchronize();
  test::delay(s, 300ms);
  sum();
  const auto blocked = last();
  s.synchronize();
  const auto done = last();
  MPI_REQUIRE(MPI_COMM_WORLD, (blocked.started_ns == 0 && blocked.done_ns == 0));
  MPI_REQUIRE(MPI_COMM_WORLD, (done.started_ns != 0 && done.finished()));

  test::delay(s, 300ms);
  comm.group(s, [&] {
    sum();
    sum();
  });
  const bool waits = last(1).started_ns == 0 && !last().finished();
  s.synchronize();
  MPI_REQUIRE(MPI_COMM_WORLD, (waits && last(1).finished() && last().finished()));

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cuda::check(cudaStreamBeginCapture(s.native(), cudaStreamCaptureModeThreadLocal), "capture");
  sum();
  sum();
  cuda::check(cudaStreamEndCapture(s.native(), &graph), "cudaStreamEndCapture");
  cuda::check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  const auto captured = last();
  test::delay(s, 300ms);
  for (int i = 0; i < 3; ++i) cuda::check(cudaGraphLaunch(exec, s.native()), "cudaGraphLaunch");
  const auto before = last();
  s.synchronize();
  const auto first = last(1), second = last();
  MPI_REQUIRE(MPI_COMM_WORLD, (captured.in_graph && captured.replay == 0 && captured.finished()));
  MPI_REQUIRE(MPI_COMM_WORLD, before.replay == 0);
  MPI_REQUIRE(MPI_COMM_WORLD, (first.replay == 3 && second.replay == 3 && second.finished()));
  sum(); // the communicator goes on without the graph
  s.synchronize();
  MPI_REQUIRE(MPI_COMM_WORLD, (!last().in_graph && last().finished()));
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

TEST_CASE("a message of more than 2^31 elements") {
  auto& comm = shared_comm();
  if (comm.size() > 2) return; // over sockets it would take long
  stream s = comm.make_stream();
  const std::size_t n = (std::size_t{1} << 31) + 257;
  auto x = test::empty<std::byte>(n);
  cuda::check(cudaMemsetAsync(x.data(), comm.rank() + 7, n, s.native()), "cudaMemsetAsync");
  comm.broadcast(x.span(), 0, on(s));
  s.synchronize();
  const auto last = down(std::span<const std::byte>(x.data() + n - 300, 300));
  MPI_REQUIRE(MPI_COMM_WORLD, last == std::vector<std::byte>(300, std::byte{7}));
}

TEST_CASE("a parameter in host memory is refused by name") {
  auto& comm = shared_comm();
  model m(memory::ours, comm.rank());
  std::vector<float> host(64);
  m.parameters[6].gradient = host.data();
  std::string said;
  try {
    grad_sync sync(comm, m.parameters);
  } catch (const usage_error& e) {
    said = e.what();
  }
  MPI_REQUIRE(MPI_COMM_WORLD,
              said.find("gradient of parameter 'p6' points to host memory") != std::string::npos);
}

TEST_CASE("replicas that drift are named") {
  auto& comm = shared_comm();
  if (comm.size() == 1) return;
  model m(memory::ours, comm.rank());
  grad_sync sync(comm, m.parameters);
  stream s = comm.make_stream();
  CHECK_NOTHROW(sync.verify_replicas(s));
  if (comm.rank() == 1) device::fill(m.values[10].span().subspan(17, 1), 1.0f, s);
  s.synchronize();
  std::string said;
  try {
    sync.verify_replicas(s);
  } catch (const mismatch_error& e) {
    said = e.what();
  }
  MPI_REQUIRE(MPI_COMM_WORLD, said.find("'p10'") != std::string::npos);
}

// Last: it ends the communicator.
TEST_CASE("when one rank aborts, the others' waiting ends with its cause") {
  auto& comm = shared_comm();
  if (comm.size() == 1) {
    shared.reset(); // before MPI ends
    return;
  }
  stream s = comm.make_stream();
  auto x = roomy_up(std::vector<float>(1000, 1.0f));
  const auto start = std::chrono::steady_clock::now();
  std::string cause;
  if (comm.rank() == 0) {
    std::this_thread::sleep_for(500ms);
    comm.abort("rank 0 has had enough");
    cause = "rank 0 has had enough";
  } else {
    try {
      comm.all_reduce<float>(x.span(), x.span(), reduce_op::sum, on(s)); // rank 0 never comes
      s.synchronize();
    } catch (const aborted_error& e) {
      cause = e.cause();
    }
  }
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start);
  MPI_REQUIRE(MPI_COMM_WORLD, cause == "rank 0 has had enough");
  MPI_REQUIRE(MPI_COMM_WORLD, seconds.count() < 10);
  shared.reset();
}
