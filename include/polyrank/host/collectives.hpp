// The collective algorithms of the host backend, as tasks of the progress engine.
//
//   ring      all_reduce, reduce_scatter, all_gather of large data: every rank sends to the next
//             and receives from the previous one; 2(n-1)/n (or (n-1)/n) of the data leave each rank
//   doubling  all_reduce of small data: log2 n exchanges with partners at distance 1, 2, 4, ...
//   tree      broadcast: down a binomial tree, in segments
//   batch     exchange and all_to_all: all messages at once
//
// All ranks end with the same bits: in the ring every chunk is summed once and then copied; in the
// doubling both partners add the same two values.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/buffer.hpp>
#include <polyrank/core/partition.hpp>
#include <polyrank/host/memory.hpp>
#include <polyrank/host/progress_engine.hpp>
#include <polyrank/host/reduce.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace polyrank::host::detail {

/// The ring. Data are `n` chunks of `chunk` elements, the last ones cut off at `count`.
///
/// A chunk travels in segments. The segments of one wave (up to `lanes` of each chunk) go round
/// together, wave after wave, so the scratch stays in cache and the link never idles. Messages are
/// numbered q = (wave * steps + step) * lanes + lane; both neighbours count alike.
/// Reduce step t (0 ... n-2): send chunk rank-t-1, receive chunk rank-t-2 and add the own part;
/// after it rank owns chunk `rank`. Gather step t: send chunk rank-t, receive chunk rank-t-1.
class ring final : public task {
 public:
  enum class kind { all_reduce, reduce_scatter, all_gather };

  struct options {
    std::size_t segment_bytes = 512 << 10;
    std::size_t lanes = 1;
  };

  /// all_reduce: in, out of `count` elements. reduce_scatter: in of n * count, out of count.
  /// all_gather: in of count, out of n * count. In place where in == (this rank's part of) out.
  ring(const link& over, kind k, const std::byte* in, std::byte* out, std::size_t count,
       std::size_t width, reducer op, options o)
      : task(over), kind_(k), in_(in), out_(out), width_(width), op_(op),
        n_(static_cast<std::size_t>(over.size())), rank_(static_cast<std::size_t>(over.rank())),
        lanes_(o.lanes) {
    chunk_ = k == kind::all_reduce ? ceil_div(count, n_) : count;
    total_ = k == kind::all_reduce ? count : count * n_;
    segment_ =
        std::max<std::size_t>(1, std::min(ceil_div(chunk_, lanes_), o.segment_bytes / width_));
    reduce_steps_ = k == kind::all_gather ? 0 : n_ - 1;
    steps_ = reduce_steps_ + (k == kind::reduce_scatter ? 0 : n_ - 1);
    messages_ = ceil_div(chunk_, segment_ * lanes_) * steps_ * lanes_;
    window_ = 2 * lanes_;
    receives_.resize(window_, MPI_REQUEST_NULL);
    sends_.resize(window_, MPI_REQUEST_NULL);
    if (reduce_steps_ > 0) scratch_ = {window_ * segment_ * width_, memory()};
    if (k == kind::all_gather) copy(out_ + rank_ * count * width_, in_, count);
    if (n_ == 1 && k != kind::all_gather) copy(out_, in_, count);
  }

