// Kernels, memory, streams and cuBLAS on one GPU.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "cuda/support.hpp"

#include <polyrank/core/random.hpp>
#include <polyrank/cuda/backend.hpp>
#include <polyrank/cuda/blas.hpp>
#include <polyrank/cuda/norm.hpp>
#include <polyrank/cuda/optimizer.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/optim/apply.hpp>
#include <polyrank/optim/parameter_groups.hpp>
#include <polyrank/optim/sgd.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

using namespace polyrank;
using namespace std::chrono_literals;
using cuda::stream;
using device = cuda::backend;
using test::down, test::up;

namespace {

const std::vector<std::size_t> sizes{1, 3, 4, 5, 255, 1023, 1024, 1025, 4096, 100003};

std::vector<float> noise(std::size_t n, std::uint64_t seed, float scale = 1) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = scale * (2 * uniform(seed, 1, i) - 1);
  return x;
}

template <class T>
std::vector<T> as(const std::vector<float>& x) {
  std::vector<T> y;
  for (const float v : x) y.push_back(T(v));
  return y;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// fill, add, scale of type T against plain loops, aligned and askew.
template <class T>
std::size_t check_operations() {
  std::size_t bad = 0;
  stream s;
  for (const std::size_t n : sizes)
    for (const std::size_t skew : {0u, 1u}) {
      const auto a = as<T>(noise(n + skew, 1, 40)), b = as<T>(noise(n + skew, 2, 40));
      auto da = up(a), db = up(b), out = up(std::vector<T>(n + skew + 1, T(7)));
      const auto part = [&](auto& x) { return std::span<T>(x.span()).subspan(skew, n); };
      device::add<T>(part(da), part(db), part(out), s);
      auto got = down(out);
      for (std::size_t i = 0; i < n; ++i)
        bad += !(got[skew + i] == T(float(a[skew + i]) + float(b[skew + i])));
      bad += !(got[skew + n] == T(7)) + (skew > 0 && !(got[0] == T(7))); // neighbours untouched
      device::scale<T>(part(out), 0.25f, s);
      const auto scaled = down(out);
      for (std::size_t i = 0; i < n; ++i)
        bad += !(scaled[skew + i] == T(float(got[skew + i]) * 0.25f));
      device::fill<T>(part(out), T(3), s);
      got = down(out);
      for (std::size_t i = 0; i < n; ++i) bad += !(got[skew + i] == T(3));
      bad += !(got[skew + n] == T(7));
      device::copy<T>(part(da), part(db), s);
      got = down(db);
      for (std::size_t i = 0; i < n; ++i) bad += !(got[skew + i] == a[skew + i]);
    }
  return bad;
}

} // namespace

TEST_CASE("fill, add, scale and copy of every type and size, aligned or not") {
  CHECK(check_operations<float>() == 0);
  CHECK(check_operations<bf16>() == 0);
  CHECK(check_operations<fp16>() == 0);
  CHECK(check_operations<std::int32_t>() == 0);
}

TEST_CASE("casts round as the host does") {
  stream s;
  std::vector<float> x = noise(10007, 3, 70000);
  x[0] = INFINITY, x[1] = -0.0f, x[2] = 1e-40f, x[3] = 65519.0f, x[4] = 65520.0f, x[5] = 1e-8f;
  const auto dx = up(x);
  auto b = test::empty<bf16>(x.size());
  auto h = test::empty<fp16>(x.size());
  device::cast<bf16, float>(dx.span(), b.span(), s);
  device::cast<fp16, float>(dx.span(), h.span(), s);
  CHECK(same_bits(down(b), as<bf16>(x)));
  CHECK(same_bits(down(h), as<fp16>(x)));
  auto back = test::empty<float>(x.size());
  device::cast<float, bf16>(b.span(), back.span(), s);
  std::vector<float> expected;
  for (const bf16 v : as<bf16>(x)) expected.push_back(float(v));
  CHECK(same_bits(down(back), expected));
}

