// A step of the sharded optimizer on the host backend beside grad_sync and a replicated AdamW, the
// same model, interleaved:
//     mpirun --map-by :OVERSUBSCRIBE --bind-to none -n 2 build/bin/zero_bench [parameters]
//     [repetitions]
// Rank 0 prints a JSON line for each stage and residency: medians, and the peer's time / ours.
// There is no backward pass to hide communication under: gradients are ready at once.
// SPDX-License-Identifier: Apache-2.0
#include "timing.hpp"

#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/launch/run.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/optim/apply.hpp>
#include <polyrank/zero/sharded_optimizer.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

using namespace polyrank;
using bench::median;

namespace {

constexpr std::size_t tensors = 20;

template <class F>
double milliseconds(F f) {
  MPI_Barrier(MPI_COMM_WORLD);
  double slowest = bench::milliseconds(f);
  MPI_Allreduce(MPI_IN_PLACE, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

/// Everything on every rank.
class replica {
 public:
  replica(host::communicator& comm, std::size_t each)
      : stream_(comm.make_stream()), values_(tensors * each, 1.0f), state_(2 * tensors * each),
        sync_(comm, parameters(each), all_reduce_sum{}, {.leave = gradients_hold::sum}) {
    for (std::size_t i = 0; i < tensors; ++i) std::fill_n(sync_.grad(i), each, 0.01f);
  }
  void step() {
    sync_.begin(0, 1);
    sync_.sync_all(stream_);
    sync_.finish(stream_);
    const adamw::hyper hyper = adamw::at({}, ++steps_);
    stream_.enqueue([this, hyper] {
      const std::size_t each = values_.size() / tensors;
      const auto planes = planes_of<adamw>(std::span<float>(state_));
      for (std::size_t i = 0; i < tensors; ++i)
        apply<adamw>(std::span(values_).subspan(i * each, each),
                     std::span<const float>(sync_.grad(i), each),
                     {planes[0].subspan(i * each, each), planes[1].subspan(i * each, each)}, hyper,
                     sync_.grad_scale());
    });
    stream_.synchronize();
  }

 private:
  std::vector<parameter<float>> parameters(std::size_t each) {
    std::vector<parameter<float>> all;
    for (std::size_t i = 0; i < tensors; ++i)
      all.push_back({detail::cat("p", i), each, values_.data() + i * each, nullptr});
    return all;
  }
  host::stream stream_;
  std::vector<float> values_, state_;
  grad_sync<host::communicator> sync_;
  std::uint64_t steps_ = 0;
};

template <class Residency>
void measure(launch::world& world, host::communicator& comm, std::size_t each,
             std::size_t repetitions, std::size_t stage, clip_policy clip, const char* where) {
  replica peer(comm, each);
  std::vector<parameter<float>> parameters;
  for (std::size_t i = 0; i < tensors; ++i)
    parameters.push_back({detail::cat("p", i), each, nullptr, nullptr});
  host::stream s = comm.make_stream();
  sharded_optimizer<adamw, host::communicator, float, float, Residency> opt(
      comm, parameters, {}, {.stage = stage, .clip = clip});
  opt.load_values(s);
  const auto step = [&] {
    opt.begin(0, 1);
    for (std::size_t i = tensors; i-- > 0;) {
      float* g = opt.grad(i, s);
      if (stage == 2) s.enqueue([g, each] { std::fill_n(g, each, 0.01f); }); // a ring keeps nothing
      opt.ready(i, s);
    }
    opt.finish(s);
    opt.step(s);
    opt.synchronize();
  };
  std::vector<double> ours, theirs;
  for (std::size_t r = 0; r <= repetitions; ++r) {
    const double a = milliseconds(step), b = milliseconds([&] { peer.step(); });
    if (r == 0) continue; // warm-up
    ours.push_back(a);
    theirs.push_back(b);
  }
  if (world.rank() == 0)
    std::printf(
        "{\"bench\": \"zero_step\", \"ranks\": %d, \"parameters\": %zu, \"stage\": %zu, \"state\": "
        "\"%s\", \"norm\": %s, \"polyrank_ms\": %.2f, \"grad_sync_ms\": %.2f, \"ratio\": %.3f}\n",
        world.size(), each * tensors, stage, where, clip == clip_policy::none ? "false" : "true",
        median(ours), median(theirs), median(theirs) / median(ours));
}

} // namespace

int main(int argc, char** argv) {
  return launch::run(argc, argv, [&](launch::world& world) {
    const std::size_t each =
        (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : std::size_t{8} << 20) / tensors;
    const std::size_t repetitions = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 9;
    auto comm = world.communicator();
    for (const std::size_t stage : {0, 1, 2})
      for (const clip_policy clip : {clip_policy::exact, clip_policy::none}) {
        measure<on_device>(world, comm, each, repetitions, stage, clip, "device");
        measure<on_host>(world, comm, each, repetitions, stage, clip, "host");
      }
    return 0;
  });
}
