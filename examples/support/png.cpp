// SPDX-License-Identifier: Apache-2.0
#include "support/png.hpp"

#include <polyrank/core/error.hpp>

#include <zlib.h>

#include <string_view>

namespace polyrank::examples {

namespace {

void append_be32(std::vector<std::byte>& out, std::size_t value) {
  for (int shift = 24; shift >= 0; shift -= 8)
    out.push_back(static_cast<std::byte>(value >> shift));
}

void append_chunk(std::vector<std::byte>& out, std::string_view type,
                  std::span<const std::byte> data) {
  append_be32(out, data.size());
  const std::size_t checked = out.size();
  for (const char c : type) out.push_back(static_cast<std::byte>(c));
  out.insert(out.end(), data.begin(), data.end());
  append_be32(out, crc32(0, reinterpret_cast<const Bytef*>(out.data() + checked),
                         static_cast<uInt>(out.size() - checked)));
}

} // namespace

std::vector<std::byte> encode_png(std::span<const std::uint8_t> pixels, std::size_t rows,
                                  std::size_t columns) {
  expects(rows > 0 && columns > 0 && pixels.size() == rows * columns, "encode_png: ", pixels.size(),
          " pixels for ", rows, " x ", columns);
  std::vector<Bytef> lines; // each row starts with its filter: 0, none
  for (std::size_t r = 0; r < rows; ++r) {
    lines.push_back(0);
    const auto row = pixels.subspan(r * columns, columns);
    lines.insert(lines.end(), row.begin(), row.end());
  }
  uLongf size = compressBound(lines.size());
  std::vector<std::byte> data(size);
  if (compress2(reinterpret_cast<Bytef*>(data.data()), &size, lines.data(), lines.size(), 9) !=
      Z_OK)
    throw out_of_memory("encode_png", lines.size(), 0);
  data.resize(size);

  std::vector<std::byte> header;
  append_be32(header, columns);
  append_be32(header, rows);
  for (const int field : {8, 0, 0, 0, 0}) // 8 bits, grey, deflate, no filter, not interlaced
    header.push_back(static_cast<std::byte>(field));
  std::vector<std::byte> png;
  for (const int c : {0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a}) // "\x89PNG\r\n\x1a\n"
    png.push_back(static_cast<std::byte>(c));
  append_chunk(png, "IHDR", header);
  append_chunk(png, "IDAT", data);
  append_chunk(png, "IEND", {});
  return png;
}

std::string base64(std::span<const std::byte> bytes) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::size_t group = 0;
    for (std::size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? std::to_integer<std::size_t>(bytes[i + k]) : 0);
    for (std::size_t k = 0; k < 4; ++k)
      text += i + k <= bytes.size() ? digits[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

} // namespace polyrank::examples