TEST_CASE("hashes tell data, places and lengths apart, and repeat") {
  stream s;
  std::vector<float> x = noise(100003, 4);
  const auto hash = [&](const std::vector<float>& v, std::size_t from = 0) {
    const auto d = up(v);
    std::uint64_t h = 1;
    device::hash<float>(std::span<const float>(d.span()).subspan(from), h, s);
    s.synchronize();
    return h;
  };
  const auto h = hash(x);
  CHECK(hash(x) == h);
  auto y = x;
  std::swap(y[5], y[99]);
  CHECK(hash(y) != h);
  y = x;
  y.push_back(0);
  CHECK(hash(y) != h);
  CHECK(hash({}) != hash({0.0f}));
  CHECK(hash(x, 1) == hash(std::vector<float>(x.begin() + 1, x.end()))); // askew: the same
}

namespace {

/// One optimizer against polyrank::apply, over a list of tensors cut from one arena at `gap`.
template <class O>
bool equals_host(const std::vector<std::size_t>& counts, std::size_t gap, float device_factor) {
  std::size_t total = 0;
  for (const std::size_t c : counts) total += c + gap;
  constexpr std::size_t K = O::state_count;
  auto p = noise(total, 5), g = noise(total, 6, 0.1f);
  std::vector<std::vector<float>> state(K);
  for (std::size_t k = 0; k < K; ++k) {
    state[k] = noise(total, 7 + k, 0.01f);
    for (float& v : state[k]) v = std::abs(v);
  }
  auto dp = up(p);
  const auto dg = up(g), factor = up(std::vector<float>{device_factor});
  std::vector<buffer<float>> ds;
  for (const auto& plane : state) ds.push_back(up(plane));
  std::vector<typename cuda::optimizer<O>::range> ranges;
  std::size_t at = 0;
  for (const std::size_t c : counts) {
    typename cuda::optimizer<O>::range r;
    r.value = dp.data() + at;
    r.gradient = dg.data() + at;
    for (std::size_t k = 0; k < K; ++k) r.state[k] = ds[k].data() + at;
    r.count = c;
    ranges.push_back(r);
    at += c + gap;
  }
  const auto hyper = O::at({.lr = 1e-2, .weight_decay = 0.1}, 3);
  stream s;
  cuda::optimizer<O>(ranges).step(hyper, {.factor = 0.5f, .device_factor = factor.data()}, s);
  s.synchronize();
  at = 0;
  for (const std::size_t c : counts) {
    state_planes<O> planes;
    for (std::size_t k = 0; k < K; ++k) planes[k] = std::span(state[k]).subspan(at, c);
    apply<O>(std::span(p).subspan(at, c), std::span(g).subspan(at, c), planes, hyper,
             0.5f * device_factor);
    at += c + gap;
  }
  bool same = same_bits(down(dp), p);
  for (std::size_t k = 0; k < K; ++k) same = same && same_bits(down(ds[k]), state[k]);
  return same;
}

} // namespace

TEST_CASE("the optimizer kernel gives the host's bits, for every split into tensors") {
  for (const std::size_t gap : {0u, 3u, 4u}) {
    CHECK(equals_host<adamw>({100003}, gap, 1));
    CHECK(equals_host<adamw>({1024, 0, 1, 4095, 1, 0, 30011, 2048, 7}, gap, 0.25f));
    CHECK(equals_host<sgd>({1, 1023, 1024, 1025, 50000}, gap, 0.25f));
  }
  CHECK(equals_host<adamw>({}, 0, 1));
  CHECK(equals_host<adamw>({0}, 0, 1));
}

