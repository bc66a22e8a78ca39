// A control channel over TCP, for processes that have no MPI (Slurm without PMIx, plain ssh).
//
//     launch::tcp_store control({.rank = r, .size = n, .at = address::parse("node1:29500"), .key =
//     "job 42"}); auto words = control.all_gather("hello");     // collective, like every control
//     channel
//
// Rank 0 listens, all others connect to it (a star): each operation sends one frame up and one
// down. Start-up agreement only; never on the path of a training step.
//
// Only processes that know `key` (and come from the same job: size, and a rank of their own) are
// let in; others, port scanners and garbage are dropped without disturbing anybody. Every message
// is bounded by `limit`. Every operation ends by `timeout` with the ranks that are missing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hash.hpp>
#include <polyrank/launch/socket.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::launch {

struct tcp_store_options {
  int rank = 0;
  int size = 1;
  address at;                                ///< where rank 0 listens; the same on all ranks
  std::string key{};                         ///< of the job; the same on all ranks
  std::chrono::milliseconds timeout{60000};  ///< of joining, and of each operation
  std::size_t limit = std::size_t{64} << 20; ///< bytes of one rank's contribution
};

/// A model of polyrank::control_channel.
class tcp_store {
 public:
  /// Joins the star. Throws usage_error, timeout_error naming the address or the missing ranks.
  /// @collective
  explicit tcp_store(tcp_store_options o) : options_(std::move(o)) {
    expects(options_.size > 0 && options_.rank >= 0 && options_.rank < options_.size,
            "tcp_store: rank ", options_.rank, " of ", options_.size);
    if (options_.size == 1) return;
    if (options_.rank == 0)
      gather_peers();
    else
      join();
  }

  [[nodiscard]] int rank() const noexcept { return options_.rank; }
  [[nodiscard]] int size() const noexcept { return options_.size; }

  /// The bytes of every rank. @collective
  [[nodiscard]] std::vector<std::string> all_gather(std::string_view bytes) {
    return exchange(bytes, options_.timeout);
  }

  /// @collective
  [[nodiscard]] std::int64_t all_reduce_max(std::int64_t value) {
    for (const std::string& word :
         all_gather({reinterpret_cast<const char*>(&value), sizeof value})) {
      std::int64_t theirs = value;
      if (word.size() == sizeof theirs) std::memcpy(&theirs, word.data(), sizeof theirs);
      value = std::max(value, theirs);
    }
    return value;
  }

  /// @collective
  void barrier(std::chrono::milliseconds within) { exchange({}, within); }

 private:
  /// What a peer says first. Fixed size, so that a stranger cannot make us wait for more.
  struct hello {
    std::uint64_t magic = 0x706f6c7972616e6b; // "polyrank"
    std::uint64_t key = 0;
    std::uint32_t rank = 0, size = 0;
  };
  static constexpr std::uint64_t welcome = 0x77656c636f6d6521;

  [[nodiscard]] deadline after(std::chrono::milliseconds time) const {
    return std::chrono::steady_clock::now() + time;
  }
  [[nodiscard]] std::uint64_t key() const { return hash_text(options_.key, 0x6b6579); }
  [[nodiscard]] static std::string_view bytes_of(const auto& value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }

  void gather_peers() {
    const socket door = socket::listen(options_.at);
    const deadline until = after(options_.timeout);
    peers_.resize(static_cast<std::size_t>(options_.size));
    for (int missing = options_.size - 1; missing > 0;) {
      socket peer = door.accept(until);
      if (!peer.open())
        throw timeout_error(detail::cat("tcp_store at ", options_.at.text(), ": ", absent(),
                                        " did not connect within ", options_.timeout.count(),
                                        " ms"));
      try {
        hello said;
        // A stranger that says nothing may hold the door for a second, not longer.
        const std::string word =
            peer.receive(sizeof said, std::min(until, after(std::chrono::seconds(1))));
        if (word.size() != sizeof said) continue;
        std::memcpy(&said, word.data(), sizeof said);
        const hello expected;
        if (said.magic != expected.magic || said.key != key() ||
            said.size != static_cast<std::uint32_t>(options_.size) || said.rank == 0 ||
            said.rank >= said.size || peers_[said.rank].open())
          continue; // another job, or the same rank twice
        peer.send(bytes_of(welcome), until);
        peers_[said.rank] = std::move(peer);
        --missing;
      } catch (const error&) { // not one of ours
      }
    }
  }

