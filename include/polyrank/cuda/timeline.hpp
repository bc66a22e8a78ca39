// What the GPU did when: spans of work between two points of a stream, for a Chrome trace.
//
//     cuda::timeline line;
//     line.enable(true);
//     { cuda::timeline::scope span(&line, stream, "forward"); launch...; }
//     write(line.chrome_trace(rank));                  // waits for the spans; open in Perfetto
//
// Each span is also an NVTX range. Times come from CUDA events, so they include what the GPU waited
// for between the two points, and cost about a microsecond a span. Spans beyond the capacity are
// dropped and counted. A process is a rank, a thread is a stream, named by name_stream().
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/nvtx.hpp>
#include <polyrank/cuda/stream.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
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

  /// The point from which times count; call it on all ranks at one time (after a barrier). Without
  /// it they count from the first span.
  void start(stream& s) {
    if (origin_ == nullptr) cuda::check(cudaEventCreate(&origin_), "cudaEventCreate");
    cuda::check(cudaEventRecord(origin_, s.native()), "cudaEventRecord");
    s.synchronize();
  }
  void name_stream(const stream& s, std::string name) { names_[s.native()] = std::move(name); }

  /// Work that is enqueued on a stream during the life of this object.
  class scope {
   public:
    /// `line` may be null.
    scope(timeline* line, stream& s, std::string_view name) {
      if (line == nullptr || !line->enabled_) return;
      line_ = line;
      index_ = line->begin(s, name);
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

  /// The spans as a JSON array of Chrome trace events, without the brackets. Waits for them.
  [[nodiscard]] std::string chrome_events(int rank) const {
    using polyrank::detail::cat;
    std::string out;
    std::map<cudaStream_t, int> threads;
    const auto thread_of = [&](cudaStream_t s) {
      const auto [at, fresh] = threads.emplace(s, static_cast<int>(threads.size()));
      if (fresh) {
        const auto name = names_.find(s);
        out += cat(R"({"ph":"M","name":"thread_name","pid":)", rank, R"(,"tid":)", at->second,
                   R"(,"args":{"name":")",
                   name != names_.end() ? name->second : cat("stream ", at->second), "\"}},\n");
      }
      return at->second;
    };
    out += cat(R"({"ph":"M","name":"process_name","pid":)", rank, R"(,"args":{"name":"rank )", rank,
               "\"}},\n");
    for (const span& s : spans_) {
      if (s.to == nullptr) continue;
      check(cudaEventSynchronize(s.to), "cudaEventSynchronize");
      float at = 0, length = 0;
      check(cudaEventElapsedTime(&at, origin_ != nullptr ? origin_ : spans_.front().from, s.from),
            "cudaEventElapsedTime");
      check(cudaEventElapsedTime(&length, s.from, s.to), "cudaEventElapsedTime");
      const int thread = thread_of(s.where);
      out += cat(R"({"ph":"X","name":")", s.name, R"(","pid":)", rank, R"(,"tid":)", thread,
                 R"(,"ts":)", microseconds(at), R"(,"dur":)", microseconds(length), "},\n");
    }
    if (!out.empty()) out.resize(out.size() - 2);
    return out;
  }

  [[nodiscard]] std::size_t dropped() const noexcept { return dropped_; }

 private:
  friend class scope;

  struct span {
    std::string name;
    cudaStream_t where = nullptr;
    cudaEvent_t from = nullptr, to = nullptr;
  };
  static constexpr std::size_t none = ~std::size_t{0};

  std::size_t begin(stream& s, std::string_view name) {
    if (spans_.size() >= capacity_) {
      ++dropped_;
      return none;
    }
    span next{.name = std::string(name), .where = s.native()};
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

  /// Milliseconds as microseconds with three digits.
  static std::string microseconds(float ms) {
    const auto ns = static_cast<long long>(static_cast<double>(ms) * 1e6);
    std::string digits = polyrank::detail::cat(ns < 0 ? -ns : ns);
    if (digits.size() < 4) digits.insert(0, 4 - digits.size(), '0');
    const std::size_t point = digits.size() - 3;
    return polyrank::detail::cat(ns < 0 ? "-" : "", digits.substr(0, point), '.',
                                 digits.substr(point));
  }

  std::size_t capacity_, dropped_ = 0;
  bool enabled_ = false;
  std::deque<span> spans_;
  std::map<cudaStream_t, std::string> names_;
  cudaEvent_t origin_ = nullptr;
};

} // namespace polyrank::cuda
