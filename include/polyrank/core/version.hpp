// The library's version; CMake reads it from here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#define POLYRANK_VERSION_MAJOR 0
#define POLYRANK_VERSION_MINOR 1
#define POLYRANK_VERSION_PATCH 0
#define POLYRANK_VERSION_STRING "0.1.0"
