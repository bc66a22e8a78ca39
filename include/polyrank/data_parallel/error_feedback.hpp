// Reduce policy: compress to 16 bits, and add what was rounded away to the next step's gradient.
//
// With residual e (zero at the start), each step sends q = bf16(g + e) and keeps e = (g + e) - q:
// no part of a gradient is lost for good, it only arrives later (Seide et al., 1-bit SGD, 2014, for
// the idea). `Inner` carries the rounded values: all_to_all_sum<bf16> sends them as they are and
// adds in fp32.
//
// The residual is state: one arena of the size of the gradients, kept between steps. It belongs in
// a checkpoint; a run that resumes without it loses one step's rounding errors, nothing else.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/data_parallel/all_to_all_sum.hpp>

#include <algorithm>

#include <cstddef>
#include <span>
#include <string_view>

namespace polyrank {

template <class Inner = all_to_all_sum<bf16>>
struct error_feedback {
  static constexpr std::string_view name = "error_feedback";
  /// Elements at the front of the scratch that belong to the bucket and are kept between steps.
  [[nodiscard]] static constexpr std::size_t kept(std::size_t count) noexcept { return count; }

  Inner inner{};

  /// Throws what `Inner` does. @collective
  template <class C>
  void check(C& comm) const {
    if constexpr (requires { inner.check(comm); }) inner.check(comm);
  }
  [[nodiscard]] std::size_t blocks_per_rank(int ranks) const {
    return inner.blocks_per_rank(ranks);
  }
  /// Working memory behind the kept part: rounded values in both types, or what `Inner` needs.
  [[nodiscard]] std::size_t scratch(std::size_t count, int ranks) const {
    return std::max(inner.scratch(count, ranks), 2 * count);
  }

  template <class C>
    requires reduce_policy<Inner, C, float> && cast_operations<typename C::backend, float, bf16>
  void issue(C& comm, std::span<float> data, std::span<float> residual, std::span<float> scratch,
             on<typename C::backend::stream> where) const {
    using backend = typename C::backend;
    const std::size_t n = data.size();
    const std::span<bf16> rounded{reinterpret_cast<bf16*>(scratch.data()), n};
    const std::span<float> sent = scratch.subspan(n, n);
    backend::template add<float>(data, residual, data, where.stream);
    backend::template cast<bf16, float>(data, rounded, where.stream);
    backend::template cast<float, bf16>(rounded, sent, where.stream);
    backend::template copy<float>(data, residual, where.stream);
    backend::template copy<float>(sent, data, where.stream);
    backend::template scale<float>(sent, -1.0f, where.stream);
    backend::template add<float>(residual, sent, residual, where.stream);
    inner.issue(comm, data, scratch, where);
  }
};

} // namespace polyrank
