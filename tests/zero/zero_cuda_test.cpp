// The sharded optimizer on NCCL: 1, 2 and 4 ranks on the GPUs there are. One pairwise table against
// the serial run, equal bits in deterministic mode, verdicts of all ranks, memory, large buffers.
// SPDX-License-Identifier: Apache-2.0
#include "support/mpi_require.hpp"

#include "cuda/support.hpp"
#include "zero/zero_cases.hpp"

#include <polyrank/cuda/communicator.hpp>
#include <polyrank/launch/world.hpp>
#include <polyrank/optim/sgd.hpp>
#include <polyrank/plan/memory.hpp>
#include <polyrank/zero/collect.hpp>
#include <polyrank/zero/cuda_ops.hpp>

#include <cstdio>
#include <memory>
#include <set>

using namespace polyrank;
using namespace polyrank::test;
using cuda::stream;
using gpu_comm = cuda::communicator;

namespace {

constexpr adamw::options rates{.lr = 0.01};

// Meeting takes a second, so the test cases share one world; the last one ends it.
struct job {
  launch::world world = launch::world::adopt(MPI_COMM_WORLD);
  gpu_comm comm = cuda::join(world);
};
std::unique_ptr<job> shared;
gpu_comm& shared_comm() {
  if (shared == nullptr) shared = std::make_unique<job>();
  return shared->comm;
}

/// New device memory is full of NaN; bytes in use are counted.
class poisoned_device final : public std::pmr::memory_resource {
 public:
  std::size_t bytes = 0;

 private:
  void* do_allocate(std::size_t n, std::size_t alignment) override {
    void* p = cuda::device_memory().allocate(n, alignment);
    cuda::check(cudaMemset(p, 0xff, n), "cudaMemset");
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    bytes += n;
    return p;
  }
  void do_deallocate(void* p, std::size_t n, std::size_t alignment) override {
    cuda::device_memory().deallocate(p, n, alignment);
    bytes -= n;
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }
};

template <class T>
void put_all(const std::vector<float>& from, T* to, stream& s) {
  std::vector<T> converted;
  for (const float x : from) converted.push_back(static_cast<T>(x));
  cuda::backend::copy<T>(converted, std::span<T>(to, from.size()), s);
  s.synchronize(); // `converted` goes
}

/// As test::start, in device memory.
template <class Optimizer>
void start_on_gpu(Optimizer& opt, stream& s, int rank) {
  for (std::size_t i = 0; i < opt.parameters().size(); ++i) {
    std::vector<float> x;
    for (std::size_t k = 0; k < opt.parameters()[i].count; ++k)
      x.push_back(initial_value(i, k) + static_cast<float>(rank) * 100);
    put_all(x, opt.value(i), s);
  }
  opt.load_values(s);
}

/// As test::train_step. `delayed` keeps every producer busy first.
template <class Optimizer, class Write>
void step_on_gpu(Optimizer& opt, std::vector<stream>& producers, int rank, std::size_t micros,
                 Write write, bool delayed = false) {
  stream& s = producers.front();
  for (std::size_t m = 0; m < micros; ++m) {
    opt.begin(m, micros);
    const std::size_t block = static_cast<std::size_t>(rank) * micros + m;
    for (std::size_t i = opt.parameters().size(); i-- > 0;) {
      stream& mine = producers[i % producers.size()];
      opt.wait_param(i, mine);
      auto* g = opt.grad(i, mine);
      std::vector<float> x;
      for (std::size_t k = 0; k < opt.parameters()[i].count; ++k) x.push_back(write(i, k, block));
      if (delayed) delay(mine, std::chrono::microseconds(300));
      put_all(x, g, mine);
      opt.ready(i, mine);
    }
    opt.finish(s);
  }
  for (stream& other : producers) { // the update must not overtake the last readers
    cuda::event done;
    done.record(other);
    s.wait(done);
  }
  opt.step(s);
}

std::vector<stream> streams(std::size_t n) {
  std::vector<stream> all;
  for (std::size_t i = 0; i < n; ++i) all.emplace_back();
  return all;
}

/// Largest difference of masters to the serial run of two steps, relative to the step size; and
/// bits of values that are not the masters'. Three groups of parameters, mixed in the buckets.
template <class V, class Residency>
double error_of(std::size_t stage, std::size_t micros, std::size_t bucket, Residency home,
                bool own_memory = false) {
  gpu_comm& comm = shared_comm();
  const std::size_t blocks = static_cast<std::size_t>(comm.size()) * micros;
  parameter_groups<adamw> groups(names_of(parameters_of<float>(zero_counts)), rates);
  groups.split("bare", {.lr = 0.02, .weight_decay = 0}, names_with{{"2", "5", "9"}})
      .split("slow", {.lr = 0.001, .beta1 = 0.8, .beta2 = 0.95}, names_with{{"7", "8"}});
  const auto expected = serial<adamw>(zero_counts, groups, 2, blocks, 1e9f, gradient_at);
  poisoned_device memory;
  std::vector<stream> s = streams(1);
  std::vector<buffer<V>> own;
  auto parameters = parameters_of<V>(zero_counts);
  if (own_memory)
    for (auto& p : parameters) {
      p.value = own.emplace_back(p.count + 8, memory).data();
      p.gradient = stage < 2 ? own.emplace_back(p.count + 8, memory).data() : nullptr;
    }
  sharded_optimizer<adamw, gpu_comm, V, V, Residency> opt(comm, parameters, groups,
                                                          {.stage = stage,
                                                           .bucket_bytes = bucket,
                                                           .microbatches = micros,
                                                           .max_norm = 1e9f,
                                                           .memory = &memory},
                                                          home);
  start_on_gpu(opt, s[0], comm.rank());
  for (int step = 0; step < 2; ++step) step_on_gpu(opt, s, comm.rank(), micros, gradient_at);
  const whole_state all = collect(opt);
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < zero_counts.size(); ++i) {
    const std::vector<V> values = down(std::span<const V>(opt.value(i), zero_counts[i]));
    for (std::size_t k = 0; k < zero_counts[i]; ++k, ++at) {
      const double off =
          std::abs(static_cast<double>(all.masters[at]) - static_cast<double>(expected[i][k]));
      worst = std::max(worst, std::isfinite(off) ? off / rates.lr : 1e30);
      if (!(values[k] == static_cast<V>(all.masters[at]))) worst = 1e30;
    }
  }
  return worst;
}

