// The NCCL communicator: a model of all communicator concepts of the seam.
//
//     launch::world world(argc, argv);
//     cuda::communicator comm = cuda::join(world);   // GPU by local rank, NCCL id over MPI
//     cuda::stream s = comm.make_stream();
//     comm.all_reduce<float>(in, out, reduce_op::sum, on(s, "bucket 7"));
//
// As a guest: cuda::communicator::from_native(raw, world.communicator()) uses the caller's
// ncclComm_t and never destroys it. Beside another communicator on the same GPU, issue the
// operations of both in one order on all ranks (NCCL's rule for any two communicators).
//
// Inside a CUDA graph (graph.hpp) every operation can be captured. Within one graph, and outside of
// graphs, operations run in host order; between a graph and what is outside, order is the streams'.
//
// Failing together. When NCCL fails or another rank has sent a cause, NCCL's kernels and calls are
// made to return (session.hpp), and every later call, and synchronize() of every stream that was
// used here, throws aborted_error{cause}.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/calls.hpp>
#include <polyrank/core/hash.hpp>
#include <polyrank/cuda/backend.hpp>
#include <polyrank/cuda/select.hpp>
#include <polyrank/cuda/session.hpp>
#include <polyrank/cuda/timeline.hpp>
#include <polyrank/cuda/window.hpp>
#include <polyrank/hang/flight_recorder.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory_resource>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank::cuda {

struct communicator_options {
  std::chrono::milliseconds init_deadline = std::chrono::minutes(2); ///< to meet all ranks
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER; ///< CTAs, network ...; `blocking` is ours
};

class communicator : public polyrank::detail::typed_calls<communicator, stream> {
 public:
  using backend = cuda::backend;
  using options = communicator_options;

  /// A communicator of the ranks of `host` on GPU `device` of this process. `recorder` may be null,
  /// else it must outlive this. Throws on every rank: usage_error where NCCL's header and library
  /// do not fit, mismatch_error where ranks have other versions, timeout_error, nccl_error.
  /// @collective
  template <class Host>
    requires splittable<Host> && abortable<Host>
  communicator(Host host, int device, hang::flight_recorder* recorder = nullptr, options o = {})
      : communicator(cuda::control(std::move(host)), device, recorder, o) {}

  /// The same with a control channel of any kind, also one without MPI: cuda::control(tcp_store).
  /// @collective
  communicator(cuda::control line, int device, hang::flight_recorder* recorder = nullptr,
               options o = {})
      : communicator(line, device, recorder, o, prepare(line)) {}

  /// A view of the caller's communicator, which has the ranks of `host`. The caller destroys it,
  /// after this. @collective
  template <class Host>
    requires splittable<Host> && abortable<Host>
  [[nodiscard]] static communicator from_native(ncclComm_t native, Host host,
                                                hang::flight_recorder* recorder = nullptr) {
    cuda::control line(std::move(host));
    int device = 0, rank = 0, size = 0;
    cuda::check(ncclCommCuDevice(native, &device), "ncclCommCuDevice", native);
    cuda::check(ncclCommUserRank(native, &rank), "ncclCommUserRank", native);
    cuda::check(ncclCommCount(native, &size), "ncclCommCount", native);
    expects(rank == line.rank() && size == line.size(), "from_native: the NCCL communicator has ",
            "rank ", rank, " of ", size, ", the control channel rank ", line.rank(), " of ",
            line.size());
    const std::uint64_t mine = reinterpret_cast<std::uintptr_t>(native);
    const std::string first =
        line.all_gather({reinterpret_cast<const char*>(&mine), sizeof mine})[0];
    scoped_device here(device);
    return {line,          session::view(native, line, recorder),
            device,        recorder,
            options{},     hash_text(first),
            everyone(line)};
  }