  void join() {
    const deadline until = after(options_.timeout);
    for (;;) {
      try {
        peers_.clear();
        peers_.push_back(socket::connect(options_.at, until));
        const hello say{.key = key(),
                        .rank = static_cast<std::uint32_t>(options_.rank),
                        .size = static_cast<std::uint32_t>(options_.size)};
        peers_[0].send(bytes_of(say), until);
        if (peers_[0].receive(sizeof welcome, until) == bytes_of(welcome)) return;
      } catch (const comm_error&) { // rank 0 closed the door on us: another job's, or not yet ours
      }
      if (std::chrono::steady_clock::now() >= until)
        throw timeout_error(detail::cat(
            "tcp_store: rank 0 at ", options_.at.text(), " does not let rank ", options_.rank,
            " of ", options_.size,
            " in: is it another job's (other key or size), or is this rank there twice?"));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  [[nodiscard]] std::string absent() const {
    std::string list;
    for (std::size_t r = 1; r < peers_.size(); ++r)
      if (!peers_[r].open()) list += detail::cat(list.empty() ? "rank " : ", ", r);
    return list;
  }

  std::vector<std::string> exchange(std::string_view mine, std::chrono::milliseconds time) {
    expects(mine.size() <= options_.limit, "tcp_store: ", mine.size(),
            " bytes are more than the limit of ", options_.limit);
    const deadline until = after(time);
    const auto n = static_cast<std::size_t>(options_.size);
    std::vector<std::string> all(n);
    if (n == 1) return {std::string(mine)};
    if (options_.rank == 0) {
      all[0] = mine;
      for (std::size_t r = 1; r < n; ++r)
        named(r, [&] { all[r] = peers_[r].receive(options_.limit, until); });
      const std::string packed = pack(all);
      for (std::size_t r = 1; r < n; ++r) named(r, [&] { peers_[r].send(packed, until); });
    } else {
      named(0, [&] {
        peers_[0].send(mine, until);
        all = unpack(peers_[0].receive((options_.limit + 8) * n, until), n);
      });
    }
    return all;
  }

  /// Adds the peer's number to errors.
  template <class F>
  void named(std::size_t peer, F f) {
    const std::string who = detail::cat("tcp_store: rank ", peer, ": ");
    try {
      f();
    } catch (const timeout_error& e) {
      throw timeout_error(who + e.what());
    } catch (const comm_error& e) {
      throw comm_error(detail::cat("tcp_store: rank ", peer), e.code(), e.what());
    }
  }

  static std::string pack(const std::vector<std::string>& words) {
    std::string out;
    for (const std::string& w : words) {
      const std::uint64_t length = w.size();
      out.append(bytes_of(length)).append(w);
    }
    return out;
  }
  static std::vector<std::string> unpack(std::string_view bytes, std::size_t n) {
    std::vector<std::string> words;
    while (words.size() < n) {
      std::uint64_t length = 0;
      if (bytes.size() < sizeof length) break;
      std::memcpy(&length, bytes.data(), sizeof length);
      bytes.remove_prefix(sizeof length);
      if (length > bytes.size()) break;
      words.emplace_back(bytes.substr(0, length));
      bytes.remove_prefix(length);
    }
    if (words.size() != n) throw mismatch_error("tcp_store: rank 0 sent a damaged message");
    return words;
  }

  tcp_store_options options_;
  std::vector<socket> peers_; // on rank 0: by rank; elsewhere: rank 0 alone
};

} // namespace polyrank::launch
