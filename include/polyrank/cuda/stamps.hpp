// How far the GPU has come in the operations of one communicator, written by the GPU itself into
// the flight recorder: a stream write before and after each operation, or group of them. Whoever
// looks, in this process or another, reads plain memory and makes no CUDA call; a kernel that hangs
// cannot hide it, nor can the death of the process.
//
//     cuda::stamps stamps(&recorder, cuda::driver::of_runtime());
//     stamps.enter(history, what, stream);     // once, or several times for a group
//     stamps.begin(stream);
//     ncclAllReduce(..., stream);
//     stamps.end(stream);
//     stamps.poll();                           // now and then, from another thread: gives the
//     times
//
// "Started" means that the stream has come to the operation, not that its kernel found room on the
// GPU. In a captured graph each replay writes the same numbers; a host node at the graph's first
// operation counts the replays.
//
// Where the GPU cannot write (why() tells), events take the place of the writes: then poll() asks
// CUDA, `started` means issued, and graphs are not followed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/cuda/driver.hpp>
#include <polyrank/hang/flight_recorder.hpp>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace polyrank::cuda {

/// The page with the lanes of a flight recorder, as the GPU sees it.
class lane_page {
 public:
  explicit lane_page(const driver& d, std::span<std::byte> page) : driver_(d), page_(page) {
    int writes = 0;
    CUdevice device = 0;
    if (!d.usable())
      why_ = "the driver is older than CUDA 12";
    else if (d.current_device(&device) != CUDA_SUCCESS ||
             d.device_attribute(&writes, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
                                device) != CUDA_SUCCESS ||
             writes == 0)
      why_ = "this GPU has no 64-bit stream writes";
    else if (const CUresult code =
                 d.host_register(page.data(), page.size(),
                                 CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
             code != CUDA_SUCCESS && code != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
      why_ = polyrank::detail::cat("the flight recorder's memory cannot be pinned (error ",
                                   static_cast<int>(code),
                                   "); POLYRANK_HANG_DIR must lie in memory, as /dev/shm does");
    else if (d.host_device_pointer(&address_, page.data(), 0) != CUDA_SUCCESS)
      why_ = "the GPU cannot address the flight recorder";
  }
  lane_page(const lane_page&) = delete;
  lane_page& operator=(const lane_page&) = delete;
  ~lane_page() {
    if (address_ != 0) driver_.host_unregister(page_.data());
  }

  /// Why the GPU cannot write here; empty: it can.
  [[nodiscard]] const std::string& why() const noexcept { return why_; }
  /// Lets stream `s` write `value` into `w`, which lies in the page, once it comes there.
  [[nodiscard]] bool write(CUstream s, hang::word& w, std::uint64_t value) const noexcept {
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    if (s == nullptr) s = CU_STREAM_PER_THREAD;
#endif
    const auto offset = reinterpret_cast<std::byte*>(&w) - page_.data();
    return driver_.write_value(s, address_ + static_cast<CUdeviceptr>(offset), value,
                               CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
  }

 private:
  driver driver_;
  std::span<std::byte> page_;
  CUdeviceptr address_ = 0;
  std::string why_;
};

/// Of one communicator, whose operations run in issue order. Not thread-safe: enter() to end() of
/// one launch, and poll(), under one lock. The recorder must outlive it.
class stamps {
 public:
  /// Records nothing where `recorder` is null. The device must be current.
  stamps(hang::flight_recorder* recorder, const driver& d) : recorder_(recorder), driver_(d) {
    if (recorder_ == nullptr) return;
    page_ =
        recorder_->share([&] { return std::make_shared<lane_page>(d, recorder_->lane_page()); });
    writes_ = page_->why().empty();
    if (!writes_) recorder_->starts_are_issues();
    own_.at = recorder_->take_lane(hang::lane::of_stream);
  }
  stamps(const stamps&) = delete;
  stamps& operator=(const stamps&) = delete;
  /// Call leave() before, or leak().
  ~stamps() = default;

  /// Why the GPU does not stamp; empty: it does.
  [[nodiscard]] std::string why() const { return page_ == nullptr ? "no recorder" : page_->why(); }

  /// Notes that `what` is about to be issued on `s`.
  void enter(hang::comm_history& history, const operation& what, CUstream s) noexcept {
    if (recorder_ == nullptr) return;
    if (current_ == nullptr || s != current_stream_) current_ = line_for(s); // else of one group
    current_stream_ = s;
    if (current_ == nullptr || current_->at == hang::lane::count) { // nobody will tell
      const auto ticket = recorder_->enter(history, what);
      recorder_->start(ticket);
      recorder_->done(ticket);
      current_ = nullptr;
      return;
    }
    const auto ticket = recorder_->enter(history, what, current_->at, ++current_->last);
    if (current_ != &own_) return; // of a graph: its reference stays
    if (newest_ - oldest_ == slots) ++oldest_;
    begun_ = std::max(begun_, oldest_);
    waiting_[newest_++ % slots] = {ticket, own_.last};
  }

  /// What was entered begins here on `s`.
  void begin(CUstream s) noexcept { mark(s, hang::lane::started); }

  /// It ends here.
  void end(CUstream s) noexcept {
    if (current_ == nullptr) return;
    if (writes_)
      mark(s, hang::lane::done);
    else
      record_event(s);
    current_ = nullptr;
  }

  /// Nobody can tell how far what was entered comes: it counts as done.
  void lose_sight() noexcept {
    if (current_ == nullptr) return;
    for (const auto f : {hang::lane::started, hang::lane::done})
      hang::detail::set(recorder_->lane_at(current_->at)[f], current_->last);
    current_ = nullptr;
  }

  /// Writes the times of what has moved. Makes a CUDA call only where the GPU cannot write.
  void poll() noexcept {
    using namespace hang;
    if (recorder_ == nullptr || own_.at == lane::count) return;
    if (!writes_) ask_events();
    note_move(own_);
    for (line& g : graphs_) note_move(g);
    const word* w = recorder_->lane_at(own_.at);
    const std::uint64_t started = hang::detail::get(w[lane::started]),
                        done = hang::detail::get(w[lane::done]);
    for (; begun_ != newest_ && waiting_[begun_ % slots].number <= std::max(started, done);
         ++begun_)
      recorder_->saw_start(waiting_[begun_ % slots].ticket);
    for (; oldest_ != begun_ && waiting_[oldest_ % slots].number <= done; ++oldest_)
      recorder_->saw_done(waiting_[oldest_ % slots].ticket);
  }

  /// The communicator ends in good order: waits a little for the last stamp.
  void leave() noexcept {
    if (recorder_ == nullptr || own_.at == hang::lane::count) return;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    const auto open = [&] {
      poll();
      return oldest_ != newest_;
    };
    while (open()) {
      if (std::chrono::steady_clock::now() > until) return leak();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    for (const pending_event& e : events_) static_cast<void>(driver_.event_destroy(e.event));
    for (const line& g : graphs_) recorder_->give_lane(g.at);
    recorder_->give_lane(own_.at);
    page_.reset();
    recorder_ = nullptr;
  }
  /// Gives everything up without a CUDA call: the GPU may still write.
  void leak() noexcept {
    static_cast<void>(new (std::nothrow) std::shared_ptr<lane_page>(std::move(page_)));
    recorder_ = nullptr;
  }

 private:
  static constexpr std::size_t slots = 1024;

  /// A lane and the number of its last operation.
  struct line {
    std::size_t at = hang::lane::count;
    std::uint64_t last = 0, capture = 0;
    std::array<std::uint64_t, 3> seen{};
  };
  struct item {
    hang::flight_recorder::ticket ticket;
    std::uint64_t number;
  };
  struct pending_event {
    CUevent event;
    std::uint64_t number;
    bool waits;
  };

  /// The lane for operations on `s`: that of the graph which it captures, if any. Null: none.
  line* line_for(CUstream s) noexcept {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    if (driver_.capture_info == nullptr ||
        driver_.capture_info(s, &status, &id, nullptr, nullptr, nullptr) != CUDA_SUCCESS ||
        status == CU_STREAM_CAPTURE_STATUS_NONE)
      return &own_;
    if (!writes_) return nullptr;
    for (line& g : graphs_)
      if (g.capture == id) return &g;
    if (graphs_.size() == graphs_.capacity()) return nullptr;
    line g{.capture = id};
    g.at = recorder_->take_lane(hang::lane::of_graph);
    if (g.at == hang::lane::count) return nullptr;
    if (driver_.launch_host(s, &count_replay, recorder_->lane_at(g.at)) != CUDA_SUCCESS) {
      recorder_->give_lane(g.at);
      return nullptr;
    }
    graphs_.push_back(g);
    return &graphs_.back();
  }
  static void CUDA_CB count_replay(void* lane_words) {
    auto* w = static_cast<hang::word*>(lane_words);
    hang::detail::set(w[hang::lane::started], 0);
    hang::detail::set(w[hang::lane::done], 0);
    w[hang::lane::replays].fetch_add(1, std::memory_order_relaxed);
  }

  /// `s` writes the number of the last operation; where that fails, we do: better to know too
  /// little than to accuse.
  void mark(CUstream s, hang::lane::field f) noexcept {
    if (current_ == nullptr) return;
    hang::word& w = recorder_->lane_at(current_->at)[f];
    if (!writes_ || !page_->write(s, w, current_->last)) hang::detail::set(w, current_->last);
  }

  void record_event(CUstream s) noexcept {
    ask_events();
    for (pending_event& e : events_)
      if (!e.waits && driver_.event_record(e.event, s) == CUDA_SUCCESS) {
        e.number = own_.last;
        e.waits = true;
        return;
      }
    CUevent fresh = nullptr;
    if (events_.size() < events_.capacity() && driver_.event_create != nullptr &&
        driver_.event_create(&fresh, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) {
      events_.push_back({fresh, own_.last, driver_.event_record(fresh, s) == CUDA_SUCCESS});
      if (events_.back().waits) return;
    }
    hang::detail::set(recorder_->lane_at(own_.at)[hang::lane::done], own_.last); // nobody will tell
  }
  void ask_events() noexcept {
    hang::word& done = recorder_->lane_at(own_.at)[hang::lane::done];
    for (pending_event& e : events_)
      if (e.waits && driver_.event_query(e.event) == CUDA_SUCCESS) {
        e.waits = false;
        if (e.number > hang::detail::get(done)) hang::detail::set(done, e.number);
      }
  }

  void note_move(line& l) noexcept {
    using hang::lane;
    hang::word* w = recorder_->lane_at(l.at);
    const std::array<std::uint64_t, 3> now{hang::detail::get(w[lane::started]),
                                           hang::detail::get(w[lane::done]),
                                           hang::detail::get(w[lane::replays])};
    if (now == l.seen) return;
    l.seen = now;
    hang::detail::set(w[lane::moved_ns], hang::now_ns());
  }

  template <class T>
  static std::vector<T> room(std::size_t n) {
    std::vector<T> v;
    v.reserve(n);
    return v;
  }

  hang::flight_recorder* recorder_;
  driver driver_;
  std::shared_ptr<lane_page> page_;
  bool writes_ = false;
  line own_;
  std::vector<line> graphs_ = room<line>(hang::lane::count); // never moves: current_ points into it
  std::vector<pending_event> events_ = room<pending_event>(64);
  line* current_ = nullptr; // of what was entered and has not ended
  CUstream current_stream_ = nullptr;
  std::array<item, slots> waiting_{};
  std::size_t oldest_ = 0, begun_ = 0, newest_ = 0; // of waiting_: not done, not begun, end
};

} // namespace polyrank::cuda
