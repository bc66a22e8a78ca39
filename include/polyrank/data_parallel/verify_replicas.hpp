// Are the parameters of all ranks still equal? Replicas start equal and get equal updates, so a
// difference means a bug (or a broken machine): the first tensor that drifts is named.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/data_parallel/parameter.hpp>

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace polyrank {

/// Compares a hash of each parameter with rank 0's. Waits for `stream`. Throws mismatch_error on
/// every rank, naming the first parameter that differs and the ranks that have other bits.
/// @collective
template <communicator Comm, element G, element V>
void verify_replicas(Comm& comm, std::span<const parameter<G, V>> parameters,
                     typename Comm::backend::stream& stream) {
  std::vector<std::uint64_t> hashes(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].value != nullptr)
      Comm::backend::template hash<V>(std::span<const V>(parameters[i].value, parameters[i].count),
                                      hashes[i], stream);
  stream.synchronize();
  const std::vector<std::string> all = comm.control().all_gather(
      {reinterpret_cast<const char*>(hashes.data()), hashes.size() * sizeof hashes[0]});
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto differs = [&](std::size_t r) {
      const std::size_t at = i * sizeof hashes[0];
      return all[r].size() != all[0].size() ||
             std::memcmp(all[r].data() + at, all[0].data() + at, sizeof hashes[0]) != 0;
    };
    std::string ranks;
    for (std::size_t r = 1; r < all.size(); ++r)
      if (differs(r)) ranks += detail::cat(ranks.empty() ? "" : ", ", r);
    if (!ranks.empty())
      throw on_every_rank(
          mismatch_error(detail::cat("replicas differ: parameter '", parameters[i].name,
                                     "' has other bits than on rank 0 on rank ", ranks)));
  }
}

} // namespace polyrank
