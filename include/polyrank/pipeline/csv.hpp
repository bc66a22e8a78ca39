// Schedules as text, in the CSV format of PyTorch's pipelining: one line per rank, one cell per
// action.
//
//     0F0,0F1,0B0,0B1                      rank 0: stage, action, microbatch
//     1F0,1B0,1F1,1B1                      rank 1
//     ...,(0F7;7B3)OVERLAP_F_B,...         a joined pair
//     ...,0SEND_F1,2RECV_F0,0REDUCE_GRAD   with communication, stage-wide actions without
//     microbatch
//
// Empty cells are idle steps and mean nothing. RECOMPUTE, TIED_REDUCE and OPTIMIZER are ours;
// PyTorch does not know them. Slots and lanes are no part of the text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/pipeline/table.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::pipeline {

/// What the reader should find; 0: whatever the table says.
struct csv_shape {
  std::size_t ranks = 0;
  std::size_t chunks = 0;
  std::size_t microbatches = 0;
};

/// The text of a table; from_csv() reads it back.
[[nodiscard]] inline std::string to_csv(const table& t) {
  std::string out;
  for (std::size_t r = 0; r < t.shape.ranks; ++r) {
    const auto list = t.of(r);
    for (std::size_t j = 0; j < list.size(); ++j) {
      if (j > 0) out += ',';
      if (list[j].joined != 0 && j + 1 < list.size()) {
        out +=
            polyrank::detail::cat('(', text_of(list[j]), ';', text_of(list[j + 1]), ")OVERLAP_F_B");
        ++j;
      } else {
        out += text_of(list[j]);
      }
    }
    out += '\n';
  }
  return out;
}

namespace detail {

class csv_reader {
 public:
  csv_reader(std::string_view text, const csv_shape& expected) : text_(text), expected_(expected) {}

  table run() {
    table t;
    while (at_ < text_.size()) {
      read_line(t.actions);
      t.row.push_back(t.actions.size());
    }
    while (t.row.size() > 1 && t.row.back() == t.row[t.row.size() - 2] &&
           (expected_.ranks == 0 || t.row.size() - 1 > expected_.ranks))
      t.row.pop_back(); // empty lines at the end
    deduce(t);
    return t;
  }

 private:
  template <class... Pieces>
  [[noreturn]] void fail(std::size_t at, const Pieces&... what) const {
    throw data_error(
        polyrank::detail::cat("line ", line_, ", column ", at - line_start_ + 1, ": ", what...));
  }
  [[nodiscard]] char peek() const noexcept { return at_ < text_.size() ? text_[at_] : '\n'; }
  [[nodiscard]] bool at_line_end() const noexcept {
    return peek() == '\n' ||
           (peek() == '\r' && (at_ + 1 == text_.size() || text_[at_ + 1] == '\n'));
  }
  void skip_spaces() noexcept {
    while (peek() == ' ' || peek() == '\t') ++at_;
  }

