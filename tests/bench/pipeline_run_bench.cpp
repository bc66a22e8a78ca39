// Does a schedule take what simulate() says, and what does the host pay for it? One JSON object per
// line.
//
//     pipeline_run_bench [MS]
//
// "sleep": ranks are threads, F, I and W sleep MS milliseconds (default 5) each; makespan of a step
// beside the one that simulate() predicts from those times. "host": microseconds of step() per
// action on a backend that does nothing, so without any call of a real one.
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/host/loopback.hpp>
#include <polyrank/pipeline/executor.hpp>
#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/lower.hpp>
#include <polyrank/pipeline/measure.hpp>
#include <polyrank/pipeline/simulate.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

using namespace polyrank;
using namespace polyrank::pipeline;
using loop = host::loopback::communicator;

namespace {

std::vector<boundary> tensors(bool none) {
  return none ? std::vector<boundary>{} : std::vector<boundary>{{"x", dtype::f32, 16, true}};
}

/// A stage whose work is to take time.
template <class Stream, class Work>
struct timed_stage {
  std::size_t stage, stages;
  Work work;
  [[nodiscard]] std::vector<boundary> inputs() const { return tensors(stage == 0); }
  [[nodiscard]] std::vector<boundary> outputs() const { return tensors(stage + 1 == stages); }
  [[nodiscard]] stage_bytes bytes(std::size_t) const { return {256, 256}; }
  void forward(const pass<Stream>& p) { work(p.stream); }
  void backward_input(const pass<Stream>& p) { work(p.stream); }
  void backward_weight(const pass<Stream>& p) { work(p.stream); }
};

void against_the_simulator(double seconds) {
  for (const std::size_t p : {2u, 4u, 8u})
    for (const schedule s : training_schedules) {
      const std::size_t v = default_chunks(s);
      const table compute = generate(s, p, 2 * p, v);
      costs c = even_costs(compute.shape, 1, 1, 1, 0.02);
      for (stage_costs& of : c.stages)
        of.forward = of.input_grad = of.weight_grad = seconds, of.transfer = 1e-4;
      const table t = lower(compute, c);
      double best = 1e9;
      host::loopback::run(static_cast<int>(p), [&](loop& comm) {
        const auto sleep = [seconds](host::stream& on) {
          on.enqueue(
              [seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
        };
        std::vector<timed_stage<host::stream, decltype(sleep)>> stages;
        for (std::size_t n = 0; n < v; ++n)
          stages.push_back({t.shape.stage_of(static_cast<std::size_t>(comm.rank()), n),
                            t.shape.stages(), sleep});
        host::stream work;
        peer_transport<loop> link(comm);
        executor run(link, std::span(stages), t, {}, work);
        run.watch().measure(true);
        for (int round = 0; round < 3; ++round) {
          run.step();
          run.synchronize();
          const report real = measured(run);
          if (comm.rank() == 0) best = std::min(best, real.makespan);
        }
      });
      const double predicted = simulate(t, c).makespan;
      std::printf(
          "{\"bench\": \"sleep\", \"schedule\": \"%s\", \"p\": %zu, \"m\": %zu, \"predicted_ms\": "
          "%.2f, \"measured_ms\": %.2f, \"ratio\": %.4f}\n",
          std::string(traits_of(s).name).c_str(), p, 2 * p, 1e3 * predicted, 1e3 * best,
          best / predicted);
      std::fflush(stdout);
    }
}

// A backend on which nothing happens
// ---------------------------------------------------------------

struct idle_stream;
struct idle_event {
  void record(idle_stream&) {}
  void synchronize() {}
  bool query() { return true; }
};
struct idle_stream {
  void wait(const idle_event&) {}
  void synchronize() {}
};
struct idle_backend {
  using stream = idle_stream;
  using event = idle_event;
  static constexpr std::string_view name = "idle";
  static constexpr bool on_device = true;
  static std::pmr::memory_resource& memory() { return *std::pmr::new_delete_resource(); }
  template <element T>
  static void fill(std::span<T>, T, stream&) {}
  template <element T>
  static void copy(std::span<const std::type_identity_t<T>>, std::span<T>, stream&) {}
  template <element T>
  static void add(std::span<const std::type_identity_t<T>>,
                  std::span<const std::type_identity_t<T>>, std::span<T>, stream&) {}
};
struct idle_transport {
  using backend = idle_backend;
  loop* comm;
  idle_stream only{};
  [[nodiscard]] int rank() const { return comm->rank(); }
  [[nodiscard]] int size() const { return comm->size(); }
  host::loopback::control& control() { return comm->control(); }
  [[nodiscard]] lane_policy policy() const { return lane_policy::single; }
  idle_stream& lane(std::size_t) { return only; }
  void exchange(const shape&, const action&, std::span<std::byte>, std::string_view) {}
};

void host_time() {
  for (const schedule s : {schedule::one_f_one_b, schedule::interleaved, schedule::zb_v}) {
    const std::size_t p = 4, m = 64, v = default_chunks(s);
    const table compute = generate(s, p, m, v);
    const table t = lower(compute, even_costs(compute.shape, 1, 1, 1, 0.05));
    host::loopback::run(static_cast<int>(p), [&](loop& comm) {
      const auto r = static_cast<std::size_t>(comm.rank());
      const auto nothing = [](idle_stream&) {};
      std::vector<timed_stage<idle_stream, decltype(nothing)>> stages;
      for (std::size_t n = 0; n < v; ++n)
        stages.push_back({t.shape.stage_of(r, n), t.shape.stages(), nothing});
      idle_stream work;
      idle_transport link{&comm};
      executor run(link, std::span(stages), t, {}, work);
      comm.control().barrier(std::chrono::seconds(10));
      if (r == 0) { // alone, so that threads do not share the processor
        std::vector<double> us;
        for (int round = 0; round < 21; ++round) {
          const auto start = std::chrono::steady_clock::now();
          run.step();
          us.push_back(
              std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                  .count() /
              static_cast<double>(t.of(0).size()));
        }
        std::sort(us.begin(), us.end());
        std::printf("{\"bench\": \"host\", \"schedule\": \"%s\", \"actions\": %zu, "
                    "\"us_per_action\": %.3f}\n",
                    std::string(traits_of(s).name).c_str(), t.of(0).size(), us[us.size() / 2]);
      }
      comm.control().barrier(std::chrono::seconds(10));
    });
  }
}

} // namespace

int main(int argc, char** argv) {
  host_time();
  against_the_simulator((argc > 1 ? std::atof(argv[1]) : 5) / 1e3);
}
