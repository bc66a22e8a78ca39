// The second of two translation units that include everything of cuda/: nothing lacks `inline`.
// SPDX-License-Identifier: Apache-2.0
#include "cuda_headers.hpp"

int second_unit() { return polyrank::cuda::device_count(); }
