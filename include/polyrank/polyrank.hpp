// What a trainer's host code needs: `#include <polyrank/polyrank.hpp>`. Apart from it are the main
// function of a program (launch/run.hpp), ranks as threads (host/loopback.hpp), and the larger
// parts: pipeline/, zero/, checkpoint/, probe/, plan/. Code compiled by nvcc adds
// <polyrank/cuda.cuh>.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/buffer.hpp>
#include <polyrank/backend/concepts.hpp>
#include <polyrank/core/cost_model.hpp>
#include <polyrank/core/dtype.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/hash.hpp>
#include <polyrank/core/partition.hpp>
#include <polyrank/core/version.hpp>
#include <polyrank/data/permutation.hpp>
#include <polyrank/data/prefetch_loader.hpp>
#include <polyrank/data/sampler.hpp>
#include <polyrank/data_parallel/error_feedback.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/data_parallel/hierarchical.hpp>
#include <polyrank/data_parallel/reduce_scatter_sum.hpp>
#include <polyrank/hang/flight_recorder.hpp>
#include <polyrank/host/communicator.hpp>
#include <polyrank/launch/mesh.hpp>
#include <polyrank/launch/world.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/optim/apply.hpp>
#include <polyrank/optim/lion.hpp>
#include <polyrank/optim/lr_schedule.hpp>
#include <polyrank/optim/parameter_groups.hpp>
#include <polyrank/optim/sgd.hpp>
