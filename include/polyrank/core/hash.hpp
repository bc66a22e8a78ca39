// 64-bit hashing for fingerprints and digests: order-sensitive, the same on every machine of one
// byte order. Not cryptographic.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hd.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace polyrank {

/// A bijective scrambling of 64 bits (the finaliser of splitmix64, Steele et al. 2014).
[[nodiscard]] POLYRANK_HD constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Folds `value` into `seed`; order matters.
[[nodiscard]] POLYRANK_HD constexpr std::uint64_t hash_combine(std::uint64_t seed,
                                                               std::uint64_t value) noexcept {
  return mix(seed ^ mix(value));
}

/// Hash of `bytes` bytes.
[[nodiscard]] inline std::uint64_t hash_bytes(const void* data, std::size_t bytes,
                                              std::uint64_t seed = 0) noexcept {
  const auto* p = static_cast<const unsigned char*>(data);
  std::uint64_t h = hash_combine(seed, bytes);
  std::size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, p + i, 8);
    h = hash_combine(h, word);
  }
  std::uint64_t tail = 0;
  if (i < bytes) std::memcpy(&tail, p + i, bytes - i);
  return hash_combine(h, tail);
}

[[nodiscard]] inline std::uint64_t hash_text(std::string_view text,
                                             std::uint64_t seed = 0) noexcept {
  return hash_bytes(text.data(), text.size(), seed);
}

/// 16 lower-case hexadecimal digits.
[[nodiscard]] inline std::string hex16(std::uint64_t value) {
  std::string digits(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) digits[i] = "0123456789abcdef"[value & 15];
  return digits;
}

} // namespace polyrank
