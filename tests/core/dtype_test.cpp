// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/core/dtype.hpp>

#include <cmath>
#include <limits>

using namespace polyrank;

TEST_CASE("every 16-bit pattern survives the way through float", "[dtype]") {
  unsigned bad = 0;
  for (unsigned bits = 0; bits < 65536; ++bits) {
    bf16 b;
    b.bits = static_cast<std::uint16_t>(bits);
    if (std::isnan(float(b)) ? !std::isnan(float(bf16(float(b)))) : bf16(float(b)).bits != b.bits)
      ++bad;
    fp16 h;
    h.bits = static_cast<std::uint16_t>(bits);
    if (std::isnan(float(h)) ? !std::isnan(float(fp16(float(h)))) : fp16(float(h)).bits != h.bits)
      ++bad;
  }
  REQUIRE(bad == 0);
}

TEST_CASE("rounding is to nearest, ties to even", "[dtype]") {
  REQUIRE(float(bf16(1.0f + 0x1p-8f)) == 1.0f);                     // tie, down to even
  REQUIRE(float(bf16(1.0f + 0x1p-7f + 0x1p-8f)) == 1.0f + 0x1p-6f); // tie, up to even
  REQUIRE(float(bf16(1.0f + 0x1p-8f + 0x1p-16f)) == 1.0f + 0x1p-7f);
  REQUIRE(float(fp16(1.0f + 0x1p-11f)) == 1.0f);
  REQUIRE(float(fp16(1.0f + 0x1p-10f + 0x1p-11f)) == 1.0f + 0x1p-9f);
  REQUIRE(float(fp16(65519.0f)) == 65504.0f);
  REQUIRE(std::isinf(float(fp16(65520.0f))));
  REQUIRE(float(fp16(0x1p-24f)) == 0x1p-24f); // smallest subnormal
  REQUIRE(float(fp16(0x1p-25f)) == 0.0f);     // tie with zero
  REQUIRE(float(fp16(0x1.8p-25f)) == 0x1p-24f);
  REQUIRE(float(fp16(0x1.ff8p-15f)) == 0x1.ff8p-15f); // largest subnormal: exact
  REQUIRE(float(fp16(0x1.ffcp-15f)) == 0x1p-14f);     // tie, up to the smallest normal
}

TEST_CASE("infinities and NaN stay what they are", "[dtype]") {
  const float inf = std::numeric_limits<float>::infinity();
  REQUIRE(float(bf16(-inf)) == -inf);
  REQUIRE(float(fp16(inf)) == inf);
  REQUIRE(std::isnan(float(bf16(std::nanf("")))));
  REQUIRE(std::isnan(float(fp16(std::nanf("")))));
}

TEST_CASE("sizes and names of element types", "[dtype]") {
  STATIC_REQUIRE(dtype_of<float> == dtype::f32);
  STATIC_REQUIRE(element<bf16>);
  STATIC_REQUIRE_FALSE(element<char*>);
  for (dtype t :
       {dtype::u8, dtype::i32, dtype::i64, dtype::f16, dtype::bf16, dtype::f32, dtype::f64})
    REQUIRE(!name_of(t).empty());
  REQUIRE(size_of(dtype::bf16) == 2);
  REQUIRE(size_of(dtype::i64) == 8);
}
