// The arithmetic of the classifier on a GPU: a model of classifier_ops (ops.hpp). cuBLAS for the
// layers, kernels of cuda_kernels.cu for the rest, AdamW from the library.
//
// Precision. fp32: everything. bf16 and fp16: the operands of matrix products are rounded to 16
// bits and multiplied on the matrix units, sums, activations and weights stay fp32. fp16 has a
// short range, so gradients are scaled up before rounding and down in the product.
//
// Batches come through pinned memory on a stream of their own: while one is computed with, the next
// is on its way.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train_classifier/cuda_kernels.hpp"
#include "train_classifier/ops.hpp"
#include "train_classifier/trace_window.hpp"

#include <polyrank/backend/buffer.hpp>
#include <polyrank/cuda/backend.hpp>
#include <polyrank/cuda/blas.hpp>
#include <polyrank/cuda/optimizer.hpp>
#include <polyrank/cuda/timeline.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <tuple>
#include <vector>

namespace polyrank::examples {

/// Type of the operands of matrix products.
enum class precision { fp32, bf16, fp16 };

class cuda_ops {
 public:
  using backend = cuda::backend;
  using stream = cuda::stream;

  /// `trace` may be null; it gets a span for each piece of work in the steps of `window`.
  explicit cuda_ops(precision p, cuda::timeline* trace = nullptr, trace_window window = {})
      : precision_(p), trace_(trace), window_(window) {
    for (cudaEvent_t& e : marks_) cuda::check(cudaEventCreate(&e), "cudaEventCreate");
  }
  cuda_ops(const cuda_ops&) = delete;
  cuda_ops& operator=(const cuda_ops&) = delete;
  ~cuda_ops() {
    if (std::uncaught_exceptions() > 0) return;
    for (cudaEvent_t e : marks_) static_cast<void>(cudaEventDestroy(e));
  }

  void linear(stream& s, const float* x, const float* w, const float* b, float* y, std::size_t rows,
              std::size_t inputs, std::size_t outputs) {
    const auto t = span(s, "linear");
    product(s, {.m = rows, .n = outputs, .k = inputs, .b_transposed = true}, x, w, y, 1);
    cuda_kernels::add_bias(s, y, b, rows, outputs);
  }
  void linear_grad_weights(stream& s, const float* x, const float* dy, float* dw, std::size_t rows,
                           std::size_t inputs, std::size_t outputs) {
    const auto t = span(s, "weight gradient");
    product(s, {.m = outputs, .n = inputs, .k = rows, .a_transposed = true}, dy, x, dw,
            gradient_scale);
  }
  void linear_grad_bias(stream& s, const float* dy, float* db, std::size_t rows,
                        std::size_t outputs) {
    const auto t = span(s, "bias gradient");
    cuda_kernels::column_sums(s, dy, db, rows, outputs);
  }
  void linear_grad_input(stream& s, const float* dy, const float* w, float* dx, std::size_t rows,
                         std::size_t inputs, std::size_t outputs) {
    const auto t = span(s, "input gradient");
    product(s, {.m = rows, .n = inputs, .k = outputs}, dy, w, dx, gradient_scale);
  }
  void gelu(stream& s, const float* z, float* a, std::size_t count) {
    const auto t = span(s, "gelu");
    cuda_kernels::gelu(s, z, a, count);
  }
  void gelu_grad(stream& s, const float* z, const float* da, float* dz, std::size_t count) {
    const auto t = span(s, "gelu gradient");
    cuda_kernels::gelu_grad(s, z, da, dz, count);
  }
  void softmax_cross_entropy(stream& s, const float* logits, const std::uint8_t* labels,
                             float* d_logits, float* loss, std::size_t rows, std::size_t classes) {
    const auto t = span(s, "loss");
    cuda_kernels::softmax_cross_entropy(s, logits, labels, d_logits, loss, rows, classes);
  }
  void classify(stream& s, const float* logits, float* best, float* confidence, std::size_t rows,
                std::size_t classes) {
    cuda_kernels::classify(s, logits, best, confidence, rows, classes);
  }
  template <elementwise_optimizer O>
  void update(stream& s, std::span<float> params, std::span<const float> grads,
              state_planes<O> state, const typename O::hyper& hyper, float grad_scale) {
    const auto t = span(s, "update");
    cuda::update_range<float, O::state_count> r{
        .value = params.data(), .gradient = grads.data(), .count = params.size()};
    for (std::size_t k = 0; k < O::state_count; ++k) r.state[k] = state[k].data();
    cuda::optimizer<O>({r}).step(hyper, {.factor = grad_scale}, s);
  }

