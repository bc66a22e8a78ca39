// The flight recorder: a ring of the last communication operations of one rank.
//
// Every communicator writes what it was asked (`enter`), when the operation began (`start`) and
// when it was done (`done`). When something fails, the last lines tell which operation of which
// rank is missing. The ring is plain memory that the caller may supply, so that it can outlive the
// process.
//
//     hang::flight_recorder recorder;                       // 4096 records of 128 bytes
//     host::communicator comm = world.communicator();       // passes &recorder along
//     std::fputs(recorder.text(8).c_str(), stderr);         // the last 8 operations
//
// All accesses are relaxed atomics: recording creates no order between threads, so it cannot hide a
// data race from ThreadSanitizer, and reading while others write is safe (a record that is being
// overwritten may look torn). No lock, no allocation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/hang/ring_layout.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>

namespace polyrank::hang {

using polyrank::name_of;
using polyrank::op_kind;
using polyrank::operation;

/// Nanoseconds of the steady clock: what records are stamped with.
[[nodiscard]] inline std::uint64_t now_ns() noexcept {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

class flight_recorder {
 public:
  static constexpr std::size_t words_per_record = hang::record::words;
  using word = hang::word;

  /// Identifies a record until it is overwritten.
  using ticket = std::uint64_t;
  using record = hang::record;

  /// A ring of `slots` records (rounded up to a power of two) in memory of its own.
  explicit flight_recorder(std::size_t slots = 4096)
      : mask_(std::bit_ceil(slots) - 1), owned_(new word[(mask_ + 1) * words_per_record]()),
        words_(owned_.get()), next_(&own_next_), own_page_(new page()), page_(own_page_->words) {}

  /// A ring in `storage`, which must be zeroed, 8-byte aligned and outlive the recorder.
  explicit flight_recorder(std::span<std::byte> storage)
      : mask_(std::bit_floor(storage.size() / (8 * words_per_record)) - 1),
        words_(reinterpret_cast<word*>(storage.data())), next_(&own_next_), own_page_(new page()),
        page_(own_page_->words) {
    expects(storage.size() >= 8 * words_per_record, "flight_recorder: ", storage.size(),
            " bytes hold no record of ", 8 * words_per_record);
  }

  /// A ring that others can read, too: with a counter, a table of communicators, and a header
  /// (ring_layout.hpp) that begins a page.
  flight_recorder(std::span<word> records, word& next, word& comms, std::span<word> comm_table,
                  word* header)
      : mask_(std::bit_floor(records.size() / words_per_record) - 1), words_(records.data()),
        next_(&next), comms_(&comms), comm_table_(comm_table), page_(header), header_(header) {}

  flight_recorder(const flight_recorder&) = delete;
  flight_recorder& operator=(const flight_recorder&) = delete;

  /// Notes that communicator `id` consists of these ranks of the world, in this order, and that the
  /// caller is number `rank` of them. Call it when a communicator is made; what does not fit the
  /// table is left out.
  void attach(std::uint32_t id, std::span<const int> members, int rank) noexcept {
    announce(id, members, rank, members.size());
  }
  /// The same where the members are not known: whoever calls this with that id is one.
  void attach(std::uint32_t id, int rank, int size) noexcept {
    announce(id, {}, rank, static_cast<std::size_t>(size));
  }

  /// Notes that the host issued `what` on the communicator of `history`, and extends its history.
  ticket enter(comm_history& history, const operation& what) noexcept {
    history.extend(what);
    const ticket index = next_->fetch_add(1, std::memory_order_relaxed);
    record::write(slot(index), index, history, what, now_ns());
    return index;
  }
  /// The same for an operation whose progress lane `at` tells, as number `n`.
  ticket enter(comm_history& history, const operation& what, std::size_t at,
               std::uint64_t n) noexcept {
    history.extend(what);
    const ticket index = next_->fetch_add(1, std::memory_order_relaxed);
    record::write(slot(index), index, history, what, now_ns(), lane::reference(at, n));
    return index;
  }
  /// Notes that the operation began to run.
  void start(ticket index) noexcept { stamp(index, 5); }
  /// Notes that the operation is done.
  void done(ticket index) noexcept { stamp(index, 6); }

  /// Writes the present time in place of the reference to a lane, where one still stands.
  void saw_start(ticket index) noexcept { settle(index, 5); }
  void saw_done(ticket index) noexcept { settle(index, 6); }

  /// The words of lane `at`, zeroed when it was taken.
  [[nodiscard]] word* lane_at(std::size_t at) noexcept {
    return page_ + layout::first_lane + at * lane::words;
  }
  /// Takes a lane of `kind`; lane::count where none is free. Any thread.
  [[nodiscard]] std::size_t take_lane(std::uint64_t kind) noexcept {
    for (std::size_t at = 0; at < lane::count; ++at) {
      std::uint64_t unused = lane::unused;
      word* w = lane_at(at);
      if (!w[lane::kind].compare_exchange_strong(unused, kind, std::memory_order_relaxed)) continue;
      for (const auto f : {lane::started, lane::done, lane::replays, lane::moved_ns})
        detail::set(w[f], 0);
      return at;
    }
    return lane::count;
  }
  /// Gives it back, once its operations are done.
  void give_lane(std::size_t at) noexcept {
    for (std::size_t i = 0; i <= mask_; ++i)
      for (const std::size_t which : {5, 6}) {
        word& w = words_[i * words_per_record + which];
        std::uint64_t stamp = detail::get(w);
        if (lane::is_reference(stamp) && lane::of(page_ + layout::first_lane, stamp) == lane_at(at))
          w.compare_exchange_strong(stamp, now_ns(), std::memory_order_relaxed);
      }
    detail::set(lane_at(at)[lane::kind], lane::unused);
  }

  /// The page of the lanes, for whoever makes it known to a GPU.
  [[nodiscard]] std::span<std::byte> lane_page() noexcept {
    return {reinterpret_cast<std::byte*>(page_), page_bytes};
  }
  /// What belongs to that page on the GPU's side, shared by those who use it: made by `make()`
  /// where nobody has it.
  template <class Make>
  [[nodiscard]] auto share(Make make) -> decltype(make()) {
    const std::lock_guard lock(mutex_);
    if (auto there = shared_.lock())
      return std::static_pointer_cast<typename decltype(make())::element_type>(there);
    auto made = make();
    shared_ = made;
    return made;
  }
  /// `started` means only that the host has issued an operation, from now on.
  void starts_are_issues() noexcept {
    if (header_ != nullptr) detail::set(header_[layout::f_issue_starts], 1);
  }

  /// What the host thread does from now on, where others can read it.
  void state(host_state s, std::string_view text, call_site site) noexcept {
    using namespace layout;
    if (header_ == nullptr) return;
    detail::set(header_[f_state_since_ns], now_ns());
    detail::set(header_[f_state], static_cast<std::uint64_t>(s));
    detail::set(header_[f_state_line], site.line);
    detail::set_text(header_ + f_state_file, file_text, site.file_name());
    detail::set_text(header_ + f_state_text, short_text, text);
  }
  /// What it does while the scope lives; then what it did before.
  class [[nodiscard]] phase_scope {
   public:
    phase_scope(flight_recorder* r, host_state s, std::string_view text, call_site site) noexcept
        : recorder_(r != nullptr && r->header_ != nullptr ? r : nullptr) {
      if (recorder_ == nullptr) return;
      for (std::size_t i = 0; i < before_.size(); ++i) before_[i] = detail::get(word_at(i));
      recorder_->state(s, text, site);
    }
    phase_scope(const phase_scope&) = delete;
    phase_scope& operator=(const phase_scope&) = delete;
    ~phase_scope() {
      if (recorder_ == nullptr) return;
      detail::set(recorder_->header_[layout::f_state_since_ns], now_ns());
      for (std::size_t i = 0; i < before_.size(); ++i) detail::set(word_at(i), before_[i]);
    }

   private:
    /// State, line, file, text.
    [[nodiscard]] word& word_at(std::size_t i) const noexcept {
      using namespace layout;
      return recorder_->header_[i == 0 ? f_state : i == 1 ? f_state_line : f_state_file + i - 2];
    }

    flight_recorder* recorder_;
    std::array<std::uint64_t, 2 + layout::file_text + layout::short_text> before_{};
  };
  phase_scope phase(host_state s, std::string_view text, call_site site) noexcept {
    return {this, s, text, site};
  }
  /// A wait of the library's own. Where the program has said what it waits for, that stays.
  phase_scope wait(std::string_view what) noexcept {
    const auto now = header_ != nullptr
                         ? static_cast<host_state>(detail::get(header_[layout::f_state]))
                         : host_state::mpi;
    const bool said = now == host_state::init || now == host_state::sync || now == host_state::mpi;
    return {said ? nullptr : this, host_state::mpi, what, {}};
  }

  /// Operations ever entered.
  [[nodiscard]] std::uint64_t size() const noexcept {
    return next_->load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return mask_ + 1; }

  /// Reads record `index` into `out`; false if it was overwritten.
  bool read(ticket index, record& out) const noexcept {
    return out.read(slot(index), index, page_ + layout::first_lane);
  }

  /// The last `count` operations, oldest first, a line each.
  [[nodiscard]] std::string text(std::size_t count = 16) const {
    std::string out;
    const std::uint64_t end = size(), window = std::min<std::uint64_t>({end, count, capacity()});
    const std::uint64_t at = now_ns();
    record r;
    for (std::uint64_t i = end - window; i < end; ++i) {
      if (!read(i, r)) continue;
      out += polyrank::detail::cat("  comm ", r.comm, " #", r.seq, ' ', name_of(r.what.kind),
                                   " of ", r.what.count, ' ', polyrank::name_of(r.what.type));
      if (!r.what.tag.empty()) out += polyrank::detail::cat(" \"", r.what.tag, '"');
      out += polyrank::detail::cat(" at ", r.what.site.file, ':', r.what.site.line, ", ",
                                   r.done_ns != 0      ? "done "
                                   : r.started_ns != 0 ? "running, entered "
                                                       : "not started, entered ",
                                   (at - (r.done_ns != 0 ? r.done_ns : r.entered_ns)) / 1000000,
                                   " ms ago\n");
    }
    return out;
  }

 private:
  [[nodiscard]] word* slot(ticket index) const noexcept {
    return words_ + (index & mask_) * words_per_record;
  }
  void stamp(ticket index, std::size_t which) noexcept {
    word* w = slot(index);
    if (detail::get(w[0]) == index + 1) detail::set(w[which], now_ns());
  }

  void announce(std::uint32_t id, std::span<const int> members, int rank,
                std::size_t size) noexcept {
    if (comms_ == nullptr) return;
    const std::uint64_t i = comms_->fetch_add(1, std::memory_order_relaxed);
    if ((i + 1) * comm_entry::words <= comm_table_.size())
      comm_entry::write(comm_table_.data() + i * comm_entry::words, id, members, rank, size);
  }
  void settle(ticket index, std::size_t which) noexcept {
    word* w = slot(index);
    std::uint64_t stamp = detail::get(w[which]);
    if (detail::get(w[0]) == index + 1 && lane::is_reference(stamp))
      w[which].compare_exchange_strong(stamp, now_ns(), std::memory_order_relaxed);
  }

  static constexpr std::size_t page_bytes = 4096;
  static_assert(8 * layout::header_words <= page_bytes);
  struct alignas(page_bytes) page {
    word words[page_bytes / 8];
  };

  std::size_t mask_;
  std::unique_ptr<word[]> owned_;
  word* words_;
  word* next_;
  word* comms_ = nullptr;
  std::span<word> comm_table_;
  word own_next_{0};
  std::unique_ptr<page> own_page_;
  word* page_;
  word* header_ = nullptr;
  std::mutex mutex_;
  std::weak_ptr<void> shared_;
};

} // namespace polyrank::hang
