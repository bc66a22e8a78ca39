// The arithmetic of the classifier on host memory: a model of classifier_ops (ops.hpp). Every
// function enqueues one piece of work on a host stream and returns; pointers must stay valid until
// it has run.
//
// Matrices are row-major; `rows` are the pictures of a block, weights are [outputs][inputs].
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/progress.hpp"
#include "train_classifier/gemm.hpp"
#include "train_classifier/kernels.hpp"
#include "train_classifier/ops.hpp"
#include "train_classifier/trace_window.hpp"

#include <polyrank/host/backend.hpp>
#include <polyrank/host/timeline.hpp>
#include <polyrank/optim/apply.hpp>
#include <polyrank/zero/host_limits.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

namespace polyrank::examples {

class host_ops {
 public:
  using backend = host::backend;
  using stream = host::stream;

  host_ops() = default;
  /// `trace` gets a span for each piece of work in the steps of `window`.
  host_ops(host::timeline& trace, trace_window window) : trace_(&trace), window_(window) {}

  /// y = x wT + b
  void linear(stream& s, const float* x, const float* w, const float* b, float* y, std::size_t rows,
              std::size_t inputs, std::size_t outputs) {
    const auto t = span(s, "linear");
    s.enqueue([=] {
      gemm(as::is, as::transposed, rows, outputs, inputs, x, w, y);
      kernels::add_bias(y, b, rows, outputs);
    });
  }
  /// dw = dyT x
  void linear_grad_weights(stream& s, const float* x, const float* dy, float* dw, std::size_t rows,
                           std::size_t inputs, std::size_t outputs) {
    const auto t = span(s, "weight gradient");
    s.enqueue([=] { gemm(as::transposed, as::is, outputs, inputs, rows, dy, x, dw); });
  }
  /// db = column sums of dy
  void linear_grad_bias(stream& s, const float* dy, float* db, std::size_t rows,
                        std::size_t outputs) {
    const auto t = span(s, "bias gradient");
    s.enqueue([=] { kernels::column_sums(dy, db, rows, outputs); });
  }
  /// dx = dy w
  void linear_grad_input(stream& s, const float* dy, const float* w, float* dx, std::size_t rows,
                         std::size_t inputs, std::size_t outputs) {
    const auto t = span(s, "input gradient");
    s.enqueue([=] { gemm(as::is, as::is, rows, inputs, outputs, dy, w, dx); });
  }
  /// a = gelu(z)
  void gelu(stream& s, const float* z, float* a, std::size_t count) {
    const auto t = span(s, "gelu");
    s.enqueue([=] { kernels::gelu(z, a, count); });
  }
  /// dz = da * gelu'(z); dz may be da
  void gelu_grad(stream& s, const float* z, const float* da, float* dz, std::size_t count) {
    const auto t = span(s, "gelu gradient");
    s.enqueue([=] { kernels::gelu_grad(z, da, dz, count); });
  }
  /// *loss = mean over rows; d_logits = its gradient (may be the logits themselves)
  void softmax_cross_entropy(stream& s, const float* logits, const std::uint8_t* labels,
                             float* d_logits, float* loss, std::size_t rows, std::size_t classes) {
    const auto t = span(s, "loss");
    s.enqueue(
        [=] { *loss = kernels::softmax_cross_entropy(logits, labels, d_logits, rows, classes); });
  }
  /// best[r] = most probable class of row r, confidence[r] = its probability
  void classify(stream& s, const float* logits, float* best, float* confidence, std::size_t rows,
                std::size_t classes) {
    const auto t = span(s, "classify");
    s.enqueue([=] { kernels::classify(logits, best, confidence, rows, classes); });
  }
  /// One optimizer step; see polyrank::apply.
  template <elementwise_optimizer O>
  void update(stream& s, std::span<float> params, std::span<const float> grads,
              state_planes<O> state, const typename O::hyper& hyper, float grad_scale) {
    const auto t = span(s, "update");
    s.enqueue([=] { apply<O>(params, grads, state, hyper, grad_scale); });
  }

  /// out = in * *factor, rounded to T; `factor` is read when the work runs.
  template <element T>
  void narrow(stream& s, const float* in, T* out, std::size_t count, const float* factor) {
    s.enqueue([=] {
      for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<T>(in[i] * *factor);
    });
  }

  /// Where kernels may read `from`: here the same memory. `space` is device memory of equal size.
  template <class T>
  const T* stage(stream&, std::span<const T> from, std::span<T> /*space*/) {
    return from.data();
  }
  /// True where stage() copies, and `space` is needed.
  static constexpr bool stages = false;

  /// to = from, which lies in host memory; the stream may still be reading it on return.
  void write(stream& s, std::span<const float> from, std::span<float> to) {
    backend::copy(from, to, s);
  }

  /// to = from, in host memory; blocks until it is there.
  void read_back(stream& s, std::span<const float> from, std::vector<float>& to) {
    s.synchronize();
    to.assign(from.begin(), from.end());
  }

  /// Host memory into which copies run while the stream works.
  [[nodiscard]] static std::pmr::memory_resource& copy_memory() {
    return *std::pmr::new_delete_resource();
  }
  [[nodiscard]] static memory_state memory() {
    return {.used = resident_bytes(), .free = read_host_limits().free()};
  }

  void begin_step(std::size_t step) noexcept {
    if (trace_ != nullptr) trace_->enable(window_.holds(step));
  }

  /// Notes the time when the stream comes to this point.
  void mark(stream& s, std::size_t which) {
    s.enqueue([this, which] { marks_[which] = std::chrono::steady_clock::now(); });
  }
  /// Milliseconds between two marks that the host knows to have passed.
  [[nodiscard]] double elapsed(std::size_t from, std::size_t to) const {
    return std::chrono::duration<double, std::milli>(marks_[to] - marks_[from]).count();
  }

 private:
  [[nodiscard]] host::timeline::scope span(stream& s, const char* name) {
    return {trace_, s, name};
  }

  host::timeline* trace_ = nullptr;
  trace_window window_;
  std::array<std::chrono::steady_clock::time_point, 8> marks_{};
};

static_assert(classifier_ops<host_ops>);

} // namespace polyrank::examples