  bool advance() override {
    for (bool again = true; again;) {
      again = false;
      // Receive q is posted once send q - lanes is complete: its scratch slot is free then, and
      // what it overwrites in `out` has left.
      while (receives_posted_ < messages_ && receives_posted_ < receives_done_ + lanes_ &&
             (receives_posted_ < lanes_ || sends_done_ > receives_posted_ - lanes_)) {
        const piece p = received(receives_posted_);
        if (p.count > 0)
          slot(receives_, receives_posted_) =
              over().receive(previous(), landing(receives_posted_, p), p.count * width_);
        ++receives_posted_;
        again = true;
      }
      // Send q forwards what receive q - lanes brought, or starts the round.
      while (sends_posted_ < messages_ && sends_posted_ < sends_done_ + lanes_ &&
             (step_of(sends_posted_) == 0 || receives_done_ > sends_posted_ - lanes_)) {
        const piece p = sent(sends_posted_);
        if (p.count > 0)
          slot(sends_, sends_posted_) =
              over().send(next(), source(sends_posted_, p), p.count * width_);
        ++sends_posted_;
        again = true;
      }
      if (receives_done_ < receives_posted_ && link::test(slot(receives_, receives_done_))) {
        land(receives_done_);
        ++receives_done_;
        again = true;
      }
      if (sends_done_ < sends_posted_ && link::test(slot(sends_, sends_done_))) {
        ++sends_done_;
        again = true;
      }
      if (again) moved();
    }
    return sends_done_ == messages_ && receives_done_ == messages_;
  }

  void cancel() noexcept override {
    for (MPI_Request& r : receives_) over().drop(r, true);
    for (MPI_Request& r : sends_) over().drop(r, false);
  }

  /// Bytes that one rank sends.
  [[nodiscard]] std::size_t bytes_sent() const noexcept {
    std::size_t elements = 0;
    for (std::size_t q = 0; q < messages_; ++q) elements += sent(q).count;
    return elements * width_;
  }

 private:
  struct piece {
    std::size_t begin = 0, count = 0; // elements of the whole
  };

  [[nodiscard]] int next() const noexcept { return static_cast<int>((rank_ + 1) % n_); }
  [[nodiscard]] int previous() const noexcept { return static_cast<int>((rank_ + n_ - 1) % n_); }
  [[nodiscard]] std::size_t step_of(std::size_t q) const noexcept { return q / lanes_ % steps_; }
  [[nodiscard]] bool reduces(std::size_t q) const noexcept { return step_of(q) < reduce_steps_; }
  [[nodiscard]] bool last_reduction(std::size_t q) const noexcept {
    return step_of(q) + 1 == reduce_steps_;
  }

  [[nodiscard]] piece sent(std::size_t q) const noexcept {
    const std::size_t t = step_of(q);
    return piece_of(q, reduces(q) ? rank_ + 2 * n_ - t - 1 : rank_ + 2 * n_ - (t - reduce_steps_));
  }
  [[nodiscard]] piece received(std::size_t q) const noexcept {
    const std::size_t t = step_of(q);
    return piece_of(q,
                    reduces(q) ? rank_ + 2 * n_ - t - 2 : rank_ + 2 * n_ - (t - reduce_steps_) - 1);
  }
  [[nodiscard]] piece piece_of(std::size_t q, std::size_t chunk) const noexcept {
    const std::size_t wave = q / (lanes_ * steps_), lane = q % lanes_;
    const std::size_t begin = (chunk % n_) * chunk_, offset = (wave * lanes_ + lane) * segment_;
    const std::size_t end = std::min({begin + chunk_, begin + offset + segment_, total_});
    return {begin + offset, end > begin + offset ? end - begin - offset : 0};
  }

  static MPI_Request& slot(std::vector<MPI_Request>& requests, std::size_t q) noexcept {
    return requests[q % requests.size()];
  }
  [[nodiscard]] std::byte* scratch(std::size_t q) const noexcept {
    return scratch_.data() + q % window_ * segment_ * width_;
  }
  /// Where the results of this rank's own chunk (or of all chunks) live.
  [[nodiscard]] std::byte* result(const piece& p) const noexcept {
    return out_ + (kind_ == kind::reduce_scatter ? p.begin - rank_ * chunk_ : p.begin) * width_;
  }
  [[nodiscard]] std::byte* landing(std::size_t q, const piece& p) const noexcept {
    return reduces(q) ? scratch(q) : result(p);
  }
  [[nodiscard]] const std::byte* source(std::size_t q, const piece& p) const noexcept {
    if (!reduces(q)) return result(p);
    return step_of(q) == 0 ? in_ + p.begin * width_ : scratch(q - lanes_);
  }

