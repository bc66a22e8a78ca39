// The executor over NCCL, with cuBLAS stages and messages of 4 MiB; run by scripts/gpu_ranks.sh.
// The reference is the model without a pipeline, on the same GPU.
// SPDX-License-Identifier: Apache-2.0
#include "support/mpi_require.hpp"

#include "cuda/support.hpp"

#include <polyrank/core/random.hpp>
#include <polyrank/cuda/blas.hpp>
#include <polyrank/cuda/communicator.hpp>
#include <polyrank/launch/world.hpp>
#include <polyrank/pipeline/executor.hpp>
#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/lower.hpp>
#include <polyrank/pipeline/measure.hpp>
#include <polyrank/pipeline/simulate.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace polyrank;
using namespace polyrank::pipeline;
using device = cuda::backend;
using cuda::stream;

namespace {

constexpr std::size_t width = 1024, rows = 1024, size = rows * width; // 4 MiB of floats
constexpr float penalty = 0.0625f;

std::vector<float> noise(std::uint64_t seed, std::size_t n, float scale) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = scale * (uniform(seed, 0, i) - 0.5f);
  return x;
}

/// One microbatch of input and target, used by all; microbatch k is scaled by 1 + k/8.
struct batch {
  buffer<float> x = test::up(noise(1, size, 2), device::memory());
  buffer<float> target = test::up(noise(2, size, 2), device::memory());
};

struct job {
  launch::world w = launch::world::adopt(MPI_COMM_WORLD);
  cuda::communicator comm = cuda::join(w);
  batch data;
  cuda::blas blas;
  /// By (stages, microbatches): the gradients of all stages without a pipeline.
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::vector<float>>> expected{};
};
std::unique_ptr<job> shared;
job& the_job() {
  if (shared == nullptr) shared = std::make_unique<job>();
  return *shared;
}

/// y = x w, with a penalty on y; see toy.hpp, of which this is the GPU's version.
struct gpu_stage {
  using pass_t = pass<stream>;
  std::size_t stage, stages;
  const batch* data;
  cuda::blas* blas;
  buffer<float> w, dw;
  buffer<float>* seen; // the microbatch numbers that come out at the end

  gpu_stage(std::size_t s, std::size_t of, const batch& b, cuda::blas& bl, buffer<float>& arrived)
      : stage(s), stages(of), data(&b), blas(&bl), dw(width * width, device::memory()),
        seen(&arrived) {
    static std::map<std::size_t, std::vector<float>> made; // takes longer than the step
    std::vector<float>& host = made[s];
    if (host.empty()) {
      host = noise(100 + s, width * width, 0.01f);
      for (std::size_t i = 0; i < width; ++i) host[i * (width + 1)] += 1;
    }
    w = test::up(host, device::memory());
  }
  [[nodiscard]] std::vector<boundary> inputs() const {
    if (stage == 0) return {};
    return {{"x", dtype::f32, width, true}, {"number", dtype::f32, 1, false}};
  }
  [[nodiscard]] std::vector<boundary> outputs() const {
    if (stage + 1 == stages) return {};
    return {{"x", dtype::f32, width, true}, {"number", dtype::f32, 1, false}};
  }
  [[nodiscard]] stage_bytes bytes(std::size_t r) const {
    const std::size_t one = r * width * sizeof(float);
    return {.activation = 3 * one, .weight_context = 2 * one}; // x, g | y
  }
  static float* part(const pass_t& p, std::size_t n) {
    return reinterpret_cast<float*>(p.memory) + n * size;
  }
  static std::span<float> of(void* p, std::size_t n = size) { return {static_cast<float*>(p), n}; }

