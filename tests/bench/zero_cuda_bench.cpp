// The sharded optimizer on one GPU: its kernels beside a device copy, a step with the state on the
// device, and a step with the state on the host beside what the bus and the host's memory allow.
//     scripts/gpu_ranks.sh 1 build/bin/zero_cuda_bench [parameters] [steps] [offload]
// JSON lines; medians. Gradients are written by one kernel, so no backward hides anything. PyTorch
// beside it: tests/bench/zero_peers.py.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/support.hpp"
#include "cuda_timing.hpp"

#include <polyrank/cuda/communicator.hpp>
#include <polyrank/launch/run.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/zero/cuda_ops.hpp>
#include <polyrank/zero/sharded_optimizer.hpp>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

using namespace polyrank;
using device = cuda::backend;
using ops = zero_ops<device>;
using cuda::stream;

namespace {

/// Seconds.
template <class F>
double median_of(int repetitions, F f) {
  std::vector<double> all;
  for (int r = 0; r <= repetitions; ++r) all.push_back(1e-3 * bench::milliseconds(f));
  all.erase(all.begin()); // warm-up
  return bench::median(all);
}

/// Update and squares over one shard of n elements, interleaved with a copy.
template <class V>
void kernels(const char* values, std::size_t n, int repetitions) {
  stream s;
  auto master = test::empty<float>(n), gradient = test::empty<float>(n),
       state = test::empty<float>(2 * n);
  auto value = test::empty<V>(std::is_same_v<V, float> ? 0 : n);
  auto blocks = test::empty<double>(ceil_div(n, norm_block));
  auto control = test::empty<control_block>(1);
  device::fill(master.span(), 0.5f, s);
  device::fill(gradient.span(), 0.25f, s);
  device::fill(state.span(), 0.0f, s);
  step_numbers<adamw>* const numbers = control_block::numbers_of<adamw>(control.data());
  const step_record fresh{};
  cuda::check(cudaMemcpy(&control.data()->record, &fresh, sizeof fresh, cudaMemcpyHostToDevice),
              "cudaMemcpy");
  ops::prepare<adamw>(numbers, {}, {.record = &control.data()->record, .policy = clip_policy::none},
                      s);
  const shard_piece<adamw, float, V> piece{
      {master.span(), gradient.span(), planes_of<adamw>(state.span()), value.span()}, 0};
  const double e = static_cast<double>(n);
  std::vector<bench::candidate> all{
      {"copy", 8 * e, [&] { device::copy<float>(gradient.span(), master.span(), s); }},
      {"zero update", (28 + static_cast<double>(value.size() > 0 ? sizeof(V) : 0)) * e,
       [&] { ops::update<adamw, V>(std::span(&piece, 1), numbers, std::nullopt, s); }},
      {"zero squares and verdict", 4 * e, [&] {
         ops::squares(gradient.span(), blocks.span(), s);
         ops::conclude(blocks.span(), &control.data()->record, {}, s);
       }}};
  bench::measure(all, repetitions, s);
  const double copy = all[0].gb_per_s();
  for (const bench::candidate& c : all)
    std::printf("{\"bench\": \"%s\", \"values\": \"%s\", \"elements\": %zu, \"us\": %.1f, "
                "\"gb_per_s\": %.0f, \"of_copy\": %.3f}\n",
                c.name.c_str(), values, n, c.us(), c.gb_per_s(), c.gb_per_s() / copy);
  std::fflush(stdout);
}

/// Page-locked memory that is kept for the next optimizer: to lock it takes longer than a step.
class kept_memory final : public std::pmr::memory_resource {
 public:
  explicit kept_memory(std::pmr::memory_resource& from) : from_(from) {}
  ~kept_memory() override {
    for (const auto& [bytes, p] : free_) from_.deallocate(p, bytes, 4096);
  }

 private:
  void* do_allocate(std::size_t bytes, std::size_t) override {
    if (const auto found = free_.find(bytes); found != free_.end())
      return free_.extract(found).mapped();
    return from_.allocate(bytes, 4096);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t) override { free_.emplace(bytes, p); }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }
  std::pmr::memory_resource& from_;
  std::multimap<std::size_t, void*> free_;
};

struct roof {
  double down = 0, up = 0, host = 0; ///< bytes a second
};

/// The bus, each way alone; and the host's memory by the better of two loops over all threads:
/// a[i] = s a[i] + b[i] (12 bytes), and reading (4 bytes).
roof measure_roof(cpu_pool& pool, std::pmr::memory_resource& pinned) {
  constexpr std::size_t n = std::size_t{1} << 28;
  stream s;
  auto there = test::empty<float>(n);
  buffer<float> here(n, pinned), other(n, pinned);
  const double bytes = static_cast<double>(n) * sizeof(float);
  roof r;
  r.down = bytes / median_of(2, [&] {
             device::copy<float>(there.span(), here.span(), s);
             s.synchronize();
           });
  r.up = bytes / median_of(2, [&] {
           device::copy<float>(here.span(), there.span(), s);
           s.synchronize();
         });
  const auto over_all = [&](auto body) {
    return median_of(5, [&] {
      pool.share(n, [&](std::size_t begin, std::size_t end) {
        body(here.data() + begin, other.data() + begin, end - begin);
      });
    });
  };
  over_all([](float* a, float* b, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) a[i] = b[i] = 1;
  });
  const double triad = over_all([](float* a, const float* b, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) a[i] = 0.5f * a[i] + b[i];
  });
  std::atomic<int> negative{0}; // so that somebody wants the sums
  const double read = over_all([&](const float* a, const float*, std::size_t count) {
    float sums[64] = {};
    for (std::size_t i = 0; i + 64 <= count; i += 64)
      for (std::size_t k = 0; k < 64; ++k) sums[k] += a[i + k];
    for (const float sum : sums)
      if (sum < 0) ++negative;
  });
  r.host = std::max(3 * bytes / triad, bytes / read);
  std::printf("{\"bench\": \"roof\", \"threads\": %zu, \"down_gb_per_s\": %.1f, \"up_gb_per_s\": "
              "%.1f, \"triad_gb_per_s\": %.1f, \"read_gb_per_s\": %.1f}\n",
              pool.size(), r.down / 1e9, r.up / 1e9, 3 * bytes / triad / 1e9, bytes / read / 1e9);
  std::fflush(stdout);
  return r;
}

