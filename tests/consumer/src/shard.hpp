// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <polyrank/core/partition.hpp>
#include <polyrank/core/version.hpp>

unsigned long shard_size(unsigned long count, int parts, int index);
