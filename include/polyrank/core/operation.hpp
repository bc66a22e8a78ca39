// What a communicator is asked to do, as data: for the flight recorder, for messages, and for
// comparing ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/call_site.hpp>
#include <polyrank/core/dtype.hpp>
#include <polyrank/core/hash.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace polyrank {

enum class op_kind : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  exchange,
  reduce ///< to one rank; communicators of ours have no such operation, the caller's own NCCL has
};

[[nodiscard]] constexpr std::string_view name_of(op_kind kind) noexcept {
  constexpr std::array<std::string_view, 7> names{"all_reduce", "reduce_scatter", "all_gather",
                                                  "all_to_all", "broadcast",      "exchange",
                                                  "reduce"};
  return names[static_cast<std::size_t>(kind)];
}

/// Which way a transfer of an exchange goes.
enum class direction : std::uint8_t { none, send, receive };

/// What a communicator was asked to do.
struct operation {
  op_kind kind{};
  dtype type{};
  reduce_op op{};
  int peer = -1;         ///< root, or peer of an exchange's first transfer, else -1
  std::size_t count = 0; ///< elements
  std::string_view tag{};
  call_site site{};
  direction way{};        ///< of the transfer with `peer`; none: no exchange, or over two transfers
  int second_peer = -1;   ///< of an exchange of two transfers
  direction second_way{}; ///< of that transfer

  [[nodiscard]] constexpr bool has_root() const noexcept {
    return kind == op_kind::broadcast || kind == op_kind::reduce;
  }

  /// What must be equal on all ranks: kind, type, op, count and root (not tag, not call site).
  [[nodiscard]] constexpr std::uint64_t signature() const noexcept {
    return hash_combine(hash_combine(static_cast<std::uint64_t>(kind) << 16 |
                                         static_cast<std::uint64_t>(type) << 8 |
                                         static_cast<std::uint64_t>(op),
                                     count),
                        has_root() ? static_cast<std::uint64_t>(peer) : 0);
  }
};

} // namespace polyrank
