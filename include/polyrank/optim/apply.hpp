// One optimizer step over parameters in host memory.
//
//     std::vector<float> state(adamw::state_count * n);        // zeros
//     apply<adamw>(params, grads, planes_of<adamw>(state), adamw::at(options, step), 1.0f / ranks);
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/core/ieee.hpp>
#include <polyrank/optim/optimizer.hpp>
#include <polyrank/optim/pack.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>

namespace polyrank {

namespace detail {

template <class T>
[[nodiscard]] T load(const float* from) noexcept {
  if constexpr (std::same_as<T, float>)
    return *from;
  else
    return T::load(from);
}

template <class T>
void store(T value, float* to) noexcept {
  if constexpr (std::same_as<T, float>)
    *to = value;
  else
    value.store(to);
}

/// Elements [i, i + lanes of T): the same text for a pack of floats and for one float.
template <class O, class T>
void update_at(std::size_t i, float* params, const float* grads, const state_planes<O>& state,
               const typename O::hyper& hyper, float grad_scale) noexcept {
  T s[O::state_count == 0 ? 1 : O::state_count];
  for (std::size_t k = 0; k < O::state_count; ++k) s[k] = load<T>(state[k].data() + i);
  using ieee::mul;
  const T g = mul(grad_scale, load<T>(grads + i));
  store(O::update(load<T>(params + i), g, s, hyper), params + i);
  for (std::size_t k = 0; k < O::state_count; ++k) store(s[k], state[k].data() + i);
}

/// pack where the formula compiles for packs, else float.
template <class O>
struct body {
  using type = float;
};
template <class O>
  requires requires(ieee::pack value, ieee::pack* state, const typename O::hyper& hyper) {
    { O::update(value, value, state, hyper) } -> std::same_as<ieee::pack>;
  }
struct body<O> {
  using type = ieee::pack;
};

} // namespace detail

/// params[i] <- update(params[i], grad_scale * grads[i], state[..][i], hyper) for every i.
/// Element i gets the same bits whatever the length and alignment of the spans.
///
/// @tparam Body what the loop's body computes with; the tail computes with float
/// @param grad_scale 1 / (ranks * accumulation * loss scale) * clip: turns summed gradients into
/// means
/// @throws usage_error if the lengths differ
template <elementwise_optimizer O, class Body = typename detail::body<O>::type>
void apply(std::span<float> params, std::span<const float> grads, const state_planes<O>& state,
           const typename O::hyper& hyper, float grad_scale = 1) {
  const std::size_t n = params.size();
  expects(grads.size() == n, "apply: ", n, " parameters but ", grads.size(), " gradients");
  for (std::size_t k = 0; k < O::state_count; ++k)
    expects(state[k].size() == n, "apply: ", n, " parameters but ", state[k].size(),
            " floats in state plane ", k);
  const typename O::hyper h = hyper; // a copy that the stores below cannot alias
  std::size_t i = 0;
  constexpr std::size_t width = sizeof(Body) / sizeof(float);
  if constexpr (width > 1)
    for (; i + width <= n; i += width)
      detail::update_at<O, Body>(i, params.data(), grads.data(), state, h, grad_scale);
  for (; i < n; ++i)
    detail::update_at<O, float>(i, params.data(), grads.data(), state, h, grad_scale);
}

} // namespace polyrank
