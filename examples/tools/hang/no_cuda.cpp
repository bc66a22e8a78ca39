// inject where polyrank was built without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "tools/hang/commands.hpp"

#include <polyrank/core/error.hpp>

namespace polyrank::examples {

int run_inject_cuda(int, char**, const inject_flags&) {
  throw usage_error("inject: this polyrank_hang was built without CUDA");
}

} // namespace polyrank::examples
