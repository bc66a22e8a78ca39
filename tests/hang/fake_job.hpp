// Jobs made up for tests of the diagnosis: rings in memory, written by a real flight recorder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/analyze.hpp>
#include <polyrank/hang/flight_recorder.hpp>
#include <polyrank/hang/ring_view.hpp>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace polyrank::test {

/// One rank: its ring and its communicators' histories.
class fake_rank {
 public:
  fake_rank(int rank, int size, std::size_t slots = 64, std::string host = "node1")
      : words_(new hang::word[hang::layout::total_words(slots, comm_slots)]()), slots_(slots) {
    using namespace hang::layout;
    put(f_magic, magic);
    put(f_version, version);
    put(f_rank, static_cast<std::uint64_t>(rank));
    put(f_size, static_cast<std::uint64_t>(size));
    put(f_pid, static_cast<std::uint64_t>(1000 + rank));
    put(f_slots, slots);
    put(f_comm_slots, comm_slots);
    put(f_life, static_cast<std::uint64_t>(hang::life::running));
    put(f_state, static_cast<std::uint64_t>(hang::host_state::compute));
    put(f_created_ns, hang::now_ns());
    hang::detail::set_text(words_.get() + f_host, short_text, host);
    hang::detail::set_text(words_.get() + f_job, short_text, "made-up");
    hang::word* table = words_.get() + header_words;
    recorder_ = std::make_unique<hang::flight_recorder>(
        std::span<hang::word>(table + comm_slots * hang::comm_entry::words,
                              slots * hang::record::words),
        words_[f_next], words_[f_comms],
        std::span<hang::word>(table, comm_slots * hang::comm_entry::words), words_.get());
    sample_.rank = rank;
    sample_.process = hang::process_state::running;
  }

  void put(hang::layout::field f, std::uint64_t value) { hang::detail::set(words_[f], value); }
  void state(hang::host_state s, std::uint64_t seconds_ago) {
    put(hang::layout::f_state, static_cast<std::uint64_t>(s));
    put(hang::layout::f_state_since_ns, hang::now_ns() - seconds_ago * 1'000'000'000);
  }
  void life(hang::life l) { put(hang::layout::f_life, static_cast<std::uint64_t>(l)); }
  void error(std::string_view text) {
    hang::detail::set_text(words_.get() + hang::layout::f_error, hang::layout::error_text, text);
  }

  /// A communicator of these ranks of the world.
  hang::comm_history& attach(std::uint32_t id, const std::vector<int>& members) {
    const auto me = std::find(members.begin(), members.end(), sample_.rank);
    recorder_->attach(id, members, static_cast<int>(me - members.begin()));
    histories_.push_back(std::make_unique<hang::comm_history>());
    histories_.back()->id = id;
    return *histories_.back();
  }

  enum class until { issued, started, done };
  void run(hang::comm_history& comm, const operation& what, until stage = until::done) {
    const auto ticket = recorder_->enter(comm, what);
    if (stage != until::issued) recorder_->start(ticket);
    if (stage == until::done) recorder_->done(ticket);
  }

  [[nodiscard]] hang::flight_recorder& recorder() noexcept { return *recorder_; }

  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {reinterpret_cast<const std::byte*>(words_.get()),
            8 * hang::layout::total_words(slots_, comm_slots)};
  }
  /// As it looks `seconds` from now.
  [[nodiscard]] hang::sample look(std::uint64_t seconds = 0) const {
    hang::sample s = sample_;
    s.ring = hang::ring_view(bytes());
    s.now = hang::now_ns() + seconds * 1'000'000'000;
    return s;
  }
  void process(hang::process_state s) { sample_.process = s; }

 private:
  static constexpr std::size_t comm_slots = 4;
  std::unique_ptr<hang::word[]> words_;
  std::size_t slots_;
  std::unique_ptr<hang::flight_recorder> recorder_;
  std::vector<std::unique_ptr<hang::comm_history>> histories_;
  hang::sample sample_;
};

/// `n` ranks with one communicator of all.
class fake_job {
 public:
  explicit fake_job(int n, std::size_t slots = 64, int ranks_per_host = 1 << 20)
      : everyone(static_cast<std::size_t>(n)) {
    std::iota(everyone.begin(), everyone.end(), 0);
    for (int r = 0; r < n; ++r) {
      ranks.push_back(std::make_unique<fake_rank>(r, n, slots,
                                                  "node" + std::to_string(1 + r / ranks_per_host)));
      comms.push_back(&ranks.back()->attach(0, everyone));
    }
  }
  /// Another communicator of all ranks.
  std::vector<hang::comm_history*> attach(std::uint32_t id) {
    std::vector<hang::comm_history*> all;
    for (auto& r : ranks) all.push_back(&r->attach(id, everyone));
    return all;
  }
  fake_rank& at(int r) { return *ranks[static_cast<std::size_t>(r)]; }
  void run(int r, const operation& what, fake_rank::until stage = fake_rank::until::done) {
    at(r).run(*comms[static_cast<std::size_t>(r)], what, stage);
  }
  void all(const operation& what, fake_rank::until stage = fake_rank::until::done) {
    for (std::size_t r = 0; r < ranks.size(); ++r) run(static_cast<int>(r), what, stage);
  }
  [[nodiscard]] hang::verdict judge(std::uint64_t seconds = 30,
                                    hang::circumstances c = {.deadline_ns = 10'000'000'000}) const {
    std::vector<hang::sample> samples;
    for (const auto& r : ranks) samples.push_back(r->look(seconds));
    return hang::analyze(samples, c);
  }

  std::vector<int> everyone;
  std::vector<std::unique_ptr<fake_rank>> ranks;
  std::vector<hang::comm_history*> comms;
};

inline operation all_reduce_of(std::size_t count, std::string_view tag, unsigned line = 10) {
  return {.kind = op_kind::all_reduce,
          .type = dtype::f32,
          .count = count,
          .tag = tag,
          .site = {"train.cpp", line}};
}
inline operation send_of(std::size_t count, int peer, direction way, std::string_view tag) {
  operation o{.kind = op_kind::exchange,
              .type = dtype::f32,
              .peer = peer,
              .count = count,
              .tag = tag,
              .site = {"stage.cpp", 20}};
  o.way = way;
  return o;
}

} // namespace polyrank::test
