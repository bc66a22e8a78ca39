// What several GPUs of one host give, beside raw NCCL in the same process. JSON lines from rank 0;
// times are medians over interleaved repetitions, of the slowest rank. scripts/bench_multi_gpu.sh
// runs it.
//     multi_gpu_bench bandwidth [MIB]         bus bandwidth of collectives from 1 MiB to MIB
//     multi_gpu_bench sync [SCALE]            grad_sync: GPT-2 124M and 350M, bucket sizes
//     multi_gpu_bench policies [MIB]          reduce policies, and what they cost a product
//     multi_gpu_bench zero [PARAMETERS]       ZeRO 0 to 2 and offload: step and memory
// SCALE divides the sizes of the model, for rehearsals.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/support.hpp"
#include "cuda_timing.hpp"

#include <polyrank/cuda/blas.hpp>
#include <polyrank/cuda/communicator.hpp>
#include <polyrank/data_parallel/all_to_all_sum.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/data_parallel/reduce_scatter_sum.hpp>
#include <polyrank/launch/run.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/zero/cuda_ops.hpp>
#include <polyrank/zero/sharded_optimizer.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

using namespace polyrank;
using bench::median;
using device = cuda::backend;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

/// Something to time, under a name.
struct candidate {
  std::string name;
  std::function<void()> run;
  double ms = 0; ///< the result
};

class timer {
 public:
  explicit timer(cuda::communicator& c) : comm(c) {}
  /// Repetitions; ranks that share a GPU only rehearse.
  [[nodiscard]] int times(int wanted) const { return rehearsal_ ? 1 : wanted; }
  [[nodiscard]] bool rehearsal() const { return rehearsal_; }
  [[nodiscard]] bool first() const { return comm.rank() == 0; }
  [[nodiscard]] int ranks() const { return comm.size(); }

  /// Times work on `compute` in turns; each median is that of the slowest rank.
  void measure(std::vector<candidate>& all, int repetitions) {
    std::vector<std::vector<double>> ms_of(all.size());
    for (int r = -times(2); r < times(repetitions); ++r)
      for (std::size_t i = 0; i < all.size(); ++i) {
        comm.control().barrier(std::chrono::seconds(60));
        const double ms = bench::device_milliseconds(compute, all[i].run);
        if (r >= 0) ms_of[i].push_back(ms);
      }
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i].ms = static_cast<double>(comm.control().all_reduce_max(
                      static_cast<std::int64_t>(1e6 * median(ms_of[i])))) /
                  1e6;
  }

  cuda::communicator& comm;
  cuda::stream compute;

 private:
  bool rehearsal_ = cuda::sharing_allowed();
};

void nccl(ncclResult_t code, const char* call) {
  if (code != ncclSuccess) throw error(std::string(call) + ": " + ncclGetErrorString(code));
}

int bandwidth(timer& b, std::size_t most) {
  cuda::communicator& comm = b.comm;
  const auto n = static_cast<std::size_t>(b.ranks());
  const ncclComm_t raw = comm.native();
  const cudaStream_t s = b.compute.native();
  auto in = test::empty<float>(most / 4), out = test::empty<float>(most / 4);
  device::fill(in.span(), 1.0f, b.compute);
  for (std::size_t bytes = mib; bytes <= most; bytes *= 4) {
    const std::size_t count = bytes / 4 / n * n, chunk = count / n;
    const std::span<float> all = in.span().first(count), to = out.span().first(count);
    struct operation {
      const char* name;
      double factor; ///< bus bytes of a byte, as nccl-tests counts them
      std::function<void()> ours, peer;
    };
    const auto part = static_cast<double>(n - 1) / static_cast<double>(n);
    const operation operations[] = {
        {"all_reduce", 2 * part,
         [&] { comm.all_reduce<float>(all, to, reduce_op::sum, on(b.compute)); },
         [&] {
           nccl(ncclAllReduce(all.data(), to.data(), count, ncclFloat, ncclSum, raw, s),
                "ncclAllReduce");
         }},
        {"reduce_scatter", part,
         [&] { comm.reduce_scatter<float>(all, to.first(chunk), reduce_op::sum, on(b.compute)); },
         [&] {
           nccl(ncclReduceScatter(all.data(), to.data(), chunk, ncclFloat, ncclSum, raw, s),
                "ncclReduceScatter");
         }},
        {"all_gather", part, [&] { comm.all_gather<float>(all.first(chunk), to, on(b.compute)); },
         [&] {
           nccl(ncclAllGather(all.data(), to.data(), chunk, ncclFloat, raw, s), "ncclAllGather");
         }}};
    for (const operation& o : operations) {
      std::vector<candidate> both{{"ours", o.ours}, {"nccl", o.peer}};
      b.measure(both, bytes > 256 * mib ? 7 : 15);
      const double bus = o.factor * static_cast<double>(4 * count) / 1e6;
      if (b.first())
        std::printf("{\"bench\": \"%s\", \"ranks\": %zu, \"mib\": %zu, \"ours_gb_per_s\": %.1f, "
                    "\"nccl_gb_per_s\": %.1f, \"of_nccl\": %.3f}\n",
                    o.name, n, bytes / mib, bus / both[0].ms, bus / both[1].ms,
                    both[1].ms / both[0].ms);
    }
  }
  return 0;
}

