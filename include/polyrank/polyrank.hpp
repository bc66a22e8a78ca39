// Everything that host code needs: `#include <polyrank/polyrank.hpp>`. Code compiled by nvcc adds
// <polyrank/cuda.cuh>.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/archetypes.hpp>
#include <polyrank/backend/buffer.hpp>
#include <polyrank/backend/concepts.hpp>
#include <polyrank/core/cost_model.hpp>
#include <polyrank/core/dtype.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/hash.hpp>
#include <polyrank/core/partition.hpp>
#include <polyrank/core/version.hpp>
#include <polyrank/data_parallel/error_feedback.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/data_parallel/hierarchical.hpp>
#include <polyrank/data_parallel/reduce_scatter_sum.hpp>
#include <polyrank/hang/flight_recorder.hpp>
#include <polyrank/host/communicator.hpp>
#include <polyrank/host/loopback.hpp>
#include <polyrank/launch/mesh.hpp>
#include <polyrank/launch/run.hpp>
#include <polyrank/launch/world.hpp>
