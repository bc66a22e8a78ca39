// One optimizer step in host memory with other types around an fp32 core: gradients of G (float,
// bf16, fp16), fp32 master values and state, and a copy of the new values in V for the forward
// pass. What CPU offload runs: bf16 gradients in, bf16 values out, 30 bytes a parameter (AdamW).
//
//     update_mixed<adamw, bf16, bf16>({.master = w, .gradient = g, .state = planes, .value = out},
//                                     adamw::at(options, step), factor);
//
// The formula is the optimizer's own; every simd_level gives the same bits, whatever the length
// and alignment of the spans.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/optim/apply.hpp>
#include <polyrank/optim/optimizer.hpp>
#include <polyrank/optim/simd.hpp>
#include <polyrank/optim/stochastic_rounding.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace polyrank {

/// A stretch of parameters; all spans have one length, but for `value`, which may be empty.
template <elementwise_optimizer O, element G, element V>
struct mixed_range {
  std::span<float> master;
  std::span<const G> gradient;
  state_planes<O> state;
  std::span<V> value; ///< gets the new masters, rounded; empty: no copy is wanted

  /// Elements [begin, end).
  [[nodiscard]] mixed_range part(std::size_t begin, std::size_t end) const noexcept {
    mixed_range p{master.subspan(begin, end - begin), gradient.subspan(begin, end - begin), state,
                  value.empty() ? value : value.subspan(begin, end - begin)};
    for (auto& plane : p.state) plane = plane.subspan(begin, end - begin);
    return p;
  }
};

namespace detail {

/// The range as pointers: an array of no planes cannot even be asked for one.
template <elementwise_optimizer O, element G, element V>
struct mixed_pointers {
  static constexpr std::size_t states = O::state_count;
  float* master;
  const G* gradient;
  float* state[states == 0 ? 1 : states];
  V* value;

  explicit mixed_pointers(const mixed_range<O, G, V>& r) noexcept
      : master(r.master.data()), gradient(r.gradient.data()), state{}, value(r.value.data()) {
    if constexpr (states > 0)
      for (std::size_t k = 0; k < states; ++k) state[k] = r.state[k].data();
  }

