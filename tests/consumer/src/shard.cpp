// SPDX-License-Identifier: Apache-2.0
#include "shard.hpp"

unsigned long shard_size(unsigned long count, int parts, int index) {
  return polyrank::partition(count, static_cast<std::size_t>(parts),
                             static_cast<std::size_t>(index))
      .size();
}
