// Ranges that Nsight Systems shows: names for what the program does between two points.
//
//     cuda::nvtx_range r("forward");       // to the end of the scope
//
// Costs a few nanoseconds where no tool is attached. Define NVTX_DISABLE to compile them out.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nvtx3/nvToolsExt.h>

namespace polyrank::cuda {

class nvtx_range {
 public:
  /// `name` is copied by the tool.
  explicit nvtx_range(const char* name) noexcept { static_cast<void>(nvtxRangePushA(name)); }
  nvtx_range(const nvtx_range&) = delete;
  nvtx_range& operator=(const nvtx_range&) = delete;
  ~nvtx_range() { static_cast<void>(nvtxRangePop()); }
};

} // namespace polyrank::cuda
