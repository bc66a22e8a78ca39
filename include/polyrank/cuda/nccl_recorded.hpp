// NCCL's own calls, recorded: for programs that call NCCL themselves and want verdicts. The same
// names and arguments, as members of an object that knows the flight recorder.
//
//     cuda::recorded_nccl nccl(ring.recorder());
//     nccl.ncclCommInitRank(&comm, n, id, rank);             // this communicator is recorded
//     nccl.ncclAllReduce(in, out, count, ncclFloat, ncclSum, comm, stream);
//     nccl.ncclGroupStart(); ... nccl.ncclGroupEnd();
//     nccl.ncclCommDestroy(comm);
//
// What it is not told of it passes on: a communicator made elsewhere, one process with several
// communicators of one id (ncclCommInitAll). The GPU's progress is stamped as in stamps.hpp, by the
// stream's own writes; on a non-blocking communicator only what was issued is known.
//
// libpolyrank_hang_preload.so is this class behind NCCL's symbols, for programs that nobody wants
// to recompile: LD_PRELOAD, see docs/hangs.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hash.hpp>
#include <polyrank/cuda/stamps.hpp>

#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace polyrank::cuda {

/// NCCL's functions, linked or found; null where the library in use has none.
struct nccl_calls {
#define POLYRANK_NCCL_CALLS(call)                                                                  \
  call(ncclCommInitRank) call(ncclCommInitRankConfig) call(ncclCommSplit) call(ncclCommDestroy)    \
      call(ncclCommAbort) call(ncclAllReduce) call(ncclBroadcast) call(ncclBcast) call(ncclReduce) \
          call(ncclAllGather) call(ncclReduceScatter) call(ncclSend) call(ncclRecv)                \
              call(ncclGroupStart) call(ncclGroupEnd) call(ncclCommUserRank) call(ncclCommCount)   \
                  call(ncclCommGetAsyncError)
#define POLYRANK_DECLARE(name) decltype(&::name) name = nullptr;
  POLYRANK_NCCL_CALLS(POLYRANK_DECLARE)
#undef POLYRANK_DECLARE