  void land(std::size_t q) const noexcept {
    if (!reduces(q)) return;
    const piece p = received(q);
    op_(in_ + p.begin * width_, scratch(q), last_reduction(q) ? result(p) : scratch(q), p.count);
  }
  void copy(std::byte* to, const std::byte* from, std::size_t count) const noexcept {
    if (to != from && count > 0) std::memcpy(to, from, count * width_);
  }

  kind kind_;
  const std::byte* in_;
  std::byte* out_;
  std::size_t width_;
  reducer op_;
  std::size_t n_, rank_, lanes_;
  std::size_t chunk_ = 0, total_ = 0, segment_ = 1, steps_ = 0, reduce_steps_ = 0, messages_ = 0,
              window_ = 0;
  std::size_t receives_posted_ = 0, receives_done_ = 0, sends_posted_ = 0, sends_done_ = 0;
  std::vector<MPI_Request> receives_, sends_;
  buffer<std::byte> scratch_;
};

/// One step of the doubling: what a rank does with which partner.
struct doubling_step {
  int peer = 0;
  bool sends = false, receives = false;
  bool adds = false; ///< what came is added, else it is the result
};

/// The steps of `rank` of n. With n not a power of two, the first 2 * rest ranks pair up: even ones
/// hand their data to the odd neighbour and get the result back at the end.
[[nodiscard]] inline std::vector<doubling_step> doubling_steps(int rank, int n) {
  int power = 1;
  while (power * 2 <= n) power *= 2;
  const int rest = n - power;
  std::vector<doubling_step> steps;
  if (rank < 2 * rest && rank % 2 == 0) {
    steps.push_back({.peer = rank + 1, .sends = true});
    steps.push_back({.peer = rank + 1, .receives = true});
    return steps;
  }
  if (rank < 2 * rest) steps.push_back({.peer = rank - 1, .receives = true, .adds = true});
  const int place = rank < 2 * rest ? rank / 2 : rank - rest;
  for (int distance = 1; distance < power; distance *= 2) {
    const int partner = place ^ distance;
    steps.push_back({.peer = partner < rest ? 2 * partner + 1 : partner + rest,
                     .sends = true,
                     .receives = true,
                     .adds = true});
  }
  if (rank < 2 * rest) steps.push_back({.peer = rank - 1, .sends = true});
  return steps;
}

/// all_reduce of small data.
class doubling final : public task {
 public:
  doubling(const link& over, const std::byte* in, std::byte* out, std::size_t count,
           std::size_t width, reducer op)
      : task(over), out_(out), count_(count), width_(width), op_(op),
        steps_(doubling_steps(over.rank(), over.size())), scratch_(count * width, memory()) {
    if (in != out && count > 0) std::memcpy(out, in, count * width);
    if (count == 0) steps_.clear();
  }

  bool advance() override {
    while (at_ < steps_.size()) {
      const doubling_step& s = steps_[at_];
      if (!posted_) {
        posted_ = true;
        if (s.receives)
          receive_ = over().receive(s.peer, s.adds ? scratch_.data() : out_, count_ * width_);
        if (s.sends) send_ = over().send(s.peer, out_, count_ * width_);
      }
      if (!link::test(receive_) || !link::test(send_)) return false;
      if (s.adds) {
        // The lower rank's value first: both partners compute the same expression.
        const bool mine_first = over().rank() < s.peer;
        op_(mine_first ? out_ : scratch_.data(), mine_first ? scratch_.data() : out_, out_, count_);
      }
      posted_ = false;
      ++at_;
      moved();
    }
    return true;
  }
  void cancel() noexcept override {
    over().drop(receive_, true);
    over().drop(send_, false);
  }

 private:
  std::byte* out_;
  std::size_t count_, width_;
  reducer op_;
  std::vector<doubling_step> steps_;
  buffer<std::byte> scratch_;
  std::size_t at_ = 0;
  bool posted_ = false;
  MPI_Request receive_ = MPI_REQUEST_NULL, send_ = MPI_REQUEST_NULL;
};

