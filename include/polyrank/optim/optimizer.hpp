// What an optimizer is: numbers for one step, a few floats of state per parameter, and one update
// formula that the host loop, the device kernel and the tests share.
//
// A user's optimizer is a struct of about ten lines; here is sign descent with decay:
//
//     struct sign_descent {
//       static constexpr std::size_t state_count = 0;
//       struct options { double lr = 1e-4; };
//       struct hyper { float lr; };
//       static hyper at(const options& o, std::uint64_t, double lr_factor) {
//         return {static_cast<float>(o.lr * lr_factor)};
//       }
//       template <class T> // float everywhere; also ieee::pack in the host loop, if it compiles
//       POLYRANK_HD static T update(T p, T g, T*, const hyper& h) noexcept;
//     };
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace polyrank {

/// An optimizer whose update of one element reads nothing but that element: any split of the
/// parameters over ranks, blocks and devices gives the same result.
///
/// - `options`: what a user sets, in double.
/// - `hyper`: floats for one step, passed by value to kernels.
/// - `at(options, step, lr_factor)`: the hyper of step 1, 2, 3, ...; `lr_factor` comes from a
/// schedule.
/// - `state_count`: floats of state per parameter; they start at zero.
/// - `update(p, g, state, hyper)`: returns the new parameter, updates state[0 ... state_count).
///   g has been multiplied by grad_scale already.
template <class O>
concept elementwise_optimizer =
    std::is_trivially_copyable_v<typename O::hyper> &&
    requires(const typename O::options& options, const typename O::hyper& hyper, std::uint64_t step,
             double lr_factor, float value, float* state) {
      { O::state_count } -> std::convertible_to<std::size_t>;
      { O::at(options, step, lr_factor) } -> std::same_as<typename O::hyper>;
      { O::update(value, value, state, hyper) } -> std::same_as<float>;
    };

/// The planes of an optimizer's state: plane k holds state[k] of every parameter.
template <elementwise_optimizer O>
using state_planes = std::array<std::span<float>, O::state_count>;

/// Cuts one arena of state_count * n floats into planes.
template <elementwise_optimizer O>
[[nodiscard]] state_planes<O> planes_of(std::span<float> arena) noexcept {
  state_planes<O> planes;
  if constexpr (O::state_count > 0) {
    const std::size_t n = arena.size() / O::state_count;
    for (std::size_t k = 0; k < O::state_count; ++k) planes[k] = arena.subspan(k * n, n);
  }
  return planes;
}

} // namespace polyrank
