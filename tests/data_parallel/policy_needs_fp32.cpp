// A policy that sums in fp32 does not take gradients of another type, and the diagnostics say which
// concept is not met.
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/data_parallel/all_to_all_sum.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/host/loopback.hpp>

using namespace polyrank;

#ifdef POLYRANK_FIXED
using gradient = float;
#else
using gradient = bf16;
#endif

void f(host::loopback::communicator& comm, std::vector<parameter<gradient, float>> parameters) {
  grad_sync sync(comm, std::move(parameters), all_to_all_sum<bf16>{});
}
