// The recorded operations of all ranks on one time axis, for chrome://tracing or Perfetto. Pure.
//
//     std::ofstream("trace.json") << hang::chrome_trace(samples);
//
// A process is a rank, a thread is a communicator. A span is the time in which an operation ran;
// one that never ended reaches to the moment of the sample and is called unfinished. Hosts are put
// together by their wall clocks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/report.hpp>
#include <polyrank/hang/scan.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

namespace polyrank::hang {

[[nodiscard]] inline std::string chrome_trace(std::span<const sample> samples) {
  using detail::json_text, polyrank::detail::cat;
  // Nanoseconds since the first event of all.
  std::uint64_t first = UINT64_MAX;
  const auto wall = [](const sample& s, std::uint64_t ns) {
    return ns + s.ring.at(layout::f_wall_offset);
  };
  record r;
  for (const sample& s : samples)
    if (s.ring.valid())
      for (std::uint64_t i = s.ring.oldest(); i < s.ring.next(); ++i)
        if (s.ring.read(i, r)) first = std::min(first, wall(s, r.entered_ns));
  const auto micros = [&](const sample& s, std::uint64_t ns) {
    const std::uint64_t at = wall(s, ns), since = at > first ? at - first : 0;
    std::string digits = std::to_string(since % 1000);
    digits.insert(0, 3 - digits.size(), '0');
    return cat(since / 1000, '.', digits);
  };
  std::string out = "{\"traceEvents\": [";
  const auto add = [&](const std::string& event) {
    out += cat(out.back() == '[' ? "\n" : ",\n", event);
  };
  for (const sample& s : samples) {
    if (!s.ring.valid()) continue;
    add(cat("{\"ph\": \"M\", \"pid\": ", s.rank,
            ", \"name\": \"process_name\", \"args\": {\"name\": ",
            json_text(cat("rank ", s.rank, ' ', s.ring.host())), "}}"));
    for (std::uint64_t i = s.ring.oldest(); i < s.ring.next(); ++i) {
      if (!s.ring.read(i, r)) continue;
      const std::uint64_t begin = r.started_ns != 0 ? r.started_ns : r.entered_ns;
      const std::uint64_t end = std::max(r.finished() ? r.done_ns : s.now, begin);
      std::string name(r.what.tag.empty() ? name_of(r.what.kind) : r.what.tag);
      if (!r.finished()) name = cat(r.started_ns != 0 ? "unfinished: " : "not started: ", name);
      add(cat("{\"ph\": \"X\", \"pid\": ", s.rank, ", \"tid\": ", r.comm,
              ", \"ts\": ", micros(s, begin), ", \"dur\": ", (end - begin) / 1000, '.',
              (end - begin) / 100 % 10, ", \"name\": ", json_text(name),
              ", \"args\": {\"what\": ", json_text(detail::words_for(r)), "}}"));
    }
  }
  return out + "\n]}\n";
}

} // namespace polyrank::hang
