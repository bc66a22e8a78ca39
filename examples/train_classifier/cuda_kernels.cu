// See cuda_kernels.hpp. Also the one place where the classifier's kernels of the library are made.
// SPDX-License-Identifier: Apache-2.0
#include "train_classifier/cuda_kernels.hpp"

#include <polyrank/cuda.cuh>

#include <cmath>

POLYRANK_INSTANTIATE_CUDA_OPS();
POLYRANK_INSTANTIATE_CUDA_OPTIMIZER(polyrank::adamw, float);
POLYRANK_INSTANTIATE_CUDA_ZERO();
POLYRANK_INSTANTIATE_CUDA_ZERO_NUMBERS(polyrank::adamw);
POLYRANK_INSTANTIATE_CUDA_ZERO_NUMBERS(polyrank::lion);
POLYRANK_INSTANTIATE_CUDA_ZERO_NUMBERS(polyrank::sgd);
POLYRANK_INSTANTIATE_CUDA_ZERO_UPDATE(polyrank::adamw, float);
POLYRANK_INSTANTIATE_CUDA_ZERO_UPDATE(polyrank::adamw, polyrank::bf16);
POLYRANK_INSTANTIATE_CUDA_ZERO_UPDATE(polyrank::adamw, polyrank::fp16);
POLYRANK_INSTANTIATE_CUDA_ZERO_UPDATE(polyrank::lion, float);
POLYRANK_INSTANTIATE_CUDA_ZERO_UPDATE(polyrank::sgd, float);

