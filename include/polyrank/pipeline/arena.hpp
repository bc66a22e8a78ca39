// Places of blocks that come and go in one order, decided beforehand: first fit over the free
// ranges. Since a compute stream runs its work in issue order, places can be reused at once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>

namespace polyrank::pipeline::detail {

class arena {
 public:
  /// Where `bytes` fit.
  std::size_t take(std::size_t bytes) {
    for (auto it = free_.begin(); it != free_.end(); ++it)
      if (it->second >= bytes) {
        const std::size_t at = it->first, left = it->second - bytes;
        free_.erase(it);
        if (left > 0) free_[at + bytes] = left;
        return at;
      }
    std::size_t at = size_;
    if (!free_.empty()) // the last free range, if it reaches the end, grows
      if (const auto last = std::prev(free_.end()); last->first + last->second == size_) {
        at = last->first;
        free_.erase(last);
      }
    size_ = std::max(size_, at + bytes);
    return at;
  }
  void give_back(std::size_t at, std::size_t bytes) {
    if (bytes == 0) return;
    auto it = free_.emplace(at, bytes).first;
    if (const auto next = std::next(it); next != free_.end() && at + it->second == next->first) {
      it->second += next->second;
      free_.erase(next);
    }
    if (it == free_.begin()) return;
    if (const auto before = std::prev(it); before->first + before->second == at) {
      before->second += it->second;
      free_.erase(it);
    }
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  std::map<std::size_t, std::size_t> free_; // offset -> bytes
  std::size_t size_ = 0;
};

} // namespace polyrank::pipeline::detail
