// The sentences of a verdict: operations, ranks and times as people read them. Pure.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/scan.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace polyrank::hang::detail {

using polyrank::detail::cat;

/// "12.3 s"
[[nodiscard]] inline std::string seconds(std::uint64_t ns) {
  const std::uint64_t tenths = ns / 100000000;
  return cat(tenths / 10, '.', tenths % 10, " s");
}
/// "131.0 s ago", or "at an unknown time" where the stamp is none of that clock's past.
[[nodiscard]] inline std::string ago(std::uint64_t then, std::uint64_t now) {
  return then == 0 || then > now ? "just now" : seconds(now - then) + " ago";
}

/// `all_reduce #1042 "bucket 7" f32 x 6553600 at train.cpp:88`
[[nodiscard]] inline std::string words_for(const record& r) {
  std::string out = cat(name_of(r.what.kind), " #", r.seq);
  if (!r.what.tag.empty()) out += cat(" \"", r.what.tag, '"');
  const auto transfer = [](direction way, int peer) {
    return way == direction::none
               ? std::string()
               : cat(way == direction::send ? " send to " : " receive from ", peer);
  };
  if (r.is_exchange())
    out += transfer(r.what.way, r.what.peer) + transfer(r.what.second_way, r.what.second_peer);
  else if (r.what.has_root())
    out += cat(" root ", r.what.peer);
  out += cat(' ', name_of(r.what.type), " x ", r.what.count);
  if (r.what.op != reduce_op::sum) out += cat(' ', name_of(r.what.op));
  if (r.in_graph) out += cat(", replay ", r.replay, " of its graph");
  if (r.what.site.file[0] != '\0') out += cat(" at ", r.what.site.file);
  if (r.what.site.line != 0) out += cat(':', r.what.site.line);
  return out;
}

/// "rank 3", "ranks 0-2 and 5", "ranks 1, 3, 5 and 9 more"
[[nodiscard]] inline std::string words_for(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::vector<std::string> parts;
  std::size_t told = 0;
  for (std::size_t i = 0; i < ranks.size() && parts.size() < 6;) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last - i >= 2) {
      parts.push_back(cat(ranks[i], '-', ranks[last]));
    } else {
      last = i;
      parts.push_back(cat(ranks[i]));
    }
    told += last - i + 1;
    i = last + 1;
  }
  if (told < ranks.size()) parts.push_back(cat(ranks.size() - told, " more"));
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < parts.size(); ++i)
    out += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  return out;
}

[[nodiscard]] inline std::string host_of(const sample& s) {
  return !s.host.empty() ? s.host : s.ring.valid() ? s.ring.host() : std::string();
}

/// "rank 3 (node2 pid 4711)"
[[nodiscard]] inline std::string words_for(const sample& s) {
  std::string out = cat("rank ", s.rank), in = host_of(s);
  if (s.ring.valid()) {
    in += cat(in.empty() ? "" : " ", "pid ", s.ring.pid());
    if (const std::string device = s.ring.device(); !device.empty()) in += ' ' + device;
  }
  return in.empty() ? out : cat(out, " (", in, ')');
}

/// `host state MPI "save" at ckpt.hpp:88 for 131.0 s; its main thread sleeps in poll`
[[nodiscard]] inline std::string words_for_state(const sample& s) {
  using namespace layout;
  if (!s.ring.valid()) return "no flight recorder of it is known";
  std::string out = cat("host state ", name_of(s.ring.state()));
  if (const std::string text = s.ring.text(f_state_text, short_text); !text.empty())
    out += cat(" \"", text, '"');
  if (const std::string file = s.ring.text(f_state_file, file_text); !file.empty()) {
    out += cat(" at ", file);
    if (const std::uint64_t line = s.ring.at(f_state_line); line != 0) out += cat(':', line);
  }
  if (const std::uint64_t since = s.ring.at(f_state_since_ns); since != 0 && since <= s.now)
    out += cat(" for ", seconds(s.now - since));
  if (s.process == process_state::stopped && s.where.empty()) out += "; its process is stopped";
  if (s.process == process_state::dead)
    out += "; its process is gone";
  else if (!s.where.empty())
    out += cat("; its main thread ", s.where);
  return out;
}

/// Its last operation, as words; empty where there is none.
[[nodiscard]] inline std::string words_for_last(const rank_state& r) {
  if (!r.has_last) return "it has issued no operation";
  return cat("its last: ", words_for(r.last),
             r.last.finished()        ? " done " + ago(r.last.done_ns, r.from->now)
             : r.last.started_ns != 0 ? " running since " + ago(r.last.started_ns, r.from->now)
                                      : " issued " + ago(r.last.entered_ns, r.from->now));
}

} // namespace polyrank::hang::detail