TEST_CASE("a launch for each parameter group gives the host's bits") {
  const std::vector<std::size_t> counts{3000, 5, 1024, 7};
  parameter_groups<adamw> groups({"a", "a.bias", "b", "b.bias"}, {.lr = 1e-2, .weight_decay = 0.1});
  groups.split("no decay", {.lr = 2e-2, .weight_decay = 0}, names_with{{"bias"}}).at(3, 0.5);
  std::vector<std::vector<float>> p, g, m, v;
  std::vector<buffer<float>> dp, dg, dm, dv;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    p.push_back(noise(counts[i], i));
    g.push_back(noise(counts[i], 10 + i));
    m.emplace_back(counts[i]);
    v.emplace_back(counts[i]);
    for (const auto& [from, to] : {std::pair{&p, &dp}, {&g, &dg}, {&m, &dm}, {&v, &dv}})
      to->push_back(up((*from)[i]));
  }
  stream s;
  for (const auto& group : groups.groups()) {
    std::vector<cuda::optimizer<adamw>::range> ranges;
    for (const std::size_t i : group.parameters)
      ranges.push_back({.value = dp[i].data(),
                        .gradient = dg[i].data(),
                        .state = {dm[i].data(), dv[i].data()},
                        .count = counts[i]});
    cuda::optimizer<adamw>(ranges).step(group.numbers, {.factor = 0.5f}, s);
    s.synchronize();
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    apply<adamw>(p[i], g[i], {m[i], v[i]}, groups[i], 0.5f);
    CHECK(same_bits(down(dp[i]), p[i]));
    CHECK(same_bits(down(dv[i]), v[i]));
  }
}

TEST_CASE("bf16 gradients update fp32 masters and a bf16 copy; a skipped step changes nothing") {
  const std::size_t n = 5003;
  auto p = noise(n, 1), m = noise(n, 2, 0.01f), v = std::vector<float>(n, 0.02f);
  const auto g = as<bf16>(noise(n, 3));
  auto dp = up(p), dm = up(m), dv = up(v);
  const auto dg = up(g);
  auto copy = up(std::vector<bf16>(n));
  cuda::optimizer<adamw, bf16> update(
      {{dp.data(), dg.data(), {dm.data(), dv.data()}, copy.data(), n}});
  const auto hyper = adamw::at({}, 1);
  stream s;
  const auto yes = up(std::vector<std::uint32_t>{1}), no = up(std::vector<std::uint32_t>{0});
  update.step(hyper, {.skip = yes.data()}, s);
  s.synchronize();
  CHECK(same_bits(down(dp), p));
  CHECK(same_bits(down(dm), m));
  update.step(hyper, {.factor = 2, .skip = no.data()}, s);
  s.synchronize();
  std::vector<float> wide;
  for (const bf16 x : g) wide.push_back(float(x));
  apply<adamw>(p, wide, {std::span(m), std::span(v)}, hyper, 2.0f);
  CHECK(same_bits(down(dp), p));
  CHECK(same_bits(down(copy), as<bf16>(p)));
}

