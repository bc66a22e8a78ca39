// Saves checkpoints while training goes on, and makes each appear whole or not at all.
//
//     posix_files files;
//     checkpoint::saver saver(comm.control(), files, {.directory = "run/checkpoints", .keep = 3});
//     for (...) {
//       ...
//       if (auto r = saver.poll()) report(*r);                       // every step; cheap
//       if (step % 100 == 0) {
//         if (auto r = saver.wait()) report(*r);                     // the one before, if any
//         saver.save(step, notes, tensors, even_fragments(tensors, rank, ranks), copy_to_host);
//       }
//     }
//     if (auto r = saver.wait()) report(*r);
//
// save() copies this rank's fragments into a buffer of the saver and returns; a thread writes them.
// The extra memory is that one buffer, the bytes of the fragments: a second save waits for the
// first. When all ranks have written, rank 0 reads the headers back, compares, and writes the
// manifest. In order, with what can be lost in between:
//
//   1  rank 0 makes the folder
//   2  every rank: shard under a temporary name, sync, rename, sync the folder
//   3  rank 0: sync the folder above; manifest under a temporary name, sync, rename, sync: now it
//   is
//      a checkpoint
//   4  rank 0 removes those beyond `keep`, manifests first
//
// Where the state is on a device, snapshot.hpp copies it on a stream of its own, and save() returns
// when the copies are enqueued.
//
// A failure (a full disk, say) is a result with an error, the same on every rank; the state in
// training and the checkpoints before are as they were, and the next save may succeed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/buffer.hpp>
#include <polyrank/backend/concepts.hpp>
#include <polyrank/checkpoint/directory.hpp>
#include <polyrank/checkpoint/reader.hpp>
#include <polyrank/checkpoint/shard.hpp>
#include <polyrank/hang/ring.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace polyrank::checkpoint {

struct saver_options {
  fs::path directory;                          ///< on a file system that all hosts share
  std::size_t keep = 0;                        ///< complete checkpoints that stay; 0: all
  std::pmr::memory_resource* memory = nullptr; ///< for the copy; null: the host's. Pinned: faster
  std::chrono::milliseconds lock_wait{5000};   ///< for a job that is just ending
  hang::ring* ring = nullptr; ///< world.ring(): ranks that wait for the disk are no hang
};

/// How a save went; the same on every rank but for `seconds`.
struct save_result {
  std::uint64_t step = 0;
  fs::path path;
  std::string error;   ///< empty: it is a complete checkpoint
  std::string warning; ///< old checkpoints could not be removed
  std::uint64_t bytes = 0;
  double seconds = 0; ///< from save() to the end
};

namespace detail {
/// For a `fill` that copies at once.
struct no_copies {
  void close() const noexcept {}
  void arrive() const noexcept {}
};
} // namespace detail

template <control_channel Control>
class saver {
 public:
  /// Fragments are cut to this many bytes, so that little is read to compare a checksum.
  static constexpr std::uint64_t largest_fragment = std::uint64_t{64} << 20;

  /// Makes the directory, takes its lock, removes what interrupted saves left. `control` and
  /// `files` must outlive this. @collective
  /// @throws data_error on every rank if the directory cannot be used, or another job saves there
  saver(Control& control, file_system& files, saver_options o)
      : control_(&control), files_(&files), options_(std::move(o)) {
    const disk_pause pause(options_.ring);
    together(control, [this] {
      if (control_->rank() != 0) return;
      make_durable_directory(*files_, options_.directory);
      const auto give_up = clock::now() + options_.lock_wait;
      while ((lock_ = files_->lock(options_.directory / "lock")) == nullptr) {
        if (clock::now() >= give_up)
          throw data_error(
              detail::cat(options_.directory.string(),
                          ": another job saves its checkpoints here (it holds the file "
                          "'lock'); give each job a directory of its own"));
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      tidy(*files_, options_.directory, 0);
    });
  }
  saver(const saver&) = delete;
  saver& operator=(const saver&) = delete;
  /// Waits for this rank's writing; a save that was not concluded leaves no checkpoint.
  ~saver() {
    if (work_.joinable()) work_.join();
  }

  /// True between save() and its result.
  [[nodiscard]] bool busy() const noexcept { return phase_ != phase::idle; }
  /// Bytes of the copy.
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return copy_.size_bytes(); }

  /// Allocates the copy for fragments like `mine`, which the first save would do otherwise.
  void reserve(const std::vector<tensor_info>& tensors, const std::vector<fragment>& mine) {
    allocate(cut(tensors, mine));
  }

