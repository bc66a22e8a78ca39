// Which gradients of the running microbatch have been declared, on which streams, and which bucket
// may be issued next. Buckets are issued in index order on every rank, however early one is
// complete: the order of collectives is what ranks must share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/text.hpp>
#include <polyrank/zero/shard_layout.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace polyrank {

template <class Stream, class Event>
class ready_tracker {
 public:
  explicit ready_tracker(const shard_layout& l) : buckets_(l.buckets().size()) {
    for (const slot& s : l.slots()) bucket_of_.push_back(s.bucket);
  }

  /// A new microbatch. Parameters without elements count as declared.
  void start(const shard_layout& l) {
    declared_.assign(bucket_of_.size(), false);
    missing_ = bucket_of_.size();
    next_ = 0;
    for (std::size_t k = 0; k < buckets_.size(); ++k) {
      buckets_[k].missing = l.buckets()[k].members.size();
      buckets_[k].producers = 0;
    }
    for (std::size_t i = 0; i < bucket_of_.size(); ++i)
      if (l.slots()[i].count == 0) count(i);
  }

  [[nodiscard]] bool declared(std::size_t i) const { return declared_[i]; }
  [[nodiscard]] std::size_t missing() const noexcept { return missing_; }
  [[nodiscard]] bool complete(std::size_t bucket) const { return buckets_[bucket].missing == 0; }

  /// Gradient i has been enqueued on `producer`.
  void declare(std::size_t i, Stream& producer) {
    state& b = buckets_[bucket_of_[i]];
    std::size_t k = 0;
    while (k < b.producers && b.streams[k].first != &producer) ++k;
    if (k == b.producers) {
      if (k == b.streams.size()) b.streams.emplace_back();
      b.streams[k].first = &producer;
      ++b.producers;
    }
    b.streams[k].second.record(producer);
    count(i);
  }

  /// The next bucket in order, if it is complete; each is returned once in a microbatch.
  [[nodiscard]] bool take(std::size_t& bucket) {
    if (next_ == buckets_.size() || buckets_[next_].missing > 0) return false;
    bucket = next_++;
    return true;
  }
  [[nodiscard]] std::size_t taken() const noexcept { return next_; }

  /// `s` waits for everything that was enqueued for the bucket.
  void wait_for_producers(std::size_t bucket, Stream& s) const {
    for (std::size_t k = 0; k < buckets_[bucket].producers; ++k)
      s.wait(buckets_[bucket].streams[k].second);
  }

  /// Names of what is missing, at most eight; `name` gives that of a parameter.
  template <class Name>
  [[nodiscard]] std::string undeclared(Name name) const {
    std::string text;
    std::size_t shown = 0;
    for (std::size_t i = 0; i < declared_.size() && shown < 8; ++i)
      if (!declared_[i]) text += detail::cat(shown++ == 0 ? "'" : ", '", name(i), "'");
    if (missing_ > shown) text += detail::cat(" and ", missing_ - shown, " more");
    return text;
  }

 private:
  struct state {
    std::size_t missing = 0, producers = 0;
    std::vector<std::pair<Stream*, Event>> streams; // kept, so that events are made once
  };
  void count(std::size_t i) {
    declared_[i] = true;
    --missing_;
    --buckets_[bucket_of_[i]].missing;
  }

  std::vector<state> buckets_;
  std::vector<std::size_t> bucket_of_;
  std::vector<bool> declared_;
  std::size_t missing_ = 0, next_ = 0;
};

} // namespace polyrank
