// Encodes small grey pictures as PNG (RFC 2083), and bytes as base64, so that an SVG can hold
// photos.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace polyrank::examples {

/// 8-bit grey, row-major, 0 = black. @throws usage_error unless pixels.size() == rows * columns > 0
[[nodiscard]] std::vector<std::byte> encode_png(std::span<const std::uint8_t> pixels,
                                                std::size_t rows, std::size_t columns);

[[nodiscard]] std::string base64(std::span<const std::byte> bytes);

} // namespace polyrank::examples