  void forward(const pass_t& p) {
    const std::span<float> x(part(p, 0), size), y(part(p, 2), size);
    device::copy<float>(stage == 0 ? data->x.span() : of(p.input[0]), x, p.stream);
    if (stage == 0) device::scale(x, 1 + static_cast<float>(p.microbatch) / 8, p.stream);
    blas->gemm<float>({rows, width, width}, x.data(), w.data(), y.data(), p.stream);
    const bool ends = stage + 1 == stages;
    if (!ends) device::copy<float>(y, of(p.output[0]), p.stream);
    if (stage == 0 && !ends)
      device::fill(of(p.output[1], rows), static_cast<float>(p.microbatch), p.stream);
    else if (!ends)
      device::copy<float>(of(p.input[1], rows), of(p.output[1], rows), p.stream);
    else if (stage > 0)
      device::copy<float>(of(p.input[1], 1), seen->span().subspan(p.microbatch, 1), p.stream);
    else
      device::fill(seen->span().subspan(p.microbatch, 1), static_cast<float>(p.microbatch),
                   p.stream);
  }
  void backward_input(const pass_t& p) {
    const std::span<float> g(part(p, 1), size), y(part(p, 2), size);
    const bool ends = stage + 1 == stages;
    if (ends) device::copy<float>(data->target.span(), g, p.stream);
    if (ends) device::scale(g, -1, p.stream);
    if (ends) device::add<float>(g, y, g, p.stream);
    if (ends) device::scale(g, p.seed, p.stream);
    device::scale(y, p.seed * penalty, p.stream);
    device::add<float>(ends ? std::span<const float>(g) : of(p.output_gradient[0]), y, g, p.stream);
    if (stage > 0)
      blas->gemm<float>({.m = rows, .n = width, .k = width, .b_transposed = true}, g.data(),
                        w.data(), static_cast<float*>(p.input_gradient[0]), p.stream);
  }
  void backward_weight(const pass_t& p) {
    blas->gemm<float>({.m = width, .n = width, .k = rows, .a_transposed = true, .beta = 1},
                      part(p, 0), part(p, 1), dw.data(), p.stream);
  }
};

/// The gradients of all stages on this GPU alone, microbatch by microbatch: the bits of stages that
/// add theirs up in that order.
class reference {
 public:
  reference(std::size_t stages, const batch& b, cuda::blas& bl) : seen_(64, device::memory()) {
    for (std::size_t s = 0; s < stages; ++s) all_.emplace_back(s, stages, b, bl, seen_);
    for (std::size_t s = 0; s < stages; ++s)
      memory_.emplace_back(3 * size, device::memory()),
          x_.emplace_back(size + rows, device::memory()), dx_.emplace_back(size, device::memory());
  }
  void run(std::size_t microbatches, float seed, stream& s) {
    for (gpu_stage& g : all_) device::fill(g.dw.span(), 0.0f, s);
    for (std::size_t k = 0; k < microbatches; ++k) {
      for (std::size_t n = 0; n < all_.size(); ++n) call(n, k, seed, s, 'F');
      for (std::size_t n = all_.size(); n-- > 0;) call(n, k, seed, s, 'B');
    }
  }
  gpu_stage& stage(std::size_t n) { return all_[n]; }

 private:
  void call(std::size_t n, std::size_t k, float seed, stream& s, char what) {
    std::vector<void*> in, out, dy, dx;
    if (n > 0) in = {x_[n].data(), x_[n].data() + size}, dx = {dx_[n].data(), nullptr};
    if (n + 1 < all_.size())
      out = {x_[n + 1].data(), x_[n + 1].data() + size}, dy = {dx_[n + 1].data(), nullptr};
    const pass<stream> p{.stream = s,
                         .stage = n,
                         .microbatch = k,
                         .rows = rows,
                         .seed = seed,
                         .memory = reinterpret_cast<std::byte*>(memory_[n].data()),
                         .input = in,
                         .output = out,
                         .output_gradient = dy,
                         .input_gradient = dx};
    if (what == 'F') return all_[n].forward(p);
    all_[n].backward_input(p);
    all_[n].backward_weight(p);
  }
  buffer<float> seen_;
  std::vector<gpu_stage> all_;
  std::vector<buffer<float>> memory_, x_, dx_;
};

bool ascending(const table& t, std::size_t stage) {
  std::size_t last = 0;
  for (const action& a : t.of(t.shape.rank_of(stage)))
    if (a.stage == stage &&
        (a.kind == action_kind::backward || a.kind == action_kind::weight_grad)) {
      if (a.microbatch < last) return false;
      last = a.microbatch;
    }
  return true;
}

struct verdict {
  std::size_t bits = 0; // elements that differ although the order is the same
  double worst = 0;     // largest relative difference of a stage
  int alive = 0, order = 0;
  double seconds = 0, ops = 0;
};

