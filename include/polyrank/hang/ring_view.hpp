// Reads a ring: one that its process still writes, one whose process is dead, or an image of it
// that came over the network. Trusts nothing: any bytes either give a view or throw data_error.
//
//     hang::ring_view v(bytes);                 // 8-byte aligned
//     v.rank(), v.host(), v.next();
//     hang::record r;
//     for (auto i = v.oldest(); i < v.next(); ++i)
//       if (v.read(i, r)) ...                   // false: overwritten meanwhile
//
// An image (`image`) is a shorter ring with the last records only: bounded, for messages and dumps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/hang/ring_layout.hpp>

#include <bit>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace polyrank::hang {

class ring_view {
 public:
  ring_view() = default;

  /// Views `bytes`, which must stay. Throws data_error where they are no ring.
  explicit ring_view(std::span<const std::byte> bytes) {
    using namespace layout;
    if (bytes.size() < 8 * header_words || reinterpret_cast<std::uintptr_t>(bytes.data()) % 8 != 0)
      throw data_error(polyrank::detail::cat("ring: ", bytes.size(), " bytes hold no header"));
    words_ = reinterpret_cast<const word*>(bytes.data());
    if (at(f_magic) != magic) throw data_error("ring: these bytes are no flight recorder");
    if (at(f_version) != version)
      throw data_error(
          polyrank::detail::cat("ring: version ", at(f_version), ", this program reads ", version));
    slots_ = at(f_slots);
    comm_slots_ = at(f_comm_slots);
    if (!std::has_single_bit(slots_) || slots_ > max_slots || comm_slots_ > max_comm_slots ||
        bytes.size() < 8 * total_words(slots_, comm_slots_))
      throw data_error(polyrank::detail::cat("ring: ", bytes.size(), " bytes cannot hold ", slots_,
                                             " records and ", comm_slots_,
                                             " communicators: the file is damaged or cut"));
  }

  [[nodiscard]] bool valid() const noexcept { return words_ != nullptr; }
  [[nodiscard]] std::uint64_t at(layout::field f) const noexcept { return detail::get(words_[f]); }
  [[nodiscard]] std::string text(layout::field f, std::size_t words) const {
    return detail::get_text(words_ + f, words);
  }

  [[nodiscard]] int rank() const noexcept { return std::min(narrow(layout::f_rank), 1 << 22); }
  [[nodiscard]] int size() const noexcept { return std::min(narrow(layout::f_size), 1 << 22); }
  [[nodiscard]] int pid() const noexcept { return narrow(layout::f_pid); }
  [[nodiscard]] std::string host() const { return text(layout::f_host, layout::short_text); }
  [[nodiscard]] std::string job() const { return text(layout::f_job, layout::short_text); }
  [[nodiscard]] std::string device() const { return text(layout::f_device, layout::short_text); }
  [[nodiscard]] std::string error() const { return text(layout::f_error, layout::error_text); }
  [[nodiscard]] hang::life life() const noexcept {
    return static_cast<hang::life>(std::min<std::uint64_t>(at(layout::f_life), 4));
  }
  [[nodiscard]] host_state state() const noexcept {
    return static_cast<host_state>(std::min<std::uint64_t>(at(layout::f_state), 7));
  }
  /// In a declared pause, and not beyond its limit.
  [[nodiscard]] bool paused(std::uint64_t now) const noexcept {
    return at(layout::f_pauses) != 0 && now < at(layout::f_pause_until_ns);
  }

  [[nodiscard]] std::size_t slots() const noexcept { return slots_; }
  /// Operations ever entered.
  [[nodiscard]] std::uint64_t next() const noexcept { return at(layout::f_next); }
  /// The oldest operation that can still be there.
  [[nodiscard]] std::uint64_t oldest() const noexcept {
    const std::uint64_t n = next();
    return n > slots_ ? n - slots_ : 0;
  }
  bool read(std::uint64_t index, record& out) const noexcept {
    return out.read(slot(index), index, lanes());
  }

