// Rounding to bf16 up or down at random, so that the expectation is the value: small updates to
// bf16 weights are not lost. Keyed by (seed, step, element), never by rank or thread: any split of
// the parameters over ranks and any restart gives the same bits.
//
//     stochastic_rounding rounding{.seed = 1, .step = step};
//     weights[i] = rounding(master[i], global_index);
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/dtype.hpp>
#include <polyrank/core/hd.hpp>
#include <polyrank/core/random.hpp>

#include <bit>
#include <cstdint>

namespace polyrank {

/// Adds 16 random bits below the last bit that bf16 keeps, then cuts. NaN and infinity stay.
[[nodiscard]] POLYRANK_HD constexpr bf16 round_stochastically(float x,
                                                              std::uint32_t random) noexcept {
#if defined(__CUDA_ARCH__)
  const std::uint32_t u = __float_as_uint(x);
#else
  const auto u = std::bit_cast<std::uint32_t>(x);
#endif
  bf16 out;
  if ((u & 0x7f800000u) == 0x7f800000u)
    out.bits = static_cast<std::uint16_t>((u >> 16) | ((u & 0x7fffffu) != 0 ? 0x40u : 0u));
  else
    out.bits = static_cast<std::uint16_t>((u + (random & 0xffffu)) >> 16);
  return out;
}

struct stochastic_rounding {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;

  /// @param index of the element in the whole model (the logical index)
  [[nodiscard]] POLYRANK_HD constexpr bf16 operator()(float x, std::uint64_t index) const noexcept {
    // One call of the generator has 128 bits, enough for eight elements.
    const random_words r = random_at(seed, step, index / 8);
    return round_stochastically(x, r.w[index % 8 / 2] >> (index % 2 * 16));
  }
};

} // namespace polyrank
