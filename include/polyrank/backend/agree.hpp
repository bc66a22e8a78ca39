// Start-up agreement: do all ranks have the same list? If not, where is the first difference? And:
// what one rank finds wrong is everybody's error.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/hash.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank {

namespace detail {

inline std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

/// The first line in which `theirs` differs from `ours`, as words; empty if they are equal.
inline std::string first_difference(std::string_view ours, std::string_view theirs,
                                    std::size_t rank) {
  const auto a = split_lines(ours), b = split_lines(theirs);
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string_view mine = i < a.size() ? a[i] : "nothing",
                           other = i < b.size() ? b[i] : "nothing";
    if (mine != other) return cat("rank 0 has ", mine, ", rank ", rank, " has ", other);
  }
  return {};
}

} // namespace detail

/// Compares `description` (a line per item) over all ranks. Throws mismatch_error on every rank,
/// starting with `what` and naming the first line that differs. @collective
template <control_channel Control>
void agree(Control& control, std::string_view what, std::string_view description) {
  const std::uint64_t mine = hash_text(description);
  bool same = true;
  for (const std::string& hash :
       control.all_gather({reinterpret_cast<const char*>(&mine), sizeof mine}))
    same = same && hash == std::string_view(reinterpret_cast<const char*>(&mine), sizeof mine);
  // Whether to go on is itself agreed: a rank that equals rank 0 must also learn that another does
  // not.
  if (control.all_reduce_max(same ? 0 : 1) == 0) return;
  const std::vector<std::string> all = control.all_gather(description);
  for (std::size_t r = 1; r < all.size(); ++r) {
    const std::string difference = detail::first_difference(all[0], all[r], r);
    if (!difference.empty())
      throw on_every_rank(mismatch_error(detail::cat(what, ": ", difference)));
  }
}

/// Runs `body` on every rank; a usage_error or data_error of one of them is thrown by all, after
/// `what` and with the rank named where others are content. @collective
template <control_channel Control, class Body>
void together(Control& control, std::string_view what, Body body) {
  std::string mine;
  try {
    body();
  } catch (const data_error& e) {
    mine = detail::cat('d', e.what());
  } catch (const usage_error& e) {
    mine = detail::cat('u', e.what());
  }
  const std::vector<std::string> all = control.all_gather(mine);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    bool shared = true;
    for (const std::string& e : all) shared = shared && e == all[r];
    const std::string text =
        detail::cat(what, ": ", shared ? "" : detail::cat("rank ", r, ": "), all[r].substr(1));
    if (all[r][0] == 'd') throw on_every_rank(data_error(text));
    throw on_every_rank(usage_error(text));
  }
}

} // namespace polyrank
