// A report as a Chrome trace (JSON), for Perfetto (ui.perfetto.dev) and chrome://tracing.
//
// A process per rank, a thread per stream (0 computes), an arrow per transfer, a counter of the
// activations held. Several reports become neighbouring processes: "predicted rank 0" beside
// "measured rank 0". Format: "Trace Event Format", complete (X), metadata (M), flow (s, f) and
// counter (C) events; times in microseconds.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/text.hpp>
#include <polyrank/pipeline/costs.hpp>
#include <polyrank/pipeline/render_text.hpp>
#include <polyrank/pipeline/report.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::pipeline {

struct trace_options {
  double microseconds = 1e6;     ///< per unit of time of the report
  const costs* memory = nullptr; ///< what an activation weighs; null: no counter
};

namespace detail {

class trace_writer {
 public:
  explicit trace_writer(const trace_options& options) : options_(options) {}

  void add(const named_report& named, std::size_t index, std::size_t of) {
    const report& r = *named.data;
    shape_ = r.shape;
    explicit_ = std::any_of(r.timeline.begin(), r.timeline.end(),
                            [](const event& e) { return is_transfer(e.what.kind); });
    trains_ = std::any_of(r.timeline.begin(), r.timeline.end(), [](const event& e) {
      return e.what.kind == action_kind::backward || e.what.kind == action_kind::input_grad;
    });
    report_ = index;
    std::vector<std::uint32_t> lanes(r.ranks.size(), 0); // the highest of each rank
    for (const event& e : r.timeline) lanes[e.rank] = std::max(lanes[e.rank], e.lane);
    std::size_t rank = ~std::size_t{0};
    double held = 0;
    for (const event& e : r.timeline) {
      const std::size_t pid = e.rank * of + index;
      if (e.rank != rank) {
        rank = e.rank, held = 0;
        const std::string prefix = of > 1 ? plain(named.name) + " " : "";
        meta(pid, 0, "process_name", polyrank::detail::cat(prefix, "rank ", e.rank));
        meta(pid, 0, "thread_name", "compute");
        for (std::uint32_t lane = 1; lane <= lanes[e.rank]; ++lane)
          meta(pid, lane, "thread_name", polyrank::detail::cat("lane ", lane));
      }
      open("X", pid, e.lane, e.start);
      out_ += polyrank::detail::cat(",\"name\":\"", text_of(e.what), "\",\"cat\":\"",
                                    name_of(e.what.kind), "\",\"dur\":");
      number((e.end - e.start) * options_.microseconds);
      out_ += '}';
      arrows(e, pid);
      if (options_.memory != nullptr && e.lane == 0) count(e, pid, held);
    }
  }
  std::string finish() {
    return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + out_ + "\n]}\n";
  }

 private:
  void open(std::string_view phase, std::size_t pid, std::size_t tid, double time) {
    if (!out_.empty()) out_ += ",\n";
    out_ += polyrank::detail::cat("{\"ph\":\"", phase, "\",\"pid\":", pid, ",\"tid\":", tid,
                                  ",\"ts\":");
    number(time * options_.microseconds);
  }
  void meta(std::size_t pid, std::size_t tid, std::string_view what, std::string_view name) {
    if (!out_.empty()) out_ += ",\n";
    out_ += polyrank::detail::cat("{\"ph\":\"M\",\"pid\":", pid, ",\"tid\":", tid, ",\"name\":\"",
                                  what, "\",\"args\":{\"name\":\"", name, "\"}}");
  }
  /// One end of an arrow: `s` where a tensor leaves, `f` where it is used.
  void arrow(bool leaves, std::size_t pid, std::size_t tid, double time, bool backward,
             std::size_t boundary, std::size_t microbatch) {
    open(leaves ? "s" : "f", pid, tid, time);
    const std::size_t id =
        ((report_ * 2 + backward) * shape_.stages() + boundary) * shape_.microbatches + microbatch;
    out_ +=
        polyrank::detail::cat(",\"cat\":\"transfer\",\"name\":\"", backward ? "gradient" : "tensor",
                              "\",\"id\":", id, leaves ? "}" : ",\"bp\":\"e\"}");
  }
  void arrows(const event& e, std::size_t pid) {
    const std::size_t s = e.what.stage, k = e.what.microbatch, last = shape_.stages() - 1;
    switch (e.what.kind) {
    case action_kind::send_forward:
      return arrow(true, pid, e.lane, e.start, false, s, k);
    case action_kind::recv_forward:
      return arrow(false, pid, e.lane, e.start, false, s - 1, k);
    case action_kind::send_backward:
      return arrow(true, pid, e.lane, e.start, true, s - 1, k);
    case action_kind::recv_backward:
      return arrow(false, pid, e.lane, e.start, true, s, k);
    case action_kind::forward:
      if (explicit_) return;
      if (s > 0 && shape_.crosses(s - 1)) arrow(false, pid, 0, e.start, false, s - 1, k);
      if (s < last && shape_.crosses(s)) arrow(true, pid, 0, e.end, false, s, k);
      return;
    case action_kind::backward:
    case action_kind::input_grad:
      if (explicit_) return;
      if (s < last && shape_.crosses(s)) arrow(false, pid, 0, e.start, true, s, k);
      if (s > 0 && shape_.crosses(s - 1)) arrow(true, pid, 0, e.end, true, s - 1, k);
      return;
    default:
      return;
    }
  }
  void count(const event& e, std::size_t pid, double& held) {
    const stage_memory& b = options_.memory->memory[e.what.stage];
    double when = e.end;
    switch (e.what.kind) {
    case action_kind::forward:
      held += trains_ ? b.activation : 0, when = e.start;
      break;
    case action_kind::backward:
      held -= b.activation;
      break;
    case action_kind::input_grad:
      held -= b.activation - b.weight_context;
      break;
    case action_kind::weight_grad:
      held -= b.weight_context;
      break;
    default:
      return;
    }
    open("C", pid, 0, when);
    out_ += ",\"name\":\"activations\",\"args\":{\"held\":";
    append_fixed(out_, held, 6);
    out_ += "}}";
  }
  void number(double value) { append_fixed(out_, value, 3); }

  trace_options options_;
  shape shape_;
  bool explicit_ = false, trains_ = true;
  std::size_t report_ = 0;
  std::string out_;
};

} // namespace detail

/// The trace of reports with timelines.
[[nodiscard]] inline std::string chrome_trace(std::span<const named_report> reports,
                                              const trace_options& options = {}) {
  detail::trace_writer writer(options);
  for (std::size_t n = 0; n < reports.size(); ++n) writer.add(reports[n], n, reports.size());
  return writer.finish();
}
[[nodiscard]] inline std::string chrome_trace(const report& r, const trace_options& options = {}) {
  const named_report one{"", &r};
  return chrome_trace(std::span(&one, 1), options);
}

} // namespace polyrank::pipeline