namespace polyrank::examples::cuda_kernels {
namespace {

using cuda::detail::blocks_for;
constexpr unsigned threads = 256;

__device__ std::size_t index() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

constexpr float gelu_scale = 0.7978845608028654f; // sqrt(2 / pi)
constexpr float gelu_cubic = 0.044715f;

__global__ void add_bias_kernel(float* y, const float* b, std::size_t count, std::size_t columns) {
  const std::size_t i = index();
  if (i < count) y[i] += b[i % columns];
}

/// A block sums 32 columns: 8 threads a column, each every 8th row; then one order.
__global__ void column_sums_kernel(const float* y, float* sums, std::size_t rows,
                                   std::size_t columns) {
  __shared__ float part[8][33];
  const unsigned lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const std::size_t c = static_cast<std::size_t>(blockIdx.x) * 32 + lane;
  float sum = 0;
  if (c < columns)
    for (std::size_t r = group; r < rows; r += 8) sum += y[r * columns + c];
  part[group][lane] = sum;
  __syncthreads();
  if (group != 0 || c >= columns) return;
  sum = 0;
  for (unsigned g = 0; g < 8; ++g) sum += part[g][lane];
  sums[c] = sum;
}

__global__ void gelu_kernel(const float* z, float* a, std::size_t count) {
  const std::size_t i = index();
  if (i >= count) return;
  const float x = z[i];
  a[i] = 0.5f * x * (1 + tanhf(gelu_scale * (x + gelu_cubic * x * x * x)));
}

__global__ void gelu_grad_kernel(const float* z, const float* da, float* dz, std::size_t count) {
  const std::size_t i = index();
  if (i >= count) return;
  const float x = z[i];
  const float t = tanhf(gelu_scale * (x + gelu_cubic * x * x * x));
  const float inner = gelu_scale * (1 + 3 * gelu_cubic * x * x);
  dz[i] = da[i] * (0.5f * (1 + t) + 0.5f * x * (1 - t * t) * inner);
}

/// One block: a thread takes every 256th row.
__global__ void softmax_cross_entropy_kernel(const float* logits, const std::uint8_t* labels,
                                             float* d_logits, float* loss, std::size_t rows,
                                             std::size_t classes) {
  __shared__ float part[threads];
  const float weight = 1 / static_cast<float>(rows);
  float total = 0;
  for (std::size_t r = threadIdx.x; r < rows; r += threads) {
    const float* row = logits + r * classes;
    float* out = d_logits + r * classes;
    float high = row[0];
    for (std::size_t c = 1; c < classes; ++c) high = fmaxf(high, row[c]);
    const float at_label = row[labels[r]];
    float sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += out[c] = expf(row[c] - high);
    total += logf(sum) + high - at_label;
    for (std::size_t c = 0; c < classes; ++c)
      out[c] = out[c] / sum * weight - (c == labels[r] ? weight : 0);
  }
  part[threadIdx.x] = total;
  __syncthreads();
  for (unsigned half = threads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *loss = part[0] * weight;
}

__global__ void classify_kernel(const float* logits, float* best, float* confidence,
                                std::size_t rows, std::size_t classes) {
  const std::size_t r = index();
  if (r >= rows) return;
  const float* row = logits + r * classes;
  std::size_t high = 0;
  for (std::size_t c = 1; c < classes; ++c)
    if (row[c] > row[high]) high = c;
  float sum = 0;
  for (std::size_t c = 0; c < classes; ++c) sum += expf(row[c] - row[high]);
  best[r] = static_cast<float>(high);
  confidence[r] = 1 / sum;
}

template <class T>
__global__ void shorten_kernel(const float* in, T* out, std::size_t count, float factor) {
  const std::size_t i = index();
  if (i < count) out[i] = cuda::detail::from_float<T>(in[i] * factor);
}

template <class T>
__global__ void narrow_kernel(const float* in, T* out, std::size_t count, const float* factor) {
  const std::size_t i = index();
  if (i < count) out[i] = cuda::detail::from_float<T>(in[i] * *factor);
}

void launched() { cuda::check(cudaGetLastError(), "kernel launch"); }

} // namespace

void add_bias(cuda::stream& s, float* y, const float* b, std::size_t rows, std::size_t columns) {
  const std::size_t count = rows * columns;
  add_bias_kernel<<<blocks_for(count, threads), threads, 0, s.native()>>>(y, b, count, columns);
  launched();
}
void column_sums(cuda::stream& s, const float* y, float* sums, std::size_t rows,
                 std::size_t columns) {
  column_sums_kernel<<<blocks_for(columns, 32), threads, 0, s.native()>>>(y, sums, rows, columns);
  launched();
}
void gelu(cuda::stream& s, const float* z, float* a, std::size_t count) {
  gelu_kernel<<<blocks_for(count, threads), threads, 0, s.native()>>>(z, a, count);
  launched();
}
void gelu_grad(cuda::stream& s, const float* z, const float* da, float* dz, std::size_t count) {
  gelu_grad_kernel<<<blocks_for(count, threads), threads, 0, s.native()>>>(z, da, dz, count);
  launched();
}
void softmax_cross_entropy(cuda::stream& s, const float* logits, const std::uint8_t* labels,
                           float* d_logits, float* loss, std::size_t rows, std::size_t classes) {
  softmax_cross_entropy_kernel<<<1, threads, 0, s.native()>>>(logits, labels, d_logits, loss, rows,
                                                              classes);
  launched();
}
void classify(cuda::stream& s, const float* logits, float* best, float* confidence,
              std::size_t rows, std::size_t classes) {
  classify_kernel<<<blocks_for(rows, threads), threads, 0, s.native()>>>(logits, best, confidence,
                                                                         rows, classes);
  launched();
}
template <class T>
void shorten(cuda::stream& s, const float* in, T* out, std::size_t count, float factor) {
  shorten_kernel<T><<<blocks_for(count, threads), threads, 0, s.native()>>>(in, out, count, factor);
  launched();
}
template void shorten<bf16>(cuda::stream&, const float*, bf16*, std::size_t, float);
template void shorten<fp16>(cuda::stream&, const float*, fp16*, std::size_t, float);
template <class T>
void narrow(cuda::stream& s, const float* in, T* out, std::size_t count, const float* factor) {
  narrow_kernel<T><<<blocks_for(count, threads), threads, 0, s.native()>>>(in, out, count, factor);
  launched();
}
template void narrow<bf16>(cuda::stream&, const float*, bf16*, std::size_t, const float*);
template void narrow<fp16>(cuda::stream&, const float*, fp16*, std::size_t, const float*);

} // namespace polyrank::examples::cuda_kernels