verdict run(cuda::communicator& comm, schedule s, std::size_t m, lane_policy lanes) {
  const auto p = static_cast<std::size_t>(comm.size()), r = static_cast<std::size_t>(comm.rank());
  const table compute = generate(s, p, m, default_chunks(s));
  const table t = lower(compute, even_costs(compute.shape, 1, 1, 1, 0.2), {.lanes = lanes});
  const std::size_t stages = t.shape.stages();
  const float seed = 1.0f / static_cast<float>(rows * m);
  const batch& data = the_job().data;
  cuda::blas& blas = the_job().blas;
  buffer<float> seen(64, device::memory());
  std::vector<gpu_stage> own;
  for (std::size_t c = 0; c < t.shape.chunks; ++c)
    own.emplace_back(t.shape.stage_of(r, c), stages, data, blas, seen);
  stream work;
  verdict v;
  {
    peer_transport link(comm, lanes);
    executor pipe(link, std::span(own), t, {.rows = {rows}, .poison = true}, work);
    for (gpu_stage& g : own) device::fill(g.dw.span(), 0.0f, work);
    work.synchronize();
    comm.control().barrier(std::chrono::minutes(1));
    const auto begin = std::chrono::steady_clock::now();
    pipe.step(seed);
    pipe.synchronize();
    v.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (const action& a : t.of(r)) v.ops += is_transfer(a.kind) ? 1 : 0;
    v.alive = pipe.live_bytes() == 0 ? 0 : 1;
  }
  auto& expected = the_job().expected[{stages, m}];
  if (expected.empty()) {
    reference plain(stages, data, blas);
    plain.run(m, seed, work);
    work.synchronize();
    for (std::size_t n = 0; n < stages; ++n) expected.push_back(test::down(plain.stage(n).dw));
  }
  for (gpu_stage& g : own) {
    const std::vector<float> got = test::down(g.dw), &want = expected[g.stage];
    double off = 0, norm = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      v.bits += ascending(t, g.stage) && got[i] != want[i] ? 1 : 0;
      off += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
      norm += std::pow(static_cast<double>(want[i]), 2);
    }
    // NaN counts as wrong
    v.worst = !(std::sqrt(off / norm) <= v.worst) ? std::sqrt(off / norm) : v.worst;
    if (g.stage + 1 == stages) {
      const std::vector<float> numbers = test::down(seen);
      for (std::size_t k = 0; k < m; ++k) v.order += numbers[k] == static_cast<float>(k) ? 0 : 1;
    }
  }
  return v;
}

} // namespace

TEST_CASE("schedules over NCCL give the gradients of the model without a pipeline", "[executor]") {
  cuda::communicator& comm = the_job().comm;
  const auto p = static_cast<std::size_t>(comm.size());
  for (const std::size_t m : {p - 1, 2 * p + 1})
    for (const schedule s : training_schedules) {
      if (m == 0) continue;
      // Several lanes work where the GPU runs their kernels at once; each makes communicators.
      const lane_policy lanes =
          p == 2 && m == 1 && s == schedule::zb_v ? lane_policy::per_channel : lane_policy::single;
      const verdict v = run(comm, s, m, lanes);
      if (comm.rank() == 0)
        std::printf(
            "{\"test\": \"pipeline over NCCL\", \"schedule\": \"%s\", \"p\": %zu, \"m\": %zu, "
            "\"different_bits\": %zu, \"worst\": %.2g, \"transfers\": %.0f, \"ms\": %.0f}\n",
            std::string(traits_of(s).name).c_str(), p, m, v.bits, v.worst, v.ops, 1e3 * v.seconds);
      INFO(traits_of(s).name << " m " << m);
      MPI_REQUIRE(MPI_COMM_WORLD, v.bits == 0);
      MPI_REQUIRE(MPI_COMM_WORLD, v.worst < 1e-5);
      MPI_REQUIRE(MPI_COMM_WORLD, v.alive + v.order == 0);
    }
}

TEST_CASE("a step on GPUs is measured", "[executor]") {
  cuda::communicator& comm = the_job().comm;
  const auto p = static_cast<std::size_t>(comm.size()), r = static_cast<std::size_t>(comm.rank());
  const table compute = generate(schedule::zb_h1, p, 4);
  const table t = lower(compute, even_costs(compute.shape, 1, 1, 1, 0.2));
  const batch& data = the_job().data;
  cuda::blas& blas = the_job().blas;
  buffer<float> seen(64, device::memory());
  std::vector<gpu_stage> own;
  own.emplace_back(r, p, data, blas, seen);
  stream work;
  peer_transport link(comm);
  executor pipe(link, std::span(own), t, {.rows = {rows}}, work);
  pipe.step();
  pipe.watch().measure(true);
  pipe.step();
  pipe.synchronize();
  const report real = measured(pipe);
  std::size_t wrong = real.timeline.size() == t.actions.size() ? 0 : 1;
  for (const event& e : real.timeline) wrong += e.end >= e.start && e.start >= 0 ? 0 : 1;
  const costs c = profile(real, pipe.memory());
  for (const stage_costs& s : c.stages) wrong += s.forward > 0 && s.weight_grad > 0 ? 0 : 1;
  MPI_REQUIRE(MPI_COMM_WORLD, wrong == 0);
  MPI_REQUIRE(MPI_COMM_WORLD, simulate(t, c).makespan > 0);
}

TEST_CASE("the world ends after the last test", "[executor]") { shared.reset(); }
