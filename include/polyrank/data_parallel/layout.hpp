// Where each gradient lives and which bucket it travels in. Pure: sizes in, offsets out.
//
// Two indices, never mixed:
//   logical   parameters in declaration order, end to end, without padding. Does not depend on the
//             number of ranks, the bucket size or the order. Checkpoints and norms use it.
//   arena     parameters in issue order (by default the reverse of declaration: backward finishes
//             the last layer first), cut into buckets that start at multiples of `alignment`.
//
//     const auto l = layout::make(counts, 4, {.bucket_bytes = 25 << 20});
//     l.buckets()[0]                      // the first to be reduced: the last parameters declared
//     l.slots()[i].arena_offset           // where gradient i lives
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/core/hash.hpp>
#include <polyrank/core/partition.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace polyrank {

struct layout_options {
  std::size_t bucket_bytes = 25 << 20; ///< a bucket is closed once it holds this much
  std::size_t tail_bytes = 1 << 20;    ///< the last bucket, whose reduction nothing hides, holds at
                                       ///< most this (or one parameter)
  std::size_t alignment = 64;          ///< elements; of bucket starts in the arena
  std::vector<std::size_t> order{};    ///< issue order; empty: reverse declaration
  std::vector<std::size_t> groups{}; ///< by parameter: a bucket never holds two groups; empty: one
};

/// Place of one parameter.
struct slot {
  std::size_t count = 0;
  std::size_t logical_offset = 0;
  std::size_t arena_offset = 0;
  std::size_t bucket = 0;
};

/// Parameters that are reduced together: positions [first, last) of the issue order.
struct bucket {
  std::size_t first = 0, last = 0;
  range elements; ///< of the arena
};

class layout {
 public:
  layout() = default;

  /// Lays out parameters of `counts` elements of `width` bytes. Throws usage_error for an order
  /// that is no permutation, and for sizes that overflow.
  [[nodiscard]] static layout make(std::span<const std::size_t> counts, std::size_t width,
                                   const layout_options& o = {}) {
    layout l;
    l.order_ = o.order;
    if (l.order_.empty()) {
      l.order_.resize(counts.size());
      std::iota(l.order_.rbegin(), l.order_.rend(), std::size_t{0});
    }
    l.slots_.resize(counts.size());
    for (std::size_t i = 0; i < counts.size(); ++i) {
      expects(counts[i] <= std::numeric_limits<std::size_t>::max() / width / 2 - l.count_,
              "layout: parameter ", i, " of ", counts[i], " elements overflows the index");
      l.slots_[i] = {.count = counts[i], .logical_offset = l.count_};
      l.count_ += counts[i];
    }
    l.check_order();
    expects(o.groups.empty() || o.groups.size() == counts.size(), "layout: ", o.groups.size(),
            " groups for ", counts.size(), " parameters");
    l.cut(width, o);
    return l;
  }

  [[nodiscard]] const std::vector<slot>& slots() const noexcept { return slots_; }
  [[nodiscard]] const std::vector<bucket>& buckets() const noexcept { return buckets_; }
  /// Parameter indices in issue order.
  [[nodiscard]] const std::vector<std::size_t>& order() const noexcept { return order_; }
  /// Elements of all parameters (the logical index).
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// Elements of the arena, padding included.
  [[nodiscard]] std::size_t arena_count() const noexcept {
    return buckets_.empty() ? 0 : buckets_.back().elements.end;
  }
  [[nodiscard]] std::size_t largest_bucket() const noexcept {
    std::size_t most = 0;
    for (const bucket& b : buckets_) most = std::max(most, b.elements.size());
    return most;
  }

  /// Equal on ranks that will issue the same buckets in the same order.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept {
    std::uint64_t h = hash_combine(slots_.size(), buckets_.size());
    for (const std::size_t i : order_) h = hash_combine(hash_combine(h, i), slots_[i].count);
    for (const bucket& b : buckets_)
      h = hash_combine(hash_combine(h, b.elements.begin), b.elements.end);
    return h;
  }

 private:
  void check_order() const {
    std::vector<bool> seen(slots_.size());
    expects(order_.size() == slots_.size(), "layout: the order names ", order_.size(), " of ",
            slots_.size(), " parameters");
    for (const std::size_t i : order_) {
      expects(i < slots_.size() && !seen[i], "layout: the order is no permutation; ", i, " is ",
              i < slots_.size() ? "named twice" : "out of range");
      seen[i] = true;
    }
  }

  void cut(std::size_t width, const layout_options& o) {
    // The tail: the longest run at the end of the issue order that fits into tail_bytes.
    std::size_t tail = order_.size();
    for (std::size_t bytes = 0; tail > 0; --tail) {
      bytes += slots_[order_[tail - 1]].count * width;
      if (bytes > o.tail_bytes) break;
    }
    std::size_t at = 0;
    for (std::size_t k = 0; k < order_.size();) {
      bucket b{.first = k, .last = k, .elements = {at, at}};
      const std::size_t stop = k < tail ? tail : order_.size();
      const auto fits = [&] {
        return b.elements.size() * width < o.bucket_bytes &&
               (o.groups.empty() || o.groups[order_[b.last]] == o.groups[order_[k]]);
      };
      for (; b.last < stop && (b.last == k || fits()); ++b.last) {
        slot& s = slots_[order_[b.last]];
        s.arena_offset = b.elements.end;
        s.bucket = buckets_.size();
        b.elements.end += s.count;
      }
      k = b.last;
      at = round_up(b.elements.end, o.alignment);
      buckets_.push_back(b);
    }
  }

  std::vector<slot> slots_;
  std::vector<bucket> buckets_;
  std::vector<std::size_t> order_;
  std::size_t count_ = 0;
};

} // namespace polyrank
