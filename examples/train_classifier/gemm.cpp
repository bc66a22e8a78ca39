// SPDX-License-Identifier: Apache-2.0
#include "train_classifier/gemm.hpp"

#include <polyrank/core/error.hpp>

#include <algorithm>
#include <limits>

#if !defined(__SANITIZE_THREAD__)
#include <cblas.h>

// Only OpenBLAS has these; the program also links with another CBLAS.
extern "C" {
__attribute__((weak)) void openblas_set_num_threads(int);
__attribute__((weak)) char* openblas_get_corename(void);
}
#endif

namespace polyrank::examples {

#if defined(__SANITIZE_THREAD__)

void gemm(as op_a, as op_b, std::size_t m, std::size_t n, std::size_t k, const float* a,
          const float* b, float* c) {
  for (std::size_t i = 0; i < m; ++i) {
    float* row = c + i * n;
    std::fill(row, row + n, 0.0f);
    for (std::size_t p = 0; p < k; ++p) {
      const float factor = op_a == as::is ? a[i * k + p] : a[p * m + i];
      if (op_b == as::is)
        for (std::size_t j = 0; j < n; ++j) row[j] += factor * b[p * n + j];
      else
        for (std::size_t j = 0; j < n; ++j) row[j] += factor * b[j * k + p];
    }
  }
}

std::string gemm_library() { return "plain loops"; }

#else

void gemm(as op_a, as op_b, std::size_t m, std::size_t n, std::size_t k, const float* a,
          const float* b, float* c) {
  if (m == 0 || n == 0) return;
  [[maybe_unused]] static const bool single = [] {
    if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
    return true;
  }();
  constexpr auto most = static_cast<std::size_t>(std::numeric_limits<int>::max());
  expects(std::max({m, n, k}) <= most, "gemm: ", m, " x ", n, " x ", k,
          " is more than this CBLAS takes");
  const auto as_int = [](std::size_t x) { return static_cast<int>(x); };
  cblas_sgemm(CblasRowMajor, op_a == as::is ? CblasNoTrans : CblasTrans,
              op_b == as::is ? CblasNoTrans : CblasTrans, as_int(m), as_int(n), as_int(k), 1.0f, a,
              as_int(std::max<std::size_t>(1, op_a == as::is ? k : m)), b,
              as_int(std::max<std::size_t>(1, op_b == as::is ? n : k)), 0.0f, c, as_int(n));
}

std::string gemm_library() {
  return openblas_get_corename != nullptr ? detail::cat("OpenBLAS for ", openblas_get_corename())
                                          : "CBLAS";
}

#endif

} // namespace polyrank::examples
