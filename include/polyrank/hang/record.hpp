// What the flight recorder writes, word by word: one record for each operation, one entry for each
// communicator. Shared by the recorder, which writes them, and by those who read a ring from
// outside: another process, or after the end of this one.
//
// Every word is a relaxed atomic, so reading while another thread or process writes is safe; a
// record that is being overwritten is noticed and refused.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/operation.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::hang {

using word = std::atomic<std::uint64_t>;
static_assert(word::is_always_lock_free && sizeof(word) == 8);

/// The history of one communicator on one rank; owned by the communicator.
struct comm_history {
  std::uint32_t id = 0;          ///< the same on every rank of the communicator
  std::uint64_t collectives = 0; ///< so far
  std::uint64_t exchanges = 0;   ///< so far; ranks may differ in their number
  std::uint64_t chain = 0; ///< hash of all collectives' signatures: equal histories, equal chains

  /// Counts `what`; a collective also extends the chain.
  void extend(const operation& what) noexcept {
    if (what.kind == op_kind::exchange) {
      ++exchanges;
    } else {
      ++collectives;
      chain = hash_combine(chain, what.signature());
    }
  }
  /// The number of the last operation of this kind, from 1.
  [[nodiscard]] std::uint64_t number(op_kind kind) const noexcept {
    return kind == op_kind::exchange ? exchanges : collectives;
  }
};

namespace detail {

inline void set(word& w, std::uint64_t value) noexcept {
  w.store(value, std::memory_order_relaxed);
}
[[nodiscard]] inline std::uint64_t get(const word& w) noexcept {
  return w.load(std::memory_order_relaxed);
}

/// Writes `text`, cut to fit and zero-terminated, into `room` words.
inline void set_text(word* to, std::size_t room, std::string_view text) noexcept {
  for (std::size_t i = 0; i < room; ++i) {
    std::uint64_t bits = 0;
    const std::size_t at = 8 * i, last = i + 1 == room ? 7 : 8;
    if (at < text.size()) std::memcpy(&bits, text.data() + at, std::min(text.size() - at, last));
    set(to[i], bits);
  }
}
/// Reads it back; stops at the first zero. Whatever the words hold, the text is printable.
[[nodiscard]] inline std::string get_text(const word* from, std::size_t room) {
  std::string text;
  for (std::size_t i = 0; i < room; ++i) {
    const std::uint64_t bits = get(from[i]);
    char part[8];
    std::memcpy(part, &bits, 8);
    for (const char c : part) {
      if (c == '\0') return text;
      text += c == '\n' || c == '\t' ? ' ' : c;
      if (static_cast<unsigned char>(text.back()) < 32 || text.back() == 127) text.back() = '?';
    }
  }
  return text;
}

} // namespace detail

/// Where a GPU tells how far it has come. The operations of a lane are numbered from 1 and run in
/// this order; the GPU (or a host thread that asks it) writes the number of the last one that began
/// and the last one that is done. In a graph the numbers begin anew with each replay.
///
/// A record of such an operation holds, instead of times, its lane and number, until somebody has
/// seen it move and writes the time.
struct lane {
  static constexpr std::size_t words = 8, count = 32;
  enum field : std::size_t { started, done, replays, moved_ns, kind };
  enum : std::uint64_t { unused, of_stream, of_graph };

  static constexpr std::uint64_t flag = std::uint64_t{1} << 63;
  /// What stands in a record for number `n` of lane `at`.
  [[nodiscard]] static constexpr std::uint64_t reference(std::size_t at, std::uint64_t n) noexcept {
    return flag | std::uint64_t{at} << 48 | n;
  }
  [[nodiscard]] static constexpr bool is_reference(std::uint64_t stamp) noexcept {
    return (stamp & flag) != 0;
  }
  /// The lane of a reference, in the table `lanes`.
  template <class Word>
  [[nodiscard]] static constexpr Word* of(Word* lanes, std::uint64_t stamp) noexcept {
    return lanes + (stamp >> 48 & (count - 1)) * words;
  }
  [[nodiscard]] static constexpr std::uint64_t number(std::uint64_t stamp) noexcept {
    return stamp & ((std::uint64_t{1} << 48) - 1);
  }
};

/// One operation of one rank, read back.
struct record {
  static constexpr std::size_t words = 16;

