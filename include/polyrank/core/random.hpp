// Random numbers as a pure function of (seed, a, b): no generator to carry, save or seed per rank,
// and the same numbers with every compiler and standard library.
//
//     float w = uniform(seed, layer, index); // in [0, 1)
//
// Key them by what they are for (step, global row, parameter index), never by rank or thread.
//
// The function is Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hd.hpp>

#include <cstdint>

namespace polyrank {

/// Four independent words of 32 random bits.
struct random_words {
  std::uint32_t w[4];
  friend constexpr bool operator==(const random_words&, const random_words&) noexcept = default;
};

/// Philox4x32-10: ten rounds of two 32 x 32 -> 64 bit products.
[[nodiscard]] POLYRANK_HD constexpr random_words philox(random_words counter, std::uint32_t key0,
                                                        std::uint32_t key1) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xd2511f53} * counter.w[0];
    const std::uint64_t p1 = std::uint64_t{0xcd9e8d57} * counter.w[2];
    counter = {{static_cast<std::uint32_t>(p1 >> 32) ^ counter.w[1] ^ key0,
                static_cast<std::uint32_t>(p1),
                static_cast<std::uint32_t>(p0 >> 32) ^ counter.w[3] ^ key1,
                static_cast<std::uint32_t>(p0)}};
    key0 += 0x9e3779b9;
    key1 += 0xbb67ae85;
  }
  return counter;
}

/// 128 random bits for the counter (a, b) under `seed`.
[[nodiscard]] POLYRANK_HD constexpr random_words random_at(std::uint64_t seed, std::uint64_t a,
                                                           std::uint64_t b) noexcept {
  return philox({{static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32),
                  static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32)}},
                static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
}

/// A multiple of 2^-24 in [0, 1).
[[nodiscard]] POLYRANK_HD constexpr float uniform(std::uint64_t seed, std::uint64_t a,
                                                  std::uint64_t b) noexcept {
  return static_cast<float>(random_at(seed, a, b).w[0] >> 8) * 0x1p-24f;
}

} // namespace polyrank
