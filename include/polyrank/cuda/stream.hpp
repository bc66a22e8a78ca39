// CUDA streams and events: owners, and views of the caller's own.
//
//     cuda::stream compute;                              // non-blocking, on the current device
//     auto mine = cuda::stream::from_native(raw);        // the caller keeps ownership
//     cuda::event ready;
//     kernel<<<grid, block, 0, compute.native()>>>(x);
//     ready.record(compute);
//     mine.wait(ready);                                  // the host does not wait
//     mine.synchronize();
//
// The legacy default stream works too: stream::from_native(nullptr).
//
// A stream on which a communicator has failed is failed: synchronize() throws aborted_error with
// the cause, here and on the streams that waited for its events.
//
// Destructors never throw. While an exception unwinds they make no CUDA call and leak the handle: a
// call could wait for a peer that is gone.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/device.hpp>
#include <polyrank/cuda/failure.hpp>

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace polyrank::cuda {

class event;

/// What is wrong with a stream of GPU `of` for work on GPU `here`, or empty: pure.
[[nodiscard]] inline std::string stream_fault(int of, int here) {
  if (of == here) return {};
  return polyrank::detail::cat("the stream belongs to GPU ", of, ", the work to GPU ", here,
                               ": make the stream while GPU ", here, " is current");
}

namespace detail {
/// True while an exception unwinds: destructors then leave CUDA alone.
[[nodiscard]] inline bool unwinding() noexcept { return std::uncaught_exceptions() > 0; }
} // namespace detail

/// An in-order queue of work on one device. Move-only.
class stream {
 public:
  /// A stream of the current device that does not wait for the legacy default stream.
  /// @param priority 0, or lower for more urgent work (see cudaDeviceGetStreamPriorityRange)
  explicit stream(int priority = 0) : device_(current_device()), owned_(true) {
    check(cudaStreamCreateWithPriority(&native_, cudaStreamNonBlocking, priority),
          "cudaStreamCreateWithPriority");
  }
  /// The most urgent stream of the current device: communication should start as soon as it can.
  [[nodiscard]] static stream urgent() {
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    return stream(greatest);
  }
  /// A view of the caller's stream, which must outlive it. Null is the legacy default stream of the
  /// current device.
  [[nodiscard]] static stream from_native(cudaStream_t native) {
    return {native, device_of_native(native)};
  }

  stream(stream&& other) noexcept
      : native_(other.native_), device_(other.device_), owned_(std::exchange(other.owned_, false)),
        failure_(std::move(other.failure_)) {}
  stream& operator=(stream&& other) noexcept {
    std::swap(native_, other.native_);
    std::swap(device_, other.device_);
    std::swap(owned_, other.owned_);
    failure_.swap(other.failure_);
    return *this;
  }
  /// Work that is still queued runs to its end.
  ~stream() {
    if (owned_ && !detail::unwinding()) static_cast<void>(cudaStreamDestroy(native_));
  }

  [[nodiscard]] cudaStream_t native() const noexcept { return native_; }
  [[nodiscard]] int device() const noexcept { return device_; }

  /// Number of the graph that is being captured from this stream; 0: none is.
  [[nodiscard]] unsigned long long captured() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    if (cudaStreamGetCaptureInfo(native_, &status, &id) != cudaSuccess)
      static_cast<void>(cudaGetLastError()); // the legacy default stream, while another is captured
    return status == cudaStreamCaptureStatusActive ? id : 0;
  }

  /// Later work of this stream starts after the point of `e`.
  inline void wait(const event& e);

  /// The host waits for all work. Throws cuda_error, aborted_error.
  void synchronize(call_site site = call_site::here()) const {
    check(cudaStreamSynchronize(native_), "cudaStreamSynchronize", site);
    if (failure_ != nullptr) failure_->check(site);
  }

  /// The same with a deadline: throws timeout_error after it.
  void synchronize_for(std::chrono::milliseconds deadline,
                       call_site site = call_site::here()) const {
    const auto until = std::chrono::steady_clock::now() + deadline;
    for (;;) {
      const cudaError_t code = cudaStreamQuery(native_);
      if (code != cudaErrorNotReady) {
        check(code, "cudaStreamQuery", site);
        if (failure_ != nullptr) failure_->check(site);
        return;
      }
      static_cast<void>(cudaGetLastError());
      if (std::chrono::steady_clock::now() > until)
        throw timeout_error(
            polyrank::detail::cat("stream: its work was not done within ", deadline.count(), " ms"),
            site);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  /// From now on synchronize() also looks at `f`. Communicators call it.
  void follow(const std::shared_ptr<const failure>& f) {
    if (f != nullptr && failure_ != f) failure_ = f;
  }

 private:
  friend class event;

  stream(cudaStream_t native, int device) noexcept : native_(native), device_(device) {}

  static int device_of_native([[maybe_unused]] cudaStream_t native) {
#if CUDART_VERSION >= 12080
    int device = 0;
    if (native != nullptr && native != cudaStreamLegacy && native != cudaStreamPerThread) {
      check(cudaStreamGetDevice(native, &device), "cudaStreamGetDevice");
      return device;
    }
#endif
    return current_device();
  }

  cudaStream_t native_ = nullptr;
  int device_ = 0;
  bool owned_ = false;
  std::shared_ptr<const failure> failure_;
};

/// A point in the work of a stream. Made at the first record; the default-constructed event is
/// "reached".
class event {
 public:
  event() = default;
  /// A view of the caller's event, which must outlive it.
  [[nodiscard]] static event from_native(cudaEvent_t native) {
    event e;
    e.native_ = native;
    return e;
  }
  event(event&& other) noexcept { swap(other); }
  event& operator=(event&& other) noexcept {
    event(std::move(other)).swap(*this);
    return *this;
  }
  ~event() {
    if (owned_ && !detail::unwinding()) static_cast<void>(cudaEventDestroy(native_));
  }
  void swap(event& other) noexcept {
    std::swap(native_, other.native_);
    std::swap(owned_, other.owned_);
    failure_.swap(other.failure_);
  }

  [[nodiscard]] cudaEvent_t native() const noexcept { return native_; }

  /// Moves the event to the present end of `s`.
  void record(stream& s, call_site site = call_site::here()) {
    if (native_ == nullptr) {
      scoped_device on(s.device_);
      check(cudaEventCreateWithFlags(&native_, cudaEventDisableTiming), "cudaEventCreateWithFlags",
            site);
      owned_ = true;
    }
    check(cudaEventRecord(native_, s.native_), "cudaEventRecord", site);
    if (failure_ != s.failure_) failure_ = s.failure_;
  }
  /// True when the work before the point is done.
  [[nodiscard]] bool query() const {
    if (native_ == nullptr) return true;
    const cudaError_t code = cudaEventQuery(native_);
    if (code == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    check(code, "cudaEventQuery");
    return true;
  }
  /// The host waits for the point. Throws cuda_error, aborted_error.
  void synchronize(call_site site = call_site::here()) const {
    if (native_ == nullptr) return;
    check(cudaEventSynchronize(native_), "cudaEventSynchronize", site);
    if (failure_ != nullptr) failure_->check(site);
  }

 private:
  friend class stream;

  cudaEvent_t native_ = nullptr;
  bool owned_ = false;
  std::shared_ptr<const failure> failure_;
};

inline void stream::wait(const event& e) {
  if (e.native_ == nullptr) return;
  check(cudaStreamWaitEvent(native_, e.native_, 0), "cudaStreamWaitEvent");
  follow(e.failure_);
}

} // namespace polyrank::cuda