  std::uint64_t index = 0; ///< in the order in which the program issued its operations
  std::uint32_t comm = 0;
  std::uint64_t seq = 0; ///< 1 for the first collective (or exchange) of its communicator
  std::uint64_t chain = 0;
  operation what;                                            ///< tag and site point into `texts`
  std::uint64_t entered_ns = 0, started_ns = 0, done_ns = 0; ///< steady clock; 0 = not yet
  std::uint64_t replay = 0; ///< in a CUDA graph: how often it began, done_ns is of this time
  bool in_graph = false;
  std::array<char, 64> texts{};

  record() = default;
  record(const record& other) noexcept { *this = other; }
  record& operator=(const record& other) noexcept {
    index = other.index;
    comm = other.comm;
    seq = other.seq;
    chain = other.chain;
    what = other.what;
    entered_ns = other.entered_ns;
    started_ns = other.started_ns;
    done_ns = other.done_ns;
    replay = other.replay;
    in_graph = other.in_graph;
    texts = other.texts;
    point();
    return *this;
  }

  [[nodiscard]] bool finished() const noexcept { return done_ns != 0; }
  [[nodiscard]] bool is_exchange() const noexcept { return what.kind == op_kind::exchange; }

  /// Reads record `i` from its words; false if they hold another one, or none. `lanes` is the
  /// ring's table of them.
  bool read(const word* w, std::uint64_t i, const word* lanes) noexcept {
    using detail::get;
    if (get(w[0]) != i + 1) return false;
    const std::uint64_t packed = get(w[1]), size = get(w[2]), comm_line = get(w[7]);
    for (std::size_t k = 0; k < 7; ++k) {
      const std::uint64_t bits = get(w[9 + k]);
      std::memcpy(texts.data() + 8 * k, &bits, 8);
    }
    for (std::size_t k = 0; k < 56 && texts.size() > k; ++k)
      if (const auto c = static_cast<unsigned char>(texts[k]); c != 0 && (c < 32 || c == 127))
        texts[k] = '?';
    texts[31] = texts[55] = '\0';
    index = i;
    comm = static_cast<std::uint32_t>(comm_line >> 32);
    seq = get(w[8]);
    chain = get(w[3]);
    const auto within = [](std::uint64_t value, std::uint64_t most) {
      return std::min(value, most);
    };
    what = {};
    what.kind = static_cast<op_kind>(within(packed & 255, 6));
    what.type =
        static_cast<dtype>(within(packed >> 8 & 255, static_cast<std::uint64_t>(dtype::f64)));
    what.op = static_cast<reduce_op>(
        within(packed >> 16 & 255, static_cast<std::uint64_t>(reduce_op::max) + 1));
    what.peer = static_cast<int>(static_cast<std::uint32_t>(packed >> 32));
    what.count = size;
    if (is_exchange()) {
      what.count = size & exchange_count;
      what.second_peer = static_cast<int>(size >> 40) - 1;
      what.way = static_cast<direction>(within(packed >> 24 & 3, 2));
      what.second_way = static_cast<direction>(within(packed >> 26 & 3, 2));
    }
    what.site.line = static_cast<unsigned>(comm_line);
    point();
    entered_ns = get(w[4]);
    read_progress(w, lanes);
    return get(w[0]) == i + 1;
  }

  /// When the operation of these words began (`which` = 5) or was done (6); 0: not yet.
  [[nodiscard]] static std::uint64_t time_of(const word* w, std::size_t which,
                                             const word* lanes) noexcept {
    const std::uint64_t stamp = detail::get(w[which]);
    if (!lane::is_reference(stamp)) return stamp;
    record r;
    r.entered_ns = detail::get(w[4]);
    r.read_progress(w, lanes);
    return which == 5 ? r.started_ns : r.done_ns;
  }

