// generate() for a schedule that is known when the program is compiled: then it is also checked
// then whether the stages have the functions that it calls.
//
//     table t = generate_for<schedule::zb_v, block, cuda::stream>(4, 8);
//
// A schedule that is chosen at run time is checked when the executor is made.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/stage.hpp>

#include <cstddef>

namespace polyrank::pipeline {

/// See generate(). Does not compile where the schedule splits backwards and S cannot.
template <schedule Which, class S, class Stream>
[[nodiscard]] table generate_for(std::size_t ranks, std::size_t microbatches,
                                 std::size_t chunks = 0) {
  if constexpr (traits_of(Which).splits_backward)
    static_assert(split_stage<S, Stream>,
                  "this schedule computes input and weight gradients apart: the stage needs "
                  "backward_input() and backward_weight()");
  else
    static_assert(stage<S, Stream>, "the stage needs inputs(), outputs(), bytes(), forward() and "
                                    "backward()");
  return generate(Which, ranks, microbatches, chunks);
}

} // namespace polyrank::pipeline