/// The tensors of a GPT-2 of `layers` layers and `c` channels.
std::vector<std::size_t> gpt2(std::size_t layers, std::size_t c, std::size_t scale) {
  std::vector<std::size_t> n{50257 * c, 1024 * c};
  for (std::size_t layer = 0; layer < layers; ++layer)
    for (const std::size_t k :
         {c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c})
      n.push_back(k);
  n.push_back(c);
  n.push_back(c);
  for (std::size_t& k : n) k = std::max<std::size_t>(1, k / scale);
  return n;
}

int sync(timer& b, std::size_t scale) {
  struct model {
    const char* name;
    std::vector<std::size_t> tensors;
    double backward_ms;
  };
  const model models[] = {{"gpt2 124M", gpt2(12, 768, scale), 20},
                          {"gpt2 350M", gpt2(24, 1024, scale), 50}};
  for (const model& m : models) {
    const double total =
        std::accumulate(m.tensors.begin(), m.tensors.end(), 0.0) + 1e5 * double(m.tensors.size());
    std::vector<parameter<float>> parameters;
    for (std::size_t i = 0; i < m.tensors.size(); ++i)
      parameters.push_back({detail::cat("p", i), m.tensors[i], nullptr, nullptr});
    // As long as its tensor is large, a kernel each; together backward_ms.
    const auto backward = [&](auto after) {
      for (std::size_t i = m.tensors.size(); i-- > 0;) {
        test::delay(b.compute, std::chrono::microseconds(static_cast<long>(
                                   1e3 * m.backward_ms * (double(m.tensors[i]) + 1e5) / total)));
        after(i);
      }
    };
    double best = 0, chosen = 0;
    for (const std::size_t bucket : {0, 25, 4, 10, 100}) {
      if (b.rehearsal() && bucket != 0 && bucket != 25) break;
      grad_sync sync(b.comm, parameters, all_reduce_sum{},
                     {.bucket_bytes = bucket * mib,
                      .leave = gradients_hold::sum,
                      .broadcast = false,
                      .always_communicate = true});
      const auto& buckets = sync.layout().buckets();
      std::vector<candidate> both{{"alone", [&] { backward([](std::size_t) {}); }},
                                  {"with", [&] {
                                     sync.begin(0, 1);
                                     backward([&](std::size_t i) { sync.ready(i, b.compute); });
                                     sync.finish(b.compute);
                                   }}};
      b.measure(both, 7);
      const double exposed = both[1].ms - both[0].ms;
      if (bucket == 0) chosen = both[1].ms;
      best = best == 0 ? both[1].ms : std::min(best, both[1].ms);
      if (b.first())
        std::printf("{\"bench\": \"grad_sync\", \"model\": \"%s\", \"ranks\": %d, \"bucket_mib\": "
                    "%zu, \"default\": %s, \"buckets\": %zu, \"backward_ms\": %.3f, \"step_ms\": "
                    "%.3f, \"exposed_ms\": %.3f}\n",
                    m.name, b.ranks(), bucket, bucket == 0 ? "true" : "false", buckets.size(),
                    both[0].ms, both[1].ms, exposed);
    }
    // What cannot be hidden: the tensor that backward finishes last.
    auto last = test::empty<float>(m.tensors[0]);
    const auto all = static_cast<std::size_t>(
        std::accumulate(m.tensors.begin(), m.tensors.end(), std::size_t{0}));
    auto everything = test::empty<float>(all);
    std::vector<candidate> alone{{"last",
                                  [&] {
                                    b.comm.all_reduce<float>(last.span(), last.span(),
                                                             reduce_op::sum, on(b.compute));
                                  }},
                                 {"all", [&] {
                                    b.comm.all_reduce<float>(everything.span(), everything.span(),
                                                             reduce_op::sum, on(b.compute));
                                  }}};
    b.measure(alone, 9);
    if (b.first())
      std::printf(
          "{\"bench\": \"grad_sync bounds\", \"model\": \"%s\", \"ranks\": %d, "
          "\"last_tensor_ms\": %.3f, \"all_at_once_ms\": %.3f, \"default_over_best\": %.3f}\n",
          m.name, b.ranks(), alone[0].ms, alone[1].ms, chosen / best);
  }
  return 0;
}

