// SPDX-License-Identifier: Apache-2.0
#include "support/files.hpp"

#include <polyrank/core/error.hpp>

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <system_error>

namespace polyrank::examples {

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, std::string_view what, int code) {
  throw data_error(
      detail::cat(path.string(), ": ", what, ": ", std::generic_category().message(code)));
}

void check_size(std::string_view name, std::size_t size, std::size_t most) {
  if (size > most) throw data_error(detail::cat(name, ": more than ", most >> 20, " MiB"));
}

struct file_closer {
  void operator()(std::FILE* f) const noexcept { std::fclose(f); }
};
using file = std::unique_ptr<std::FILE, file_closer>;

} // namespace

std::vector<std::byte> gunzip(std::span<const std::byte> packed, std::string_view name,
                              std::size_t most) {
  const auto broken = [&](std::size_t at, std::string_view what) -> data_error {
    return data_error(
        detail::cat(name, ": ", what, " (at packed byte ", at, " of ", packed.size(), ")"));
  };
  std::vector<std::byte> out;
  std::size_t used = 0, made = 0;
  while (used < packed.size()) {
    z_stream z{};
    if (inflateInit2(&z, 16 + MAX_WBITS) != Z_OK)
      throw out_of_memory(detail::cat("unpacking ", name), 1 << 16, 0);
    const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&z, inflateEnd);
    int status = Z_OK;
    while (status != Z_STREAM_END) {
      constexpr std::size_t chunk = std::numeric_limits<uInt>::max();
      if (out.size() - made < 1 << 16)
        out.resize(std::max(out.size() * 2, packed.size() * 4 + (1 << 17)));
      z.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(packed.data() + used));
      z.avail_in = static_cast<uInt>(std::min(packed.size() - used, chunk));
      z.next_out = reinterpret_cast<Bytef*>(out.data() + made);
      z.avail_out = static_cast<uInt>(std::min(out.size() - made, chunk));
      const uInt in_before = z.avail_in, out_before = z.avail_out;
      status = inflate(&z, Z_NO_FLUSH);
      used += in_before - z.avail_in;
      made += out_before - z.avail_out;
      check_size(name, made, most);
      if (status == Z_BUF_ERROR || (status == Z_OK && used == packed.size() && z.avail_out != 0))
        throw broken(used, "the gzip file is truncated");
      if (status != Z_OK && status != Z_STREAM_END)
        throw broken(used, detail::cat("the gzip file is corrupt: ",
                                       z.msg != nullptr ? z.msg : "unknown reason"));
    }
  }
  out.resize(made);
  return out;
}

std::vector<std::byte> read_file(const std::filesystem::path& path, std::size_t most) {
  const file f(std::fopen(path.c_str(), "rb"));
  if (!f) fail(path, "cannot open", errno);
  std::vector<std::byte> bytes;
  std::size_t size = 0;
  for (;;) {
    bytes.resize(size + (1 << 20));
    const std::size_t got = std::fread(bytes.data() + size, 1, 1 << 20, f.get());
    size += got;
    if (got == 0) break;
    check_size(path.string(), size, most);
  }
  if (std::ferror(f.get()) != 0) fail(path, "cannot read", errno);
  bytes.resize(size);
  const bool packed = size >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
  return packed ? gunzip(bytes, path.string(), most) : bytes;
}

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::error_code code;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), code);
  if (code) fail(path.parent_path(), "cannot make the directory", code.value());
  const std::filesystem::path temporary = path.string() + ".tmp" + std::to_string(getpid());
  const auto give_up = [&](std::string_view what) {
    const int reason = errno;
    unlink(temporary.c_str());
    fail(path, what, reason);
  };
  {
    const file f(std::fopen(temporary.c_str(), "wb"));
    if (!f) fail(temporary, "cannot create", errno);
    if (std::fwrite(bytes.data(), 1, bytes.size(), f.get()) != bytes.size() ||
        std::fflush(f.get()) != 0 || fsync(fileno(f.get())) != 0)
      give_up("cannot write");
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) give_up("cannot rename the finished file");
  // The rename itself is durable once the folder is.
  const int folder =
      open(path.has_parent_path() ? path.parent_path().c_str() : ".", O_RDONLY | O_DIRECTORY);
  if (folder >= 0) {
    fsync(folder);
    close(folder);
  }
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  write_file(path, std::as_bytes(std::span(text)));
}

} // namespace polyrank::examples
