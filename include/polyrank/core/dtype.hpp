// Element types that travel between ranks, with 16-bit floats that plain g++ can store and convert.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace polyrank {

/// Upper half of an fp32: 8 exponent bits, 7 mantissa bits. Same bits as CUDA's __nv_bfloat16.
struct bf16 {
  std::uint16_t bits = 0;

  constexpr bf16() = default;
  /// Rounds to nearest, ties to even; NaN stays NaN.
  constexpr explicit bf16(float value) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u)
      bits = static_cast<std::uint16_t>((u >> 16) | 0x40u);
    else
      bits = static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  constexpr explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  friend constexpr bool operator==(bf16 a, bf16 b) noexcept { return float(a) == float(b); }
};

/// IEEE binary16: 5 exponent bits, 10 mantissa bits. Same bits as CUDA's __half.
struct fp16 {
  std::uint16_t bits = 0;

  constexpr fp16() = default;
  /// Rounds to nearest, ties to even; overflow becomes infinity; NaN stays NaN.
  constexpr explicit fp16(float value) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
    std::uint32_t half;
    if (magnitude > 0x7f800000u)
      half = 0x7e00u; // NaN
    else if (magnitude >= 0x477ff000u)
      half = 0x7c00u; // rounds to infinity: >= 65520
    else if (magnitude >= 0x38800000u)
      half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    else if (magnitude < 0x33000000u)
      half = 0; // below half of the smallest subnormal
    else {
      const std::uint32_t shift = 126u - (magnitude >> 23); // 14 ... 24
      const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
      half = mantissa >> shift;
      const std::uint32_t rest = mantissa & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
      if (rest > tie || (rest == tie && (half & 1u) != 0)) ++half;
    }
    bits = static_cast<std::uint16_t>(sign | half);
  }
  constexpr explicit operator float() const noexcept {
    const std::uint32_t sign = (bits & 0x8000u) * 0x10000u, exponent = (bits >> 10) & 31u;
    const std::uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0)
      return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    const float value = static_cast<float>(mantissa) * 0x1p-24f; // subnormal or zero: exact
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  friend constexpr bool operator==(fp16 a, fp16 b) noexcept { return float(a) == float(b); }
};

/// Run-time name of an element type.
enum class dtype : std::uint8_t { u8, i32, i64, f16, bf16, f32, f64 };

[[nodiscard]] constexpr std::size_t size_of(dtype t) noexcept {
  switch (t) {
  case dtype::u8:
    return 1;
  case dtype::f16:
  case dtype::bf16:
    return 2;
  case dtype::i32:
  case dtype::f32:
    return 4;
  case dtype::i64:
  case dtype::f64:
    break;
  }
  return 8;
}

[[nodiscard]] constexpr std::string_view name_of(dtype t) noexcept {
  switch (t) {
  case dtype::u8:
    return "u8";
  case dtype::i32:
    return "i32";
  case dtype::i64:
    return "i64";
  case dtype::f16:
    return "f16";
  case dtype::bf16:
    return "bf16";
  case dtype::f32:
    return "f32";
  case dtype::f64:
    break;
  }
  return "f64";
}

namespace detail {
template <class T>
struct dtype_trait;
template <>
struct dtype_trait<std::uint8_t> {
  static constexpr dtype value = dtype::u8;
};
template <>
struct dtype_trait<std::byte> {
  static constexpr dtype value = dtype::u8;
};
template <>
struct dtype_trait<std::int32_t> {
  static constexpr dtype value = dtype::i32;
};
template <>
struct dtype_trait<std::int64_t> {
  static constexpr dtype value = dtype::i64;
};
template <>
struct dtype_trait<fp16> {
  static constexpr dtype value = dtype::f16;
};
template <>
struct dtype_trait<bf16> {
  static constexpr dtype value = dtype::bf16;
};
template <>
struct dtype_trait<float> {
  static constexpr dtype value = dtype::f32;
};
template <>
struct dtype_trait<double> {
  static constexpr dtype value = dtype::f64;
};
} // namespace detail

/// A type that communicators can carry. Specialise `detail::dtype_trait` for a type of the same
/// bits (CUDA's __half and __nv_bfloat16 are added by cuda/).
template <class T>
concept element = requires {
  { detail::dtype_trait<T>::value } -> std::convertible_to<dtype>;
};

template <element T>
inline constexpr dtype dtype_of = detail::dtype_trait<T>::value;

/// How elements of several ranks become one.
enum class reduce_op : std::uint8_t { sum, min, max };

[[nodiscard]] constexpr std::string_view name_of(reduce_op op) noexcept {
  return op == reduce_op::sum   ? "sum"
         : op == reduce_op::min ? "min"
         : op == reduce_op::max ? "max"
                                : "other"; // the caller's own NCCL knows more
}

} // namespace polyrank
