// The first of two translation units that include everything of cuda/.
// SPDX-License-Identifier: Apache-2.0
#include "cuda_headers.hpp"

int second_unit();

int main() { return second_unit() == polyrank::cuda::device_count() ? 0 : 1; }
