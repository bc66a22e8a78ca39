// CPU AdamW as offload runs it. Beside PyTorch, interleaved: python3 tests/bench/cpu_adamw.py
//     cpu_adamw_bench [--parameters N] [--threads T] [--repetitions R] [--serve]
// Prints a JSON line for each precision and vector level: medians, GB/s. With --serve it reads
// lines "fp32" or "bf16" and answers each with the milliseconds of one step.
// SPDX-License-Identifier: Apache-2.0
#include "timing.hpp"

#include <polyrank/launch/cpu_mask.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/optim/update_mixed.hpp>
#include <polyrank/zero/cpu_pool.hpp>
#include <polyrank/zero/slab.hpp>

#include <polyrank/backend/buffer.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

using namespace polyrank;
using bench::median;

namespace {

template <class G, class V>
class problem {
 public:
  problem(std::size_t count, cpu_pool& pool, std::pmr::memory_resource& memory)
      : pool_(pool), master_(count, memory), state_(2 * count, memory), gradient_(count, memory),
        value_(std::is_same_v<V, float> ? 0 : count, memory) {
    parts([&](const mixed_range<adamw, G, V>& r) {
      std::fill(r.master.begin(), r.master.end(), 1.0f);
      for (const auto& plane : r.state) std::fill(plane.begin(), plane.end(), 0.0f);
      G* g = gradient_.data() + (r.gradient.data() - gradient_.data());
      for (std::size_t i = 0; i < r.gradient.size(); ++i)
        g[i] = static_cast<G>(0.01f * static_cast<float>(i % 7));
    });
  }
  /// Milliseconds of a step.
  double step(simd_level level = best_simd()) {
    const adamw::hyper hyper = adamw::at({.lr = 1e-3}, ++steps_);
    return bench::milliseconds([&] {
      parts([&](const mixed_range<adamw, G, V>& r) { update_mixed(r, hyper, 0.5f, level); });
    });
  }
  /// Read p, g, m, v; write p, m, v and the value.
  [[nodiscard]] static constexpr double bytes() noexcept {
    return 24 + sizeof(G) + (std::is_same_v<V, float> ? 0 : sizeof(V));
  }

 private:
  template <class Body>
  void parts(Body body) {
    const mixed_range<adamw, G, V> all{master_.span(), gradient_.span(),
                                       planes_of<adamw>(state_.span()), value_.span()};
    pool_.share(master_.size(),
                [&](std::size_t begin, std::size_t end) { body(all.part(begin, end)); });
  }
  cpu_pool& pool_;
  buffer<float> master_, state_;
  buffer<G> gradient_;
  buffer<V> value_;
  std::uint64_t steps_ = 0;
};

} // namespace

int main(int argc, char** argv) {
  std::size_t count = std::size_t{1} << 24, repetitions = 9;
  auto threads = static_cast<std::size_t>(launch::usable_cpus());
  bool serve = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto number = [&] { return i + 1 < argc ? std::strtoull(argv[++i], nullptr, 10) : 0ull; };
    if (flag == "--parameters")
      count = number();
    else if (flag == "--threads")
      threads = number();
    else if (flag == "--repetitions")
      repetitions = number();
    else if (flag == "--serve")
      serve = true;
    else
      threads = 0;
  }
  if (threads == 0 || count == 0 || repetitions == 0) {
    std::fprintf(stderr,
                 "cpu_adamw_bench [--parameters N] [--threads T] [--repetitions R] [--serve]\n");
    return 2;
  }
  cpu_pool pool(threads);
  slab_resource slabs;
  problem<float, float> fp32(count, pool, slabs);
  problem<bf16, bf16> mixed(count, pool, slabs);
  if (serve) {
    for (char line[64]; std::fgets(line, sizeof line, stdin) != nullptr;) {
      std::printf("%.6f\n", std::strncmp(line, "bf16", 4) == 0 ? mixed.step() : fp32.step());
      std::fflush(stdout);
    }
    return 0;
  }
  for (const simd_level level : all_simd_levels) {
    if (!simd_supported(level)) {
      std::printf(
          "{\"bench\": \"cpu_adamw\", \"level\": \"%s\", \"skipped\": \"this CPU lacks it\"}\n",
          std::string(name_of(level)).c_str());
      continue;
    }
    std::vector<double> a, b;
    for (std::size_t r = 0; r <= repetitions; ++r) {
      const double x = fp32.step(level), y = mixed.step(level);
      if (r == 0) continue; // warm-up
      a.push_back(x);
      b.push_back(y);
    }
    const auto say = [&](const char* precision, double ms, double bytes) {
      std::printf(
          "{\"bench\": \"cpu_adamw\", \"level\": \"%s\", \"precision\": \"%s\", \"threads\": "
          "%zu, \"parameters\": %zu, \"ms\": %.3f, \"gb_per_s\": %.2f}\n",
          std::string(name_of(level)).c_str(), precision, threads, count, ms,
          bytes * static_cast<double>(count) / ms / 1e6);
    };
    say("fp32", median(a), problem<float, float>::bytes());
    say("bf16", median(b), problem<bf16, bf16>::bytes());
  }
  return 0;
}