/// Runs the policy over a bucket.
template <class Policy>
std::function<void()> issue(timer& b, Policy policy, std::span<float> data,
                            buffer<float>& scratch) {
  const std::size_t need = policy.scratch(data.size(), b.ranks());
  if (scratch.size() < need) scratch = test::empty<float>(need);
  return [&b, policy, data, &scratch] {
    policy.issue(b.comm, data, scratch.span(), on(b.compute, "policy"));
  };
}

int policies(timer& b, std::size_t bytes) {
  const std::size_t count = bytes / 4;
  auto data = test::empty<float>(count), in_window = buffer<float>();
  buffer<float> scratch;
  device::fill(data.span(), 1.0f, b.compute);
  const ncclComm_t raw = b.comm.native();
  const auto average = [&](std::span<float> x, ncclRedOp_t op) {
    return [&b, x, op, raw] {
      nccl(ncclAllReduce(x.data(), x.data(), x.size(), ncclFloat, op, raw, b.compute.native()),
           "ncclAllReduce");
    };
  };
  std::vector<candidate> all;
  // The largest scratch first: the closures keep its address.
  issue(b, all_to_all_sum<float>{}, data.span(), scratch);
  all.push_back({"raw ncclAvg", average(data.span(), ncclAvg)});
  all.push_back({"raw ncclSum", average(data.span(), ncclSum)});
  all.push_back({"all_reduce_sum", issue(b, all_reduce_sum{}, data.span(), scratch)});
  all.push_back({"reduce_scatter_sum", issue(b, reduce_scatter_sum{}, data.span(), scratch)});
  all.push_back({"all_to_all_sum<bf16>", issue(b, all_to_all_sum<bf16>{}, data.span(), scratch)});
  all.push_back({"all_to_all_sum<float>", issue(b, all_to_all_sum<float>{}, data.span(), scratch)});
  if (8 % b.ranks() == 0)
    all.push_back({"deterministic", issue(b, deterministic{}, data.span(), scratch)});
  const auto with_window = [&](auto& comm) {
    if constexpr (requires { comm.register_window(nullptr, std::size_t{}); }) {
      in_window = buffer<float>(count, comm.window_memory());
      auto window = comm.register_window(in_window.data(), in_window.size_bytes());
      std::vector<candidate> here{
          {"all_reduce_sum, window", issue(b, all_reduce_sum{}, in_window.span(), scratch)},
          {"raw ncclAvg, window", average(in_window.span(), ncclAvg)}};
      device::fill(in_window.span(), 1.0f, b.compute);
      b.measure(here, 9);
      if (b.first())
        for (const candidate& c : here)
          std::printf("{\"bench\": \"policy\", \"policy\": \"%s\", \"ranks\": %d, \"mib\": %zu, "
                      "\"ms\": %.3f}\n",
                      c.name.c_str(), b.ranks(), bytes / mib, c.ms);
    }
  };
  b.measure(all, 9);

  // A product that runs while the policy communicates, again and again.
  constexpr std::size_t side = 4096;
  auto a = test::empty<bf16>(side * side), x = test::empty<bf16>(side * side),
       y = test::empty<bf16>(side * side);
  device::fill(a.span(), bf16(0.01f), b.compute);
  device::fill(x.span(), bf16(0.01f), b.compute);
  b.compute.synchronize();
  cuda::blas blas;
  cuda::stream products;
  const auto products_ms = [&](const std::function<void()>& beside) {
    cudaEvent_t from = nullptr, to = nullptr;
    for (cudaEvent_t* e : {&from, &to}) cuda::check(cudaEventCreate(e), "cudaEventCreate");
    std::vector<double> times;
    for (int r = -1; r < b.times(7); ++r) {
      b.comm.control().barrier(std::chrono::seconds(60));
      for (int k = 0; k < b.times(12); ++k) beside(); // longer than the products
      cuda::check(cudaEventRecord(from, products.native()), "cudaEventRecord");
      for (int k = 0; k < 10; ++k)
        blas.gemm<bf16>({side, side, side}, a.data(), x.data(), y.data(), products);
      cuda::check(cudaEventRecord(to, products.native()), "cudaEventRecord");
      products.synchronize();
      b.compute.synchronize();
      float ms = 0;
      cuda::check(cudaEventElapsedTime(&ms, from, to), "cudaEventElapsedTime");
      if (r >= 0) times.push_back(static_cast<double>(ms));
    }
    for (cudaEvent_t e : {from, to}) static_cast<void>(cudaEventDestroy(e));
    return static_cast<double>(
               b.comm.control().all_reduce_max(static_cast<std::int64_t>(1e6 * median(times)))) /
           1e6;
  };
  const double quiet = products_ms([] {});
  for (const candidate& c : all) {
    const double busy = products_ms(c.run);
    if (b.first())
      std::printf("{\"bench\": \"policy\", \"policy\": \"%s\", \"ranks\": %d, \"mib\": %zu, "
                  "\"ms\": %.3f, \"of_raw_avg\": %.3f, \"product_slower\": %.3f}\n",
                  c.name.c_str(), b.ranks(), bytes / mib, c.ms, all[0].ms / c.ms, busy / quiet);
  }
  with_window(b.comm);
  return 0;
}

