// Operations that the GPU may still be working on: an event behind each, so that the flight
// recorder learns of completion without anybody waiting.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/stream.hpp>
#include <polyrank/hang/flight_recorder.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <new>

namespace polyrank::cuda {

/// The last 64 operations of one communicator. Not thread-safe.
class pending {
 public:
  static constexpr std::size_t slots = 64;

  /// Notes an operation just enqueued on `s`; `recorder` may be null. Returns the event behind it.
  const event& push(stream& s, hang::flight_recorder* recorder,
                    hang::flight_recorder::ticket ticket) {
    poll();
    if (newest_ - oldest_ == slots) ++oldest_; // never stamped: too far behind to matter
    item& i = (*items_)[newest_++ % slots];
    i.recorder = recorder;
    i.ticket = ticket;
    i.behind.record(s);
    return i.behind;
  }

  /// Stamps what is done. Never throws: an error of the device is found by whoever waits for it.
  void poll() noexcept {
    for (; oldest_ != newest_; ++oldest_) {
      item& i = (*items_)[oldest_ % slots];
      const cudaError_t code = cudaEventQuery(i.behind.native());
      if (code != cudaSuccess) {
        if (code == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
        return;
      }
      if (i.recorder != nullptr) i.recorder->done(i.ticket);
    }
  }

  /// Gives up the events without a CUDA call.
  void leak() noexcept { static_cast<void>(items_.release()); }

 private:
  struct item {
    event behind;
    hang::flight_recorder* recorder = nullptr;
    hang::flight_recorder::ticket ticket = 0;
  };
  std::unique_ptr<std::array<item, slots>> items_ = std::make_unique<std::array<item, slots>>();
  std::size_t oldest_ = 0, newest_ = 0;
};

} // namespace polyrank::cuda