  /// Starts to save `mine`, this rank's fragments; all ranks together must hold each element of
  /// `tensors` once. `fill(fragment, std::span<std::byte>)` copies one to host memory: now, or by
  /// enqueuing it on `copies` (snapshot.hpp), which must live until the save has ended.
  /// @collective
  /// @throws usage_error while a save is under way; files that fail are a matter of its result
  template <class Fill, class Copies = detail::no_copies>
  void save(std::uint64_t step, metadata notes, const std::vector<tensor_info>& tensors,
            const std::vector<fragment>& mine, Fill fill, Copies* copies = nullptr) {
    expects(!busy(), "saver::save: the save of step ", result_.step,
            " is under way; call wait() first");
    started_ = clock::now();
    page_ = {.step = step, .notes = std::move(notes), .tensors = tensors, .shards = {}};
    result_ = {.step = step, .path = {}, .error = {}, .warning = {}};
    failure_.clear();
    take(cut(tensors, mine), fill);
    if (copies != nullptr) copies->close();
    const disk_pause pause(options_.ring);
    choose_folder();
    phase_ = phase::writing;
    start([this, copies] {
      if (copies != nullptr) copies->arrive();
      if (!failure_.empty() || result_.path.empty()) return; // no memory here, no folder on rank 0
      files_->make_directory(result_.path);
      record_ = write_shard(*files_,
                            result_.path / detail::cat("shard_", control_->rank(), ".safetensors"),
                            page_.tensors, parts_);
    });
  }

  /// Moves the save on if it can be moved without waiting; the result, once, when it has ended.
  /// @collective
  [[nodiscard]] std::optional<save_result> poll() {
    if (!busy() || control_->all_reduce_max(done_.load() ? 0 : 1) != 0) return {};
    return advance();
  }
  /// Waits for the end of the save; nothing if none is under way. @collective
  [[nodiscard]] std::optional<save_result> wait() {
    std::optional<save_result> r;
    while (busy() && !r) r = advance();
    return r;
  }

 private:
  using clock = std::chrono::steady_clock;
  enum class phase { idle, writing, committing };

  /// A fragment of this rank, and where in the copy it goes.
  struct part {
    fragment where;
    std::size_t at = 0, bytes = 0;
  };
  struct disk_pause {
    explicit disk_pause(hang::ring* r) {
      if (r != nullptr) scope.emplace(*r, "checkpoint", std::chrono::hours(1));
    }
    std::optional<hang::ring::pause_scope> scope;
  };

  /// The fragments of this rank, none larger than largest_fragment.
  [[nodiscard]] static std::vector<part> cut(const std::vector<tensor_info>& tensors,
                                             const std::vector<fragment>& mine) {
    std::vector<part> parts;
    std::size_t at = 0;
    for (fragment f : mine) {
      expects(f.tensor < tensors.size(), "saver: a fragment of tensor ", f.tensor, " of ",
              tensors.size());
      const std::uint64_t width = size_of(tensors[f.tensor].type);
      while (f.count > 0) {
        const fragment piece{f.tensor, f.offset, std::min(f.count, largest_fragment / width)};
        parts.push_back({piece, at, piece.count * width});
        at = round_up(at + parts.back().bytes, std::size_t{64});
        f.offset += piece.count;
        f.count -= piece.count;
      }
    }
    return parts;
  }
  void allocate(const std::vector<part>& parts) {
    const std::size_t bytes = parts.empty() ? 0 : parts.back().at + parts.back().bytes;
    if (copy_.size() >= bytes) return;
    copy_ = {}; // before the larger one is asked for
    copy_ = buffer<std::byte>(bytes, options_.memory != nullptr ? *options_.memory
                                                                : *std::pmr::new_delete_resource());
  }

  template <class Fill>
  void take(const std::vector<part>& parts, Fill& fill) {
    parts_.clear();
    try {
      allocate(parts);
    } catch (const std::exception& e) {
      failure_ = detail::cat("no memory for the copy of the state: ", e.what());
      return;
    }
    for (const part& p : parts) {
      const std::span<std::byte> to = copy_.span().subspan(p.at, p.bytes);
      fill(p.where, to);
      parts_.push_back({p.where, to});
    }
  }