namespace {

/// x of 32 lanes, added as a warp does.
template <class Sum>
Sum warp_sum(std::vector<Sum> lane) {
  for (std::size_t o = 16; o > 0; o /= 2) {
    const auto before = lane;
    for (std::size_t l = 0; l < 32; ++l) lane[l] = before[l] + before[l ^ o];
  }
  return lane[0];
}

/// The sum of squares in the order that norm.cuh promises, on the host.
template <class T>
double squares(const std::vector<T>& x) {
  constexpr std::size_t width = 4 / sizeof(T), turns = 4096 / 256 / width;
  std::vector<double> pairs;
  for (std::size_t base = 0; base < x.size(); base += 4096) {
    if (base % 8192 == 0) pairs.push_back(0);
    for (std::size_t warp = 0; warp < 8; ++warp) {
      std::vector<float> lane(32);
      for (std::size_t l = 0; l < 32; ++l)
        for (std::size_t j = 0; j < turns; ++j)
          for (std::size_t c = 0; c < width; ++c) {
            const std::size_t i = base + (warp * 32 + l + j * 256) * width + c;
            const float v = i < x.size() ? float(x[i]) : 0.0f;
            lane[l] = std::fma(v, v, lane[l]);
          }
      pairs.back() += static_cast<double>(warp_sum(lane));
    }
  }
  std::vector<double> thread(1024), warp;
  for (std::size_t i = 0; i < pairs.size(); ++i) thread[i % 1024] += pairs[i];
  for (std::size_t w = 0; w < 32; ++w) {
    const auto from = thread.begin() + static_cast<std::ptrdiff_t>(32 * w);
    warp.push_back(warp_sum(std::vector<double>(from, from + 32)));
  }
  return warp_sum(warp);
}

/// The norm of x cut into tensors of `counts`, `gap` elements apart.
template <class T>
cuda::norm_result norm_of(const std::vector<T>& x, const std::vector<std::size_t>& counts,
                          std::size_t gap, const cuda::norm_options& o = {}, int runs = 1) {
  std::size_t total = 0, from = 0, to = 0;
  for (const std::size_t c : counts) total += c + gap;
  std::vector<T> spread(total, T(1e30f));
  std::vector<std::pair<std::size_t, std::size_t>> pieces;
  for (const std::size_t c : counts) {
    std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(from), c,
                spread.begin() + static_cast<std::ptrdiff_t>(to));
    pieces.emplace_back(to, c);
    from += c;
    to += c + gap;
  }
  const auto d = up(spread);
  std::vector<std::span<const T>> tensors;
  for (const auto& [at, c] : pieces) tensors.push_back(std::span<const T>(d.span()).subspan(at, c));
  const cuda::grad_norm<T> norm(tensors);
  stream s;
  for (int k = 0; k < runs; ++k) norm.run(o, s);
  return norm.result(s);
}

} // namespace

TEST_CASE("the norm has the promised order, whatever the split into tensors") {
  for (const std::size_t n : {1u, 4095u, 4096u, 4097u, 8192u, 262145u, 9000011u}) {
    const auto x = noise(n, 9);
    const double expected = squares(x);
    CHECK(norm_of(x, {n}, 0).squares == expected);
    CHECK(norm_of(x, {n}, 1, {}, 3).squares == expected); // and again
    const std::size_t a = n / 3, b = n / 7;
    for (const std::size_t gap : {0u, 1u, 4u})
      CHECK(norm_of(x, {a, 0, b, n - a - b, 0}, gap).squares == expected);
    double exact = 0;
    for (const float v : x) exact += double(v) * double(v);
    CHECK(std::abs(expected - exact) <= 1e-6 * exact);
  }
  const auto short_ones = as<bf16>(noise(50001, 10));
  for (const std::size_t gap : {0u, 1u})
    CHECK(norm_of(short_ones, {20001, 30000}, gap).squares == squares(short_ones));
}

TEST_CASE("clipping and skipping are decided on the device, NaN included") {
  std::vector<float> x(10000, 0.5f); // norm 50
  CHECK(norm_of(x, {10000}, 0).norm == 50.0f);
  CHECK(norm_of(x, {10000}, 0, {.scale = 0.5f, .max_norm = 100}).factor == 0.5f);
  CHECK(norm_of(x, {10000}, 0, {.scale = 0.5f, .max_norm = 5}).factor == 0.5f * (5.0f / 25.0f));
  CHECK(norm_of(x, {10000}, 0).skip == 0);
  for (const float bad : {NAN, INFINITY, 1e30f}) {
    x[777] = bad;
    CHECK(norm_of(x, {10000}, 0, {.max_norm = 1}).skip == 1);
  }
  CHECK(norm_of(std::vector<float>{}, {}, 0).norm == 0.0f);
}

TEST_CASE("a shared set of four shards has norm sqrt(120), not a mean of norms") {
  std::vector<float> x(16);
  for (std::size_t i = 0; i < 16; ++i) x[i] = std::sqrt(static_cast<float>(i));
  CHECK(std::abs(norm_of(x, {4, 4, 4, 4}, 0).squares - 120) < 1e-4);
}

