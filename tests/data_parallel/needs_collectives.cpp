// grad_sync on a communicator that cannot reduce must not compile, and name the missing concept.
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/backend/archetypes.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>

using namespace polyrank;

#ifdef POLYRANK_FIXED
using comm_type = archetype::communicator;
#else
using comm_type = archetype::bare_communicator;
#endif

void f(comm_type& comm, on<archetype::stream> where, std::span<float> data) {
  all_reduce_sum{}.issue(comm, data, data, where);
}
