// Fused AdamW and the global norm against a device copy of the same run: JSON lines of GB/s
// (bytes read plus bytes written) and the ratio to the copy. Interleaved repetitions, medians.
//     build/bin/cuda_kernels_bench [repetitions]
// SPDX-License-Identifier: Apache-2.0
#include "cuda/support.hpp"
#include "cuda_timing.hpp"
#include "shapes.hpp"

#include <polyrank/cuda/backend.hpp>
#include <polyrank/cuda/norm.hpp>
#include <polyrank/cuda/optimizer.hpp>
#include <polyrank/optim/adamw.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

using namespace polyrank;
using device = cuda::backend;

namespace {

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
  std::vector<bench::candidate> all;
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

  bench::measure(all, repetitions, s);
  for (const bench::candidate& c : all)
    std::printf("{\"bench\": \"%s\", \"tensors\": %zu, \"elements\": %zu, \"us\": %.1f, "
                "\"gb_per_s\": %.0f, "
                "\"of_copy\": %.3f}\n",
                c.name.c_str(), shapes.size(), n, c.us(), c.gb_per_s(),
                c.gb_per_s() / all[0].gb_per_s());
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
