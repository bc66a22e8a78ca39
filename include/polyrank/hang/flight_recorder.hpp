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

#include <polyrank/core/call_site.hpp>
#include <polyrank/core/dtype.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/hash.hpp>
#include <polyrank/core/operation.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace polyrank::hang {

using polyrank::name_of;
using polyrank::op_kind;
using polyrank::operation;

/// The history of one communicator on one rank; owned by the communicator.
struct comm_history {
  std::uint32_t id = 0;     ///< the same on every rank of the communicator
  std::uint64_t issued = 0; ///< operations so far
  std::uint64_t chain = 0;  ///< hash of all signatures so far: equal histories, equal chains
};

class flight_recorder {
 public:
  static constexpr std::size_t words_per_record = 16;
  using word = std::atomic<std::uint64_t>;
  static_assert(word::is_always_lock_free && sizeof(word) == 8);

  /// Identifies a record until it is overwritten.
  using ticket = std::uint64_t;

  /// A record, read back.
  struct record {
    ticket index = 0;
    std::uint32_t comm = 0;
    std::uint64_t seq = 0; ///< 1 for the first operation of its communicator
    std::uint64_t chain = 0;
    operation what;                                            ///< tag and site point into `texts`
    std::uint64_t entered_ns = 0, started_ns = 0, done_ns = 0; ///< steady clock; 0 = not yet
    std::array<char, 64> texts{};
  };

  /// A ring of `slots` records (rounded up to a power of two) in memory of its own.
  explicit flight_recorder(std::size_t slots = 4096)
      : mask_(std::bit_ceil(slots) - 1), owned_(new word[(mask_ + 1) * words_per_record]()),
        words_(owned_.get()) {}

  /// A ring in `storage`, which must be zeroed, 8-byte aligned and outlive the recorder.
  explicit flight_recorder(std::span<std::byte> storage)
      : mask_(std::bit_floor(storage.size() / (8 * words_per_record)) - 1),
        words_(reinterpret_cast<word*>(storage.data())) {
    expects(storage.size() >= 8 * words_per_record, "flight_recorder: ", storage.size(),
            " bytes hold no record of ", 8 * words_per_record);
  }

  flight_recorder(const flight_recorder&) = delete;
  flight_recorder& operator=(const flight_recorder&) = delete;

  /// Notes that the host issued `what` on the communicator of `history`, and extends its history.
  ticket enter(comm_history& history, const operation& what) noexcept {
    history.chain = hash_combine(history.chain, what.signature());
    const ticket index = next_.fetch_add(1, std::memory_order_relaxed);
    word* w = slot(index);
    set(w[0], 0); // invalid while it is being written
    set(w[1], static_cast<std::uint64_t>(what.kind) | static_cast<std::uint64_t>(what.type) << 8 |
                  static_cast<std::uint64_t>(what.op) << 16 |
                  static_cast<std::uint64_t>(static_cast<std::uint32_t>(what.peer)) << 32);
    set(w[2], what.count);
    set(w[3], history.chain);
    set(w[4], now());
    set(w[5], 0);
    set(w[6], 0);
    set(w[7], std::uint64_t{history.id} << 32 | what.site.line);
    set(w[8], ++history.issued);
    char texts[56]{}; // file 32 + tag 24, each cut and zero-terminated
    copy_text(texts, 32, what.site.file_name());
    copy_text(texts + 32, 24, what.tag);
    for (std::size_t i = 0; i < 7; ++i) {
      std::uint64_t bits;
      std::memcpy(&bits, texts + 8 * i, 8);
      set(w[9 + i], bits);
    }
    set(w[0], index + 1);
    return index;
  }
  /// Notes that the operation began to run.
  void start(ticket index) noexcept { stamp(index, 5); }
  /// Notes that the operation is done.
  void done(ticket index) noexcept { stamp(index, 6); }

  /// Operations ever entered.
  [[nodiscard]] std::uint64_t size() const noexcept {
    return next_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return mask_ + 1; }

  /// Reads record `index` into `out` (whose texts it points to); false if it was overwritten.
  bool read(ticket index, record& out) const noexcept {
    const word* w = slot(index);
    if (get(w[0]) != index + 1) return false;
    const std::uint64_t packed = get(w[1]), comm_line = get(w[7]);
    for (std::size_t i = 0; i < 7; ++i) {
      const std::uint64_t bits = get(w[9 + i]);
      std::memcpy(out.texts.data() + 8 * i, &bits, 8);
    }
    out.index = index;
    out.comm = static_cast<std::uint32_t>(comm_line >> 32);
    out.seq = get(w[8]);
    out.chain = get(w[3]);
    out.what = {.kind = static_cast<op_kind>(packed & 255),
                .type = static_cast<dtype>(packed >> 8 & 255),
                .op = static_cast<reduce_op>(packed >> 16 & 255),
                .peer = static_cast<int>(static_cast<std::uint32_t>(packed >> 32)),
                .count = get(w[2]),
                .tag = out.texts.data() + 32,
                .site = {out.texts.data(), static_cast<unsigned>(comm_line)}};
    out.entered_ns = get(w[4]);
    out.started_ns = get(w[5]);
    out.done_ns = get(w[6]);
    return get(w[0]) == index + 1;
  }

  /// The last `count` operations, oldest first, a line each.
  [[nodiscard]] std::string text(std::size_t count = 16) const {
    std::string out;
    const std::uint64_t end = size(), window = std::min<std::uint64_t>({end, count, capacity()});
    const std::uint64_t at = now();
    record r;
    for (std::uint64_t i = end - window; i < end; ++i) {
      if (!read(i, r)) continue;
      out += detail::cat("  comm ", r.comm, " #", r.seq, ' ', name_of(r.what.kind), " of ",
                         r.what.count, ' ', polyrank::name_of(r.what.type));
      if (!r.what.tag.empty()) out += detail::cat(" \"", r.what.tag, '"');
      out += detail::cat(" at ", r.what.site.file, ':', r.what.site.line, ", ",
                         r.done_ns != 0      ? "done "
                         : r.started_ns != 0 ? "running, entered "
                                             : "not started, entered ",
                         (at - (r.done_ns != 0 ? r.done_ns : r.entered_ns)) / 1000000, " ms ago\n");
    }
    return out;
  }

 private:
  static void set(word& w, std::uint64_t value) noexcept {
    w.store(value, std::memory_order_relaxed);
  }
  static std::uint64_t get(const word& w) noexcept { return w.load(std::memory_order_relaxed); }

  static std::uint64_t now() noexcept {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  static void copy_text(char* out, std::size_t room, std::string_view text) noexcept {
    std::memcpy(out, text.data(), std::min(text.size(), room - 1));
  }
  [[nodiscard]] word* slot(ticket index) const noexcept {
    return words_ + (index & mask_) * words_per_record;
  }
  void stamp(ticket index, std::size_t which) noexcept {
    word* w = slot(index);
    if (get(w[0]) == index + 1) set(w[which], now());
  }

  std::size_t mask_;
  std::unique_ptr<word[]> owned_;
  word* words_;
  std::atomic<std::uint64_t> next_{0};
};

} // namespace polyrank::hang