  [[nodiscard]] int rank() const { return line_.rank(); }
  [[nodiscard]] int size() const { return line_.size(); }
  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] cuda::control& control() noexcept { return line_; }
  [[nodiscard]] ncclComm_t native() const noexcept { return session_.native(); }
  /// Bytes that this rank has handed to its peers so far, if NCCL moves the least it can (it does
  /// not tell).
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept { return bytes_sent_; }
  /// From now on every operation is a span of `line` (null: no more), which must outlive it.
  void trace(timeline* line) noexcept { trace_ = line; }
  /// What a person should know of the NCCL in use.
  [[nodiscard]] const std::vector<std::string>& warnings() const noexcept { return warnings_; }

  /// An urgent stream on this communicator's device.
  [[nodiscard]] stream make_stream() const {
    scoped_device here(device_);
    return stream::urgent();
  }

  /// The ranks of one colour, ordered by (key, rank). @collective
  [[nodiscard]] communicator split(int colour, int key) {
    check();
    scoped_device here(device_);
    cuda::control line = line_.split(colour, key);
    const std::uint64_t id =
        hash_combine(hash_combine(id_, ++splits_), static_cast<std::uint64_t>(colour));
    std::vector<int> members;
    for (const std::string& number :
         line.all_gather(polyrank::detail::cat(members_[static_cast<std::size_t>(rank())])))
      members.push_back(std::atoi(number.c_str()));
    return {line,
            session_.split(colour, key, options_.config, options_.init_deadline, line, recorder_),
            device_,
            recorder_,
            options_,
            id,
            std::move(members)};
  }

  using window = cuda::window;
  /// Where memory for windows comes from.
  [[nodiscard]] static std::pmr::memory_resource& window_memory() noexcept {
    return cuda::window_memory();
  }
  /// Registers `bytes` at `memory` with NCCL on all ranks, or on none: where one rank refuses, the
  /// window is empty everywhere. `refusal` (not empty: this rank will not) and any reason that not
  /// all ranks have in common appear once in warnings(). Throws aborted_error, timeout_error.
  /// @collective
  [[nodiscard]] window register_window(void* memory, std::size_t bytes, std::string refusal = {}) {
    check();
    if (size() == 1) return {};
    scoped_device here(device_);
    if (refusal.empty() && loaded_nccl() < NCCL_VERSION(2, 27, 0))
      refusal = "NCCL is older than 2.27";
    window w;
    if (agree_on_window({bytes, std::move(refusal)}) && bytes > 0) {
      std::string why;
      w = window::open(session_, memory, bytes, options_.init_deadline, why);
      if (!agree_on_window({bytes, why})) w = {};
    }
    return w;
  }

  /// Issues the operations that `body` makes, all on stream `s`, as one launch.
  template <class Body>
  void group(stream& s, Body body, call_site site = call_site::here()) {
    check(site);
    scoped_device here(device_);
    follow_order(s);
    cuda::check(ncclGroupStart(), "ncclGroupStart", nullptr, site);
    grouped_ = &s;
    std::exception_ptr thrown;
    try {
      body();
    } catch (...) {
      thrown = std::current_exception();
    }
    grouped_ = nullptr;
    session_.issue("ncclGroupEnd", site, &s, [](ncclComm_t) { return ncclGroupEnd(); });
    note(s);
    if (thrown) std::rethrow_exception(thrown);
  }

  /// Ends the work of all ranks: their calls, and the synchronize() of their streams, throw
  /// aborted_error{cause}. Any thread; does not wait.
  void abort(std::string_view cause) noexcept { session_.abort(cause); }
  /// Throws aborted_error if some rank has aborted or NCCL has failed.
  void check(call_site site = call_site::here()) const { session_.why()->check(site); }

 private:
  friend class polyrank::detail::typed_calls<communicator, stream>;

  /// What all ranks agree on before they meet.
  struct start {
    std::vector<std::string> warnings;
    ncclUniqueId id;
  };
  static start prepare(cuda::control& line) {
    start s{.warnings = agree_on_version(line), .id = {}};
    s.id = share_id(line);
    return s;
  }

  communicator(cuda::control line, int device, hang::flight_recorder* recorder, options o,
               const start& s)
      : communicator(line, meet(line, device, s.id, recorder, o), device, recorder, o,
                     hash_bytes(&s.id, sizeof s.id), everyone(line)) {
    warnings_ = s.warnings;
    if (const std::string why = session_.why_no_stamps(); recorder != nullptr && !why.empty())
      warnings_.push_back("no progress of the GPU in the flight recorder: " + why);
  }
  communicator(cuda::control line, session s, int device, hang::flight_recorder* recorder,
               options o, std::uint64_t id, std::vector<int> members)
      : line_(std::move(line)), session_(std::move(s)), device_(device), recorder_(recorder),
        options_(o), id_(id), members_(std::move(members)) {
    history_.id = static_cast<std::uint32_t>(id);
    if (recorder_ != nullptr) recorder_->attach(history_.id, members_, line_.rank());
  }

  static std::vector<int> everyone(const cuda::control& line) {
    std::vector<int> all(static_cast<std::size_t>(line.size()));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  static session meet(cuda::control& line, int device, const ncclUniqueId& id,
                      hang::flight_recorder* recorder, const options& o) {
    const hang::flight_recorder::phase_scope phase(recorder, hang::host_state::init, "NCCL",
                                                   call_site::here());
    scoped_device here(device);
    // Rank 0 listens since ncclGetUniqueId; nobody may knock before all have the address.
    line.barrier(o.init_deadline);
    return session::create(id, o.config, o.init_deadline, line, recorder);
  }

  /// Throws unless all ranks run one NCCL that fits its header; returns warnings.
  static std::vector<std::string> agree_on_version(cuda::control& line) {
    const int loaded = loaded_nccl();
    const nccl_verdict mine = judge_nccl(NCCL_VERSION_CODE, loaded, loaded_nccl_path());
    const std::string version = nccl_version_text(loaded);
    const auto all = line.all_gather(polyrank::detail::cat(version, '\n', mine.refusal));
    for (std::size_t r = 0; r < all.size(); ++r) {
      const std::size_t end = all[r].find('\n');
      if (end + 1 < all[r].size())
        throw on_every_rank(
            usage_error(polyrank::detail::cat("rank ", r, ": ", all[r].substr(end + 1))));
      if (all[r].substr(0, end) != all[0].substr(0, all[0].find('\n')))
        throw on_every_rank(mismatch_error(polyrank::detail::cat(
            "rank 0 runs NCCL ", all[0].substr(0, all[0].find('\n')), ", rank ", r, " NCCL ",
            all[r].substr(0, end), ": give all hosts one version (check LD_LIBRARY_PATH)")));
    }
    return mine.warning.empty() ? std::vector<std::string>{} : std::vector{mine.warning};
  }

  /// Rank 0's NCCL id on every rank, or rank 0's error on every rank.
  static ncclUniqueId share_id(cuda::control& line) {
    ncclUniqueId id{};
    std::string word;
    if (line.rank() == 0) {
      const ncclResult_t code = ncclGetUniqueId(&id);
      word = code == ncclSuccess
                 ? std::string(reinterpret_cast<const char*>(&id), sizeof id)
                 : polyrank::detail::cat(ncclGetErrorString(code), ": ", ncclGetLastError(nullptr));
    }
    const std::string first = line.all_gather(word)[0];
    if (first.size() != sizeof id)
      throw on_every_rank(nccl_error("ncclGetUniqueId", ncclSystemError, first));
    std::memcpy(&id, first.data(), sizeof id);
    return id;
  }

  /// True where all ranks can; else notes the reason, unless all have the same. @collective
  [[nodiscard]] bool agree_on_window(const window_offer& mine) {
    std::vector<window_offer> all;
    for (const std::string& word :
         line_.all_gather(polyrank::detail::cat(mine.bytes, ' ', mine.refusal)))
      all.push_back({std::strtoull(word.c_str(), nullptr, 10), word.substr(word.find(' ') + 1)});
    const std::string fault = window_fault(all);
    if (fault.empty()) return true;
    const bool unanimous = std::all_of(all.begin(), all.end(), [&](const window_offer& o) {
      return o.refusal == all[0].refusal && !o.refusal.empty();
    });
    const std::string text = "no NCCL windows: " + fault;
    if (!unanimous && std::find(warnings_.begin(), warnings_.end(), text) == warnings_.end())
      warnings_.push_back(text);
    return false;
  }

  /// One communicator, one order: an operation on another stream starts after its predecessor.
  void follow_order(stream& s) {
    expects(s.device() == device_, stream_fault(s.device(), device_));
    // Work that is captured and work that is not cannot wait for each other.
    if (last_stream_ != s.native() && last_graph_ == s.captured()) s.wait(last_);
    s.follow(session_.why());
  }
  void note(stream& s) {
    last_.record(s);
    last_stream_ = s.native();
    last_graph_ = s.captured();
  }

  void issue(polyrank::detail::call c, on<stream> where) {
    check(where.site);
    c.what.tag = where.tag;
    c.what.site = where.site;
    scoped_device here(device_);
    if (grouped_ == nullptr)
      follow_order(where.stream);
    else
      expects(grouped_ == &where.stream, "group: all operations of a group go to one stream");
    session_.enter(history_, c.what, where.stream);
    {
      const timeline::scope span(where.stream.captured() == 0 ? trace_ : nullptr, where.stream,
                                 where.tag.empty() ? name_of(c.what.kind) : where.tag,
                                 span_kind::communication);
      perform(c, where.stream);
      bytes_sent_ += sent_by(c);
    }
    if (grouped_ == nullptr) note(where.stream);
  }

  /// Bytes that a rank must send for `c`.
  [[nodiscard]] std::uint64_t sent_by(const polyrank::detail::call& c) const {
    const std::uint64_t bytes = c.what.count * size_of(c.what.type);
    const auto n = static_cast<std::uint64_t>(size());
    std::uint64_t sum = 0;
    switch (c.what.kind) {
    case op_kind::all_reduce:
      return 2 * bytes * (n - 1) / n;
    case op_kind::broadcast: // round a ring: all but the last one pass it on
      return n > 1 && rank() != (c.what.peer + static_cast<int>(n) - 1) % static_cast<int>(n)
                 ? bytes
                 : 0;
    case op_kind::reduce_scatter: // here `bytes` is a chunk
    case op_kind::all_gather:
    case op_kind::all_to_all:
      return bytes * (n - 1);
    case op_kind::exchange:
      for (const auto& t : c.transfers)
        if (t.sends && t.peer != rank()) sum += t.count;
      break;
    case op_kind::reduce: // not one of ours
      break;
    }
    return sum;
  }

  void perform(const polyrank::detail::call& c, const stream& where) {
    const cudaStream_t s = where.native();
    const std::size_t count = c.what.count;
    const ncclDataType_t type = nccl_type(c.what.type);
    const ncclRedOp_t op = nccl_op(c.what.op);
    const stream* const launch_on = grouped_ == nullptr ? &where : nullptr;
    const auto issue = [&](const char* name, auto f) {
      session_.issue(name, c.what.site, launch_on, f);
    };
    if (count == 0) return issue("nothing", [](ncclComm_t) { return ncclSuccess; });
    switch (c.what.kind) {
    case op_kind::all_reduce:
      return issue("ncclAllReduce", [&](ncclComm_t comm) {
        return ncclAllReduce(c.in, c.out, count, type, op, comm, s);
      });
    case op_kind::reduce_scatter:
      return issue("ncclReduceScatter", [&](ncclComm_t comm) {
        return ncclReduceScatter(c.in, c.out, count, type, op, comm, s);
      });
    case op_kind::all_gather:
      return issue("ncclAllGather", [&](ncclComm_t comm) {
        return ncclAllGather(c.in, c.out, count, type, comm, s);
      });
    case op_kind::broadcast:
      return issue("ncclBroadcast", [&](ncclComm_t comm) {
        return ncclBroadcast(c.in, c.out, count, type, c.what.peer, comm, s);
      });
    case op_kind::all_to_all:
      return issue("all_to_all", [&](ncclComm_t comm) {
        return grouped([&](auto&& add) {
          const std::size_t bytes = count * size_of(c.what.type);
          for (int r = 0; r < size(); ++r) {
            const std::size_t at = static_cast<std::size_t>(r) * bytes;
            add(ncclSend(c.in + at, count, type, r, comm, s));
            add(ncclRecv(c.out + at, count, type, r, comm, s));
          }
        });
      });
    case op_kind::exchange:
      return issue("exchange", [&](ncclComm_t comm) {
        return grouped([&](auto&& add) {
          for (const auto& t : c.transfers)
            add(t.sends ? ncclSend(t.data, t.count, ncclUint8, t.peer, comm, s)
                        : ncclRecv(t.data, t.count, ncclUint8, t.peer, comm, s));
        });
      });
    case op_kind::reduce: // not one of ours
      break;
    }
  }

  /// The calls that `body` adds, as one group; the first failure of them, or of the group.
  template <class Body>
  static ncclResult_t grouped(Body body) {
    ncclResult_t first = ncclGroupStart();
    if (first != ncclSuccess) return first;
    body([&](ncclResult_t code) {
      if (first == ncclSuccess && code != ncclInProgress) first = code;
    });
    const ncclResult_t end = ncclGroupEnd();
    return first != ncclSuccess ? first : end;
  }

  cuda::control line_;
  session session_;
  int device_;
  hang::flight_recorder* recorder_;
  options options_;
  std::uint64_t id_, splits_ = 0, bytes_sent_ = 0;
  std::vector<int> members_; // numbers in the communicator that no split has made
  hang::comm_history history_;
  std::vector<std::string> warnings_;
  event last_; // behind the last operation, which was on `last_stream_`, captured by `last_graph_`
  cudaStream_t last_stream_ = nullptr;
  unsigned long long last_graph_ = 0;
  stream* grouped_ = nullptr;
  timeline* trace_ = nullptr;
};

/// The communicator of all ranks of `world` (launch::world): each rank on the GPU of its local
/// rank, which becomes current. `why` gets warnings. @collective
template <class World>
[[nodiscard]] communicator join(World& world, communicator_options o = {}) {
  const hang::flight_recorder::phase_scope phase(&world.recorder(), hang::host_state::init, "NCCL",
                                                 call_site::here());
  cuda::control line(world.communicator());
  std::vector<std::string> warnings;
  const int device =
      select_device(line, world.local_rank(), world.local_size(), sharing_allowed(), &warnings);
  check(cudaSetDevice(device), "cudaSetDevice");
  return {std::move(line), device, &world.recorder(), o};
}

} // namespace polyrank::cuda