  /// Writes a record that was just entered. No lock, no allocation. `stamp`: 0, or a reference to
  /// a lane.
  static void write(word* w, std::uint64_t i, const comm_history& history, const operation& what,
                    std::uint64_t now, std::uint64_t stamp = 0) noexcept {
    using detail::set;
    std::uint64_t size = what.count, ways = 0;
    if (what.kind == op_kind::exchange) {
      size = (size & exchange_count) | static_cast<std::uint64_t>(what.second_peer + 1) << 40;
      ways = static_cast<std::uint64_t>(what.way) | static_cast<std::uint64_t>(what.second_way)
                                                        << 2;
    }
    set(w[0], 0); // invalid while it is being written
    set(w[1], static_cast<std::uint64_t>(what.kind) | static_cast<std::uint64_t>(what.type) << 8 |
                  static_cast<std::uint64_t>(what.op) << 16 | ways << 24 |
                  static_cast<std::uint64_t>(static_cast<std::uint32_t>(what.peer)) << 32);
    set(w[2], size);
    set(w[3], history.chain);
    set(w[4], now);
    set(w[5], stamp);
    set(w[6], stamp);
    set(w[7], std::uint64_t{history.id} << 32 | what.site.line);
    set(w[8], history.number(what.kind));
    detail::set_text(w + 9, 4, what.site.file_name());
    detail::set_text(w + 13, 3, what.tag);
    set(w[0], i + 1);
  }

 private:
  static constexpr std::uint64_t exchange_count = (std::uint64_t{1} << 40) - 1;

  void read_progress(const word* w, const word* lanes) noexcept {
    using detail::get;
    started_ns = get(w[5]);
    done_ns = get(w[6]);
    const std::uint64_t begun = started_ns, ended = done_ns;
    if (!lane::is_reference(ended)) {
      if (lane::is_reference(begun)) started_ns = ended;
      return;
    }
    const word* l = lane::of(lanes, ended);
    const std::uint64_t n = lane::number(ended);
    const std::uint64_t seen = std::max(get(l[lane::moved_ns]), entered_ns);
    bool began = get(l[lane::started]) >= n, finished = get(l[lane::done]) >= n;
    in_graph = get(l[lane::kind]) == lane::of_graph;
    if (in_graph) { // it rests before, between and after the replays
      replay = get(l[lane::replays]) - (began ? 0 : 1);
      if (replay == UINT64_MAX) replay = 0;
      finished = finished || !began;
      began = true;
    }
    if (lane::is_reference(begun)) started_ns = began || finished ? seen : 0;
    done_ns = finished ? seen : 0;
  }

  void point() noexcept {
    what.tag = texts.data() + 32;
    what.site.file = texts.data();
  }
};

/// Who belongs to a communicator.
struct comm_entry {
  static constexpr std::size_t bitmap_words = 64; ///< ranks of the world up to 4095 are listed
  static constexpr std::size_t words = 8 + bitmap_words;

  std::uint32_t id = 0;
  int size = 0;                   ///< ranks
  int rank = 0;                   ///< the writer's number in it
  std::uint64_t members_hash = 0; ///< groups of one split share an id, not this
  std::vector<int> members;       ///< ranks of the world, ascending; empty: those who have it

  static void write(word* w, std::uint32_t id, std::span<const int> members, int rank,
                    std::size_t size) noexcept {
    using detail::set;
    std::uint64_t hash = 0;
    for (const int m : members) hash = hash_combine(hash, static_cast<std::uint64_t>(m));
    set(w[1], size);
    set(w[2], static_cast<std::uint64_t>(rank));
    set(w[3], hash);
    for (std::size_t i = 0; i < bitmap_words; ++i) set(w[8 + i], 0);
    for (const int m : members)
      if (const auto bit = static_cast<std::size_t>(m); bit < 64 * bitmap_words)
        w[8 + bit / 64].fetch_or(std::uint64_t{1} << (bit % 64), std::memory_order_relaxed);
    set(w[0], std::uint64_t{id} + 1);
  }
  bool read(const word* w) {
    using detail::get;
    const std::uint64_t key = get(w[0]);
    if (key == 0) return false;
    id = static_cast<std::uint32_t>(key - 1);
    size = static_cast<int>(std::min<std::uint64_t>(get(w[1]), 1 << 24));
    rank = static_cast<int>(std::min<std::uint64_t>(get(w[2]), 1 << 24));
    members_hash = get(w[3]);
    members.clear();
    for (std::size_t i = 0; i < 64 * bitmap_words; ++i)
      if ((get(w[8 + i / 64]) >> (i % 64) & 1) != 0) members.push_back(static_cast<int>(i));
    return true;
  }
};

} // namespace polyrank::hang
