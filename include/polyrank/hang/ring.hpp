// The flight recorder of one rank in a file of /dev/shm, so that other processes can read it, also
// after this one was killed.
//
//     hang::ring mine({.job = "42", .rank = 3, .size = 8});
//     mine.recorder();                                        // goes to the communicators
//     { auto p = mine.phase(hang::host_state::checkpoint, "save step 100"); ... }
//     { auto p = mine.pause("evaluation"); ... }              // no deadline inside
//
// The file is DIR/JOB.RANK.ring, mode 0600; DIR is POLYRANK_HANG_DIR or /dev/shm. The destructor
// removes it; a process that is killed leaves it behind, which is the point.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/hang/flight_recorder.hpp>
#include <polyrank/hang/process.hpp>
#include <polyrank/hang/ring_view.hpp>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace polyrank::hang {

/// POLYRANK_HANG_DIR, or /dev/shm.
[[nodiscard]] inline std::filesystem::path default_folder() {
  const char* named = std::getenv("POLYRANK_HANG_DIR");
  return named != nullptr && *named != '\0' ? named : "/dev/shm";
}

struct ring_options {
  std::filesystem::path folder = default_folder();
  std::string job = "job"; ///< the same on all ranks; letters, digits, '-', '_' and '.'
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1; ///< among the ranks of this host
  std::size_t slots = 4096;           ///< records; rounded up to a power of two
  std::size_t comm_slots = 32;        ///< communicators that are listed
};