/// What the threads alone can do: updates of the shape of a step's, without any transfer.
void update_alone(cpu_pool& pool) {
  constexpr std::size_t n = std::size_t{1} << 27;
  slab_resource slabs;
  buffer<float> master(n, slabs), state(2 * n, slabs);
  buffer<bf16> gradient(n, slabs), value(n, slabs);
  const mixed_range<adamw, bf16, bf16> all{master.span(), gradient.span(),
                                           planes_of<adamw>(state.span()), value.span()};
  const adamw::hyper hyper = adamw::at({}, 1, 1);
  for (const std::size_t buckets : {1, 5}) {
    const double took = median_of(5, [&] {
      for (std::size_t b = 0; b < buckets; ++b) {
        const range r = partition_blocks(n, buckets, b, 64);
        pool.share(r.size(), [&](std::size_t begin, std::size_t end) {
          update_mixed(all.part(r.begin + begin, r.begin + end), hyper, 1.0f);
        });
      }
    });
    std::printf("{\"bench\": \"update alone\", \"buckets\": %zu, \"elements\": %zu, \"ms\": %.1f, "
                "\"gb_per_s\": %.1f}\n",
                buckets, n, 1e3 * took, 28 * static_cast<double>(n) / took / 1e9);
  }
  std::fflush(stdout);
}

/// Forty tensors; seconds of a step with bf16 values and gradients.
template <class Residency>
double step_of(cuda::communicator& comm, std::size_t parameters, int steps, clip_policy clip,
               Residency home) {
  constexpr std::size_t tensors = 40;
  std::vector<parameter<bf16>> model;
  for (std::size_t i = 0; i < tensors; ++i)
    model.push_back(
        {detail::cat("p", i), partition(parameters, tensors, i).size(), nullptr, nullptr});
  stream s;
  sharded_optimizer<adamw, cuda::communicator, bf16, bf16, Residency> opt(
      comm, model, {},
      {.stage = 2, .max_norm = clip == clip_policy::none ? 0.0f : 1.0f, .clip = clip}, home);
  for (const auto& p : opt.parameters()) device::fill(std::span(p.value, p.count), bf16(0.5f), s);
  opt.load_values(s);
  return median_of(steps, [&] {
    opt.begin(0, 1);
    for (std::size_t i = tensors; i-- > 0;) {
      opt.wait_param(i, s);
      device::fill(std::span(opt.grad(i, s), model[i].count), bf16(0.01f), s);
      opt.ready(i, s);
    }
    opt.finish(s);
    opt.step(s);
    opt.wait_all(s);
    s.synchronize();
    opt.synchronize();
  });
}

const char* name_of(clip_policy c) {
  return c == clip_policy::exact ? "exact" : c == clip_policy::none ? "none" : "previous_step";
}

} // namespace

int main(int argc, char** argv) {
  if (const std::string why = cuda::unusable(); !why.empty()) {
    std::fprintf(stderr, "zero_cuda_bench: %s\n", why.c_str());
    return 77;
  }
  return launch::run(argc, argv, [&](launch::world& world) {
    const std::size_t parameters = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000'000;
    const int steps = argc > 2 ? std::max(1, std::atoi(argv[2])) : 5;
    cuda::communicator comm = cuda::join(world);
    const clip_policy policies[] = {clip_policy::none, clip_policy::previous_step,
                                    clip_policy::exact};
    if (argc < 4) { // else only the part on the host
      for (const std::size_t n : {std::size_t{124'439'808}, parameters}) {
        kernels<float>("fp32", n, 15);
        kernels<bf16>("bf16", n, 15);
      }
      for (const clip_policy clip : policies)
        std::printf("{\"bench\": \"zero step\", \"state\": \"device\", \"clip\": \"%s\", "
                    "\"parameters\": %zu, \"ms\": %.2f}\n",
                    name_of(clip), parameters,
                    1e3 * step_of(comm, parameters, steps, clip, on_device{}));
    }
    cpu_pool pool(static_cast<std::size_t>(launch::usable_cpus()));
    slab_resource slabs(ops::transfers(), &pool);
    update_alone(pool);
    kept_memory kept(slabs);
    for (const clip_policy clip : policies) {
      const roof r = measure_roof(pool, kept); // each time anew: a virtual machine has neighbours
      const double bus = 2 * static_cast<double>(parameters) / std::min(r.down, r.up);
      const double host = 32 * static_cast<double>(parameters) / r.host;
      const double took =
          step_of(comm, parameters, steps, clip, on_host{.threads = pool.size(), .memory = &kept});
      std::printf("{\"bench\": \"zero step\", \"state\": \"host\", \"clip\": \"%s\", "
                  "\"parameters\": %zu, \"ms\": %.1f, \"bus_ms\": %.1f, \"host_memory_ms\": %.1f, "
                  "\"over_bound\": %.3f}\n",
                  name_of(clip), parameters, 1e3 * took, 1e3 * bus, 1e3 * host,
                  took / std::max(bus, host));
      std::fflush(stdout);
    }
    return 0;
  });
}
