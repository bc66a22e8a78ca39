// After an update, all ranks get the new values of one bucket.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/core/partition.hpp>
#include <polyrank/data_parallel/layout.hpp>
#include <polyrank/data_parallel/parameter.hpp>
#include <polyrank/zero/shard_layout.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace polyrank {

/// Between parameters that live elsewhere and `arena`, a staging bucket: the part of `rank` into
/// it, or the others' out of it.
template <class Backend, element G, element V>
void stage_values(int rank, const shard_bucket& bucket, const std::vector<slot>& slots,
                  const std::vector<parameter<G, V>>& parameters, std::span<V> arena, bool in,
                  typename Backend::stream& s) {
  const range mine = bucket.shard(rank);
  for (const std::size_t i : bucket.members) {
    const std::size_t at = slots[i].arena_offset - bucket.base;
    const range whole{at, at + parameters[i].count};
    const auto move = [&](range r) {
      if (r.empty()) return;
      const std::span<V> there(parameters[i].value + (r.begin - at), r.size());
      const std::span<V> here = arena.subspan(r.begin, r.size());
      Backend::template copy<V>(in ? there : here, in ? here : there, s);
    };
    if (in) {
      move(intersect(whole, mine));
    } else {
      move(intersect(whole, {0, mine.begin}));
      move(intersect(whole, {mine.end, bucket.count}));
    }
  }
}

/// `arena` has the bucket's values, padded; or is a staging bucket, where `staged`. Nothing to do
/// for a bucket that every rank has updated. @collective
template <communicator Comm, element G, element V>
void gather_values(Comm& comm, const shard_bucket& bucket, const std::vector<slot>& slots,
                   const std::vector<parameter<G, V>>& parameters, std::span<V> arena, bool staged,
                   typename Comm::backend::stream& s) {
  const auto where = on(s, "values");
  if (bucket.owner >= 0 && comm.size() > 1) {
    for (const std::size_t i : bucket.members)
      if (parameters[i].count > 0)
        comm.template broadcast<V>({parameters[i].value, parameters[i].count}, bucket.owner, where);
  } else if (bucket.cut() && bucket.count > 0) {
    const auto mine =
        arena.subspan(static_cast<std::size_t>(comm.rank()) * bucket.chunk, bucket.chunk);
    using backend = typename Comm::backend;
    if (staged) stage_values<backend>(comm.rank(), bucket, slots, parameters, arena, true, s);
    comm.template all_gather<V>(mine, arena, where);
    if (staged) stage_values<backend>(comm.rank(), bucket, slots, parameters, arena, false, s);
  }
}

} // namespace polyrank
