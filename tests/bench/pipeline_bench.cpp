// How fast schedules are generated, validated, simulated and lowered, and how much a lowering costs
// against unlimited lanes. One JSON object per line.
//
//     pipeline_bench [--small]
//
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/lower.hpp>
#include <polyrank/pipeline/lower_baselines.hpp>
#include <polyrank/pipeline/simulate.hpp>
#include <polyrank/pipeline/validate.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <vector>

using namespace polyrank::pipeline;

namespace {

/// Processor seconds of `work`, the median of `rounds` runs. All work is on one thread.
template <class Work>
double median(int rounds, Work&& work) {
  std::vector<double> seconds;
  for (int i = 0; i < rounds; ++i) {
    const std::clock_t start = std::clock();
    work();
    seconds.push_back(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

bool failed = false;

void growth(schedule s, std::size_t p, std::size_t m, int rounds) {
  table t, full;
  const double generating = median(rounds, [&] { t = generate(s, p, m); });
  const costs c = even_costs(t.shape, 1, 1, 1, 0.05);
  const double validating = median(rounds, [&] { failed = failed || validate(t).has_value(); });
  const double simulating =
      median(rounds, [&] { failed = failed || simulate(t, c).makespan <= 0; });
  const double lowering = median(1, [&] { full = lower(t, c); });
  const double validating_full =
      median(rounds, [&] { failed = failed || validate(full).has_value(); });
  const double simulating_full =
      median(rounds, [&] { failed = failed || simulate(full, c).makespan <= 0; });
  std::printf(
      "{\"bench\": \"growth\", \"schedule\": \"%s\", \"p\": %zu, \"m\": %zu, "
      "\"compute_actions\": %zu, \"lowered_actions\": %zu, \"bytes_per_action\": %zu, "
      "\"generate_s\": %.3f, \"validate_s\": %.3f, \"simulate_s\": %.3f, \"lower_s\": %.3f, "
      "\"validate_lowered_s\": %.3f, \"simulate_lowered_s\": %.3f}\n",
      traits_of(s).name.data(), p, m, t.actions.size(), full.actions.size(), sizeof(action),
      generating, validating, simulating, lowering, validating_full, simulating_full);
  std::fflush(stdout);
}

/// Makespans relative to unlimited lanes at c = 0.05 F.
void lanes(schedule s, std::size_t p, std::size_t v, std::size_t m) {
  const table t = generate(s, p, m, v);
  const costs c = even_costs(t.shape, 1, 1, 1, 0.05);
  const double ideal = simulate(t, c).makespan;
  const double one = simulate(lower(t, c), c).makespan;
  const double many = simulate(lower(t, c, {.lanes = lane_policy::per_channel}), c).makespan;
  const double sweep = simulate(lower_sweep(t), c).makespan;
  double noisy_one = 0, noisy_many = 0, noisy_sweep = 0;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const simulate_options noise{.noise = 0.2, .seed = seed};
    noisy_one += simulate(lower(t, c), c, noise).makespan;
    noisy_many += simulate(lower(t, c, {.lanes = lane_policy::per_channel}), c, noise).makespan;
    noisy_sweep += simulate(lower_sweep(t), c, noise).makespan;
  }
  std::printf("{\"bench\": \"lanes\", \"schedule\": \"%s\", \"p\": %zu, \"v\": %zu, \"m\": %zu, "
              "\"one_lane\": %.4f, \"per_channel\": %.4f, \"pytorch_order\": %.4f, "
              "\"one_lane_noise\": %.4f, \"pytorch_order_noise\": %.4f}\n",
              traits_of(s).name.data(), p, v, m, one / ideal, many / ideal, sweep / ideal,
              noisy_one / noisy_many, noisy_sweep / noisy_many);
  std::fflush(stdout);
}

} // namespace

int main(int argc, char** argv) {
  const bool small = argc > 1 && std::strcmp(argv[1], "--small") == 0;
  if (argc > 2 || (argc == 2 && !small)) {
    std::fputs("usage: pipeline_bench [--small]\n", stderr);
    return 2;
  }
  const std::size_t shrink = small ? 64 : 1;
  for (std::size_t p : {16u, 64u, 256u, 1024u}) growth(schedule::one_f_one_b, p, 4096 / shrink, 3);
  for (std::size_t m : {256u, 1024u, 16384u}) growth(schedule::one_f_one_b, 256, m / shrink + 1, 3);
  for (schedule s : {schedule::interleaved, schedule::zb_v, schedule::dualpipe_v})
    growth(s, 256, 4096 / shrink, 3);
  for (schedule s : training_schedules)
    for (std::size_t v : {1u, 2u, 4u})
      for (std::size_t m : {16u, 64u})
        if (v >= traits_of(s).min_chunks && v <= traits_of(s).max_chunks &&
            (v > 1 || default_chunks(s) == 1))
          lanes(s, 8, v, m);
  return failed ? 1 : 0;
}
