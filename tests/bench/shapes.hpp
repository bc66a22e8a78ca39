// The 148 tensors of GPT-2 124M, in declaration order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace polyrank::bench {

inline std::vector<std::size_t> gpt2_124m() {
  const std::size_t c = 768;
  std::vector<std::size_t> n{50257 * c, 1024 * c};
  for (int layer = 0; layer < 12; ++layer)
    for (const std::size_t k :
         {c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c})
      n.push_back(k);
  n.push_back(c);
  n.push_back(c);
  return n;
}

} // namespace polyrank::bench
