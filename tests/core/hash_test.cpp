// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/core/hash.hpp>

using namespace polyrank;

TEST_CASE("the hash sees order, length and every byte", "[hash]") {
  REQUIRE(hash_text("ab") != hash_text("ba"));
  REQUIRE(hash_text("") != hash_text(std::string_view("\0", 1)));
  std::string text(100, 'x');
  const auto before = hash_text(text);
  for (char& c : text) {
    c = 'y';
    REQUIRE(hash_text(text) != before);
    c = 'x';
  }
  REQUIRE(hash_text(text) == before);
}

TEST_CASE("hex16 prints 16 digits", "[hash]") {
  REQUIRE(hex16(0) == "0000000000000000");
  REQUIRE(hex16(0x0123456789abcdefULL) == "0123456789abcdef");
}