  /// Those that this program links.
  [[nodiscard]] static nccl_calls linked() {
    nccl_calls c;
#define POLYRANK_TAKE(function) c.function = &::function;
    POLYRANK_NCCL_CALLS(POLYRANK_TAKE)
#undef POLYRANK_TAKE
    return c;
  }
  /// Those that `find(name) -> void*` gives.
  template <class Find>
  [[nodiscard]] static nccl_calls found(Find find) {
    nccl_calls c;
#define POLYRANK_FIND(function)                                                                    \
  c.function = reinterpret_cast<decltype(&::function)>(find(#function));
    POLYRANK_NCCL_CALLS(POLYRANK_FIND)
#undef POLYRANK_FIND
    return c;
  }
#undef POLYRANK_NCCL_CALLS
};

namespace detail {

/// An NCCL call as the recorder writes it. Types that it does not know are told by their size,
/// operators by "other" and a tag.
[[nodiscard]] inline operation nccl_operation(op_kind kind, std::size_t count, ncclDataType_t type,
                                              call_site site) noexcept {
  operation o{.kind = kind, .count = count, .site = site};
  switch (type) {
  case ncclInt32:
  case ncclUint32:
    o.type = dtype::i32;
    break;
  case ncclInt64:
  case ncclUint64:
    o.type = dtype::i64;
    break;
  case ncclFloat16:
    o.type = dtype::f16;
    break;
  case ncclBfloat16:
    o.type = dtype::bf16;
    break;
  case ncclFloat32:
    o.type = dtype::f32;
    break;
  case ncclFloat64:
    o.type = dtype::f64;
    break;
  default:
    o.type = dtype::u8;
  }
  return o;
}
[[nodiscard]] inline operation nccl_operation(op_kind kind, std::size_t count, ncclDataType_t type,
                                              ncclRedOp_t op, call_site site) noexcept {
  operation o = nccl_operation(kind, count, type, site);
  constexpr auto other = static_cast<reduce_op>(static_cast<int>(reduce_op::max) + 1);
  o.op = op == ncclSum   ? reduce_op::sum
         : op == ncclMin ? reduce_op::min
         : op == ncclMax ? reduce_op::max
                         : other;
  if (o.op == other) o.tag = op == ncclAvg ? "avg" : op == ncclProd ? "prod" : "custom operator";
  return o;
}

} // namespace detail

/// Thread-safe, as far as NCCL is. The recorder must outlive it.
class recorded_nccl {
 public:
  /// `on_failure` is called, once and in the thread of the call, when one fails or tells of a
  /// failure. `real`: what the calls are passed to.
  explicit recorded_nccl(hang::flight_recorder& recorder, std::function<void()> on_failure = {},
                         nccl_calls real = nccl_calls::linked(),
                         driver (*find_driver)() = &driver::of_runtime)
      : recorder_(recorder), on_failure_(std::move(on_failure)), real_(real),
        find_driver_(find_driver), poller_([this] { poll(); }) {}
  recorded_nccl(const recorded_nccl&) = delete;
  recorded_nccl& operator=(const recorded_nccl&) = delete;
  ~recorded_nccl() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    bell_.notify_all();
    poller_.join();
    for (auto& [comm, k] : known_) k->stamps.leak(); // the GPU may still write
  }

  ncclResult_t ncclCommInitRank(ncclComm_t* comm, int n, ncclUniqueId id, int rank,
                                call_site site = call_site::here()) {
    return make(comm, hash_bytes(&id, sizeof id), "ncclCommInitRank", site,
                [&] { return real_.ncclCommInitRank(comm, n, id, rank); });
  }
  ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int n, ncclUniqueId id, int rank,
                                      ncclConfig_t* config, call_site site = call_site::here()) {
    return make(comm, hash_bytes(&id, sizeof id), "ncclCommInitRankConfig", site,
                [&] { return real_.ncclCommInitRankConfig(comm, n, id, rank, config); });
  }
  ncclResult_t ncclCommSplit(ncclComm_t parent, int colour, int key, ncclComm_t* comm,
                             ncclConfig_t* config, call_site site = call_site::here()) {
    std::uint64_t id = 0;
    if (const auto k = find(parent); k != nullptr)
      id = hash_combine(hash_combine(k->id, ++k->splits), static_cast<std::uint64_t>(colour));
    return make(comm, id, "ncclCommSplit", site,
                [&] { return real_.ncclCommSplit(parent, colour, key, comm, config); });
  }
  ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    const ncclResult_t code = real_.ncclCommGetAsyncError(comm, error);
    note(code == ncclSuccess ? *error : code);
    return code;
  }
  ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    forget(comm, false);
    return real_.ncclCommDestroy(comm);
  }
  ncclResult_t ncclCommAbort(ncclComm_t comm) {
    forget(comm, true);
    return real_.ncclCommAbort(comm);
  }

  ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                             ncclRedOp_t op, ncclComm_t comm, cudaStream_t s,
                             call_site site = call_site::here()) {
    return issue(comm, s, detail::nccl_operation(op_kind::all_reduce, count, type, op, site),
                 [&] { return real_.ncclAllReduce(in, out, count, type, op, comm, s); });
  }
  ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type,
                             int root, ncclComm_t comm, cudaStream_t s,
                             call_site site = call_site::here()) {
    operation o = detail::nccl_operation(op_kind::broadcast, count, type, site);
    o.peer = root;
    return issue(comm, s, o,
                 [&] { return real_.ncclBroadcast(in, out, count, type, root, comm, s); });
  }
  ncclResult_t ncclBcast(void* data, std::size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t s, call_site site = call_site::here()) {
    operation o = detail::nccl_operation(op_kind::broadcast, count, type, site);
    o.peer = root;
    return issue(comm, s, o, [&] { return real_.ncclBcast(data, count, type, root, comm, s); });
  }
  ncclResult_t ncclReduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                          ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t s,
                          call_site site = call_site::here()) {
    operation o = detail::nccl_operation(op_kind::reduce, count, type, op, site);
    o.peer = root;
    return issue(comm, s, o,
                 [&] { return real_.ncclReduce(in, out, count, type, op, root, comm, s); });
  }
  ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type,
                             ncclComm_t comm, cudaStream_t s, call_site site = call_site::here()) {
    return issue(comm, s, detail::nccl_operation(op_kind::all_gather, count, type, site),
                 [&] { return real_.ncclAllGather(in, out, count, type, comm, s); });
  }
  ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t s,
                                 call_site site = call_site::here()) {
    return issue(comm, s, detail::nccl_operation(op_kind::reduce_scatter, count, type, op, site),
                 [&] { return real_.ncclReduceScatter(in, out, count, type, op, comm, s); });
  }
  ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer,
                        ncclComm_t comm, cudaStream_t s, call_site site = call_site::here()) {
    operation o = detail::nccl_operation(op_kind::exchange, count, type, site);
    o.peer = peer;
    o.way = direction::send;
    return issue(comm, s, o, [&] { return real_.ncclSend(data, count, type, peer, comm, s); });
  }
  ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer,
                        ncclComm_t comm, cudaStream_t s, call_site site = call_site::here()) {
    operation o = detail::nccl_operation(op_kind::exchange, count, type, site);
    o.peer = peer;
    o.way = direction::receive;
    return issue(comm, s, o, [&] { return real_.ncclRecv(data, count, type, peer, comm, s); });
  }

  ncclResult_t ncclGroupStart() {
    {
      const std::lock_guard lock(mutex_);
      ++groups_[std::this_thread::get_id()].depth;
    }
    return real_.ncclGroupStart();
  }
  ncclResult_t ncclGroupEnd() {
    std::vector<launch> launches;
    {
      const std::lock_guard lock(mutex_);
      const auto mine = groups_.find(std::this_thread::get_id());
      if (mine != groups_.end() && --mine->second.depth <= 0) {
        launches = std::move(mine->second.launches);
        groups_.erase(mine);
      }
      for (const launch& l : launches) l.of->stamps.begin(l.first);
    }
    const ncclResult_t code = real_.ncclGroupEnd();
    {
      const std::lock_guard lock(mutex_);
      for (const launch& l : launches) ended(*l.of, l.last, code);
    }
    note(code);
    return code;
  }

 private:
  struct known {
    known(hang::flight_recorder& r, const driver& d, std::uint64_t comm_id)
        : stamps(&r, d), id(comm_id) {
      history.id = static_cast<std::uint32_t>(comm_id);
    }
    cuda::stamps stamps;
    hang::comm_history history;
    std::uint64_t id, splits = 0;
  };
  /// A communicator's operations in one group, from its first stream to its last.
  struct launch {
    std::shared_ptr<known> of;
    cudaStream_t first, last;
  };
  struct group {
    int depth = 0;
    std::vector<launch> launches;
  };

  std::shared_ptr<known> find(ncclComm_t comm) {
    const std::lock_guard lock(mutex_);
    const auto k = known_.find(comm);
    return k != known_.end() ? k->second : nullptr;
  }

  template <class Call>
  ncclResult_t make(ncclComm_t* comm, std::uint64_t id, const char* name, call_site site,
                    Call call) {
    ncclResult_t code = ncclSuccess;
    {
      const auto phase = recorder_.phase(hang::host_state::init, name, site);
      code = call();
      for (ncclResult_t state = code; code == ncclInProgress && state == ncclInProgress;
           std::this_thread::sleep_for(std::chrono::milliseconds(1)))
        if (real_.ncclCommGetAsyncError(*comm, &state) != ncclSuccess || state != ncclInProgress)
          break;
    }
    note(code);
    int rank = 0, n = 0;
    if ((code != ncclSuccess && code != ncclInProgress) || id == 0 || *comm == nullptr ||
        real_.ncclCommUserRank(*comm, &rank) != ncclSuccess ||
        real_.ncclCommCount(*comm, &n) != ncclSuccess)
      return code;
    auto k = std::make_shared<known>(recorder_, find_driver_(), id);
    recorder_.attach(k->history.id, rank, n);
    const std::lock_guard lock(mutex_);
    known_[*comm] = std::move(k);
    return code;
  }
  void forget(ncclComm_t comm, bool aborted) {
    const std::lock_guard lock(mutex_);
    const auto k = known_.find(comm);
    if (k == known_.end()) return;
    if (aborted)
      k->second->stamps.leak();
    else
      k->second->stamps.leave();
    known_.erase(k);
  }

  template <class Call>
  ncclResult_t issue(ncclComm_t comm, cudaStream_t s, const operation& what, Call call) {
    std::shared_ptr<known> k;
    bool grouped = false;
    {
      const std::lock_guard lock(mutex_);
      if (const auto there = known_.find(comm); there != known_.end()) {
        k = there->second;
        k->stamps.enter(k->history, what, s);
        const auto mine = groups_.find(std::this_thread::get_id());
        grouped = mine != groups_.end() && mine->second.depth > 0;
        if (grouped) {
          auto& all = mine->second.launches;
          const auto same =
              std::find_if(all.begin(), all.end(), [&](const launch& l) { return l.of == k; });
          if (same == all.end())
            all.push_back({k, s, s});
          else
            same->last = s;
        } else {
          k->stamps.begin(s);
        }
      }
    }
    const ncclResult_t code = call();
    if (k != nullptr && !grouped) {
      const std::lock_guard lock(mutex_);
      ended(*k, s, code);
    }
    note(code);
    return code;
  }
  void note(ncclResult_t code) {
    if (code == ncclSuccess || code == ncclInProgress || !on_failure_ || told_.exchange(true))
      return;
    on_failure_();
  }
  static void ended(known& k, cudaStream_t s, ncclResult_t code) noexcept {
    if (code == ncclInProgress)
      k.stamps.lose_sight();
    else
      k.stamps.end(s);
  }

  void poll() {
    std::unique_lock lock(mutex_);
    while (!bell_.wait_for(lock, std::chrono::milliseconds(10), [this] { return stop_; }))
      for (auto& [comm, k] : known_) k->stamps.poll();
  }

  hang::flight_recorder& recorder_;
  std::function<void()> on_failure_;
  std::atomic<bool> told_{false};
  nccl_calls real_;
  driver (*find_driver_)();
  std::mutex mutex_; // of all below
  std::map<ncclComm_t, std::shared_ptr<known>> known_;
  std::map<std::thread::id, group> groups_;
  std::condition_variable bell_;
  bool stop_ = false;
  std::thread poller_;
};

} // namespace polyrank::cuda
