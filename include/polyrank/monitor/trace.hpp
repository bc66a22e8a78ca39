// The traces of all ranks as one, on one clock; and how much communication nothing hid.
//
//     tracer trace(comm.control());                            // measures the clocks
//     ... train, with a timeline ...
//     trace_report r = trace.finish(comm.control(), line.collect());
//     if (comm.rank() == 0) write("trace.json", r.chrome);     // open it in ui.perfetto.dev
//     say(r.exposed_percent(), " % of the time was communication alone");
//
// In the Chrome trace a process is a rank and a thread is a stream.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/backend/trace.hpp>
#include <polyrank/core/text.hpp>
#include <polyrank/monitor/clock_offset.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank {

/// Microseconds of one rank. Communication is exposed while no stream of the rank computes.
struct exposure {
  double window = 0;        ///< from the first span to the end of the last
  double communication = 0; ///< in which at least one operation was under way
  double exposed = 0;       ///< of that, the part in which nothing was computed
};

namespace detail {

using interval = std::pair<double, double>;

/// Sorted, disjoint intervals of the same points.
[[nodiscard]] inline std::vector<interval> united(std::vector<interval> all) {
  std::sort(all.begin(), all.end());
  std::vector<interval> out;
  for (const interval& i : all)
    if (!out.empty() && i.first <= out.back().second)
      out.back().second = std::max(out.back().second, i.second);
    else
      out.push_back(i);
  return out;
}

[[nodiscard]] inline double length_of(const std::vector<interval>& disjoint) noexcept {
  double sum = 0;
  for (const interval& i : disjoint) sum += i.second - i.first;
  return sum;
}

/// Length of the points of both.
[[nodiscard]] inline double common_length(const std::vector<interval>& a,
                                          const std::vector<interval>& b) noexcept {
  double sum = 0;
  for (std::size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    sum += std::max(0.0, std::min(a[i].second, b[k].second) - std::max(a[i].first, b[k].first));
    (a[i].second < b[k].second ? i : k) += 1;
  }
  return sum;
}

[[nodiscard]] inline std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + '"';
}

/// With three digits, whatever the locale.
[[nodiscard]] inline std::string json_microseconds(double us) {
  const auto ns = static_cast<long long>(us * 1000 + (us < 0 ? -0.5 : 0.5));
  std::string digits = cat(ns < 0 ? -ns : ns);
  if (digits.size() < 4) digits.insert(0, 4 - digits.size(), '0');
  digits.insert(digits.size() - 3, 1, '.');
  return ns < 0 ? '-' + digits : digits;
}

} // namespace detail

[[nodiscard]] inline exposure exposure_of(const rank_trace& t) {
  std::vector<detail::interval> compute, communication, all;
  for (const trace_span& s : t.spans) {
    all.emplace_back(s.begin, s.end);
    if (s.kind == span_kind::compute) compute.emplace_back(s.begin, s.end);
    if (s.kind == span_kind::communication) communication.emplace_back(s.begin, s.end);
  }
  if (all.empty()) return {};
  all = detail::united(std::move(all));
  compute = detail::united(std::move(compute));
  communication = detail::united(std::move(communication));
  exposure e{.window = all.back().second - all.front().first,
             .communication = detail::length_of(communication)};
  e.exposed = e.communication - detail::common_length(communication, compute);
  return e;
}

/// The events of one rank for a Chrome trace, a line each, separated by commas. Times go through
/// `common` and count from `origin`.
[[nodiscard]] inline std::string chrome_events(const rank_trace& t, int rank,
                                               const clock_map& common, double origin) {
  using detail::cat, detail::json_microseconds, detail::json_text;
  std::string out = cat(R"({"ph":"M","name":"process_name","pid":)", rank, R"(,"args":{"name":)",
                        json_text(cat("rank ", rank)), "}}");
  for (std::size_t s = 0; s < t.streams.size(); ++s)
    out += cat(",\n", R"({"ph":"M","name":"thread_name","pid":)", rank, R"(,"tid":)", s,
               R"(,"args":{"name":)", json_text(t.streams[s]), "}}");
  constexpr std::string_view kinds[] = {"compute", "communication", "other"};
  for (const trace_span& s : t.spans)
    out += cat(",\n", R"({"ph":"X","name":)", json_text(s.name), R"(,"cat":")",
               kinds[static_cast<std::size_t>(s.kind)], R"(","pid":)", rank, R"(,"tid":)", s.stream,
               R"(,"ts":)", json_microseconds(common(s.begin) - origin), R"(,"dur":)",
               json_microseconds(common(s.end) - common(s.begin)), "}");
  return out;
}

/// What all ranks together found; the same on every rank but for `chrome`.
struct trace_report {
  std::string chrome;          ///< on rank 0: the file
  std::vector<exposure> ranks; ///< by rank
  double clock_error = 0;      ///< microseconds by which the clocks of two ranks may be apart
  std::uint64_t dropped = 0;   ///< spans for which a timeline had no room, on all ranks

  /// Of the time of the rank where it is most.
  [[nodiscard]] double exposed_percent() const noexcept {
    double worst = 0;
    for (const exposure& e : ranks)
      if (e.window > 0) worst = std::max(worst, 100 * e.exposed / e.window);
    return worst;
  }
};

class tracer {
 public:
  /// Measures the offsets of the clocks. @collective
  template <control_channel Control>
  explicit tracer(Control& control)
      : clock_(measure_offset(control)), origin_(steady_microseconds()) {}

  /// Measures them again and puts everything together. @collective
  template <control_channel Control>
  [[nodiscard]] trace_report finish(Control& control, const rank_trace& mine) {
    clock_.end_with(measure_offset(control));
    struct numbers {
      double origin, error;
      exposure e;
      std::uint64_t dropped;
    } own{origin_, clock_.error(), exposure_of(mine), mine.dropped}, theirs;
    trace_report r;
    double origin = origin_; // rank 0's
    const std::vector<std::string> all =
        control.all_gather({reinterpret_cast<const char*>(&own), sizeof own});
    for (std::size_t k = 0; k < all.size(); ++k) {
      std::memcpy(&theirs, all[k].data(), sizeof theirs);
      if (k == 0) origin = theirs.origin;
      r.ranks.push_back(theirs.e);
      r.clock_error = std::max(r.clock_error, theirs.error);
      r.dropped += theirs.dropped;
    }
    const std::vector<std::string> events =
        control.all_gather(chrome_events(mine, control.rank(), clock_, origin));
    if (control.rank() != 0) return r;
    r.chrome = "{\"traceEvents\":[\n";
    for (std::size_t k = 0; k < events.size(); ++k) r.chrome += (k > 0 ? ",\n" : "") + events[k];
    r.chrome += "\n]}\n";
    return r;
  }

 private:
  clock_map clock_;
  double origin_;
};

} // namespace polyrank
