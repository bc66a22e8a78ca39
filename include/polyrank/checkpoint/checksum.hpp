// The checksum of checkpoints: 64 bits over a span of bytes, four independent lanes so that it
// keeps up with memory. Finds flipped bits and torn writes; it is no protection against intent.
//
// Definition (part of the file format, version 1): lane k starts at k; the bytes are read as
// little-endian 64-bit words, word i goes to lane i mod 4 by lane = (lane ^ word) *
// 0x9e3779b97f4a7c15, then lane ^= lane >> 32. The last, partial word is filled with zeros. The
// lanes and the number of bytes are folded by hash_combine (core/hash.hpp), in order, from seed 0.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hash.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace polyrank::checkpoint {

static_assert(std::endian::native == std::endian::little, "the file formats are little-endian");

[[nodiscard]] inline std::uint64_t checksum(std::span<const std::byte> bytes) noexcept {
  std::uint64_t lane[4] = {0, 1, 2, 3};
  const auto take = [&lane](std::size_t k, std::uint64_t word) {
    const std::uint64_t x = (lane[k] ^ word) * 0x9e3779b97f4a7c15ULL;
    lane[k] = x ^ (x >> 32);
  };
  const std::byte* p = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 32; left -= 32, p += 32) {
    std::uint64_t words[4];
    std::memcpy(words, p, 32);
    for (std::size_t k = 0; k < 4; ++k) take(k, words[k]);
  }
  for (std::size_t k = 0; left > 0; ++k) {
    const std::size_t n = std::min<std::size_t>(8, left);
    std::uint64_t word = 0;
    std::memcpy(&word, p, n);
    take(k, word);
    left -= n;
    p += n;
  }
  std::uint64_t h = 0;
  for (const std::uint64_t l : lane) h = hash_combine(h, l);
  return hash_combine(h, bytes.size());
}

} // namespace polyrank::checkpoint
