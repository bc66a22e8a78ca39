// What the GPU did when: spans of work between two points of a stream.
//
//     cuda::timeline line;
//     line.start(stream);
//     line.enable(true);
//     { cuda::timeline::scope span(&line, stream, "forward"); launch...; }
//     rank_trace mine = line.collect();                // waits for the spans
//
// Each span is also an NVTX range. Times come from CUDA events, so they include what the GPU waited
// for between the two points, and cost about a microsecond a span. Spans beyond the capacity are
// dropped and counted. monitor/trace.hpp merges the traces of all ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/trace.hpp>
#include <polyrank/cuda/nvtx.hpp>
#include <polyrank/cuda/stream.hpp>

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace polyrank::cuda {

/// Not thread-safe; of one device.
class timeline {
 public:
  explicit timeline(std::size_t capacity = 4096) : capacity_(capacity) {}
  timeline(const timeline&) = delete;
  timeline& operator=(const timeline&) = delete;
  ~timeline() {
    if (detail::unwinding()) return;
    for (const span& s : spans_) {
      static_cast<void>(cudaEventDestroy(s.from));
      if (s.to != nullptr) static_cast<void>(cudaEventDestroy(s.to));
    }
    if (origin_ != nullptr) static_cast<void>(cudaEventDestroy(origin_));
  }

  /// Spans are recorded while enabled.
  void enable(bool on) noexcept { enabled_ = on; }

  /// Ties the GPU's clock to the host's; waits for `s`. Before the first span.
  void start(stream& s) {
    s.synchronize();
    if (origin_ == nullptr) check(cudaEventCreate(&origin_), "cudaEventCreate");
    const double before = steady_microseconds();
    check(cudaEventRecord(origin_, s.native()), "cudaEventRecord");
    s.synchronize();
    started_ = (before + steady_microseconds()) / 2;
  }
  void name_stream(const stream& s, std::string name) { names_[s.native()] = std::move(name); }

  /// Work that is enqueued on a stream during the life of this object.
  class scope {
   public:
    /// `line` may be null.
    scope(timeline* line, stream& s, std::string_view name, span_kind kind = span_kind::compute) {
      if (line == nullptr || !line->enabled_) return;
      line_ = line;
      index_ = line->begin(s, name, kind);
    }
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() {
      if (line_ != nullptr) line_->end(index_);
    }

   private:
    timeline* line_ = nullptr;
    std::size_t index_ = 0;
  };

  /// The spans, on the host's clock (as of start(), to half the time that it took). Waits for them.
  [[nodiscard]] rank_trace collect() const {
    rank_trace out{.streams = {}, .spans = {}, .dropped = dropped_};
    std::map<cudaStream_t, std::size_t> streams;
    const auto stream_of = [&](cudaStream_t s) {
      const auto [at, fresh] = streams.emplace(s, streams.size());
      if (fresh) {
        const auto name = names_.find(s);
        out.streams.push_back(name != names_.end() ? name->second
                                                   : polyrank::detail::cat("stream ", at->second));
      }
      return at->second;
    };
    for (const span& s : spans_) {
      if (s.to == nullptr) continue;
      check(cudaEventSynchronize(s.to), "cudaEventSynchronize");
      float at = 0, length = 0;
      check(cudaEventElapsedTime(&at, origin_, s.from), "cudaEventElapsedTime");
      check(cudaEventElapsedTime(&length, s.from, s.to), "cudaEventElapsedTime");
      const double begin = started_ + 1e3 * static_cast<double>(at);
      out.spans.push_back(
          {s.name, s.kind, stream_of(s.where), begin, begin + 1e3 * static_cast<double>(length)});
    }
    return out;
  }

 private:
  friend class scope;

  struct span {
    std::string name;
    span_kind kind;
    cudaStream_t where = nullptr;
    cudaEvent_t from = nullptr, to = nullptr;
  };
  static constexpr std::size_t none = ~std::size_t{0};

  std::size_t begin(stream& s, std::string_view name, span_kind kind) {
    if (origin_ == nullptr) start(s);
    if (spans_.size() >= capacity_) {
      ++dropped_;
      return none;
    }
    span next{.name = std::string(name), .kind = kind, .where = s.native()};
    check(cudaEventCreate(&next.from), "cudaEventCreate");
    check(cudaEventRecord(next.from, s.native()), "cudaEventRecord");
    static_cast<void>(nvtxRangePushA(next.name.c_str()));
    spans_.push_back(std::move(next));
    return spans_.size() - 1;
  }
  void end(std::size_t index) noexcept {
    if (index == none) return;
    static_cast<void>(nvtxRangePop());
    if (detail::unwinding()) return;
    span& s = spans_[index];
    if (cudaEventCreate(&s.to) == cudaSuccess)
      static_cast<void>(cudaEventRecord(s.to, s.where));
    else
      s.to = nullptr;
  }

  std::size_t capacity_, dropped_ = 0;
  bool enabled_ = false;
  std::deque<span> spans_;
  std::map<cudaStream_t, std::string> names_;
  cudaEvent_t origin_ = nullptr;
  double started_ = 0; // when `origin_` was, on the host's clock
};

} // namespace polyrank::cuda
