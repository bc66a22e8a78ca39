// Matrix products on one CPU thread: CBLAS, or a plain loop where a sanitizer must see every
// access.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace polyrank::examples {

/// Whether a factor is read as it is or transposed.
enum class as : unsigned char { is, transposed };

/// C (m x n) = op(A) (m x k) * op(B) (k x n). Row-major, packed, C is overwritten. One thread, so
/// equal shapes give equal bits.
void gemm(as op_a, as op_b, std::size_t m, std::size_t n, std::size_t k, const float* a,
          const float* b, float* c);

/// "OpenBLAS for Haswell", "CBLAS" or "plain loops".
[[nodiscard]] std::string gemm_library();

} // namespace polyrank::examples