/// Parent (-1 at the root) and children of a rank in the binomial tree rooted at `root`; children
/// with the larger subtrees first.
struct tree_place {
  int parent = -1;
  std::vector<int> children;
};
[[nodiscard]] inline tree_place binomial_place(int rank, int n, int root) {
  const int place = (rank - root + n) % n;
  tree_place out;
  int bit = 1;
  while (bit < n && (place & bit) == 0) bit *= 2;
  if (place != 0) out.parent = ((place ^ bit) + root) % n;
  for (bit /= 2; bit > 0; bit /= 2)
    if (place + bit < n) out.children.push_back((place + bit + root) % n);
  return out;
}

/// broadcast. Segments are passed on as soon as they are there.
class tree final : public task {
 public:
  tree(const link& over, std::byte* data, std::size_t bytes, int root, std::size_t segment_bytes)
      : task(over), data_(data), bytes_(bytes), segment_(segment_bytes),
        segments_(ceil_div(bytes, segment_bytes)),
        place_(binomial_place(over.rank(), over.size(), root)) {
    if (place_.parent < 0) arrived_ = posted_ = segments_;
  }

  bool advance() override {
    while (posted_ < segments_ && posted_ < arrived_ + receives_.size()) {
      receives_[posted_ % receives_.size()] =
          over().receive(place_.parent, at(posted_), size(posted_));
      ++posted_;
    }
    for (; arrived_ < posted_ && link::test(receives_[arrived_ % receives_.size()]); ++arrived_)
      moved();
    while (forwarded_ < arrived_ && sends_.size() < 4 * place_.children.size() + 1) {
      for (const int child : place_.children)
        sends_.push_back(over().send(child, at(forwarded_), size(forwarded_)));
      ++forwarded_;
    }
    std::erase_if(sends_, [](MPI_Request& r) { return link::test(r); });
    return forwarded_ == segments_ && sends_.empty();
  }
  void cancel() noexcept override {
    for (MPI_Request& r : receives_) over().drop(r, true);
    for (MPI_Request& r : sends_) over().drop(r, false);
  }

 private:
  [[nodiscard]] std::byte* at(std::size_t i) const noexcept { return data_ + i * segment_; }
  [[nodiscard]] std::size_t size(std::size_t i) const noexcept {
    return std::min(segment_, bytes_ - i * segment_);
  }

  std::byte* data_;
  std::size_t bytes_, segment_, segments_;
  tree_place place_;
  std::size_t posted_ = 0, arrived_ = 0, forwarded_ = 0;
  std::vector<MPI_Request> receives_ = std::vector<MPI_Request>(4, MPI_REQUEST_NULL), sends_;
};

/// Any number of messages at once, each cut at `max_message` bytes.
class batch final : public task {
 public:
  batch(const link& over, std::size_t max_message) : task(over), max_message_(max_message) {}

  void add(int peer, std::byte* data, std::size_t bytes, bool sends) {
    for (std::size_t at = 0; at < bytes; at += max_message_)
      parts_.push_back({peer, data + at, std::min(max_message_, bytes - at), sends});
  }

  bool advance() override {
    for (; posted_ < parts_.size(); ++posted_) {
      const part& p = parts_[posted_];
      requests_.push_back(p.sends ? over().send(p.peer, p.data, p.bytes)
                                  : over().receive(p.peer, p.data, p.bytes));
    }
    for (; done_ < requests_.size() && link::test(requests_[done_]); ++done_) moved();
    return done_ == parts_.size();
  }
  void cancel() noexcept override {
    for (std::size_t i = 0; i < requests_.size(); ++i) over().drop(requests_[i], !parts_[i].sends);
  }

 private:
  struct part {
    int peer;
    std::byte* data;
    std::size_t bytes;
    bool sends;
  };
  std::size_t max_message_;
  std::vector<part> parts_;
  std::vector<MPI_Request> requests_;
  std::size_t posted_ = 0, done_ = 0;
};

} // namespace polyrank::host::detail
