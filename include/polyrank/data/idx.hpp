// Reader of IDX files, the format of MNIST and Fashion-MNIST (http://yann.lecun.com/exdb/mnist).
//
//     idx_array images = parse_idx(bytes, "train-images-idx3-ubyte");  // images.shape == {60000,
//     28, 28} labelled_images set = parse_idx_images(image_bytes, "images", label_bytes, "labels");
//
// The format: two zero bytes, a type (0x08: unsigned byte), the number of dimensions, each
// dimension as a big-endian 32-bit number, then the elements. Bytes in, values out: reading and
// unpacking files is the program's business.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/data/labelled_images.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace polyrank {

/// A view of the unsigned bytes of an IDX file; it points into the bytes that were parsed.
struct idx_array {
  std::vector<std::size_t> shape;
  std::span<const std::byte> elements;
};

/// @param name what to call the file in errors
/// @throws data_error (with the offset of the fault) if the bytes are not a complete IDX array of
///         unsigned bytes, or go on behind it
[[nodiscard]] inline idx_array parse_idx(std::span<const std::byte> bytes, std::string_view name) {
  const auto fail = [name](std::size_t offset, auto... what) {
    throw data_error(detail::cat(name, ": ", what..., " (at byte ", offset, ")"));
  };
  const auto byte_at = [bytes](std::size_t i) { return std::to_integer<unsigned>(bytes[i]); };
  if (bytes.size() < 4)
    fail(bytes.size(), "truncated: an IDX file starts with 4 bytes, here are ", bytes.size());
  if (byte_at(0) == 0x1f && byte_at(1) == 0x8b)
    fail(0, "not an IDX file: it is still compressed by gzip");
  if (byte_at(0) != 0 || byte_at(1) != 0)
    fail(0, "not an IDX file: it starts with bytes ", byte_at(0), " ", byte_at(1),
         " in place of 0 0");
  if (byte_at(2) != 8)
    fail(2, "element type ", byte_at(2), " is not supported, only 8 (unsigned byte)");
  const std::size_t dimensions = byte_at(3), header = 4 + 4 * dimensions;
  if (dimensions == 0) fail(3, "an array of no dimensions");
  if (bytes.size() < header)
    fail(bytes.size(), "truncated: ", dimensions, " dimensions need a header of ", header,
         " bytes, here are ", bytes.size());
  idx_array array;
  std::size_t count = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    std::size_t extent = 0;
    for (std::size_t i = 0; i < 4; ++i) extent = extent << 8 | byte_at(4 + 4 * d + i);
    if (extent != 0 && count > std::numeric_limits<std::size_t>::max() / extent)
      fail(4 + 4 * d, "corrupt: the dimensions multiply to more than 2^64 elements");
    count *= extent;
    array.shape.push_back(extent);
  }
  array.elements = bytes.subspan(header);
  if (array.elements.size() < count)
    fail(bytes.size(), "truncated: the header promises ", count, " elements, here are ",
         array.elements.size());
  if (array.elements.size() > count)
    fail(header + count, array.elements.size() - count, " bytes too many behind the ", count,
         " elements that the header promises");
  return array;
}

/// Pictures and labels from two IDX files: shapes {n, rows, columns} and {n}, labels below
/// `classes`.
/// @throws data_error if either file is faulty or they do not belong together
[[nodiscard]] inline labelled_images parse_idx_images(std::span<const std::byte> image_bytes,
                                                      std::string_view image_name,
                                                      std::span<const std::byte> label_bytes,
                                                      std::string_view label_name,
                                                      std::size_t classes = 10) {
  const idx_array images = parse_idx(image_bytes, image_name);
  const idx_array labels = parse_idx(label_bytes, label_name);
  const auto need = [](const idx_array& array, std::size_t dimensions, std::string_view name,
                       std::string_view what) {
    if (array.shape.size() != dimensions)
      throw data_error(detail::cat(name, ": ", what, " have ", dimensions, " dimensions, here are ",
                                   array.shape.size(), " (at byte 3); are the files swapped?"));
  };
  need(images, 3, image_name, "pictures");
  need(labels, 1, label_name, "labels");
  if (images.shape[0] != labels.shape[0])
    throw data_error(detail::cat(image_name, " has ", images.shape[0], " pictures but ", label_name,
                                 " has ", labels.shape[0], " labels"));
  labelled_images set{.rows = images.shape[1],
                      .columns = images.shape[2],
                      .pixels = {},
                      .labels = {},
                      .white = 255,
                      .classes = classes};
  const auto to_byte = [](std::byte b) { return std::to_integer<std::uint8_t>(b); };
  set.pixels.resize(images.elements.size());
  std::ranges::transform(images.elements, set.pixels.begin(), to_byte);
  set.labels.resize(labels.elements.size());
  std::ranges::transform(labels.elements, set.labels.begin(), to_byte);
  for (std::size_t i = 0; i < set.labels.size(); ++i)
    if (set.labels[i] >= classes)
      throw data_error(detail::cat(label_name, ": label ", unsigned{set.labels[i]}, " of picture ",
                                   i, " is not below ", classes, " (at byte ", 8 + i, ")"));
  return set;
}

} // namespace polyrank