  void update_one(std::size_t i, const typename O::hyper& h, float factor) const noexcept {
    float s[states == 0 ? 1 : states];
    for (std::size_t k = 0; k < states; ++k) s[k] = state[k][i];
    const float g = ieee::mul(factor, static_cast<float>(gradient[i]));
    const float p = O::update(master[i], g, s, h);
    master[i] = p;
    for (std::size_t k = 0; k < states; ++k) state[k][i] = s[k];
    if (value != nullptr) value[i] = static_cast<V>(p);
  }
};

/// As ieee::avx2 and ieee::avx512, for the compilation target.
struct baseline_lanes {
  static constexpr std::size_t width = sizeof(ieee::pack) / sizeof(float);
  static ieee::pack load(const float* from) noexcept { return detail::load<ieee::pack>(from); }
  template <class T>
  static ieee::pack load(const T* from) noexcept {
    float wide[width];
    for (std::size_t i = 0; i < width; ++i) wide[i] = static_cast<float>(from[i]);
    return load(wide);
  }
  static void store(ieee::pack a, float* to) noexcept { detail::store(a, to); }
  template <class T>
  static void store(ieee::pack a, T* to) noexcept {
    float wide[width];
    store(a, wide);
    for (std::size_t i = 0; i < width; ++i) to[i] = static_cast<T>(wide[i]);
  }
  template <class T>
  static void stream(ieee::pack a, T* to) noexcept {
    store(a, to);
  }
  static void fence() noexcept {}
};

/// Whether the values of a range go past the caches: nobody reads so many before they are evicted,
/// and a plain store would read each line first. `lanes` elements must be aligned as a whole.
template <class V>
[[nodiscard]] bool streams(const V* value, std::size_t count, std::size_t lanes) noexcept {
  return count * sizeof(V) >= (std::size_t{1} << 16) &&
         reinterpret_cast<std::uintptr_t>(value) % (lanes * sizeof(V)) == 0;
}

// The loop of one level. The text is the same; the attributes cannot be template arguments.
#define POLYRANK_UPDATE_LOOP(NAME, ATTRIBUTES, LANES, WIDTH, OPERATIONS)                           \
  template <elementwise_optimizer O, element G, element V>                                         \
  ATTRIBUTES void NAME(mixed_pointers<O, G, V> r, std::size_t n, typename O::hyper h,              \
                       float factor) noexcept {                                                    \
    constexpr std::size_t states = O::state_count;                                                 \
    std::size_t i = 0;                                                                             \
    const bool past = streams(r.value, n, WIDTH);                                                  \
    for (; i < n - n % (WIDTH); i += (WIDTH)) {                                                    \
      LANES s[states == 0 ? 1 : states];                                                           \
      for (std::size_t k = 0; k < states; ++k) s[k] = OPERATIONS::load(r.state[k] + i);            \
      const LANES g = mul(factor, OPERATIONS::load(r.gradient + i));                               \
      const LANES p = O::update(OPERATIONS::load(r.master + i), g, s, h);                          \
      OPERATIONS::store(p, r.master + i);                                                          \
      for (std::size_t k = 0; k < states; ++k) OPERATIONS::store(s[k], r.state[k] + i);            \
      if (r.value == nullptr) continue;                                                            \
      if (past)                                                                                    \
        OPERATIONS::stream(p, r.value + i);                                                        \
      else                                                                                         \
        OPERATIONS::store(p, r.value + i);                                                         \
    }                                                                                              \
    if (past) OPERATIONS::fence();                                                                 \
    for (; i < n; ++i) r.update_one(i, h, factor);                                                 \
  }

using ieee::mul;
POLYRANK_UPDATE_LOOP(update_baseline, inline, ieee::pack, baseline_lanes::width, baseline_lanes)
#if defined(POLYRANK_SIMD_X86)
POLYRANK_UPDATE_LOOP(update_avx512, __attribute__((target("avx512f"), flatten)) inline,
                     ieee::avx512::lanes, ieee::avx512::lanes::width, ieee::avx512)
POLYRANK_UPDATE_LOOP(update_avx2, __attribute__((target("avx2,f16c"), flatten)) inline,
                     ieee::avx2::lanes, ieee::avx2::lanes::width, ieee::avx2)
#endif
#undef POLYRANK_UPDATE_LOOP

} // namespace detail

/// Updates every element of `r` with gradients multiplied by `factor`. A formula that compiles for
/// float only runs element by element at every level.
/// @throws usage_error where the lengths differ, or the CPU lacks the level
template <elementwise_optimizer O, element G, element V>
void update_mixed(const mixed_range<O, G, V>& r, const typename O::hyper& hyper, float factor,
                  simd_level level = best_simd()) {
  const std::size_t n = r.master.size();
  expects(r.gradient.size() == n && (r.value.empty() || r.value.size() == n), "update_mixed: ", n,
          " masters, ", r.gradient.size(), " gradients, ", r.value.size(), " values");
  for (const auto& plane : r.state)
    expects(plane.size() == n, "update_mixed: ", n, " masters, ", plane.size(),
            " floats in a state plane");
  expects(simd_supported(level), "update_mixed: this CPU lacks ", name_of(level));
  const detail::mixed_pointers<O, G, V> p(r);
  if constexpr (std::is_same_v<typename detail::body<O>::type, ieee::pack> &&
                !std::is_same_v<ieee::pack, float>) {
#if defined(POLYRANK_SIMD_X86)
    if (level == simd_level::avx512) return detail::update_avx512(p, n, hyper, factor);
    if (level == simd_level::avx2) return detail::update_avx2(p, n, hyper, factor);
#endif
    if (level == simd_level::baseline) return detail::update_baseline(p, n, hyper, factor);
  }
  for (std::size_t i = 0; i < n; ++i) p.update_one(i, hyper, factor);
}

/// Rounds masters to bf16 at random; element i of the spans is element `first_index + i` of the
/// model.
inline void round_all(std::span<const float> master, std::span<bf16> value,
                      const stochastic_rounding& rounding, std::uint64_t first_index) noexcept {
  for (std::size_t i = 0; i < master.size(); ++i) value[i] = rounding(master[i], first_index + i);
}

} // namespace polyrank