/// The ring files of job `job` (all jobs where it is empty) in `folder`, in name order.
[[nodiscard]] inline std::vector<std::filesystem::path>
ring_files(const std::filesystem::path& folder, std::string_view job = {}) {
  std::vector<std::filesystem::path> found;
  std::error_code failed;
  for (std::filesystem::directory_iterator it(folder, failed), end; !failed && it != end;
       it.increment(failed)) {
    const std::string name = it->path().filename().string();
    if (it->path().extension() == ".ring" && name.starts_with("polyrank-") &&
        (job.empty() || name.starts_with(polyrank::detail::cat("polyrank-", job, '.'))))
      found.push_back(it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// A file in memory. Move-only.
class mapped_file {
 public:
  mapped_file() = default;
  mapped_file(mapped_file&& o) noexcept { swap(o); }
  mapped_file& operator=(mapped_file&& o) noexcept {
    swap(o);
    return *this;
  }
  ~mapped_file() {
    if (bytes_ != nullptr) ::munmap(bytes_, size_);
  }

  /// Opens for reading; an empty object where there is no such file of ours.
  [[nodiscard]] static mapped_file open(const std::filesystem::path& path) {
    mapped_file m;
    const int f = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (f < 0) return m;
    struct stat s {};
    if (::fstat(f, &s) == 0 && S_ISREG(s.st_mode) && s.st_size > 0)
      m.map(f, static_cast<std::size_t>(s.st_size), PROT_READ);
    ::close(f);
    return m;
  }
  /// Makes a file of `size` zeros, mode 0600, whose memory is reserved. Throws data_error.
  [[nodiscard]] static mapped_file create(const std::filesystem::path& path, std::size_t size) {
    const auto fail = [&](int code) {
      throw data_error(polyrank::detail::cat("flight recorder: cannot make ", path.string(), ": ",
                                             std::generic_category().message(code),
                                             "; POLYRANK_HANG_DIR names another folder"));
    };
    ::unlink(path.c_str()); // left by an earlier job of this name
    const int f = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (f < 0) fail(errno);
    mapped_file m;
    int code = ::posix_fallocate(f, 0, static_cast<off_t>(size)); // full now, not SIGBUS later
    if (code == 0 && !m.map(f, size, PROT_READ | PROT_WRITE)) code = errno;
    ::close(f);
    if (code != 0) {
      ::unlink(path.c_str());
      fail(code);
    }
    return m;
  }

  [[nodiscard]] bool open() const noexcept { return bytes_ != nullptr; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept {
    return {static_cast<std::byte*>(bytes_), size_};
  }

 private:
  bool map(int f, std::size_t size, int access) {
    void* p = ::mmap(nullptr, size, access, MAP_SHARED, f, 0);
    if (p == MAP_FAILED) return false;
    bytes_ = p;
    size_ = size;
    return true;
  }
  void swap(mapped_file& o) noexcept {
    std::swap(bytes_, o.bytes_);
    std::swap(size_, o.size_);
  }
  void* bytes_ = nullptr;
  std::size_t size_ = 0;
};

class ring {
 public:
  /// Throws data_error where the file cannot be made.
  explicit ring(const ring_options& o) : path_(path_of(o.folder, o.job, o.rank)) {
    using namespace layout;
    const std::size_t slots = std::bit_ceil(std::max<std::size_t>(o.slots, 1));
    expects(slots <= max_slots && o.comm_slots <= max_comm_slots, "ring: ", o.slots,
            " records and ", o.comm_slots, " communicators; at most ", max_slots, " and ",
            max_comm_slots, " are possible");
    file_ = mapped_file::create(path_, 8 * total_words(slots, o.comm_slots));
    words_ = reinterpret_cast<word*>(file_.bytes().data());
    char host[256] = "";
    ::gethostname(host, sizeof host - 1);
    put(f_version, version);
    put(f_rank, static_cast<std::uint64_t>(o.rank));
    put(f_size, static_cast<std::uint64_t>(o.size));
    put(f_local_rank, static_cast<std::uint64_t>(o.local_rank));
    put(f_local_size, static_cast<std::uint64_t>(o.local_size));
    put(f_pid, static_cast<std::uint64_t>(::getpid()));
    put(f_started, start_time_of(::getpid()));
    put(f_pid_namespace, hang::pid_namespace());
    put(f_slots, slots);
    put(f_comm_slots, o.comm_slots);
    put(f_created_ns, now_ns());
    put(f_heartbeat_ns, now_ns());
    const auto wall = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::system_clock::now().time_since_epoch());
    put(f_wall_offset, static_cast<std::uint64_t>(wall.count()) - now_ns());
    put(f_state_since_ns, now_ns());
    detail::set_text(words_ + f_job, short_text, o.job);
    detail::set_text(words_ + f_host, short_text, host);
    word* const table = words_ + header_words;
    word* const records = table + o.comm_slots * comm_entry::words;
    recorder_ = std::make_unique<flight_recorder>(
        std::span<word>(records, slots * record::words), words_[f_next], words_[f_comms],
        std::span<word>(table, o.comm_slots * comm_entry::words), words_);
    owner_ = ::getpid();
    put(f_magic, magic); // last: from here on it is a ring
  }
  ring(const ring&) = delete;
  ring& operator=(const ring&) = delete;
  ~ring() { remove(); }

  [[nodiscard]] flight_recorder& recorder() noexcept { return *recorder_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] ring_view view() const { return ring_view(file_.bytes()); }

  /// Takes the file away; the memory stays until the end of the object. In a forked child: nothing.
  void remove() noexcept {
    if (owner_ == ::getpid()) ::unlink(path_.c_str());
    owner_ = 0;
  }

  void put(layout::field f, std::uint64_t value) noexcept { detail::set(words_[f], value); }
  void put_text(layout::field f, std::size_t room, std::string_view text) noexcept {
    detail::set_text(words_ + f, room, text);
  }
  void beat() noexcept { put(layout::f_heartbeat_ns, now_ns()); }
  void come_to(life l) noexcept { put(layout::f_life, static_cast<std::uint64_t>(l)); }
  /// The rank's last words.
  void fail(std::string_view why) noexcept { put_text(layout::f_error, layout::error_text, why); }

  /// True once the job was asked to save and stop (SIGUSR2, or SIGTERM by the scheduler). Asking
  /// says that the program saves: without it a SIGTERM ends the process as usual.
  [[nodiscard]] bool save_requested() noexcept {
    put(layout::f_saves, 1);
    return detail::get(words_[layout::f_save]) != 0;
  }

  /// What the host does until the scope ends; then what it did before.
  [[nodiscard]] flight_recorder::phase_scope phase(host_state s, std::string_view text = {},
                                                   call_site site = call_site::here()) noexcept {
    return recorder_->phase(s, text, site);
  }
  void state(host_state s, std::string_view text, call_site site) noexcept {
    recorder_->state(s, text, site);
  }

  /// No deadline runs while the scope lives, at most for `limit`: for checkpoints, evaluation, or
  /// anything else for which the other ranks rightly wait.
  class [[nodiscard]] pause_scope {
   public:
    pause_scope(ring& r, std::string_view why, std::chrono::nanoseconds limit) noexcept
        : ring_(&r) {
      r.put_text(layout::f_pause_text, layout::short_text, why);
      r.put(layout::f_pause_until_ns, now_ns() + static_cast<std::uint64_t>(limit.count()));
      r.words_[layout::f_pauses].fetch_add(1, std::memory_order_relaxed);
    }
    pause_scope(const pause_scope&) = delete;
    pause_scope& operator=(const pause_scope&) = delete;
    ~pause_scope() { ring_->words_[layout::f_pauses].fetch_sub(1, std::memory_order_relaxed); }

   private:
    ring* ring_;
  };
  pause_scope pause(std::string_view why,
                    std::chrono::nanoseconds limit = std::chrono::hours(1)) noexcept {
    return {*this, why, limit};
  }

  [[nodiscard]] static std::filesystem::path path_of(const std::filesystem::path& folder,
                                                     std::string_view job, int rank) {
    const bool plain = std::all_of(job.begin(), job.end(), [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
             c == '-' || c == '_' || c == '.';
    });
    expects(plain && !job.empty() && job.size() < 64, "ring: '", job,
            "' is no job name: letters, digits, '-', '_' and '.', at most 63");
    return folder / polyrank::detail::cat("polyrank-", job, '.', rank, ".ring");
  }

 private:
  std::filesystem::path path_;
  mapped_file file_;
  word* words_ = nullptr;
  std::unique_ptr<flight_recorder> recorder_;
  int owner_ = 0;
};

} // namespace polyrank::hang