template <class V, class Residency>
std::uint64_t deterministic_digest(std::size_t stage, Residency home, double& squares) {
  gpu_comm& comm = shared_comm();
  std::vector<stream> s = streams(1);
  sharded_optimizer<adamw, gpu_comm, V, V, Residency> opt(
      comm, parameters_of<V>(zero_counts), rates,
      {.stage = stage, .bucket_bytes = 20000, .blocks = 8, .max_norm = 0.5f}, home);
  start_on_gpu(opt, s[0], comm.rank());
  for (int step = 0; step < 2; ++step)
    step_on_gpu(opt, s, comm.rank(), 8 / static_cast<std::size_t>(comm.size()), rough_gradient_at);
  squares = opt.record().squares;
  const whole_state all = collect(opt);
  return hash_bytes(all.state.data(), all.state.size() * sizeof(float),
                    hash_bytes(all.masters.data(), all.masters.size() * sizeof(float)));
}

} // namespace

TEST_CASE("on GPUs: stages, microbatches, residency, precision, memory and groups of parameters "
          "against the serial run") {
  const on_host part{.fraction = 0.5, .threads = 2}, all{.fraction = 1, .threads = 2};
  const double errors[] = {error_of<float>(0, 1, 20000, on_device{}),
                           error_of<float>(1, 2, 300, part),
                           error_of<float>(2, 4, 20000, on_device{}),
                           error_of<float>(1, 1, 1u << 22, all),
                           error_of<float>(2, 1, 300, on_device{}, true),
                           error_of<float>(1, 2, 9000, all, true),
                           error_of<bf16>(2, 1, 20000, all),
                           error_of<bf16>(0, 4, 300, part),
                           error_of<bf16>(1, 1, 1u << 22, on_device{}),
                           error_of<bf16>(2, 2, 9000, part, true),
                           error_of<fp16>(1, 2, 20000, on_device{}),
                           error_of<fp16>(2, 4, 300, all)};
  for (const double e : errors) MPI_CHECK(MPI_COMM_WORLD, e < 1e-4);
}

TEST_CASE("on GPUs, deterministic: equal bits for stages 0 to 2 and 1, 2, 4 ranks") {
  gpu_comm& comm = shared_comm();
  if (8 % comm.size() != 0) return;
  std::set<std::uint64_t> beside, hosted;
  std::set<double> norms;
  for (const std::size_t stage : {0, 1, 2}) {
    double squares = 0;
    beside.insert(deterministic_digest<float>(stage, on_device{}, squares));
    norms.insert(squares);
    hosted.insert(
        deterministic_digest<float>(stage, on_host{.fraction = 0.6, .threads = 2}, squares));
    norms.insert(squares);
  }
  MPI_REQUIRE(MPI_COMM_WORLD, beside.size() == 1);
  MPI_REQUIRE(MPI_COMM_WORLD, hosted.size() == 1);
  MPI_REQUIRE(MPI_COMM_WORLD, norms.size() == 1);
  if (comm.rank() == 0)
    std::printf("digest=%016llx\n",
                static_cast<unsigned long long>(hash_combine(*beside.begin(), *hosted.begin())));
}

