// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/data/digits_csv.hpp>

#include <span>
#include <string>
#include <string_view>

using namespace polyrank;

namespace {

constexpr csv_format tiny{.rows = 1, .columns = 2, .white = 16, .classes = 10};

labelled_images parse(std::string_view text) {
  return parse_digits_csv(std::as_bytes(std::span(text)), "f.csv", tiny);
}

std::string error_of(std::string_view text) {
  try {
    (void)parse(text);
  } catch (const data_error& e) {
    return e.what();
  }
  return "no error";
}

} // namespace

TEST_CASE("the label is the last field of a line", "[digits_csv]") {
  const labelled_images set = parse("0,16,9\n3,4,0\n");
  REQUIRE(set.count() == 2);
  REQUIRE(set.features() == 2);
  REQUIRE(set.pixels == std::vector<std::uint8_t>{0, 16, 3, 4});
  REQUIRE(set.labels == std::vector<std::uint8_t>{9, 0});
  REQUIRE(set.white == 16);
}

TEST_CASE("CRLF, and a last line without an end, are fine", "[digits_csv]") {
  const labelled_images set = parse("0,16,9\r\n3,4,0");
  REQUIRE(set.pixels == std::vector<std::uint8_t>{0, 16, 3, 4});
  REQUIRE(set.labels == std::vector<std::uint8_t>{9, 0});
}

TEST_CASE("errors name line and column", "[digits_csv]") {
  REQUIRE(error_of("") == "f.csv: the file is empty");
  REQUIRE(error_of("0,16,9\n3,x,0\n") == "f.csv:2:2: 'x' is not a number of 0 ... 16");
  REQUIRE(error_of("0,-1,9\n") == "f.csv:1:2: '-1' is not a number of 0 ... 16");
  REQUIRE(error_of("0,17,9\n") == "f.csv:1:2: pixel 17 is more than 16");
  REQUIRE(error_of("0,16,10\n") == "f.csv:1:3: label 10 is more than 9");
  REQUIRE(error_of("0,16\n") == "f.csv:1:2: the line has 2 fields in place of 3");
  REQUIRE(error_of("0,16,9,1\n") == "f.csv:1:3: the line has more than 3 fields");
  REQUIRE(error_of("0,,9\n") == "f.csv:1:2: '' is not a number of 0 ... 16");
  REQUIRE(error_of("0,16,9\n\n") == "f.csv:2:1: the line has 1 fields in place of 3");
  REQUIRE(error_of("0,4294967296,9\n") == "f.csv:1:2: '4294967296' is not a number of 0 ... 16");
}
