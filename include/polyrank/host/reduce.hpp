// Element-wise reduction of two arrays on the host: out = a op b.
//
// 16-bit floats are combined in fp32 and rounded once. min and max take the second operand where
// they compare false, so a NaN in `a` is not kept.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace polyrank::host::detail {

template <reduce_op Op, element T>
[[nodiscard]] constexpr T combine(T a, T b) noexcept {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, fp16>)
    return T(combine<Op>(float(a), float(b)));
  else if constexpr (Op == reduce_op::sum)
    return static_cast<T>(a + b);
  else if constexpr (Op == reduce_op::min)
    return a < b ? a : b;
  else
    return a > b ? a : b;
}

/// out[i] = a[i] op b[i] for i < count; out may be a or b.
template <reduce_op Op, element T>
void reduce(const T* a, const T* b, T* out, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) out[i] = combine<Op>(a[i], b[i]);
}

/// `reduce` behind one pointer type, for code that knows the element type only at run time.
using reducer = void (*)(const void* a, const void* b, void* out, std::size_t count) noexcept;

template <reduce_op Op>
[[nodiscard]] constexpr reducer reducer_of(dtype type) noexcept {
  constexpr auto of = []<class T>(T) -> reducer {
    return [](const void* a, const void* b, void* out, std::size_t count) noexcept {
      reduce<Op>(static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(out), count);
    };
  };
  switch (type) {
  case dtype::u8:
    return of(std::uint8_t{});
  case dtype::i32:
    return of(std::int32_t{});
  case dtype::i64:
    return of(std::int64_t{});
  case dtype::f16:
    return of(fp16{});
  case dtype::bf16:
    return of(bf16{});
  case dtype::f32:
    return of(float{});
  case dtype::f64:
    break;
  }
  return of(double{});
}

[[nodiscard]] constexpr reducer reducer_of(dtype type, reduce_op op) noexcept {
  switch (op) {
  case reduce_op::sum:
    return reducer_of<reduce_op::sum>(type);
  case reduce_op::min:
    return reducer_of<reduce_op::min>(type);
  case reduce_op::max:
    break;
  }
  return reducer_of<reduce_op::max>(type);
}

} // namespace polyrank::host::detail