  /// A new folder, made by rank 0.
  void choose_folder() {
    std::string name;
    if (control_->rank() == 0) {
      try {
        if (!files_->exists(options_.directory)) // perhaps no longer mounted: do not make it anew
          throw data_error(detail::cat(options_.directory.string(), ": this directory is gone"));
        std::uint64_t attempt = 0;
        while (!files_->make_directory(options_.directory / step_name(page_.step, attempt)))
          ++attempt;
        name = step_name(page_.step, attempt);
      } catch (const std::exception& e) {
        failure_ = e.what();
      }
    }
    name = control_->all_gather(name)[0];
    if (!name.empty()) result_.path = options_.directory / name;
  }

  template <class Work>
  void start(Work work) {
    done_ = false;
    const auto run = [this, work] {
      try {
        work();
      } catch (const std::exception& e) {
        failure_ = e.what();
      }
      done_ = true;
    };
    try {
      work_ = std::thread(run);
    } catch (const std::system_error&) { // no thread to be had: without overlap, then
      run();
    }
  }

  /// Ends the phase, waiting for it. @collective
  [[nodiscard]] std::optional<save_result> advance() {
    const disk_pause pause(options_.ring);
    if (work_.joinable()) work_.join();
    if (agree_on_failure()) return conclude();
    if (phase_ == phase::committing) return conclude();
    phase_ = phase::committing;
    for (const std::string& text : control_->all_gather(packed(record_)))
      page_.shards.push_back(unpacked(text, page_.shards.size()));
    for (const shard_record& s : page_.shards) result_.bytes += s.bytes;
    done_ = true;
    if (control_->rank() == 0) start([this] { commit(); });
    return {};
  }

  void commit() {
    files_->sync_directory(options_.directory);
    std::map<std::string, std::size_t, std::less<>> index;
    for (std::size_t i = 0; i < page_.tensors.size(); ++i)
      expects(index.emplace(page_.tensors[i].name, i).second, "saver: the tensor name '",
              page_.tensors[i].name, "' is taken");
    std::vector<fragment> all;
    for (const shard_record& s : page_.shards) {
      const shard_file shard(*files_, result_.path / s.file, s, page_.tensors, index);
      all.insert(all.end(), shard.fragments().begin(), shard.fragments().end());
    }
    const std::string fault = coverage_fault(page_.tensors, all);
    expects(fault.empty(), "saver: the fragments of all ranks are not the state: ", fault);
    const std::string text = to_json(page_);
    write_atomically(*files_, result_.path / manifest_name,
                     [&](output_file& f) { f.write(std::as_bytes(std::span<const char>(text))); });
    try {
      tidy(*files_, options_.directory, options_.keep);
    } catch (const std::exception& e) {
      result_.warning = e.what();
    }
  }

  /// True, with result_.error set, if some rank failed.
  [[nodiscard]] bool agree_on_failure() {
    const std::vector<std::string> all = control_->all_gather(failure_);
    for (std::size_t r = 0; r < all.size() && result_.error.empty(); ++r)
      if (!all[r].empty()) result_.error = r == 0 ? all[r] : detail::cat("rank ", r, ": ", all[r]);
    return !result_.error.empty();
  }

  [[nodiscard]] save_result conclude() {
    phase_ = phase::idle;
    if (!result_.error.empty() && control_->rank() == 0 && !result_.path.empty()) {
      try {
        remove_step(*files_, result_.path); // gives the room back
      } catch (const std::exception&) {     // the next job does it
      }
    }
    result_.warning = control_->all_gather(result_.warning)[0];
    result_.seconds = std::chrono::duration<double>(clock::now() - started_).count();
    return result_;
  }

  [[nodiscard]] static std::string packed(const shard_record& r) {
    std::string text(16, '\0');
    std::memcpy(text.data(), &r.bytes, 8);
    std::memcpy(text.data() + 8, &r.header_checksum, 8);
    return text;
  }
  [[nodiscard]] static shard_record unpacked(const std::string& text, std::size_t rank) {
    shard_record r{.file = detail::cat("shard_", rank, ".safetensors")};
    std::memcpy(&r.bytes, text.data(), 8);
    std::memcpy(&r.header_checksum, text.data() + 8, 8);
    return r;
  }

  Control* control_;
  file_system* files_;
  saver_options options_;
  std::unique_ptr<file_lock> lock_;
  phase phase_ = phase::idle;
  clock::time_point started_;
  save_result result_;
  // Between start() and join, these belong to the thread.
  manifest page_;
  buffer<std::byte> copy_;
  std::vector<fragment_data> parts_;
  shard_record record_;
  std::string failure_;
  std::atomic<bool> done_{true};
  std::thread work_;
};

} // namespace polyrank::checkpoint