TEST_CASE("more than 2^31 elements") {
  std::size_t free = 0, total = 0;
  cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const std::size_t n = (std::size_t{1} << 31) + 257;
  if (free < 5 * n * sizeof(float)) {
    WARN("skipped: " << free << " bytes are free, " << 5 * n * sizeof(float) << " are needed");
    return;
  }
  stream s;
  auto p = test::empty<float>(n), g = test::empty<float>(n), m = test::empty<float>(n),
       v = test::empty<float>(n);
  device::fill(p.span(), 1.0f, s);
  device::fill(g.span(), 0.5f, s);
  device::fill(m.span(), 0.0f, s);
  device::fill(v.span(), 0.0f, s);
  device::scale(g.span(), 2.0f, s);
  const auto hyper = adamw::at({.lr = 0.25, .weight_decay = 0}, 1);
  cuda::optimizer<adamw>({{p.data(), g.data(), {m.data(), v.data()}, nullptr, n}})
      .step(hyper, {}, s);
  std::vector<float> hp{1}, hg{1}, hm{0}, hv{0};
  apply<adamw>(hp, hg, {std::span(hm), std::span(hv)}, hyper);
  for (const std::size_t at : {std::size_t{0}, n / 2, (std::size_t{1} << 31) - 1, n - 1})
    CHECK(down(std::span<const float>(p.data() + at, 1))[0] == hp[0]);
  device::add<float>(p.span(), p.span(), m.span(), s);
  CHECK(down(std::span<const float>(m.data() + n - 1, 1))[0] == 2 * hp[0]);
  const cuda::grad_norm<float> norm({g.span()});
  norm.run({}, s);
  CHECK(norm.result(s).squares == static_cast<double>(n));
}

TEST_CASE("running out of memory says what was asked and what was free") {
  try {
    const auto too_much = test::empty<std::byte>(std::size_t{1} << 46);
    FAIL("no exception");
  } catch (const out_of_memory& e) {
    CHECK(e.bytes_asked() == std::size_t{1} << 46);
    CHECK(std::string(e.what()).find("are free") != std::string::npos);
  }
  CHECK_NOTHROW(test::empty<float>(1)); // the error does not stick
}

TEST_CASE("who catches out_of_memory has the memory back that was taken before it") {
  constexpr std::size_t size = std::size_t{64} << 20;
  const auto used = [] {
    static_cast<void>(test::empty<float>(1)); // at the next allocation
    std::size_t free = 0, total = 0;
    cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return total - free;
  };
  const std::size_t before = used();
  for (int attempt = 0; attempt < 3; ++attempt) {
    try {
      const auto fits = test::empty<std::byte>(size);
      const auto does_not = test::empty<std::byte>(std::size_t{1} << 46);
      FAIL("no exception");
    } catch (const out_of_memory&) {
    }
    CHECK(used() < before + size);
  }
}

TEST_CASE("device memory is aligned to pages, pinned memory to what was asked") {
  std::vector<buffer<char>> kept;
  for (int i = 0; i < 9; ++i) {
    kept.push_back(test::empty<char>(513));
    CHECK(reinterpret_cast<std::uintptr_t>(kept.back().data()) % 4096 == 0);
  }
  buffer<float> pinned(1000, cuda::pinned_memory());
  pinned.data()[999] = 1;
}

TEST_CASE("pointers are checked: host memory is refused, device memory passes") {
  std::vector<float> host(4);
  const auto mine = test::empty<float>(4);
  buffer<float> pinned(4, cuda::pinned_memory());
  CHECK_NOTHROW(device::check_pointer(mine.data() + 1, "parameter 'w'"));
  CHECK_NOTHROW(device::check_pointer(nullptr, "parameter 'w'"));
  for (const float* p : {host.data(), pinned.data()}) {
    try {
      device::check_pointer(p, "parameter 'w'");
      FAIL("no exception");
    } catch (const usage_error& e) {
      CHECK(std::string(e.what()).find("parameter 'w' points to host memory") == 0);
    }
  }
  CHECK_THROWS_AS(cuda::check_pointer(mine.data(), "w", 1), usage_error);
}

