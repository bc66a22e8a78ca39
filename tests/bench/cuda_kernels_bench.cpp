// Fused AdamW and the global norm against a device copy of the same run: JSON lines of GB/s
// (bytes read plus bytes written) and the ratio to the copy. Interleaved repetitions, medians.
//     build/bin/cuda_kernels_bench [repetitions]
// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda_shapes.hpp"
#include "cuda/support.hpp"

#include <polyrank/cuda/backend.hpp>
#include <polyrank/cuda/norm.hpp>
#include <polyrank/cuda/optimizer.hpp>
#include <polyrank/optim/adamw.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

using namespace polyrank;
using device = cuda::backend;

namespace {

struct candidate {
  std::string name;
  double bytes;
  std::function<void()> run;
  std::vector<float> milliseconds{};
};

double median(std::vector<float> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return static_cast<double>(v[v.size() / 2]);
}

/// Tensors of `counts` elements, each `gap` after the one before.
template <class F>
std::size_t lay_out(const std::vector<std::size_t>& counts, std::size_t gap, F f) {
  std::size_t at = 0;
  for (const std::size_t c : counts) {
    f(at, c);
    at += c + gap;
  }
  return at;
}

} // namespace

namespace {

void measure(std::size_t models, int repetitions) {
  std::vector<std::size_t> shapes;
  for (std::size_t k = 0; k < models; ++k)
    for (const std::size_t c : bench::gpt2_124m()) shapes.push_back(c);
  const std::size_t n = std::accumulate(shapes.begin(), shapes.end(), std::size_t{0});
  const std::size_t room = n + 4 * shapes.size();
  cuda::stream s;
  auto p = test::empty<float>(room), g = test::empty<float>(room), m = test::empty<float>(room),
       v = test::empty<float>(room);
  auto wg = test::empty<bf16>(room), wp = test::empty<bf16>(room);
  device::fill(p.span(), 0.5f, s);
  device::fill(g.span(), 0.25f, s);
  device::fill(m.span(), 0.0f, s);
  device::fill(v.span(), 0.0f, s);
  device::fill(wg.span(), bf16(0.25f), s);
  const auto hyper = adamw::at({}, 10);

  const auto adam = [&](const std::vector<std::size_t>& counts, std::size_t gap) {
    std::vector<cuda::optimizer<adamw>::range> ranges;
    lay_out(counts, gap, [&](std::size_t at, std::size_t c) {
      ranges.push_back({p.data() + at, g.data() + at, {m.data() + at, v.data() + at}, nullptr, c});
    });
    return cuda::optimizer<adamw>(std::move(ranges));
  };
  const auto norm = [&](const std::vector<std::size_t>& counts, std::size_t gap) {
    std::vector<std::span<const float>> tensors;
    lay_out(counts, gap, [&](std::size_t at, std::size_t c) {
      tensors.push_back(std::span<const float>(g.span()).subspan(at, c));
    });
    return cuda::grad_norm<float>(tensors);
  };
  const auto one = adam({n}, 0), many = adam(shapes, 0), askew = adam(shapes, 1);
  const auto norm_one = norm({n}, 0), norm_many = norm(shapes, 0), norm_askew = norm(shapes, 1);
  std::vector<cuda::optimizer<adamw, bf16>::range> mixed_ranges;
  lay_out(shapes, 0, [&](std::size_t at, std::size_t c) {
    mixed_ranges.push_back(
        {p.data() + at, wg.data() + at, {m.data() + at, v.data() + at}, wp.data() + at, c});
  });
  const cuda::optimizer<adamw, bf16> mixed(std::move(mixed_ranges));

  const double e = static_cast<double>(n);
  std::vector<candidate> all;
  all.push_back(
      {"copy", 8 * e, [&] { device::copy<float>(g.span().first(n), p.span().first(n), s); }});
  all.push_back({"adamw, 1 tensor", 28 * e, [&] { one.step(hyper, {}, s); }});
  all.push_back({"adamw, tensors", 28 * e, [&] { many.step(hyper, {}, s); }});
  all.push_back({"adamw, tensors, odd offsets", 28 * e, [&] { askew.step(hyper, {}, s); }});
  all.push_back(
      {"adamw, tensors, bf16 gradients and copy", 28 * e, [&] { mixed.step(hyper, {}, s); }});
  all.push_back({"norm, 1 tensor", 4 * e, [&] { norm_one.run({}, s); }});
  all.push_back({"norm, tensors", 4 * e, [&] { norm_many.run({}, s); }});
  all.push_back({"norm, tensors, odd offsets", 4 * e, [&] { norm_askew.run({}, s); }});
  all.push_back({"adamw with clipping, tensors", 32 * e, [&] {
                   norm_many.run({.max_norm = 1}, s);
                   many.step(hyper, norm_many.control(), s);
                 }});

  cudaEvent_t from = nullptr, to = nullptr;
  cuda::check(cudaEventCreate(&from), "cudaEventCreate");
  cuda::check(cudaEventCreate(&to), "cudaEventCreate");
  for (int r = -3; r < repetitions; ++r)
    for (candidate& c : all) {
      cuda::check(cudaEventRecord(from, s.native()), "cudaEventRecord");
      c.run();
      cuda::check(cudaEventRecord(to, s.native()), "cudaEventRecord");
      s.synchronize();
      float ms = 0;
      cuda::check(cudaEventElapsedTime(&ms, from, to), "cudaEventElapsedTime");
      if (r >= 0) c.milliseconds.push_back(ms);
    }
  const double copy = all[0].bytes / median(all[0].milliseconds) / 1e6;
  for (const candidate& c : all) {
    const double ms = median(c.milliseconds), rate = c.bytes / ms / 1e6;
    std::printf("{\"bench\": \"%s\", \"tensors\": %zu, \"elements\": %zu, \"us\": %.1f, "
                "\"gb_per_s\": %.0f, "
                "\"of_copy\": %.3f}\n",
                c.name.c_str(), shapes.size(), n, 1e3 * ms, rate, rate / copy);
  }
}

} // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::max(3, std::atoi(argv[1])) : 31;
  if (const std::string why = cuda::unusable(); !why.empty()) {
    std::fprintf(stderr, "cuda_kernels_bench: %s\n", why.c_str());
    return 77;
  }
  // One model, and eight: with the first the start and the end of a kernel count, too.
  for (const std::size_t models : {1u, 8u}) measure(models, repetitions);
  return 0;
}
