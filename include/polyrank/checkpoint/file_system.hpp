// The seam to files: everything that checkpoints ask of a file system, so that tests can make it
// fail, be slow, or lose what was not synced. posix_files.hpp is the real one.
//
//     write_atomically(files, "run/model.safetensors", [&](output_file& f) { f.write(bytes); });
//
// What survives a loss of power: the content of a file once sync() returned, and its name once
// sync_directory() of its folder returned. Nothing else may be relied on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace polyrank::checkpoint {

namespace fs = std::filesystem;

/// A file being written, from its start.
class output_file {
 public:
  virtual ~output_file() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  /// Returns once the content is on the medium.
  virtual void sync() = 0;
};

/// A file that can be read; its bytes stay valid as long as this lives.
class file_view {
 public:
  virtual ~file_view() = default;
  [[nodiscard]] virtual std::span<const std::byte> bytes() const noexcept = 0;
};

/// Held as long as it lives; released also when the process is killed.
class file_lock {
 public:
  virtual ~file_lock() = default;
};

/// Every function throws data_error, naming the path and the system's reason.
class file_system {
 public:
  virtual ~file_system() = default;
  /// A new file; one of this name is replaced.
  [[nodiscard]] virtual std::unique_ptr<output_file> create(const fs::path& path) = 0;
  [[nodiscard]] virtual std::unique_ptr<file_view> open(const fs::path& path) = 0;
  virtual void rename(const fs::path& from, const fs::path& to) = 0;
  /// A file or an empty folder; nothing happens if it is not there.
  virtual void remove(const fs::path& path) = 0;
  /// In a folder that is there. False if it was there already.
  virtual bool make_directory(const fs::path& path) = 0;
  virtual void sync_directory(const fs::path& path) = 0;
  /// Names in a folder, in order; empty if the folder is not there.
  [[nodiscard]] virtual std::vector<std::string> list(const fs::path& path) = 0;
  [[nodiscard]] virtual bool exists(const fs::path& path) = 0;
  /// Null if another process holds it. Always succeeds where the file system has no locks.
  [[nodiscard]] virtual std::unique_ptr<file_lock> lock(const fs::path& path) = 0;
};

namespace detail {

using polyrank::detail::cat;

[[noreturn]] inline void fail(const fs::path& path, std::string_view what, int code) {
  throw data_error(cat(path.string(), ": ", what, ": ", std::generic_category().message(code)));
}

} // namespace detail

/// The folder that holds `path`.
[[nodiscard]] inline fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// Makes a folder and its parents, so that their names survive a loss of power.
inline void make_durable_directory(file_system& files, const fs::path& path) {
  if (path.empty() || files.exists(path)) return;
  make_durable_directory(files, path.parent_path());
  files.make_directory(path);
  files.sync_directory(folder_of(path));
}

/// The file appears under its name complete and on the medium, or not at all: written under a
/// temporary name, synced, renamed, and the folder synced.
template <class Write>
void write_atomically(file_system& files, const fs::path& path, Write write) {
  const fs::path temporary = path.string() + ".tmp";
  try {
    {
      const std::unique_ptr<output_file> f = files.create(temporary);
      write(*f);
      f->sync();
    }
    files.rename(temporary, path);
  } catch (const data_error&) { // e.g. a full disk: give the room back
    try {
      files.remove(temporary);
    } catch (const data_error&) { // the first error says more
    }
    throw;
  }
  files.sync_directory(folder_of(path));
}

} // namespace polyrank::checkpoint