TEST_CASE("work waits for the events it was told to wait for, and for no others") {
  auto x = up(std::vector<std::int32_t>(1000, 1)), y = up(std::vector<std::int32_t>(1000, 0));
  stream a, b;
  cuda::event ready;
  CHECK(ready.query());
  b.wait(ready); // never recorded: free
  test::delay(a, 20ms);
  device::fill<std::int32_t>(x.span(), 5, a);
  ready.record(a);
  b.wait(ready);
  device::copy<std::int32_t>(x.span(), y.span(), b);
  b.synchronize();
  CHECK(down(y) == std::vector<std::int32_t>(1000, 5));
  test::delay(a, 50ms);
  ready.record(a);
  CHECK_FALSE(ready.query());
  CHECK_THROWS_AS(a.synchronize_for(1ms), timeout_error);
  ready.synchronize();
  CHECK(ready.query());
}

TEST_CASE("the caller's stream, event and handle are used and left alone") {
  cudaStream_t raw = nullptr;
  cudaEvent_t point = nullptr;
  cublasHandle_t handle = nullptr;
  cuda::check(cudaStreamCreate(&raw), "cudaStreamCreate");
  cuda::check(cudaEventCreate(&point), "cudaEventCreate");
  cuda::check(cublasCreate(&handle), "cublasCreate");
  {
    stream s = stream::from_native(raw);
    cuda::event e = cuda::event::from_native(point);
    cuda::blas b = cuda::blas::from_native(handle);
    auto one = up(std::vector<float>{3}), two = up(std::vector<float>{4}),
         out = up(std::vector<float>{0});
    b.gemm<float>({1, 1, 1}, one.data(), two.data(), out.data(), s);
    e.record(s);
    e.synchronize();
    CHECK(down(out)[0] == 12.0f);
    stream legacy = stream::from_native(nullptr);
    device::fill<float>(out.span(), 1.0f, legacy);
    legacy.synchronize();
  }
  CHECK(cudaStreamQuery(raw) == cudaSuccess);
  CHECK(cudaEventQuery(point) == cudaSuccess);
  CHECK(cublasDestroy(handle) == CUBLAS_STATUS_SUCCESS);
  CHECK(cudaEventDestroy(point) == cudaSuccess);
  CHECK(cudaStreamDestroy(raw) == cudaSuccess);
}

namespace {

template <class T>
double gemm_error(bool ta, bool tb) {
  const std::size_t m = 37, n = 29, k = 53;
  const auto a = as<T>(noise(m * k, 1)), b = as<T>(noise(k * n, 2));
  const auto da = up(a), db = up(b);
  auto dc = up(std::vector<float>(m * n, 1.0f));
  cuda::blas blas;
  stream s;
  cuda::gemm_shape shape{.m = m, .n = n, .k = k, .a_transposed = ta, .b_transposed = tb, .beta = 1};
  blas.gemm<T, float>(shape, da.data(), db.data(), dc.data(), s);
  s.synchronize();
  const auto c = down(dc);
  double worst = 0;
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      double sum = 1;
      for (std::size_t l = 0; l < k; ++l)
        sum += double(float(a[ta ? l * m + i : i * k + l])) * float(b[tb ? j * k + l : l * n + j]);
      worst = std::max(worst, std::abs(sum - c[i * n + j]));
    }
  return worst;
}

} // namespace

TEST_CASE("matrix products of every orientation, in real fp32 and in bf16") {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      CHECK(gemm_error<float>(ta, tb) < 1e-5);
      CHECK(gemm_error<bf16>(ta, tb) < 1e-5); // products of bf16 are exact, sums are fp32
      CHECK(gemm_error<fp16>(ta, tb) < 1e-5);
    }
}
