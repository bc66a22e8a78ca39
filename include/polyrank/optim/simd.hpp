// Vector registers picked at run time: one portable binary uses AVX-512 or AVX2 where the CPU has
// them, and SSE2 or NEON, the compilation target's own, elsewhere.
//
//     simd_level level = best_simd();                    // asks the CPU
//     for (simd_level l : all_simd_levels)               // a test walks all of them
//       if (!simd_supported(l)) say("skipped: ", name_of(l));
//
// Each level has a type of several floats with the operations of core/ieee.hpp: each lane computes
// the bits that a float would. They are for functions marked with the level's target and `flatten`,
// which inlines everything that the function calls; see update_mixed.hpp. The lanes live in a plain
// array, so that passing them by value means the same with and without the target.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/dtype.hpp>
#include <polyrank/optim/pack.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#if defined(__x86_64__) && !defined(__CUDACC__)
#define POLYRANK_SIMD_X86 1
#include <immintrin.h>
#endif

namespace polyrank {

/// Slowest first.
enum class simd_level : std::uint8_t { scalar, baseline, avx2, avx512 };

inline constexpr std::array<simd_level, 4> all_simd_levels{simd_level::scalar, simd_level::baseline,
                                                           simd_level::avx2, simd_level::avx512};

[[nodiscard]] constexpr std::string_view name_of(simd_level level) noexcept {
  switch (level) {
  case simd_level::scalar:
    return "scalar";
  case simd_level::avx2:
    return "avx2";
  case simd_level::avx512:
    return "avx512";
  case simd_level::baseline:
    break;
  }
#if defined(__aarch64__)
  return "neon";
#elif defined(__AVX512F__)
  return "baseline (avx512)";
#elif defined(__AVX__)
  return "baseline (avx)";
#elif defined(__SSE2__)
  return "sse2";
#else
  return "baseline";
#endif
}

/// Whether this CPU, and this compilation, can run the level.
[[nodiscard]] inline bool simd_supported(simd_level level) noexcept {
#if defined(POLYRANK_SIMD_X86)
  if (level == simd_level::avx512) return __builtin_cpu_supports("avx512f") != 0;
  if (level == simd_level::avx2)
    return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("f16c") != 0;
  return true;
#else
  return level == simd_level::scalar || level == simd_level::baseline;
#endif
}

[[nodiscard]] inline simd_level best_simd() noexcept {
  for (std::size_t i = all_simd_levels.size(); i-- > 0;)
    if (simd_supported(all_simd_levels[i])) return all_simd_levels[i];
  return simd_level::scalar;
}

#if defined(POLYRANK_SIMD_X86)

// What the levels have in common; POLYRANK_TARGET, which no template can take as an argument, is
// the level's attribute. REAL and WORD begin the names of the intrinsics for `WIDTH` floats and for
// as many 16-bit words of BITS bits. To be added: root, sign, load (from 16 bits), narrowed.
#define POLYRANK_LANES(WIDTH, REAL, FLOATS, WORD, WORDS, BITS)                                     \
  struct lanes {                                                                                   \
    static constexpr std::size_t width = WIDTH;                                                    \
    float at[width];                                                                               \
  };                                                                                               \
  POLYRANK_TARGET FLOATS get(const lanes& a) noexcept { return REAL##_loadu_ps(a.at); }            \
  /* The barrier keeps a multiplication and an addition from being fused; see core/ieee.hpp. */    \
  POLYRANK_TARGET lanes put(FLOATS x) noexcept {                                                   \
    __asm__("" : "+v"(x));                                                                         \
    lanes out;                                                                                     \
    REAL##_storeu_ps(out.at, x);                                                                   \
    return out;                                                                                    \
  }                                                                                                \
  POLYRANK_TARGET lanes spread(float a) noexcept { return put(REAL##_set1_ps(a)); }                \
  POLYRANK_TARGET lanes mul(const lanes& a, const lanes& b) noexcept {                             \
    return put(get(a) * get(b));                                                                   \
  }                                                                                                \
  POLYRANK_TARGET lanes add(const lanes& a, const lanes& b) noexcept {                             \
    return put(get(a) + get(b));                                                                   \
  }                                                                                                \
  POLYRANK_TARGET lanes sub(const lanes& a, const lanes& b) noexcept {                             \
    return put(get(a) - get(b));                                                                   \
  }                                                                                                \
  POLYRANK_TARGET lanes div(const lanes& a, const lanes& b) noexcept {                             \
    return put(get(a) / get(b));                                                                   \
  }                                                                                                \
  POLYRANK_TARGET lanes mul(float a, const lanes& b) noexcept { return mul(spread(a), b); }        \
  POLYRANK_TARGET lanes add(const lanes& a, float b) noexcept { return add(a, spread(b)); }        \
  POLYRANK_TARGET lanes load(const float* from) noexcept { return put(REAL##_loadu_ps(from)); }    \
  POLYRANK_TARGET WORDS load_words(const void* from) noexcept {                                    \
    return WORD##_loadu_si##BITS(static_cast<const WORDS*>(from));                                 \
  }                                                                                                \
  POLYRANK_TARGET void store(const lanes& a, float* to) noexcept { REAL##_storeu_ps(to, get(a)); } \
  template <class T>                                                                               \
  POLYRANK_TARGET void store(const lanes& a, T* to) noexcept {                                     \
    WORD##_storeu_si##BITS(reinterpret_cast<WORDS*>(to), narrowed(a, to));                         \
  }                                                                                                \
  /* Past the caches, to an address that is a multiple of all lanes; fence() makes it visible. */  \
  POLYRANK_TARGET void stream(const lanes& a, float* to) noexcept {                                \
    REAL##_stream_ps(to, get(a));                                                                  \
  }                                                                                                \
  template <class T>                                                                               \
  POLYRANK_TARGET void stream(const lanes& a, T* to) noexcept {                                    \
    WORD##_stream_si##BITS(reinterpret_cast<WORDS*>(to), narrowed(a, to));                         \
  }                                                                                                \
  POLYRANK_TARGET void fence() noexcept { _mm_sfence(); }

#define POLYRANK_TARGET __attribute__((target("avx512f"))) inline
namespace ieee::avx512 {

POLYRANK_LANES(16, _mm512, __m512, _mm256, __m256i, 256)

POLYRANK_TARGET lanes root(const lanes& a) noexcept {
  // Masked forms, here and below: the plain ones trip -Wmaybe-uninitialized in g++ 12's header.
  return put(_mm512_maskz_sqrt_ps(0xffff, get(a)));
}

/// 1, -1, or the operand where it is zero or NaN.
POLYRANK_TARGET lanes sign(const lanes& a) noexcept {
  const __m512 x = get(a), zero = _mm512_set1_ps(0);
  const __m512 up =
      _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, zero, _CMP_GT_OQ), x, _mm512_set1_ps(1));
  return put(_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, zero, _CMP_LT_OQ), up, _mm512_set1_ps(-1)));
}

POLYRANK_TARGET lanes load(const bf16* from) noexcept {
  const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, load_words(from));
  return put(_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, wide, 16)));
}
POLYRANK_TARGET lanes load(const fp16* from) noexcept {
  return put(_mm512_maskz_cvtph_ps(0xffff, load_words(from)));
}
/// As bf16(float): to nearest, ties to even; NaN stays NaN.
POLYRANK_TARGET __m256i narrowed(const lanes& a, const bf16*) noexcept {
  const __m512i u = _mm512_castps_si512(get(a));
  const __m512i high = _mm512_maskz_srli_epi32(0xffff, u, 16);
  const __m512i odd = _mm512_maskz_and_epi32(0xffff, high, _mm512_set1_epi32(1));
  const __m512i raised = _mm512_maskz_add_epi32(
      0xffff, u, _mm512_maskz_add_epi32(0xffff, odd, _mm512_set1_epi32(0x7fff)));
  __m512i out = _mm512_maskz_srli_epi32(0xffff, raised, 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(get(a), get(a), _CMP_UNORD_Q);
  out = _mm512_mask_or_epi32(out, nan, high, _mm512_set1_epi32(0x40));
  return _mm512_maskz_cvtepi32_epi16(0xffff, out);
}
POLYRANK_TARGET __m256i narrowed(const lanes& a, const fp16*) noexcept {
  return _mm512_maskz_cvtps_ph(0xffff, get(a), _MM_FROUND_TO_NEAREST_INT);
}

} // namespace ieee::avx512
#undef POLYRANK_TARGET

#define POLYRANK_TARGET __attribute__((target("avx2,f16c"))) inline
namespace ieee::avx2 {

POLYRANK_LANES(8, _mm256, __m256, _mm, __m128i, 128)

POLYRANK_TARGET lanes root(const lanes& a) noexcept { return put(_mm256_sqrt_ps(get(a))); }

POLYRANK_TARGET lanes sign(const lanes& a) noexcept {
  const __m256 x = get(a), zero = _mm256_set1_ps(0);
  const __m256 up = _mm256_blendv_ps(x, _mm256_set1_ps(1), _mm256_cmp_ps(x, zero, _CMP_GT_OQ));
  return put(_mm256_blendv_ps(up, _mm256_set1_ps(-1), _mm256_cmp_ps(x, zero, _CMP_LT_OQ)));
}

POLYRANK_TARGET lanes load(const bf16* from) noexcept {
  return put(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_words(from)), 16)));
}
POLYRANK_TARGET lanes load(const fp16* from) noexcept {
  return put(_mm256_cvtph_ps(load_words(from)));
}
POLYRANK_TARGET __m128i narrowed(const lanes& a, const bf16*) noexcept {
  const __m256i u = _mm256_castps_si256(get(a)), high = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(get(a), get(a), _CMP_UNORD_Q));
  const __m256i out = _mm256_blendv_epi8(rounded, quiet, nan);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(out, out), 0x08);
  return _mm256_castsi256_si128(words);
}
POLYRANK_TARGET __m128i narrowed(const lanes& a, const fp16*) noexcept {
  return _mm256_cvtps_ph(get(a), _MM_FROUND_TO_NEAREST_INT);
}

} // namespace ieee::avx2
#undef POLYRANK_TARGET
#undef POLYRANK_LANES

#endif

} // namespace polyrank