/// Forty tensors, bf16 values and gradients; a step with synthetic gradients.
template <class Residency>
void zero_step(timer& b, std::size_t parameters, std::size_t stage, Residency home) {
  constexpr std::size_t tensors = 40;
  constexpr bool offloads = std::is_same_v<Residency, on_host>;
  std::size_t before = 0, after = 0, all = 0;
  b.compute.synchronize();
  cuda::check(cudaMemGetInfo(&before, &all), "cudaMemGetInfo");
  std::vector<parameter<bf16>> model;
  for (std::size_t i = 0; i < tensors; ++i)
    model.push_back(
        {detail::cat("p", i), partition(parameters, tensors, i).size(), nullptr, nullptr});
  sharded_optimizer<adamw, cuda::communicator, bf16, bf16, Residency> opt(
      b.comm, model, {}, {.stage = stage, .max_norm = 1}, home);
  for (const auto& p : opt.parameters())
    device::fill(std::span(p.value, p.count), bf16(0.5f), b.compute);
  opt.load_values(b.compute);
  std::vector<candidate> step{{"step", [&] {
                                 opt.begin(0, 1);
                                 for (std::size_t i = tensors; i-- > 0;) {
                                   opt.wait_param(i, b.compute);
                                   device::fill(std::span(opt.grad(i, b.compute), model[i].count),
                                                bf16(0.01f), b.compute);
                                   opt.ready(i, b.compute);
                                 }
                                 opt.finish(b.compute);
                                 opt.step(b.compute);
                                 opt.wait_all(b.compute);
                               }}};
  b.measure(step, 5);
  opt.synchronize();
  cuda::check(cudaMemGetInfo(&after, &all), "cudaMemGetInfo");
  if (b.first())
    std::printf(
        "{\"bench\": \"zero\", \"stage\": %zu, \"offload\": \"%s\", \"ranks\": %d, "
        "\"parameters\": %zu, \"step_ms\": %.2f, \"planned_mb\": %.0f, \"taken_mb\": %.0f}\n",
        stage, offloads ? "host" : "none", b.ranks(), parameters, step[0].ms,
        static_cast<double>(opt.plan().device_bytes()) / 1e6,
        static_cast<double>(before - after) / 1e6);
}

int zero(timer& b, std::size_t parameters) {
  auto x = test::empty<float>(mib); // NCCL takes its memory with the first operation
  b.comm.all_reduce<float>(x.span(), x.span(), reduce_op::sum, on(b.compute));
  for (const std::size_t stage : {0, 1, 2}) zero_step(b, parameters, stage, on_device{});
  zero_step(b, parameters, 2, on_host{});
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  const std::size_t size = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  if (what != "bandwidth" && what != "sync" && what != "policies" && what != "zero") {
    std::fprintf(stderr, "usage: multi_gpu_bench bandwidth|sync|policies|zero [SIZE]\n");
    return 2;
  }
  if (const std::string why = cuda::unusable(); !why.empty()) {
    std::fprintf(stderr, "multi_gpu_bench: %s\n", why.c_str());
    return 77;
  }
  return launch::run(argc, argv, [&](launch::world& world) {
    cuda::communicator comm = cuda::join(world);
    timer b(comm);
    if (what == "bandwidth") return bandwidth(b, (size > 0 ? size : 1024) * mib);
    if (what == "sync") return sync(b, size > 0 ? size : 1);
    if (what == "policies") return policies(b, (size > 0 ? size : 64) * mib);
    return zero(b, size > 0 ? size : 1'000'000'000);
  });
}