  void read_line(std::vector<action>& out) {
    ++line_;
    line_start_ = at_;
    for (;;) {
      skip_spaces();
      if (peek() == '(')
        read_pair(out);
      else if (peek() != ',' && !at_line_end())
        out.push_back(read_action());
      skip_spaces();
      if (at_line_end()) break;
      if (peek() != ',') fail(at_, "expected a comma after an action");
      ++at_;
    }
    if (peek() == '\r') ++at_;
    if (at_ < text_.size()) ++at_;
  }
  void read_pair(std::vector<action>& out) {
    const std::size_t start = at_++;
    skip_spaces();
    action forward = read_action();
    skip_spaces();
    if (peek() != ';') fail(at_, "expected ; between the two actions of a pair");
    ++at_;
    skip_spaces();
    const action backward = read_action();
    skip_spaces();
    if (peek() != ')') fail(at_, "expected ) after the two actions of a pair");
    ++at_;
    constexpr std::string_view name = "OVERLAP_F_B";
    if (text_.substr(at_, name.size()) != name) fail(at_, "expected OVERLAP_F_B after a pair");
    at_ += name.size();
    if (forward.kind != action_kind::forward ||
        (backward.kind != action_kind::backward && backward.kind != action_kind::input_grad))
      fail(start, "a pair is a forward and a backward");
    forward.joined = 1;
    out.push_back(forward), out.push_back(backward);
  }
  std::size_t read_number(std::size_t limit, std::string_view what) {
    const std::size_t start = at_;
    std::size_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_)
      if ((value = value * 10 + static_cast<std::size_t>(peek() - '0')) >= limit)
        fail(start, what, " is ", limit, " or more");
    return value;
  }
  action read_action() {
    const std::size_t start = at_;
    const auto digit = [this] { return peek() >= '0' && peek() <= '9'; };
    if (!digit()) fail(start, "expected an action such as 2F0 or 0SEND_F1");
    const std::size_t stage = read_number(max_stages, "the stage");
    const std::size_t word = at_;
    while ((peek() >= 'A' && peek() <= 'Z') || peek() == '_') ++at_;
    const std::string_view name = text_.substr(word, at_ - word);
    const auto found = std::find(action_names.begin(), action_names.end(), name);
    if (found == action_names.end()) fail(word, "\"", name, "\" is no action");
    const auto kind = static_cast<action_kind>(found - action_names.begin());
    if (has_microbatch(kind) && !digit()) fail(at_, name, " needs a microbatch");
    if (!has_microbatch(kind) && digit()) fail(at_, name, " has no microbatch");
    const std::size_t microbatch = read_number(max_microbatches, "the microbatch");
    if (expected_.microbatches > 0 && microbatch >= expected_.microbatches)
      fail(start, "microbatch ", microbatch, ", but there are only ", expected_.microbatches);
    if (expected_.ranks > 0 && expected_.chunks > 0 && stage >= expected_.ranks * expected_.chunks)
      fail(start, "stage ", stage, ", but there are only ", expected_.ranks * expected_.chunks);
    if (owner_.size() <= stage) owner_.resize(stage + 1, 0);
    if (owner_[stage] == 0) owner_[stage] = line_;
    if (owner_[stage] != line_)
      fail(start, "stage ", stage, " stands on line ", owner_[stage],
           " already; a stage belongs to one rank");
    last_microbatch_ = std::max(last_microbatch_, microbatch);
    return make_action(kind, stage, microbatch);
  }

  void deduce(table& t) const {
    const auto refuse = [](const auto&... what) {
      throw data_error(polyrank::detail::cat(what...));
    };
    if (t.actions.empty()) refuse("the table has no actions");
    shape& s = t.shape;
    s.ranks = t.row.size() - 1;
    if (expected_.ranks > 0 && s.ranks != expected_.ranks)
      refuse("the table has ", s.ranks, " lines, one per rank, but there are ", expected_.ranks,
             " ranks");
    const std::size_t stages = owner_.size();
    if (expected_.chunks == 0 && stages % s.ranks != 0)
      refuse("the table has ", stages, " stages on ", s.ranks,
             " ranks; every rank needs the same number");
    s.chunks = expected_.chunks > 0 ? expected_.chunks : stages / s.ranks;
    s.microbatches = expected_.microbatches > 0 ? expected_.microbatches : last_microbatch_ + 1;
    if (s.ranks > 1 && s.chunks > 1 && s.ranks < stages && owner_[s.ranks] == s.ranks)
      s.place = placement::vee;
    if (s.stages() > max_stages || s.stages() * s.microbatches / 2 > t.actions.size())
      refuse("the table names ", s.stages(), " stages and ", s.microbatches,
             " microbatches but has only ", t.actions.size(), " actions");
    check(s);
  }

  std::string_view text_;
  csv_shape expected_;
  std::size_t at_ = 0, line_ = 0, line_start_ = 0, last_microbatch_ = 0;
  std::vector<std::size_t> owner_; // stage -> line, 0: not seen
};

} // namespace detail

/// Reads a table. The placement is loop, or vee where the first stage of the second chunk stands on
/// the last line. data_error with line and column where the text is wrong; whether the schedule
/// works is validate()'s question. usage_error where `expected` is beyond the limits.
[[nodiscard]] inline table from_csv(std::string_view text, const csv_shape& expected = {}) {
  expects(expected.ranks <= max_stages && expected.chunks <= max_stages &&
              expected.ranks * expected.chunks <= max_stages,
          expected.ranks, " ranks with ", expected.chunks, " chunks are more than ", max_stages,
          " stages");
  return detail::csv_reader(text, expected).run();
}

} // namespace polyrank::pipeline
