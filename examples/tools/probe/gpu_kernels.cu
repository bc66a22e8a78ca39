// SPDX-License-Identifier: Apache-2.0
#include "gpu_kernels.hpp"

#include <polyrank/cuda/check.hpp>

#include <algorithm>

namespace polyrank::examples::gpu_kernels {

namespace {

constexpr unsigned threads = 256;

/// f(i) for all i < n, in a grid that strides.
template <class F>
__global__ void each(std::size_t n, F f) {
  for (std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x; i < n;
       i += std::size_t{gridDim.x} * threads)
    f(i);
}
template <class F>
void launch(std::size_t n, cudaStream_t s, F f) {
  if (n == 0) return;
  const auto blocks =
      static_cast<unsigned>(std::min<std::size_t>((n + threads - 1) / threads, 65535));
  each<<<blocks, threads, 0, s>>>(n, f);
  cuda::check(cudaGetLastError(), "kernel launch");
}

} // namespace

void fill_pattern(std::uint64_t* out, std::size_t words, std::uint64_t seed, cudaStream_t s) {
  launch(words, s, [=] __device__(std::size_t i) { out[i] = pattern(seed, i); });
}
void count_pattern_faults(const std::uint64_t* in, std::size_t words, std::uint64_t seed,
                          unsigned long long* count, cudaStream_t s) {
  launch(words, s, [=] __device__(std::size_t i) {
    if (in[i] != pattern(seed, i)) atomicAdd(count, 1ULL);
  });
}
void fill_units(std::uint16_t* out, std::size_t n, bool bf16, cudaStream_t s) {
  const unsigned one = bf16 ? 0x3f80 : 0x3c00, rest = bf16 ? 0x807f : 0x83ff;
  launch(n, s, [=] __device__(std::size_t i) {
    out[i] = static_cast<std::uint16_t>(one | (pattern(1, i) & rest));
  });
}
void fill_ramp(float* out, std::size_t n, float base, std::size_t start, cudaStream_t s) {
  launch(n, s, [=] __device__(std::size_t i) { out[i] = ramp(base, start + i); });
}
void count_ramp_faults(const float* in, std::size_t n, float base, float factor, std::size_t start,
                       unsigned long long* count, cudaStream_t s) {
  launch(n, s, [=] __device__(std::size_t i) {
    if (in[i] != factor * ramp(0, start + i) + base) atomicAdd(count, 1ULL);
  });
}

void add_bias(const float* z, const float* bias, float* a, int rows, int columns, bool relu,
              cudaStream_t s) {
  launch(static_cast<std::size_t>(rows) * columns, s, [=] __device__(std::size_t i) {
    const float v = z[i] + bias[i % columns];
    a[i] = relu && v < 0 ? 0 : v;
  });
}
void softmax_loss(const float* logits, const int* labels, float* loss, float* d, int rows,
                  int columns, cudaStream_t s) {
  launch(static_cast<std::size_t>(rows), s, [=] __device__(std::size_t r) {
    const float* z = logits + r * columns;
    float most = z[0], sum = 0;
    for (int c = 1; c < columns; ++c) most = fmaxf(most, z[c]);
    for (int c = 0; c < columns; ++c) sum += expf(z[c] - most);
    loss[r] = logf(sum) + most - z[labels[r]];
    for (int c = 0; c < columns; ++c)
      d[r * columns + c] = (expf(z[c] - most) / sum - (c == labels[r] ? 1.0F : 0.0F)) / rows;
  });
}
void relu_backward(const float* a, float* d, std::size_t n, cudaStream_t s) {
  launch(n, s, [=] __device__(std::size_t i) {
    if (!(a[i] > 0)) d[i] = 0;
  });
}
void sum_rows(const float* d, float* out, int rows, int columns, cudaStream_t s) {
  launch(static_cast<std::size_t>(columns), s, [=] __device__(std::size_t c) {
    float sum = 0;
    for (int r = 0; r < rows; ++r) sum += d[static_cast<std::size_t>(r) * columns + c];
    out[c] = sum;
  });
}

} // namespace polyrank::examples::gpu_kernels