TEST_CASE("on GPUs: the norm of a fixed vector is sqrt(120), of replicated and sharded parts too") {
  gpu_comm& comm = shared_comm();
  const auto write = [](std::size_t, std::size_t k, std::size_t) {
    return k % norm_block < 4 ? static_cast<float>(k % norm_block + 1) : 0.0f;
  };
  std::vector<stream> s = streams(1);
  for (const std::vector<placement>& mix :
       {std::vector<placement>{{.stage = 1}, {.stage = 1}, {.stage = 1}, {.stage = 1}},
        std::vector<placement>{
            {.stage = 0}, {.stage = 1}, {.stage = 2}, {.stage = 1, .whole = true}}}) {
    sharded_optimizer<sgd, gpu_comm> opt(
        comm, parameters_of<float>(std::vector<std::size_t>(4, norm_block)), {.lr = 1},
        {.placements = mix});
    start_on_gpu(opt, s[0], comm.rank());
    step_on_gpu(opt, s, comm.rank(), 1, write);
    MPI_REQUIRE(MPI_COMM_WORLD, opt.record().norm == static_cast<float>(std::sqrt(120.0)));
  }
}

TEST_CASE("on GPUs: many norm blocks are folded as the host folds them") {
  // 20,000 blocks need two launches; squares of small integers are exact, so are the sums.
  if (shared_comm().size() > 1) return;
  stream s;
  std::vector<double> blocks;
  for (std::size_t i = 0; i < 20000; ++i)
    blocks.push_back(std::ldexp(1.0 + 1.0 / static_cast<double>(i + 3), static_cast<int>(i % 50)));
  buffer<double> device = up(blocks);
  buffer<step_record> record = up(std::vector<step_record>(1));
  zero_ops<cuda::backend>::conclude(device.span(), record.data(), {}, s);
  s.synchronize();
  REQUIRE(down(record)[0].squares == fold_blocks(blocks));
}

TEST_CASE("on GPUs: a gradient that is not finite on one rank: all skip, and know where it was") {
  gpu_comm& comm = shared_comm();
  const int who = comm.size() - 1;
  for (const std::size_t stage : {0, 1, 2}) {
    const float poison = stage == 1 ? std::nanf("") : std::numeric_limits<float>::infinity();
    std::vector<stream> s = streams(1);
    sharded_optimizer<adamw, gpu_comm> opt(
        comm, parameters_of<float>(zero_counts), rates,
        {.stage = stage,
         .bucket_bytes = 20000,
         .scaler = {.enabled = true, .initial = 1, .hysteresis = 1},
         .count_bad_gradients = true});
    start_on_gpu(opt, s[0], comm.rank());
    step_on_gpu(opt, s, comm.rank(), 1, gradient_at);
    MPI_REQUIRE(MPI_COMM_WORLD, opt.bad_gradients().empty());
    const whole_state before = collect(opt);
    step_on_gpu(opt, s, comm.rank(), 1, [&](std::size_t i, std::size_t k, std::size_t block) {
      return static_cast<int>(block) == who && i == 7 && k == 4096 ? poison
                                                                   : gradient_at(i, k, block);
    });
    const step_record r = opt.record();
    const whole_state after = collect(opt);
    const std::string where = opt.bad_gradients();
    MPI_REQUIRE(MPI_COMM_WORLD, r.skip == 1);
    MPI_REQUIRE(MPI_COMM_WORLD, r.applied == 1);
    MPI_REQUIRE(MPI_COMM_WORLD, r.skipped == 1);
    MPI_REQUIRE(MPI_COMM_WORLD, before.masters == after.masters);
    MPI_REQUIRE(MPI_COMM_WORLD, before.state == after.state);
    MPI_REQUIRE(MPI_COMM_WORLD, where == detail::cat("rank ", who, ": 'p7'"));
    step_on_gpu(opt, s, comm.rank(), 1, gradient_at);
    MPI_REQUIRE(MPI_COMM_WORLD, opt.record().applied == 2);
  }
}

