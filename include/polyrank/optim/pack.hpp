// Several floats computed together, with the operations of core/ieee.hpp: what an update formula
// sees instead of float in the body of a host loop.
//
// g++ does not vectorise a loop that calls sqrt unless -fno-math-errno is set, and a header cannot
// set its user's flags. Packs are compiled to vector registers at any optimisation level; each lane
// computes the bits that a float would.
//
//     ieee::pack x = ieee::pack::load(p);
//     add(mul(0.5f, x), x).store(p);
//
// nvcc takes no vectors in functions that are also device code, so translation units that it
// compiles see float in place of pack: the same bits, more slowly.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/ieee.hpp>

#include <cmath>
#include <cstddef>
#include <cstring>
#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace polyrank::ieee {

#if defined(__CUDACC__)

using pack = float;

#else

// The namespace gives code that was compiled for different targets different names at link time.
#if defined(__AVX512F__)
inline namespace pack16 {
inline constexpr std::size_t pack_width = 16;
#elif defined(__AVX__)
inline namespace pack8 {
inline constexpr std::size_t pack_width = 8;
#else
inline namespace pack4 {
inline constexpr std::size_t pack_width = 4;
#endif

/// As many floats as one vector register of the compilation target holds.
struct pack {
  typedef float lanes __attribute__((vector_size(pack_width * sizeof(float))));
  lanes value;

  [[nodiscard]] static pack load(const float* from) noexcept {
    pack p;
    std::memcpy(&p.value, from, sizeof p.value);
    return p;
  }
  void store(float* to) const noexcept { std::memcpy(to, &value, sizeof value); }
  /// All lanes equal `a`.
  [[nodiscard]] static pack spread(float a) noexcept { return {a - lanes{}}; }
};

inline pack mul(pack a, pack b) noexcept { return {detail::rounded(a.value * b.value)}; }
inline pack add(pack a, pack b) noexcept { return {detail::rounded(a.value + b.value)}; }
inline pack sub(pack a, pack b) noexcept { return {detail::rounded(a.value - b.value)}; }
inline pack div(pack a, pack b) noexcept { return {a.value / b.value}; }
inline pack mul(float a, pack b) noexcept { return mul(pack::spread(a), b); }
inline pack add(pack a, float b) noexcept { return add(a, pack::spread(b)); }

inline pack sign(pack a) noexcept {
  const pack::lanes zero{}, one = pack::spread(1).value;
  return {a.value > zero ? one : a.value < zero ? -one : a.value};
}

/// The correctly rounded square root of each lane.
inline pack root(pack a) noexcept {
#if defined(__AVX512F__)
  // The masked form: the plain one trips -Wmaybe-uninitialized in g++ 12's own header.
  return {reinterpret_cast<pack::lanes>(
      _mm512_maskz_sqrt_ps(0xffff, reinterpret_cast<__m512>(a.value)))};
#elif defined(__AVX__)
  return {reinterpret_cast<pack::lanes>(_mm256_sqrt_ps(reinterpret_cast<__m256>(a.value)))};
#elif defined(__SSE__)
  return {reinterpret_cast<pack::lanes>(_mm_sqrt_ps(reinterpret_cast<__m128>(a.value)))};
#else
  for (std::size_t i = 0; i < pack_width; ++i) a.value[i] = std::sqrt(a.value[i]);
  return a;
#endif
}

} // inline namespace

#endif

} // namespace polyrank::ieee
