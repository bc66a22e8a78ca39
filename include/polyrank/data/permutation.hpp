// A random order of n rows that takes no memory and can be asked anywhere: row = order(position).
//
//     permutation order(60'000, seed, epoch);
//     for (std::uint64_t i = 0; i < order.size(); ++i) visit(order(i)); // each row once
//
// A Feistel network is a bijection of [0, 2^bits) for any round function; positions that it sends
// beyond n are sent through it again until they fall below n ("cycle walking", Black & Rogaway
// 2002; shuffling so: Mitchell et al., "Bandwidth-optimal random shuffling for GPUs", 2022). At a
// billion rows a shuffled vector would cost 8 GB on every rank; this costs 16 bytes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/core/hash.hpp>

#include <bit>
#include <cstdint>

namespace polyrank {

class permutation {
 public:
  /// The order of `count` rows in pass `epoch` under `seed`; every rank computes the same one.
  constexpr permutation(std::uint64_t count, std::uint64_t seed, std::uint64_t epoch) noexcept
      : count_(count), key_(hash_combine(hash_combine(0, seed), epoch)),
        low_bits_(count < 2 ? 1 : (static_cast<unsigned>(std::bit_width(count - 1)) + 1) / 2) {}

  [[nodiscard]] constexpr std::uint64_t size() const noexcept { return count_; }

  /// The row at `position`.
  /// @throws usage_error if position >= size()
  [[nodiscard]] constexpr std::uint64_t operator()(std::uint64_t position) const {
    if (position >= count_)
      throw usage_error(detail::cat("permutation: position ", position, " of ", count_));
    do position = shuffle(position);
    while (position >= count_);
    return position;
  }

 private:
  /// A bijection of [0, 2^(2 low_bits)).
  [[nodiscard]] constexpr std::uint64_t shuffle(std::uint64_t x) const noexcept {
    const std::uint64_t mask = (std::uint64_t{1} << low_bits_) - 1;
    std::uint64_t left = x >> low_bits_, right = x & mask;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const std::uint64_t next = (left ^ mix(key_ ^ mix(right + (round << 32)))) & mask;
      left = right;
      right = next;
    }
    return left << low_bits_ | right;
  }

  static constexpr std::uint64_t rounds = 12;
  std::uint64_t count_;
  std::uint64_t key_;
  unsigned low_bits_;
};

} // namespace polyrank
