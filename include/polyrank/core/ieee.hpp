// Arithmetic in which every operation is rounded once, on its own: no multiply and add is ever
// fused, whatever the compiler's flags. So a formula written with it gives the same bits in a
// vector body and in its scalar tail, with and without FMA hardware, under g++ and on the device.
//
//     using namespace polyrank::ieee;
//     float y = add(mul(a, x), b); // two roundings, everywhere
//
// Why not explicit fma: std::fma is a library call on a CPU that a portable binary must assume to
// lack FMA, and is slow there; and update formulas are bound by memory, on the CPU and on the
// device, so fusing gains nothing. Why not rely on -ffp-contract=off: a header cannot set its
// user's flags, and g++ contracts by default in gnu++20 mode. -ffast-math breaks the promise (it
// approximates division and square root).
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hd.hpp>

#include <cmath>

namespace polyrank::ieee {

namespace detail {

/// Returns x; the compiler cannot merge the operation that made x with the one that uses it. An
/// empty assembler statement, because __builtin_assoc_barrier is dropped by g++ 12's loop
/// vectoriser (and unknown to nvcc). It costs no instruction, but loops of scalars are not
/// vectorised: use optim/pack.hpp.
template <class T>
POLYRANK_HD constexpr T rounded(T x) noexcept {
#if !defined(__CUDA_ARCH__) // device code has the intrinsics below
  if (!__builtin_is_constant_evaluated()) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(x));
#elif defined(__SSE2__)
    __asm__("" : "+x"(x));
#elif defined(__aarch64__)
    __asm__("" : "+w"(x));
#else
    __asm__("" : "+m"(x));
#endif
  }
#endif
  return x;
}

} // namespace detail

POLYRANK_HD constexpr float mul(float a, float b) noexcept {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return detail::rounded(a * b);
#endif
}

POLYRANK_HD constexpr float add(float a, float b) noexcept {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return detail::rounded(a + b);
#endif
}

POLYRANK_HD constexpr float sub(float a, float b) noexcept { return add(a, -b); }

POLYRANK_HD constexpr float div(float a, float b) noexcept {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

POLYRANK_HD inline float root(float a) noexcept {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}

/// 1, -1, or a itself where it is zero or NaN.
POLYRANK_HD constexpr float sign(float a) noexcept { return a > 0 ? 1.0f : a < 0 ? -1.0f : a; }

/// Host only: schedules and bias corrections are computed once per step, in double.
constexpr double mul(double a, double b) noexcept { return detail::rounded(a * b); }
constexpr double add(double a, double b) noexcept { return detail::rounded(a + b); }
constexpr double sub(double a, double b) noexcept { return add(a, -b); }

} // namespace polyrank::ieee
