// The real file system: POSIX calls, reading through mmap.
//
//     posix_files files;
//     const auto view = files.open("model.safetensors");   // pages are read when they are touched
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/checkpoint/file_system.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace polyrank::checkpoint {

namespace detail {

/// Owns a descriptor.
class descriptor {
 public:
  explicit descriptor(int fd) noexcept : fd_(fd) {}
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  ~descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_;
};

class posix_output final : public output_file {
 public:
  explicit posix_output(const fs::path& path)
      : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (fd_.get() < 0) fail(path, "cannot create", errno);
  }
  void write(std::span<const std::byte> bytes) override {
    constexpr std::size_t most = std::size_t{8} << 20; // Linux takes less than 2 GiB in one call
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_.get(), bytes.data(), std::min(bytes.size(), most));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail(path_, "cannot write", errno);
      // The medium is to begin now, not at sync(); only advice, so a refusal does not matter.
      static_cast<void>(::sync_file_range(fd_.get(), at_, n, SYNC_FILE_RANGE_WRITE));
      at_ += n;
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
  }
  void sync() override {
    if (::fsync(fd_.get()) != 0) fail(path_, "cannot write to the medium", errno);
  }

 private:
  fs::path path_;
  descriptor fd_;
  off64_t at_ = 0;
};

class posix_view final : public file_view {
 public:
  explicit posix_view(const fs::path& path) {
    const descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (fd.get() < 0) fail(path, "cannot open", errno);
    struct stat facts {};
    if (::fstat(fd.get(), &facts) != 0) fail(path, "cannot read", errno);
    if (!S_ISREG(facts.st_mode))
      fail(path, "cannot read", S_ISDIR(facts.st_mode) ? EISDIR : EINVAL);
    size_ = static_cast<std::size_t>(facts.st_size);
    if (size_ == 0) return;
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data_ == MAP_FAILED) {
      data_ = nullptr;
      fail(path, "cannot map", errno);
    }
  }
  posix_view(const posix_view&) = delete;
  posix_view& operator=(const posix_view&) = delete;
  ~posix_view() override {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept override {
    return {static_cast<const std::byte*>(data_), size_};
  }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

struct posix_lock final : file_lock {
  explicit posix_lock(int fd) noexcept : held(fd) {}
  descriptor held; // flock() goes with the descriptor
};

} // namespace detail

class posix_files final : public file_system {
 public:
  [[nodiscard]] std::unique_ptr<output_file> create(const fs::path& path) override {
    return std::make_unique<detail::posix_output>(path);
  }
  [[nodiscard]] std::unique_ptr<file_view> open(const fs::path& path) override {
    return std::make_unique<detail::posix_view>(path);
  }
  void rename(const fs::path& from, const fs::path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) detail::fail(to, "cannot rename to this", errno);
  }
  void remove(const fs::path& path) override {
    std::error_code code;
    fs::remove(path, code);
    if (code) detail::fail(path, "cannot remove", code.value());
  }
  bool make_directory(const fs::path& path) override {
    std::error_code code;
    const bool made = fs::create_directory(path, code);
    if (code) detail::fail(path, "cannot make the directory", code.value());
    return made;
  }
  void sync_directory(const fs::path& path) override {
    const detail::descriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd.get() < 0) detail::fail(path, "cannot open the directory", errno);
    // EINVAL: some network file systems sync names by themselves and refuse to be asked.
    if (::fsync(fd.get()) != 0 && errno != EINVAL)
      detail::fail(path, "cannot write the directory to the medium", errno);
  }
  [[nodiscard]] std::vector<std::string> list(const fs::path& path) override {
    std::vector<std::string> names;
    std::error_code code;
    for (fs::directory_iterator i(path, code), end; !code && i != end; i.increment(code))
      names.push_back(i->path().filename().string());
    if (code && code != std::errc::no_such_file_or_directory)
      detail::fail(path, "cannot list", code.value());
    std::sort(names.begin(), names.end());
    return names;
  }
  [[nodiscard]] bool exists(const fs::path& path) override {
    std::error_code code;
    return fs::exists(path, code);
  }
  [[nodiscard]] std::unique_ptr<file_lock> lock(const fs::path& path) override {
    auto held = std::make_unique<detail::posix_lock>(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (held->held.get() < 0) detail::fail(path, "cannot create", errno);
    if (::flock(held->held.get(), LOCK_EX | LOCK_NB) == 0) return held;
    if (errno == EWOULDBLOCK) return nullptr;
    // Some network file systems have no locks; there, nothing can be said about other jobs.
    if (errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS) return held;
    detail::fail(path, "cannot lock", errno);
  }
};

} // namespace polyrank::checkpoint
