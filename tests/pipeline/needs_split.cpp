// A stage without backward_weight() must not compile with a schedule that calls it.
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/host/stream.hpp>
#include <polyrank/pipeline/generate_for.hpp>

using namespace polyrank;
using namespace polyrank::pipeline;

struct block {
  using pass_t = pass<host::stream>;
  std::vector<boundary> inputs() const { return {}; }
  std::vector<boundary> outputs() const { return {}; }
  stage_bytes bytes(std::size_t) const { return {}; }
  void forward(const pass_t&) {}
  void backward(const pass_t&) {}
  void backward_input(const pass_t&) {}
#ifdef POLYRANK_FIXED
  void backward_weight(const pass_t&) {}
#endif
};

table t = generate_for<schedule::zb_h1, block, host::stream>(2, 4);
