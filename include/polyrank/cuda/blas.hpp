// Matrix products through cuBLAS, for matrices as C++ has them: row after row.
//
//     cuda::blas blas;                                           // or blas::from_native(handle)
//     blas.gemm<float>({m, n, k}, x, w, y, stream);              // y = x w
//     blas.gemm<bf16>({m, n, k, .b_transposed = true}, x, w, y, stream);
//
// fp32 is real fp32 (no TF32); 16-bit floats are multiplied on the matrix units and summed in fp32.
// A handle of our own has a workspace of its own, so that equal shapes give equal bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/buffer.hpp>
#include <polyrank/core/dtype.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/cuda/memory.hpp>
#include <polyrank/cuda/stream.hpp>

#include <cublas_v2.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace polyrank::cuda {

/// A call into cuBLAS failed.
class cublas_error : public comm_error {
 public:
  cublas_error(const std::string& call, int code, const std::string& reason,
               call_site site = call_site::here())
      : comm_error(call, code, reason, site) {}
};

/// Throws cublas_error naming `call` unless `code` is CUBLAS_STATUS_SUCCESS.
inline void check(cublasStatus_t code, const char* call, call_site site = call_site::here()) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  throw cublas_error(call, static_cast<int>(code), cublasGetStatusString(code), site);
}

/// c (m x n) = alpha * a (m x k) * b (k x n) + beta * c. A transposed operand is stored the other
/// way round: a as k x m, b as n x k. Rows follow each other without gaps.
struct gemm_shape {
  std::size_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
  float alpha = 1, beta = 0;
};

/// A cuBLAS handle. Move-only; not thread-safe.
class blas {
 public:
  /// A handle on the current device.
  explicit blas(std::size_t workspace_bytes = std::size_t{32} << 20)
      : workspace_(workspace_bytes, device_memory()), owned_(true) {
    check(cublasCreate(&native_), "cublasCreate");
    check(cublasSetMathMode(native_, CUBLAS_DEFAULT_MATH), "cublasSetMathMode");
  }
  /// A view of the caller's handle; its settings, but for the stream, stay as they are.
  [[nodiscard]] static blas from_native(cublasHandle_t native) { return blas(native); }

  blas(blas&& other) noexcept
      : native_(other.native_), workspace_(std::move(other.workspace_)),
        owned_(std::exchange(other.owned_, false)) {}
  blas& operator=(blas&&) = delete;
  ~blas() {
    if (owned_ && !detail::unwinding()) static_cast<void>(cublasDestroy(native_));
  }

  [[nodiscard]] cublasHandle_t native() const noexcept { return native_; }

  /// One product of matrices of In, result of type Out (In or float).
  template <element In, element Out = In>
  void gemm(const gemm_shape& g, const In* a, const In* b, Out* c, stream& s,
            call_site site = call_site::here()) {
    if (g.m == 0 || g.n == 0) return;
    constexpr std::size_t most = std::numeric_limits<int>::max();
    expects(g.m <= most && g.n <= most && g.k <= most, "gemm: ", g.m, " x ", g.n, " x ", g.k,
            " has a side above 2^31 - 1");
    scoped_device here(s.device());
    use(s);
    const auto m = static_cast<int>(g.m), n = static_cast<int>(g.n), k = static_cast<int>(g.k);
    // cuBLAS counts by columns, so it sees our matrices transposed: c^T = b^T a^T.
    check(cublasGemmEx(native_, g.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                       g.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &g.alpha, b, type<In>(),
                       g.b_transposed ? k : n, a, type<In>(), g.a_transposed ? m : k, &g.beta, c,
                       type<Out>(), n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "cublasGemmEx", site);
  }

 private:
  explicit blas(cublasHandle_t native) : native_(native) {}

  void use(const stream& s) {
    check(cublasSetStream(native_, s.native()), "cublasSetStream");
    // Setting the stream takes the workspace away.
    if (workspace_.size() > 0)
      check(cublasSetWorkspace(native_, workspace_.data(), workspace_.size()),
            "cublasSetWorkspace");
  }

  template <element T>
  static constexpr cudaDataType_t type() noexcept {
    static_assert(dtype_of<T> == dtype::f32 || dtype_of<T> == dtype::bf16 ||
                      dtype_of<T> == dtype::f16,
                  "gemm: float, bf16 or fp16");
    return dtype_of<T> == dtype::f32    ? CUDA_R_32F
           : dtype_of<T> == dtype::bf16 ? CUDA_R_16BF
                                        : CUDA_R_16F;
  }

  cublasHandle_t native_ = nullptr;
  buffer<std::byte> workspace_;
  bool owned_ = false;
};

} // namespace polyrank::cuda
