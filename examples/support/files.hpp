// Whole files in and out. Input may be packed by gzip; output appears under its name complete or
// not at all.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace polyrank::examples {

/// The bytes of `path`, at most `most`, so that no endless or packed one fills the memory; a file
/// that starts like gzip is unpacked.
/// @throws data_error that names the file, if it cannot be read, is larger or its packing is broken
[[nodiscard]] std::vector<std::byte>
read_file(const std::filesystem::path& path,
          std::size_t most = std::numeric_limits<std::size_t>::max());

/// Unpacks the members of a gzip file. `name` is what to call it in errors.
/// @throws data_error if it is truncated, corrupt, larger than `most`, or followed by something
/// else
[[nodiscard]] std::vector<std::byte>
gunzip(std::span<const std::byte> packed, std::string_view name,
       std::size_t most = std::numeric_limits<std::size_t>::max());

/// Writes through a temporary file in the same folder, synced and renamed; makes the folder if
/// needed.
/// @throws data_error that names the file and the system's reason
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file(const std::filesystem::path& path, std::string_view text);

} // namespace polyrank::examples