TEST_CASE("on GPUs: fp16 with the scaler: overflow lowers the scale on all ranks") {
  gpu_comm& comm = shared_comm();
  std::vector<stream> s = streams(1);
  sharded_optimizer<sgd, gpu_comm, fp16> opt(
      comm, parameters_of<fp16>({5000}), {.lr = 0.125},
      {.stage = 2, .scaler = {.enabled = true, .initial = 131072, .window = 2, .hysteresis = 1}});
  start_on_gpu(opt, s[0], comm.rank());
  const auto scaled = [&](auto...) { return down(std::span<const float>(opt.loss_scale(), 1))[0]; };
  for (int step = 0; step < 2; ++step) {
    const float scale = scaled();
    step_on_gpu(opt, s, comm.rank(), 1, [scale](auto...) { return scale; });
    MPI_REQUIRE(MPI_COMM_WORLD, opt.record().skip == 1); // 131072 and 65536 are infinite in fp16
  }
  MPI_REQUIRE(MPI_COMM_WORLD, scaled() == 32768);
  step_on_gpu(opt, s, comm.rank(), 1, [](auto...) { return 32768.0f; });
  const step_record r = opt.record();
  opt.synchronize();
  MPI_REQUIRE(MPI_COMM_WORLD, r.applied == 1);
  MPI_REQUIRE(MPI_COMM_WORLD, r.norm == static_cast<float>(std::sqrt(5000.0)));
  const float is = static_cast<float>(down(std::span<const fp16>(opt.value(0) + 3, 1))[0]);
  MPI_REQUIRE(MPI_COMM_WORLD, is == static_cast<float>(fp16(initial_value(0, 3) - 0.125f)));
}

TEST_CASE("on GPUs: stochastic rounding gives the host's bits") {
  gpu_comm& comm = shared_comm();
  std::vector<stream> s = streams(1);
  sharded_optimizer<sgd, gpu_comm, bf16> opt(
      comm, parameters_of<bf16>(zero_counts), {.lr = 0.001},
      {.stage = 1, .bucket_bytes = 9000, .stochastic_seed = 5});
  start_on_gpu(opt, s[0], comm.rank());
  step_on_gpu(opt, s, comm.rank(), 1, gradient_at);
  const whole_state all = collect(opt);
  const stochastic_rounding rounding{.seed = 5, .step = 1};
  std::size_t at = 0, bad = 0, plain = 0;
  for (std::size_t i = 0; i < zero_counts.size(); ++i)
    for (const bf16 v : down(std::span<const bf16>(opt.value(i), zero_counts[i]))) {
      bad += v.bits == rounding(all.masters[at], at).bits ? 0 : 1;
      plain += v.bits == bf16(all.masters[at]).bits ? 1 : 0;
      ++at;
    }
  MPI_REQUIRE(MPI_COMM_WORLD, bad == 0);
  MPI_REQUIRE(MPI_COMM_WORLD, plain < at);
}

TEST_CASE("on GPUs: three slow producer streams change no bit; a step does not wait for them") {
  gpu_comm& comm = shared_comm();
  const auto train = [&]<class Residency>(Residency home, bool delayed) {
    std::vector<stream> s = streams(3);
    sharded_optimizer<adamw, gpu_comm, bf16, bf16, Residency> opt(
        comm, parameters_of<bf16>(zero_counts), rates, {.stage = 2, .bucket_bytes = 9000}, home);
    start_on_gpu(opt, s[0], comm.rank());
    for (int step = 0; step < 3; ++step) step_on_gpu(opt, s, comm.rank(), 1, gradient_at, delayed);
    const whole_state all = collect(opt);
    return hash_bytes(all.masters.data(), all.masters.size() * sizeof(float));
  };
  MPI_REQUIRE(MPI_COMM_WORLD, train(on_device{}, false) == train(on_device{}, true));
  const on_host hosted{.threads = 2};
  MPI_REQUIRE(MPI_COMM_WORLD, train(hosted, false) == train(hosted, true));

  const auto returns_early = [&]<class Residency>(Residency home) {
    std::vector<stream> s = streams(1);
    sharded_optimizer<adamw, gpu_comm, bf16, bf16, Residency> opt(
        comm, parameters_of<bf16>({5000, 70000}), rates, {.stage = 1, .max_norm = 1}, home);
    start_on_gpu(opt, s[0], comm.rank());
    bool early = true;
    for (int step = 0; step < 2; ++step) { // the first makes NCCL connect
      opt.synchronize();
      comm.control().barrier(std::chrono::seconds(60));
      cuda::event busy;
      opt.begin(0, 1);
      delay(s[0], std::chrono::milliseconds(300));
      for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
        opt.wait_param(i, s[0]);
        cuda::backend::fill(std::span(opt.grad(i, s[0]), opt.parameters()[i].count), bf16(1.0f),
                            s[0]);
        opt.ready(i, s[0]);
      }
      busy.record(s[0]);
      opt.finish(s[0]);
      opt.step(s[0]);
      early = !busy.query();
    }
    opt.synchronize();
    return early;
  };
  MPI_REQUIRE(MPI_COMM_WORLD, returns_early(on_device{}));
  MPI_REQUIRE(MPI_COMM_WORLD, returns_early(hosted));
}

