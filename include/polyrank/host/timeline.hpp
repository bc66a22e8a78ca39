// What host streams did when: spans of work between two points of a stream.
//
//     host::timeline line;
//     line.enable(true);
//     { host::timeline::scope span(&line, stream, "forward"); stream.enqueue(...); }
//     stream.synchronize();
//     rank_trace mine = line.collect();
//
// `comm.trace(&line)` adds every operation of a communicator by its tag. The twin of
// cuda/timeline.hpp; a span costs two closures on its stream.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/trace.hpp>
#include <polyrank/core/text.hpp>
#include <polyrank/host/stream.hpp>

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace polyrank::host {

/// Not thread-safe: spans are opened on one thread. It must outlive the streams' work.
class timeline {
 public:
  explicit timeline(std::size_t capacity = 1 << 16) : capacity_(capacity) {}
  timeline(const timeline&) = delete;
  timeline& operator=(const timeline&) = delete;

  /// Spans are recorded while enabled.
  void enable(bool on) noexcept { enabled_ = on; }
  void name_stream(const stream& s, std::string name) { names_[s.id()] = std::move(name); }

  /// Work that is enqueued on a stream during the life of this object.
  class scope {
   public:
    /// `line` may be null.
    scope(timeline* line, stream& s, std::string_view name, span_kind kind = span_kind::compute) {
      if (line == nullptr || !line->enabled_) return;
      stream_ = &s;
      span_ = line->open(s, name, kind);
    }
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() {
      if (span_ == nullptr) return;
      try {
        stream_->enqueue([to = &span_->end] { *to = steady_microseconds(); });
      } catch (...) { // no memory: the span has no end and is left out
      }
    }

   private:
    stream* stream_ = nullptr;
    trace_span* span_ = nullptr;
  };

  /// The spans that have ended. The streams must have been synchronised.
  [[nodiscard]] rank_trace collect() const {
    rank_trace out{.streams = {}, .spans = {}, .dropped = dropped_};
    out.streams.resize(streams_.size());
    for (const auto& [id, index] : streams_) {
      const auto name = names_.find(id);
      out.streams[index] =
          name != names_.end() ? name->second : polyrank::detail::cat("stream ", index);
    }
    for (const trace_span& s : spans_)
      if (s.end > 0) out.spans.push_back(s);
    return out;
  }

 private:
  friend class scope;

  /// Null where there is no room.
  trace_span* open(stream& s, std::string_view name, span_kind kind) {
    if (spans_.size() >= capacity_) {
      ++dropped_;
      return nullptr;
    }
    const std::size_t index = streams_.emplace(s.id(), streams_.size()).first->second;
    trace_span& span = spans_.emplace_back(std::string(name), kind, index);
    s.enqueue([from = &span.begin] { *from = steady_microseconds(); });
    return &span;
  }

  std::size_t capacity_, dropped_ = 0;
  bool enabled_ = false;
  std::deque<trace_span> spans_; // whose addresses stay
  std::map<const void*, std::size_t> streams_;
  std::map<const void*, std::string> names_;
};

} // namespace polyrank::host
