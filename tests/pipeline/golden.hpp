// The schedules of 4 ranks and 8 microbatches, written out by hand, and the letters to write them
// in: a capital is chunk 0, a small letter chunk 1; (F7b3) is an overlapped pair.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/generators.hpp>

#include <array>
#include <cstddef>
#include <string_view>

namespace golden {

using namespace polyrank::pipeline;

/// Reads one row; usable in constant expressions.
class reader {
 public:
  constexpr reader(const shape& s, std::size_t rank, std::string_view text) noexcept
      : shape_(s), rank_(rank), text_(text) {}

  /// The next action; false at the end.
  constexpr bool next(action& out) noexcept {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == ')')) ++at_;
    if (at_ == text_.size()) return false;
    const bool joined = text_[at_] == '(';
    if (joined) ++at_;
    char letter = text_[at_++];
    const std::size_t chunk = letter >= 'a' ? 1 : 0;
    if (chunk == 1) letter = static_cast<char>(letter - 'a' + 'A');
    std::size_t k = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9')
      k = k * 10 + static_cast<std::size_t>(text_[at_++] - '0');
    const action_kind kind = letter == 'F'   ? action_kind::forward
                             : letter == 'B' ? action_kind::backward
                             : letter == 'I' ? action_kind::input_grad
                                             : action_kind::weight_grad;
    out = make_action(kind, shape_.stage_of(rank_, chunk), k, joined);
    return true;
  }

 private:
  shape shape_;
  std::size_t rank_;
  std::string_view text_;
  std::size_t at_ = 0;
};

constexpr bool equals(schedule s, const shape& at, std::size_t rank, std::string_view text) {
  reader expected(at, rank, text);
  bool same = true;
  emit(s, at, rank, [&](const action& a) {
    action e;
    same = same && expected.next(e) && e == a;
  });
  action rest;
  return same && !expected.next(rest);
}

constexpr bool equals(schedule s, std::size_t chunks, const std::array<std::string_view, 4>& rows) {
  const shape at{4, 8, chunks, traits_of(s).place};
  for (std::size_t r = 0; r < 4; ++r)
    if (!equals(s, at, r, rows[r])) return false;
  return true;
}

using rows = std::array<std::string_view, 4>;

inline constexpr std::string_view gpipe_row = "F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7";
inline constexpr std::string_view bfs_row = "F0 F1 F2 F3 F4 F5 F6 F7 f0 f1 f2 f3 f4 f5 f6 f7 "
                                            "b7 b6 b5 b4 b3 b2 b1 b0 B7 B6 B5 B4 B3 B2 B1 B0";
inline constexpr rows one_f_one_b = {"F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
                                     "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
                                     "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
                                     "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"};
inline constexpr rows interleaved = {"F0 F1 F2 F3 f0 f1 f2 f3 F4 F5 F6 b0 F7 b1 f4 b2 f5 b3 f6 B0 "
                                     "f7 B1 B2 B3 b4 b5 b6 b7 B4 B5 B6 B7",
                                     "F0 F1 F2 F3 f0 f1 f2 f3 F4 b0 F5 b1 F6 b2 F7 b3 f4 B0 f5 B1 "
                                     "f6 B2 f7 B3 b4 b5 b6 b7 B4 B5 B6 B7",
                                     "F0 F1 F2 F3 f0 f1 f2 b0 f3 b1 F4 b2 F5 b3 F6 B0 F7 B1 f4 B2 "
                                     "f5 B3 f6 b4 f7 b5 b6 b7 B4 B5 B6 B7",
                                     "F0 F1 F2 F3 f0 b0 f1 b1 f2 b2 f3 b3 F4 B0 F5 B1 F6 B2 F7 B3 "
                                     "f4 b4 f5 b5 f6 b6 f7 b7 B4 B5 B6 B7"};
inline constexpr rows zb_h1 = {
    "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7",
    "F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7",
    "F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7",
    "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7"};
inline constexpr rows zb_h2 = {
    "F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7",
    "F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 F7 I3 W1 I4 W2 I5 W3 I6 W4 I7 W5 W6 W7",
    "F0 F1 F2 I0 F3 I1 F4 I2 F5 I3 F6 I4 W0 F7 I5 W1 I6 W2 I7 W3 W4 W5 W6 W7",
    "F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7"};
inline constexpr rows zb_v = {
    "F0 F1 F2 F3 F4 F5 F6 f0 i0 w0 f1 i1 w1 f2 i2 w2 f3 i3 w3 F7 I0 W0 f4 i4 w4 I1 W1 f5 i5 w5 "
    "I2 W2 f6 i6 w6 I3 W3 f7 i7 w7 I4 W4 I5 W5 I6 W6 I7 W7",
    "F0 F1 F2 F3 F4 f0 F5 f1 i0 w0 f2 i1 w1 f3 i2 w2 F6 I0 W0 f4 i3 w3 F7 I1 W1 f5 i4 w4 I2 W2 "
    "f6 i5 w5 I3 W3 f7 i6 w6 I4 i7 I5 W4 I6 W5 I7 W6 w7 W7",
    "F0 F1 F2 f0 F3 f1 F4 f2 i0 w0 f3 i1 w1 F5 I0 W0 f4 i2 w2 F6 I1 W1 f5 i3 w3 F7 I2 W2 f6 i4 "
    "w4 I3 W3 f7 i5 w5 I4 i6 I5 i7 I6 W4 I7 W5 w6 w7 W6 W7",
    "F0 f0 F1 f1 F2 f2 F3 f3 i0 w0 F4 I0 W0 f4 i1 w1 F5 I1 W1 f5 i2 w2 F6 I2 W2 f6 i3 w3 F7 I3 "
    "W3 f7 i4 w4 I4 i5 I5 i6 I6 i7 I7 W4 w5 w6 w7 W5 W6 W7"};
inline constexpr rows dualpipe_v = {
    "F0 F1 F2 F3 F4 F5 F6 f0 i0 w0 f1 i1 w1 f2 i2 w2 f3 (F7b3) (f4B0) b4 (f5B1) b5 (f6B2) b6 "
    "(f7B3) b7 I4 W4 I5 W5 I6 W6 I7 W7",
    "F0 F1 F2 F3 F4 f0 F5 f1 i0 w0 f2 i1 w1 f3 (F6b2) (f4B0) (F7b3) (f5B1) b4 (f6B2) b5 (f7B3) "
    "b6 B4 i7 I5 w7 I6 W5 I7 W6 W7",
    "F0 F1 F2 f0 F3 f1 F4 f2 i0 w0 f3 (F5b1) (f4B0) (F6b2) (f5B1) (F7b3) (f6B2) b4 (f7B3) b5 B4 "
    "b6 I5 i7 I6 W5 I7 w7 W6 W7",
    "F0 f0 F1 f1 F2 f2 F3 f3 F4 b0 (f4B0) (F5b1) (f5B1) (F6b2) (f6B2) (F7b3) (f7B3) b4 B4 b5 B5 "
    "i6 I6 i7 I7 w6 W6 w7 W7"};

} // namespace golden
