// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "support/files.hpp"
#include "support/png.hpp"
#include "support/progress.hpp"
#include "support/svg.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/optim/adamw.hpp>

#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

using namespace polyrank;
using namespace polyrank::examples;
namespace fs = std::filesystem;

namespace {

std::vector<std::byte> to_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
std::string to_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::byte> gzip(std::string_view text) {
  z_stream z{};
  REQUIRE(deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY) == Z_OK);
  std::vector<std::byte> out(text.size() + 200);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string error_of(auto action) {
  try {
    action();
  } catch (const data_error& e) {
    return e.what();
  }
  return "no error";
}

/// A folder that goes away.
struct scratch {
  fs::path path =
      fs::temp_directory_path() / ("polyrank_support_test." + std::to_string(std::rand()));
  scratch() { fs::create_directories(path); }
  ~scratch() { fs::remove_all(path); }
};

} // namespace

TEST_CASE("gunzip unpacks one member or several", "[files]") {
  const std::string text(100'000, 'x');
  const auto packed = gzip(text);
  REQUIRE(to_text(gunzip(packed, "f.gz")) == text);
  auto two = packed;
  const auto second = gzip("and more");
  two.insert(two.end(), second.begin(), second.end());
  REQUIRE(to_text(gunzip(two, "f.gz")) == text + "and more");
  REQUIRE(gunzip(gzip(""), "f.gz").empty());
}

TEST_CASE("every truncation of a gzip file is noticed", "[files]") {
  const auto packed = gzip("some text that is packed");
  for (std::size_t n = 1; n < packed.size(); ++n) {
    const std::string text = error_of([&] { (void)gunzip(std::span(packed).first(n), "f.gz"); });
    REQUIRE(text.find("f.gz: the gzip file is truncated") == 0);
  }
}

TEST_CASE("a flipped bit in a gzip file is noticed", "[files]") {
  auto packed = gzip("some text that is packed");
  packed[packed.size() - 6] ^= std::byte{1}; // in the checksum
  REQUIRE(error_of([&] { (void)gunzip(packed, "f.gz"); }).find("f.gz: the gzip file is corrupt") ==
          0);
  auto trailing = gzip("x");
  trailing.push_back(std::byte{'?'});
  REQUIRE(error_of([&] { (void)gunzip(trailing, "f.gz"); }) != "no error");
}

TEST_CASE("files are written whole, with their folders, and read back packed or not", "[files]") {
  const scratch s;
  write_file(s.path / "a/b/plain", "hello");
  REQUIRE(to_text(read_file(s.path / "a/b/plain")) == "hello");
  write_file(s.path / "a/b/plain", "again"); // replaces
  REQUIRE(to_text(read_file(s.path / "a/b/plain")) == "again");
  write_file(s.path / "packed", std::span<const std::byte>(gzip("hello")));
  REQUIRE(to_text(read_file(s.path / "packed")) == "hello");
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(s.path / "a/b")) ++files;
  REQUIRE(files == 1); // no temporary one
}

TEST_CASE("errors name the file and the reason", "[files]") {
  REQUIRE(error_of([] { (void)read_file("/nowhere/x"); }) ==
          "/nowhere/x: cannot open: No such file or directory");
  REQUIRE(error_of([] {
            write_file("/dev/null/x/y", "t");
          }).find("/dev/null/x: cannot make the directory") == 0);
}

TEST_CASE("base64 pads as RFC 4648 says", "[png]") {
  for (const auto& [plain, coded] : {std::pair<std::string_view, std::string_view>{"", ""},
                                     {"f", "Zg=="},
                                     {"fo", "Zm8="},
                                     {"foo", "Zm9v"},
                                     {"foob", "Zm9vYg=="},
                                     {"foobar", "Zm9vYmFy"}})
    REQUIRE(base64(to_bytes(plain)) == coded);
}

TEST_CASE("a PNG holds the pixels it was given", "[png]") {
  const std::vector<std::uint8_t> pixels{0, 1, 2, 253, 254, 255};
  const auto png = encode_png(pixels, 2, 3);
  REQUIRE(to_text(std::span(png).first(8)) == "\x89PNG\r\n\x1a\n");
  const std::string text = to_text(png);
  const std::size_t data = text.find("IDAT");
  REQUIRE(data != text.npos);
  const auto length = std::to_integer<std::size_t>(png[data - 1]);
  std::vector<Bytef> lines(100);
  uLongf size = lines.size();
  REQUIRE(uncompress(lines.data(), &size, reinterpret_cast<const Bytef*>(png.data() + data + 4),
                     length) == Z_OK);
  lines.resize(size);
  REQUIRE(lines == std::vector<Bytef>{0, 0, 1, 2, 0, 253, 254, 255});
  REQUIRE_THROWS_AS(encode_png(pixels, 3, 3), usage_error);
}

TEST_CASE("axis ticks are round and inside", "[svg]") {
  REQUIRE(axis_ticks(0, 1, 5) == std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1});
  REQUIRE(axis_ticks(0, 12, 6) == std::vector<double>{0, 2, 4, 6, 8, 10, 12});
  REQUIRE(axis_ticks(3, 3) == std::vector<double>{3});
}

TEST_CASE("charts and sheets are well formed, also with nothing to show", "[svg]") {
  const chart empty{"t", "x", "y", {}};
  REQUIRE(charts_svg("a < b & c", {&empty, 1}).find("a &lt; b &amp; c") != std::string::npos);
  series one{.name = "one", .colour = "#000", .points = {{1, 2}, {2, std::nan("")}}};
  const chart single{"t", "x", "y", {one}};
  const std::string text = charts_svg("t", {&single, 1});
  REQUIRE(text.find("nan") == std::string::npos);
  REQUIRE(text.substr(text.size() - 7) == "</svg>\n");
  REQUIRE(contact_sheet_svg({.title = "t", .subtitle = "s", .rows = 1, .columns = 1, .cards = {}})
              .find("<image") == std::string::npos);
}

TEST_CASE("durations are written for people", "[progress]") {
  REQUIRE(duration_text(0) == "0 s");
  REQUIRE(duration_text(59.4) == "59 s");
  REQUIRE(duration_text(185) == "3 min 05 s");
  REQUIRE(duration_text(7620) == "2 h 07 min");
}

TEST_CASE("the environment decides about colour", "[progress]") {
  std::FILE* file = std::tmpfile(); // no terminal
  unsetenv("FORCE_COLOR");
  REQUIRE(!is_fancy(file));
  setenv("FORCE_COLOR", "1", 1);
  REQUIRE(is_fancy(file));
  setenv("FORCE_COLOR", "0", 1);
  REQUIRE(!is_fancy(file));
  unsetenv("FORCE_COLOR");
  std::fclose(file);
}