  // Single words of a record, for scans that need no more. All are 0 where it was overwritten.
  [[nodiscard]] bool holds(std::uint64_t i) const noexcept {
    return detail::get(*slot(i)) == i + 1;
  }
  [[nodiscard]] std::uint32_t comm(std::uint64_t i) const noexcept {
    return static_cast<std::uint32_t>(detail::get(slot(i)[7]) >> 32);
  }
  [[nodiscard]] bool is_exchange(std::uint64_t i) const noexcept {
    return (detail::get(slot(i)[1]) & 255) == static_cast<std::uint64_t>(op_kind::exchange);
  }
  [[nodiscard]] std::uint64_t seq(std::uint64_t i) const noexcept {
    return detail::get(slot(i)[8]);
  }
  [[nodiscard]] std::uint64_t chain(std::uint64_t i) const noexcept {
    return detail::get(slot(i)[3]);
  }
  [[nodiscard]] std::uint64_t entered(std::uint64_t i) const noexcept {
    return detail::get(slot(i)[4]);
  }
  [[nodiscard]] std::uint64_t started(std::uint64_t i) const noexcept {
    return record::time_of(slot(i), 5, lanes());
  }
  /// Whether it belongs to a CUDA graph.
  [[nodiscard]] bool in_graph(std::uint64_t i) const noexcept {
    const std::uint64_t stamp = detail::get(slot(i)[6]);
    return lane::is_reference(stamp) &&
           detail::get(lane::of(lanes(), stamp)[lane::kind]) == lane::of_graph;
  }
  [[nodiscard]] std::uint64_t done(std::uint64_t i) const noexcept {
    return record::time_of(slot(i), 6, lanes());
  }

  [[nodiscard]] std::vector<comm_entry> comms() const {
    std::vector<comm_entry> all;
    const std::uint64_t used = std::min<std::uint64_t>(at(layout::f_comms), comm_slots_);
    for (std::uint64_t i = 0; i < used; ++i)
      if (comm_entry e; e.read(words_ + layout::header_words + i * comm_entry::words))
        all.push_back(std::move(e));
    return all;
  }

  /// The header, the communicators in use and the last `slots` (a power of two) records, as words.
  [[nodiscard]] std::vector<std::uint64_t> image(std::size_t slots, std::uint64_t now) const {
    using namespace layout;
    slots = std::min(std::bit_ceil(slots), slots_);
    const auto comm_slots =
        static_cast<std::size_t>(std::min<std::uint64_t>(at(f_comms), comm_slots_));
    std::vector<std::uint64_t> out(total_words(slots, comm_slots));
    const std::size_t front = header_words + comm_slots * comm_entry::words;
    for (std::size_t i = 0; i < front; ++i) out[i] = detail::get(words_[i]);
    out[f_slots] = slots;
    out[f_comm_slots] = comm_slots;
    if (out[f_sampled_ns] == 0) out[f_sampled_ns] = now;
    const std::uint64_t end = out[f_next];
    for (std::uint64_t i = end > slots ? end - slots : 0; i < end; ++i)
      for (std::size_t k = 0; k < record::words; ++k)
        out[front + (i & (slots - 1)) * record::words + k] = detail::get(slot(i)[k]);
    return out;
  }

 private:
  [[nodiscard]] int narrow(layout::field f) const noexcept {
    return static_cast<int>(std::min<std::uint64_t>(at(f), 0x7fffffff));
  }
  [[nodiscard]] const word* lanes() const noexcept { return words_ + layout::first_lane; }
  [[nodiscard]] const word* slot(std::uint64_t index) const noexcept {
    return words_ + layout::header_words + comm_slots_ * comm_entry::words +
           (index & (slots_ - 1)) * record::words;
  }

  const word* words_ = nullptr;
  std::uint64_t slots_ = 1, comm_slots_ = 0;
};

} // namespace polyrank::hang
