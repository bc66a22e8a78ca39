// What the actions of a schedule cost: seconds per (stage, kind), seconds per transfer, bytes held.
// Any unit of time and of memory works; results come back in the same one.
//
//     costs c = even_costs(t.shape, 1, 1, 1, 0.05);      // F, I, W of a whole rank, one transfer
//     c.stages[0].forward += 0.2;                        // the embedding makes stage 0 slower
//     price_transfers(c, t.shape, nvlink, ethernet, 8, activation_bytes);
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/cost_model.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/pipeline/action.hpp>
#include <polyrank/pipeline/shape.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace polyrank::pipeline {

/// Times of one stage. A whole backward (B) takes input_grad + weight_grad.
struct stage_costs {
  double forward = 1;
  double input_grad = 1;
  double weight_grad = 1;
  double recompute = 1; ///< running the forward again
  double transfer = 0;  ///< one tensor from this stage to the next, or its gradient back
  double unshard = 0;   ///< gathering the stage's sharded parameters
  double reduce = 0;    ///< summing its gradients over the replicas
  double optimizer = 0; ///< its share of the update
};

/// What one microbatch leaves in the memory of one stage, and what the stage itself needs.
struct stage_memory {
  double activation = 1;        ///< from the forward to the (input) backward
  double weight_context = 0.5;  ///< what W still needs after I
  double checkpoint = 0;        ///< from the forward to the recomputation, in place of activation
  double boundary = 0;          ///< one tensor from the stage below
  double boundary_gradient = 0; ///< its gradient
  double parameters = 0;        ///< resident, or between UNSHARD and RESHARD
};

struct costs {
  std::vector<stage_costs> stages;
  std::vector<stage_memory> memory;
  double tied_reduce = 0; ///< between the first and the last stage
  double pair_factor = 1; ///< an overlapped pair takes this times F + B; below 1 where it helps
};

/// The same work on every stage: F, I, W are the times of one microbatch on a whole RANK, c one
/// transfer. Memory is in rank-microbatches: activation 1 / v per stage, half of it kept for W.
[[nodiscard]] inline costs even_costs(const shape& s, double forward, double input_grad,
                                      double weight_grad, double transfer,
                                      double weight_context = 0.5) {
  const double part = 1.0 / static_cast<double>(s.chunks);
  stage_costs one;
  one.forward = one.recompute = forward * part;
  one.input_grad = input_grad * part;
  one.weight_grad = weight_grad * part;
  one.transfer = transfer;
  stage_memory bytes;
  bytes.activation = part;
  bytes.weight_context = weight_context * part;
  return {std::vector<stage_costs>(s.stages(), one), std::vector<stage_memory>(s.stages(), bytes)};
}

/// Costs of the model cut as `from`, for another cut of it: each new stage takes its share of the
/// old ones that it covers, as if layers lay evenly in a stage; what crosses a new boundary is what
/// crosses the nearest old one above. So what was measured on one shape (measure.hpp) tells tune()
/// about others.
[[nodiscard]] inline costs recut(const costs& c, const shape& from, const shape& to) {
  const std::size_t olds = from.stages(), news = to.stages();
  expects(c.stages.size() == olds && c.memory.size() == olds, "recut: costs of ", c.stages.size(),
          " stages for a shape of ", olds);
  costs out = c;
  out.stages.assign(news, {0, 0, 0, 0, 0, 0, 0, 0});
  out.memory.assign(news, {0, 0, 0, 0, 0, 0});
  for (std::size_t n = 0; n < news; ++n) { // in units of 1 / (olds * news) of the model
    stage_costs& t = out.stages[n];
    stage_memory& b = out.memory[n];
    for (std::size_t o = n * olds / news; o * news < (n + 1) * olds; ++o) {
      const std::size_t covered =
          std::min((n + 1) * olds, (o + 1) * news) - std::max(n * olds, o * news);
      const double share = static_cast<double>(covered) / static_cast<double>(news);
      const auto add = [share](auto& into, const auto& old, auto... fields) {
        ((into.*fields += share * (old.*fields)), ...);
      };
      add(t, c.stages[o], &stage_costs::forward, &stage_costs::input_grad,
          &stage_costs::weight_grad, &stage_costs::recompute, &stage_costs::unshard,
          &stage_costs::reduce, &stage_costs::optimizer);
      add(b, c.memory[o], &stage_memory::activation, &stage_memory::weight_context,
          &stage_memory::checkpoint, &stage_memory::parameters);
    }
    if (olds < 2) continue;                     // no boundary was seen
    const auto below = [&](std::size_t stage) { // the old stage over the boundary below this one
      std::size_t o = std::clamp<std::size_t>((stage * olds + news - 1) / news, 1, olds - 1);
      if (o > 1 && !from.crosses(o - 1)) --o; // the turn of a V: no transfer there
      return o;
    };
    if (n + 1 < news) t.transfer = c.stages[below(n + 1) - 1].transfer;
    if (n == 0) continue;
    b.boundary = c.memory[below(n)].boundary;
    b.boundary_gradient = c.memory[below(n)].boundary_gradient;
  }
  return out;
}

