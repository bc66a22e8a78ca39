// The whole state of a sharded optimizer on every rank, in the logical order: for digests, tests
// and small models. Large ones are saved shard by shard, from for_each_fragment().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/zero/sharded_optimizer.hpp>

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace polyrank {

/// Parameters in declaration order, end to end.
struct whole_state {
  std::vector<float> masters; ///< fp32, before any rounding
  std::vector<float> state;   ///< plane by plane
};

/// Waits for the last step. The data pass through the control channel, and each rank holds all of
/// it in host memory. @collective
template <elementwise_optimizer O, communicator Comm, element V, element G, class Residency>
[[nodiscard]] whole_state collect(sharded_optimizer<O, Comm, V, G, Residency>& opt) {
  using optimizer = sharded_optimizer<O, Comm, V, G, Residency>;
  using backend = typename Comm::backend;
  const shard_layout& l = opt.layout();
  opt.synchronize();
  auto stream = opt.communicator().make_stream();
  std::vector<float> mine;
  opt.for_each_fragment([&](const fragment& f, const typename optimizer::shard_state& s) {
    const shard_bucket& b = l.buckets()[l.slots()[f.parameter].bucket];
    if (!b.cut() && b.owner < 0 && opt.communicator().rank() != 0) return; // all ranks have it
    const std::size_t at = mine.size();
    mine.resize(at + (1 + O::state_count) * f.count);
    const auto to = [&](std::size_t k) {
      return std::span(mine).subspan(at + k * f.count, f.count);
    };
    backend::template copy<float>(s.master, to(0), stream);
    if constexpr (O::state_count > 0)
      for (std::size_t k = 0; k < O::state_count; ++k)
        backend::template copy<float>(s.state[k], to(1 + k), stream);
    stream.synchronize(); // `mine` may move when it grows
  });

  std::size_t count = 0;
  for (const slot& s : l.slots()) count += s.count;
  whole_state all{std::vector<float>(count), std::vector<float>(O::state_count * count)};
  const std::vector<std::string> parts = opt.communicator().control().all_gather(
      {reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(float)});
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const char* from = parts[r].data();
    for (const fragment& f : l.fragments(static_cast<int>(r))) {
      const slot& where = l.slots()[f.parameter];
      if (const shard_bucket& b = l.buckets()[where.bucket]; !b.cut() && b.owner < 0 && r != 0)
        continue;
      const auto take = [&](float* to) {
        std::memcpy(to + where.logical_offset + f.offset, from, f.count * sizeof(float));
        from += f.count * sizeof(float);
      };
      take(all.masters.data());
      for (std::size_t k = 0; k < O::state_count; ++k) take(all.state.data() + k * count);
    }
  }
  return all;
}

} // namespace polyrank