  template <element T>
  void narrow(stream& s, const float* in, T* out, std::size_t count, const float* factor) {
    cuda_kernels::narrow(s, in, out, count, factor);
  }

  /// Device memory with the elements of `from`, for the work that `s` gets before the second next
  /// call with this type. `space` is not needed: the ring has memory of its own.
  template <class T>
  const T* stage(stream& s, std::span<const T> from, std::span<T> /*space*/) {
    auto& r = std::get<ring<T>>(rings_);
    // All work that reads the batch before this one has been enqueued.
    if (r.calls > 0) r.slots[(r.calls - 1) % r.slots.size()].used.record(s);
    auto& slot = r.slots[r.calls++ % r.slots.size()];
    slot.copied.synchronize(); // the pinned memory is free (long since)
    if (slot.pinned.size() < from.size()) {
      slot.used.synchronize();
      slot.pinned = buffer<T>(from.size(), cuda::pinned_memory());
      slot.device = buffer<T>(from.size(), backend::memory());
    }
    std::memcpy(slot.pinned.data(), from.data(), from.size_bytes());
    copies_.wait(slot.used);
    {
      const auto t = span(copies_, "batch to device", span_kind::other);
      backend::copy<T>(slot.pinned.span().first(from.size()), slot.device.span().first(from.size()),
                       copies_);
    }
    slot.copied.record(copies_);
    s.wait(slot.copied);
    return slot.device.data();
  }
  static constexpr bool stages = false;

  void write(stream& s, std::span<const float> from, std::span<float> to) {
    backend::copy<float>(from, to, s);
  }
  void read_back(stream& s, std::span<const float> from, std::vector<float>& to) {
    to.resize(from.size());
    backend::copy<float>(from, std::span(to), s);
    s.synchronize();
  }

  [[nodiscard]] static std::pmr::memory_resource& copy_memory() { return cuda::pinned_memory(); }
  [[nodiscard]] static memory_state memory() {
    std::size_t free = 0, total = 0;
    cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return {.used = total - free, .free = free};
  }

  void mark(stream& s, std::size_t which) {
    cuda::check(cudaEventRecord(marks_[which], s.native()), "cudaEventRecord");
  }
  void begin_step(std::size_t step) noexcept {
    if (trace_ != nullptr) trace_->enable(window_.holds(step));
  }
  [[nodiscard]] double elapsed(std::size_t from, std::size_t to) const {
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, marks_[from], marks_[to]), "cudaEventElapsedTime");
    return static_cast<double>(ms);
  }

 private:
  static constexpr float gradient_scale = 1024; // of fp16; a power of two, so exact

  template <class T>
  struct ring {
    struct slot {
      buffer<T> pinned, device;
      cuda::event copied, used;
    };
    std::array<slot, 4> slots;
    std::size_t calls = 0;
  };

  [[nodiscard]] cuda::timeline::scope span(stream& s, const char* name,
                                           span_kind kind = span_kind::compute) {
    return {trace_, s, name, kind};
  }

  /// c = a b in the chosen precision; a is a gradient where a_scale is not 1.
  void product(stream& s, const cuda::gemm_shape& g, const float* a, const float* b, float* c,
               float a_scale) {
    if (precision_ == precision::fp32) return blas_.gemm<float>(g, a, b, c, s);
    if (precision_ == precision::bf16)
      product_as<bf16>(s, g, a, b, c, 1);
    else
      product_as<fp16>(s, g, a, b, c, a_scale);
  }
  template <class T>
  void product_as(stream& s, cuda::gemm_shape g, const float* a, const float* b, float* c,
                  float a_scale) {
    const std::size_t na = g.m * g.k, nb = g.k * g.n;
    for (auto [space, count] : {std::pair(&short_a_, na), std::pair(&short_b_, nb)})
      if (space->size() < count) {
        s.synchronize(); // grows in the first steps only
        *space = buffer<std::uint16_t>(count, backend::memory());
      }
    T *ta = reinterpret_cast<T*>(short_a_.data()), *tb = reinterpret_cast<T*>(short_b_.data());
    cuda_kernels::shorten(s, a, ta, na, a_scale);
    cuda_kernels::shorten(s, b, tb, nb, 1.0f);
    g.alpha = 1 / a_scale;
    blas_.gemm<T, float>(g, ta, tb, c, s);
  }

  precision precision_;
  cuda::timeline* trace_;
  trace_window window_;
  cuda::blas blas_;
  cuda::stream copies_;
  std::tuple<ring<float>, ring<std::uint8_t>> rings_;
  buffer<std::uint16_t> short_a_, short_b_;
  std::array<cudaEvent_t, 8> marks_{};
};

static_assert(classifier_ops<cuda_ops>);

} // namespace polyrank::examples
