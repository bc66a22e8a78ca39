// What the model and the trainer ask of a device, as a concept: the names of host_ops
// (host_ops.hpp), each enqueuing one piece of work on a stream of its backend.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "train_classifier/memory_report.hpp"

#include <polyrank/backend/concepts.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/optim/optimizer.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

namespace polyrank::examples {

template <class O>
concept classifier_ops =
    backend<typename O::backend> && std::same_as<typename O::stream, typename O::backend::stream> &&
    requires(O& ops, typename O::stream& s, const float* in, float* out, const std::uint8_t* labels,
             std::size_t n, std::span<float> device, std::span<const float> values,
             std::span<const std::uint8_t> bytes, std::span<std::uint8_t> device_bytes,
             std::vector<float>& host, state_planes<adamw> state, const adamw::hyper& hyper,
             float scale, bf16* shorts) {
      // layers: rows, inputs, outputs last
      ops.linear(s, in, in, in, out, n, n, n);          // y = x wT + b
      ops.linear_grad_weights(s, in, in, out, n, n, n); // dw = dyT x
      ops.linear_grad_bias(s, in, out, n, n);           // db = column sums of dy
      ops.linear_grad_input(s, in, in, out, n, n, n);   // dx = dy w
      ops.gelu(s, in, out, n);
      ops.gelu_grad(s, in, in, out, n);
      ops.softmax_cross_entropy(s, in, labels, out, out, n, n); // d_logits, loss
      ops.classify(s, in, out, out, n, n);                      // best class, its probability
      ops.template update<adamw>(s, device, values, state, hyper, scale);
      ops.narrow(s, in, shorts, n, in); // rounded, times *factor
      // between host and device
      { O::stages } -> std::convertible_to<bool>; // stage() copies into the space it is given
      { ops.stage(s, values, device) } -> std::same_as<const float*>;
      { ops.stage(s, bytes, device_bytes) } -> std::same_as<const std::uint8_t*>;
      ops.write(s, values, device);
      ops.read_back(s, values, host);                                    // blocks
      { ops.copy_memory() } -> std::same_as<std::pmr::memory_resource&>; // for copies to the host
      { ops.memory() } -> std::same_as<memory_state>;
      // time
      ops.begin_step(n); // the step that follows, from 0, or ~0 for none: for a trace
      ops.mark(s, n);
      { ops.elapsed(n, n) } -> std::convertible_to<double>; // milliseconds
    };

} // namespace polyrank::examples
