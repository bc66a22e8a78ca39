// A control channel over a shared folder, for processes that have neither MPI nor a free port, only
// a file system in common.
//
//     launch::file_store control({.rank = r, .size = n, .folder = "/shared/jobs/42"});
//
// Each rank writes its word of operation k to `k.rank` (temporary name, then rename, so that nobody
// reads half of it) and polls for the words of the others. The folder must be new for each job: a
// folder that holds words already is refused. Start-up agreement only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace polyrank::launch {

struct file_store_options {
  int rank = 0;
  int size = 1;
  std::filesystem::path
      folder{}; ///< shared by all ranks, new for this job; made if it is not there
  std::chrono::milliseconds timeout{60000}; ///< of each operation
};

/// A model of polyrank::control_channel.
class file_store {
 public:
  /// Throws usage_error for a folder in which this rank has written before, data_error where it
  /// cannot write.
  explicit file_store(file_store_options o) : options_(std::move(o)) {
    expects(options_.size > 0 && options_.rank >= 0 && options_.rank < options_.size,
            "file_store: rank ", options_.rank, " of ", options_.size);
    std::error_code failed;
    std::filesystem::create_directories(options_.folder, failed);
    expects(!std::filesystem::exists(word(0, options_.rank)),
            "file_store: ", options_.folder.string(),
            " holds the words of another job; give each job a folder of its own");
  }

  [[nodiscard]] int rank() const noexcept { return options_.rank; }
  [[nodiscard]] int size() const noexcept { return options_.size; }

  /// The bytes of every rank. @collective
  [[nodiscard]] std::vector<std::string> all_gather(std::string_view bytes) {
    return exchange(bytes, options_.timeout);
  }

  /// @collective
  [[nodiscard]] std::int64_t all_reduce_max(std::int64_t value) {
    for (const std::string& text :
         all_gather({reinterpret_cast<const char*>(&value), sizeof value})) {
      std::int64_t theirs = value;
      if (text.size() == sizeof theirs) std::memcpy(&theirs, text.data(), sizeof theirs);
      value = std::max(value, theirs);
    }
    return value;
  }

  /// @collective
  void barrier(std::chrono::milliseconds within) { exchange({}, within); }

 private:
  [[nodiscard]] std::filesystem::path word(std::uint64_t operation, int rank) const {
    return options_.folder / detail::cat(operation, '.', rank);
  }

  std::vector<std::string> exchange(std::string_view mine, std::chrono::milliseconds time) {
    const std::uint64_t k = next_++;
    write(word(k, options_.rank), mine);
    const auto until = std::chrono::steady_clock::now() + time;
    std::vector<std::string> all(static_cast<std::size_t>(options_.size));
    for (int r = 0; r < options_.size; ++r)
      while (!read(word(k, r), all[static_cast<std::size_t>(r)])) {
        if (std::chrono::steady_clock::now() > until)
          throw timeout_error(detail::cat("file_store in ", options_.folder.string(), ": rank ", r,
                                          " wrote nothing within ", time.count(), " ms"));
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    // Who has read operation k has seen everybody's word of k, so everybody has finished k - 1.
    // The words of operation 0 stay: they mark the folder as used.
    std::error_code ignored;
    if (k > 1) std::filesystem::remove(word(k - 1, options_.rank), ignored);
    return all;
  }

  static void write(const std::filesystem::path& path, std::string_view bytes) {
    const std::filesystem::path half = path.string() + ".part";
    std::FILE* f = std::fopen(half.c_str(), "wb");
    const bool written =
        f != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), f) == bytes.size();
    const bool closed = f != nullptr && std::fclose(f) == 0;
    std::error_code failed;
    if (written && closed) std::filesystem::rename(half, path, failed);
    if (!written || !closed || failed)
      throw data_error(detail::cat("file_store: cannot write ", path.string(),
                                   ": is the folder writable and not full?"));
  }
  static bool read(const std::filesystem::path& path, std::string& bytes) {
    std::FILE* f = std::fopen(path.c_str(), "rb");
    if (f == nullptr) return false;
    bytes.clear();
    char part[4096];
    for (std::size_t n; (n = std::fread(part, 1, sizeof part, f)) > 0;) bytes.append(part, n);
    std::fclose(f);
    return true;
  }

  file_store_options options_;
  std::uint64_t next_ = 0;
};

} // namespace polyrank::launch