/// Sets every transfer from two measured links: `inside` a node of `ranks_per_node` consecutive
/// ranks, `between` nodes elsewhere.
inline void price_transfers(costs& c, const shape& s, const cost_model& inside,
                            const cost_model& between, std::size_t ranks_per_node,
                            std::size_t bytes) {
  expects(ranks_per_node > 0, "a node has at least one rank, got 0");
  for (std::size_t stage = 0; stage + 1 < s.stages(); ++stage) {
    const bool near = s.rank_of(stage) / ranks_per_node == s.rank_of(stage + 1) / ranks_per_node;
    c.stages[stage].transfer = (near ? inside : between).transfer(bytes);
  }
}

/// usage_error where a number is missing, negative, not finite, or absurd (above 1e15).
inline void check(const costs& c, const shape& s) {
  const auto number = [](double x, const char* what, std::size_t stage) {
    expects(x >= 0 && x <= 1e15, what, " of stage ", stage, " is ", x,
            ", it must be from 0 to 1e15");
  };
  expects(c.stages.size() == s.stages() && c.memory.size() == s.stages(), "costs are given for ",
          c.stages.size(), " stages and memory for ", c.memory.size(), ", the schedule has ",
          s.stages());
  for (std::size_t i = 0; i < s.stages(); ++i) {
    const stage_costs& t = c.stages[i];
    number(t.forward, "the forward time", i), number(t.input_grad, "the input gradient time", i);
    number(t.weight_grad, "the weight gradient time", i);
    number(t.recompute, "the recompute time", i), number(t.transfer, "the transfer time", i);
    number(t.unshard, "the unshard time", i), number(t.reduce, "the reduce time", i);
    number(t.optimizer, "the optimizer time", i);
    const stage_memory& b = c.memory[i];
    number(b.activation, "the activation memory", i);
    number(b.weight_context, "the memory kept for W", i);
    number(b.checkpoint, "the checkpoint memory", i), number(b.boundary, "the slot memory", i);
    number(b.boundary_gradient, "the gradient slot memory", i);
    number(b.parameters, "the parameter memory", i);
  }
  number(c.tied_reduce, "the tied reduction time", 0), number(c.pair_factor, "the pair factor", 0);
}

/// Seconds of a compute action alone.
[[nodiscard]] constexpr double duration_of(const stage_costs& c, action_kind kind) noexcept {
  switch (kind) {
  case action_kind::forward:
    return c.forward;
  case action_kind::backward:
    return c.input_grad + c.weight_grad;
  case action_kind::input_grad:
    return c.input_grad;
  case action_kind::weight_grad:
    return c.weight_grad;
  case action_kind::recompute:
    return c.recompute;
  case action_kind::optimizer:
    return c.optimizer;
  case action_kind::unshard:
    return c.unshard;
  case action_kind::reduce:
    return c.reduce;
  default:
    return 0;
  }
}

} // namespace polyrank::pipeline