TEST_CASE("on GPUs: bytes through the allocators are the plan's, to the byte") {
  gpu_comm& comm = shared_comm();
  const auto wrong = [&]<class V, class Residency>(V, Residency home, sharded_options o) {
    poisoned_device device;
    cpu_pool pool(2);
    slab_resource slabs(zero_ops<cuda::backend>::transfers(), &pool);
    o.memory = &device;
    memory_question q{.ranks = comm.size(),
                      .rank = comm.rank(),
                      .stage = o.stage,
                      .value = sizeof(V),
                      .gradient = sizeof(V),
                      .bf16 = std::is_same_v<V, bf16>,
                      .microbatches = o.microbatches,
                      .blocks = o.blocks,
                      .bucket_bytes = o.bucket_bytes,
                      .tail_bytes = o.tail_bytes};
    if constexpr (std::is_same_v<Residency, on_host>) {
      home.memory = &slabs;
      q.offload = true;
      q.fraction = home.fraction;
    }
    sharded_optimizer<adamw, gpu_comm, V, V, Residency> opt(comm, parameters_of<V>(zero_counts), {},
                                                            o, home);
    const memory_table plan = plan_memory(zero_counts, q);
    return (plan.device() == device.bytes ? 0 : 1) +
           (slabs.bytes() >= plan.host() && slabs.bytes() < plan.host() + 5 * slab_resource::page
                ? 0
                : 1);
  };
  for (const std::size_t stage : {0, 1, 2})
    for (const std::size_t micros : {1, 2}) {
      const sharded_options o{.stage = stage, .bucket_bytes = 20000, .microbatches = micros};
      int bad = wrong(float{}, on_device{}, o) + wrong(bf16{}, on_device{}, o);
      bad += wrong(float{}, on_host{.threads = 1}, o) +
             wrong(bf16{}, on_host{.fraction = 0.5, .threads = 1}, o);
      if (8 % comm.size() == 0)
        bad += wrong(float{}, on_device{}, {.stage = stage, .bucket_bytes = 9000, .blocks = 8});
      MPI_REQUIRE(MPI_COMM_WORLD, bad == 0);
    }
}

TEST_CASE("on GPUs: buffers of more than 2^31 elements, and what the whole device holds for them") {
  gpu_comm& comm = shared_comm();
  const std::size_t n = (std::size_t{1} << 31) + 257;
  std::size_t before = 0, total = 0, after = 0;
  cuda::check(cudaMemGetInfo(&before, &total), "cudaMemGetInfo");
  if (comm.size() > 1 || before < 18 * n) {
    WARN("skipped: needs one rank and " << (18 * n >> 30) << " GiB, " << (before >> 30)
                                        << " are free");
    return;
  }
  stream s;
  sharded_optimizer<sgd, gpu_comm, bf16> opt(comm, parameters_of<bf16>({n, 3}),
                                             {.lr = 0.25, .momentum = 0.5},
                                             {.stage = 2, .count_bad_gradients = true});
  cuda::check(cudaMemGetInfo(&after, &total), "cudaMemGetInfo");
  // Within 2 % of the plan, context and kernels (loaded before) apart.
  const auto took = static_cast<double>(before - after);
  CHECK(std::abs(took / static_cast<double>(opt.plan().device_bytes()) - 1) < 0.02);
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
    cuda::backend::fill(std::span(opt.value(i), opt.parameters()[i].count), bf16(1.0f), s);
  opt.load_values(s);
  opt.begin(0, 1);
  for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
    cuda::backend::fill(std::span(opt.grad(i, s), opt.parameters()[i].count), bf16(2.0f), s);
    opt.ready(i, s);
  }
  opt.finish(s);
  opt.step(s);
  CHECK(opt.record().squares == 4 * static_cast<double>(n + 3));
  CHECK(opt.bad_gradients().empty());
  opt.synchronize();
  for (const std::size_t at : {std::size_t{0}, n / 2, (std::size_t{1} << 31) - 1, n - 1})
    CHECK(static_cast<float>(down(std::span<const bf16>(opt.value(0) + at, 1))[0]) == 0.5f);
}

TEST_CASE("the shared job ends before MPI does") {
  shared.reset();
  SUCCEED();
}
