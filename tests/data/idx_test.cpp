// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/data/idx.hpp>

#include <string>
#include <vector>

using namespace polyrank;

namespace {

using byte_vector = std::vector<std::byte>;

byte_vector bytes_of(std::initializer_list<int> values) {
  byte_vector bytes;
  for (const int v : values) bytes.push_back(static_cast<std::byte>(v));
  return bytes;
}

/// 2 pictures of 2 x 3 pixels.
byte_vector image_file() {
  return bytes_of({0, 0, 8, 3, 0, 0, 0,   2,   0,   0,   0,   2,  0, 0, 0, 3, //
                   1, 2, 3, 4, 5, 6, 250, 251, 252, 253, 254, 255});
}
byte_vector label_file() { return bytes_of({0, 0, 8, 1, 0, 0, 0, 2, 7, 9}); }

std::string error_of(const byte_vector& bytes) {
  try {
    (void)parse_idx(bytes, "file");
  } catch (const data_error& e) {
    return e.what();
  }
  return "no error";
}

std::string pair_error(const byte_vector& images, const byte_vector& labels) {
  try {
    (void)parse_idx_images(images, "images", labels, "labels");
  } catch (const data_error& e) {
    return e.what();
  }
  return "no error";
}

} // namespace

TEST_CASE("pictures and labels are read", "[idx]") {
  const labelled_images set = parse_idx_images(image_file(), "images", label_file(), "labels");
  REQUIRE(set.count() == 2);
  REQUIRE(set.rows == 2);
  REQUIRE(set.columns == 3);
  REQUIRE(set.picture(1)[0] == 250);
  REQUIRE(set.picture(1)[5] == 255);
  REQUIRE(set.labels == std::vector<std::uint8_t>{7, 9});
  const labelled_images second = slice(set, 1, 2);
  REQUIRE(second.count() == 1);
  REQUIRE(second.picture(0)[0] == 250);
  REQUIRE(second.labels[0] == 9);
}

TEST_CASE("every truncation is noticed and says where", "[idx]") {
  const byte_vector whole = image_file();
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::string text =
        error_of(byte_vector(whole.begin(), whole.begin() + std::ptrdiff_t(n)));
    INFO(text);
    REQUIRE(text.find("file: truncated") == 0);
    REQUIRE(text.find("(at byte " + std::to_string(n) + ")") != text.npos);
  }
}

TEST_CASE("a faulty header is named with its offset", "[idx]") {
  byte_vector bytes = image_file();
  bytes[0] = std::byte{'P'};
  REQUIRE(error_of(bytes) ==
          "file: not an IDX file: it starts with bytes 80 0 in place of 0 0 (at byte 0)");
  bytes[0] = std::byte{0x1f}, bytes[1] = std::byte{0x8b};
  REQUIRE(error_of(bytes) == "file: not an IDX file: it is still compressed by gzip (at byte 0)");
  bytes = image_file();
  bytes[2] = std::byte{0x0d};
  REQUIRE(error_of(bytes) ==
          "file: element type 13 is not supported, only 8 (unsigned byte) (at byte 2)");
  bytes = image_file();
  bytes[3] = std::byte{0};
  REQUIRE(error_of(bytes) == "file: an array of no dimensions (at byte 3)");
}

TEST_CASE("trailing bytes are refused", "[idx]") {
  byte_vector bytes = image_file();
  bytes.push_back(std::byte{0});
  REQUIRE(error_of(bytes) ==
          "file: 1 bytes too many behind the 12 elements that the header promises (at byte 28)");
}

TEST_CASE("dimensions that overflow are refused", "[idx]") {
  const byte_vector bytes = bytes_of({0, 0, 8, 3, 255, 255, 255, 255, //
                                      255, 255, 255, 255, 255, 255, 255, 255});
  REQUIRE(error_of(bytes).find("corrupt") != std::string::npos);
}

TEST_CASE("an empty array is an array", "[idx]") {
  const byte_vector bytes = bytes_of({0, 0, 8, 1, 0, 0, 0, 0});
  REQUIRE(parse_idx(bytes, "file").elements.empty());
}

TEST_CASE("files that do not belong together are refused", "[idx]") {
  REQUIRE(pair_error(label_file(), image_file()) ==
          "images: pictures have 3 dimensions, here are 1 (at byte 3); are the files swapped?");
  REQUIRE(pair_error(image_file(), bytes_of({0, 0, 8, 1, 0, 0, 0, 1, 7})) ==
          "images has 2 pictures but labels has 1 labels");
  REQUIRE(pair_error(image_file(), bytes_of({0, 0, 8, 1, 0, 0, 0, 2, 7, 10})) ==
          "labels: label 10 of picture 1 is not below 10 (at byte 9)");
}
