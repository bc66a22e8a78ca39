// Does a schedule take what simulate() says, and what does the host pay for it? One JSON object per
// line.
//
//     pipeline_run_bench [MS] [STEPS]
//
// "sleep": ranks are threads; F, I and W sleep MS milliseconds (default 5). Of STEPS (default 5)
// steps the fastest counts: its makespan over the one that simulate() predicts from MS ("nominal")
// and from the times that its own actions took ("ratio": sleeps end late where the processor is
// shared, which no schedule can help).
//
// "host": microseconds of step() per action on a backend that only counts its calls. Each is a call
// that the compiler cannot see into, so nothing before it is optimised away, and the counts show
// that the step really was there.
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
#include <limits>
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
  void forward(const pass<Stream>& p) { work(p); }
  void backward_input(const pass<Stream>& p) { work(p); }
  void backward_weight(const pass<Stream>& p) { work(p); }
  void forward_backward(const pass<Stream>& f, timed_stage& other, const pass<Stream>& b) {
    forward(f), other.backward_input(b), other.backward_weight(b);
  }
};

void against_the_simulator(double seconds, int steps) {
  for (const std::size_t p : {2u, 4u, 8u})
    for (const schedule s : training_schedules) {
      const std::size_t v = default_chunks(s);
      const table compute = generate(s, p, 2 * p, v);
      costs c = even_costs(compute.shape, 1, 1, 1, 0.02);
      for (stage_costs& of : c.stages)
        of.forward = of.input_grad = of.weight_grad = seconds, of.transfer = 1e-4;
      const table t = lower(compute, c);
      double best = std::numeric_limits<double>::infinity(), calibrated = 0;
      host::loopback::run(static_cast<int>(p), [&](loop& comm) {
        const auto sleep = [seconds](const pass<host::stream>& one) {
          one.stream.enqueue(
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
        for (int step = 0; step < steps; ++step) {
          run.step();
          run.synchronize();
          const report real = measured(run);
          if (comm.rank() != 0 || real.makespan >= best) continue;
          best = real.makespan;
          calibrated = simulate(t, profile(real, run.memory())).makespan;
        }
      });
      const double nominal = simulate(t, c).makespan;
      std::printf("{\"bench\": \"sleep\", \"schedule\": \"%s\", \"p\": %zu, \"m\": %zu, "
                  "\"measured_ms\": %.2f, \"nominal\": %.4f, \"ratio\": %.4f}\n",
                  std::string(traits_of(s).name).c_str(), p, 2 * p, 1e3 * best, best / nominal,
                  best / calibrated);
      std::fflush(stdout);
    }
}

// A backend that counts
// ---------------------------------------------------------------

std::size_t calls, passes, seen;

/// Not to be seen into by the compiler, so what leads up to it has to be done.
[[gnu::noinline]] void count(const void* what) {
  asm volatile("" : : "r"(what) : "memory");
  ++calls;
}

struct idle_stream;
struct idle_event {
  void record(idle_stream&) { count(this); }
  void synchronize() {}
  bool query() { return true; }
};
struct idle_stream {
  void wait(const idle_event& e) { count(&e); }
  void synchronize() {}
};
struct idle_backend {
  using stream = idle_stream;
  using event = idle_event;
  static constexpr std::string_view name = "idle";
  static constexpr bool on_device = true;
  static std::pmr::memory_resource& memory() { return *std::pmr::new_delete_resource(); }
  template <element T>
  static void fill(std::span<T> x, T, stream&) {
    count(x.data());
  }
  template <element T>
  static void copy(std::span<const std::type_identity_t<T>> x, std::span<T>, stream&) {
    count(x.data());
  }
  template <element T>
  static void add(std::span<const std::type_identity_t<T>> x,
                  std::span<const std::type_identity_t<T>>, std::span<T>, stream&) {
    count(x.data());
  }
};
/// Looks at everything that a pass hands out.
struct idle_work {
  void operator()(const pass<idle_stream>& p) const {
    count(p.memory);
    for (const auto& list : {p.input, p.output, p.output_gradient, p.input_gradient})
      for (void* const tensor : list) count(tensor), ++seen;
    ++passes;
  }
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
  void exchange(const shape&, const action&, std::span<std::byte> data, std::string_view tag) {
    count(data.data()), count(tag.data());
  }
};

void host_time(schedule s) {
  const std::size_t p = 4, m = 64, v = default_chunks(s);
  const table compute = generate(s, p, m, v);
  const table t = lower(compute, even_costs(compute.shape, 1, 1, 1, 0.05));
  host::loopback::run(static_cast<int>(p), [&](loop& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    std::vector<timed_stage<idle_stream, idle_work>> stages;
    for (std::size_t n = 0; n < v; ++n)
      stages.push_back({t.shape.stage_of(r, n), t.shape.stages(), {}});
    idle_stream work;
    idle_transport link{&comm};
    executor run(link, std::span(stages), t, {}, work);
    comm.control().barrier(std::chrono::seconds(10));
    if (r == 1) { // alone, so that threads do not share the processor
      const auto actions = static_cast<double>(t.of(r).size());
      std::vector<double> us;
      for (int round = 0; round < 201; ++round) {
        calls = passes = seen = 0;
        const auto start = std::chrono::steady_clock::now();
        run.step();
        us.push_back(
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                .count() /
            actions);
      }
      std::sort(us.begin(), us.end());
      std::printf("{\"bench\": \"host\", \"schedule\": \"%s\", "
                  "\"actions\": %.0f, \"passes\": %zu, \"tensors\": %zu, \"calls\": %zu, "
                  "\"us_per_action\": %.4f}\n",
                  std::string(traits_of(s).name).c_str(), actions, passes, seen, calls,
                  us[us.size() / 2]);
    }
    comm.control().barrier(std::chrono::seconds(10));
  });
}

} // namespace

int main(int argc, char** argv) {
  for (const schedule s : {schedule::one_f_one_b, schedule::interleaved, schedule::zb_v})
    host_time(s);
  against_the_simulator((argc > 1 ? std::atof(argv[1]) : 5) / 1e3,
                        argc > 2 ? std::max(1, std::atoi(argv[2])) : 5);
}
