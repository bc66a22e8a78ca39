// POLYRANK_HD marks a function that runs on the host and on the device; plain compilers see
// nothing.
//
//     POLYRANK_HD inline float relu(float x) { return x > 0 ? x : 0; }
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__CUDACC__)
#define POLYRANK_HD __host__ __device__
#else
#define POLYRANK_HD
#endif
