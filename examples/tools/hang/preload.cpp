// libpolyrank_hang_preload.so: verdicts for programs that call NCCL and that nobody wants to
// recompile.
//
//     mpirun -n 8 -x LD_PRELOAD=/usr/lib/libpolyrank_hang_preload.so ./their_trainer
//
// It stands in front of NCCL's symbols, writes each call into a flight recorder and passes it on.
// It makes its ring and its watchdog at the first call that needs NCCL, so other programs that a
// job script starts are left alone. It takes no signal.
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/cuda/nccl_recorded.hpp>
#include <polyrank/hang/guard.hpp>
#include <polyrank/launch/ras.hpp>

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include <dlfcn.h>
#include <unistd.h>

namespace {

using namespace polyrank;

/// NCCL's function of that name, behind this library.
void* real(const char* name) {
  if (void* next = ::dlsym(RTLD_NEXT, name); next != nullptr) return next;
  // Python loads its libraries where RTLD_NEXT does not look.
  static void* const library = [] {
    void* loaded = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    return loaded != nullptr ? loaded : ::dlopen("libnccl.so.2", RTLD_NOW);
  }();
  return library != nullptr ? ::dlsym(library, name) : nullptr;
}

template <class Function>
Function* real_as(const char* name) {
  return reinterpret_cast<Function*>(real(name));
}

/// All that this process records.
struct witness {
  witness()
      : guard([] {
          auto o = hang::guard_options::from_environment();
          o.signals = false;
          o.witness = &launch::ras_witness;
          return o;
        }()) {
    if (!guard.on()) return;
    guard.running();
    nccl = std::make_unique<cuda::recorded_nccl>(
        guard.ring()->recorder(), [this] { guard.heard_error(); }, cuda::nccl_calls::found(&real),
        &cuda::driver::of_process);
  }
  hang::guard guard;
  std::unique_ptr<cuda::recorded_nccl> nccl; // null: no launcher, or switched off
};

std::unique_ptr<witness> the_witness;
std::once_flag once;
int owner = 0;
thread_local bool inside = false; // NCCL calls itself

/// The recorder behind this call; null: pass it on.
cuda::recorded_nccl* recorded() {
  if (inside) return nullptr;
  std::call_once(once, [] {
    owner = ::getpid();
    try {
      the_witness = std::make_unique<witness>();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "polyrank_hang_preload: no diagnosis: %s\n", e.what());
    }
  });
  return the_witness != nullptr && owner == ::getpid() ? the_witness->nccl.get() : nullptr;
}

/// Where a call comes from: "program+0x1234", for addr2line.
call_site site_of(void* address) {
  static std::mutex mutex;
  static std::unordered_map<void*, std::string> texts;
  const std::lock_guard lock(mutex);
  std::string& text = texts[address];
  if (Dl_info info{}; text.empty() && ::dladdr(address, &info) != 0 && info.dli_fname != nullptr) {
    const std::string path = info.dli_fname;
    char offset[32];
    std::snprintf(
        offset, sizeof offset, "+0x%zx",
        static_cast<std::size_t>(static_cast<char*>(address) - static_cast<char*>(info.dli_fbase)));
    text = path.substr(path.rfind('/') + 1) + offset;
  }
  return {text.c_str(), 0};
}

/// While it lives, calls of this thread come from NCCL itself.
class within {
 public:
  within() : before_(inside) { inside = true; }
  within(const within&) = delete;
  within& operator=(const within&) = delete;
  ~within() { inside = before_; }

 private:
  bool before_;
};

/// At the end of the program.
struct farewell {
  ~farewell() {
    if (the_witness != nullptr && owner == ::getpid()) {
      the_witness->guard.leaving();
      the_witness->nccl.reset();
      the_witness.reset();
    } else if (the_witness != nullptr) {
      static_cast<void>(the_witness.release()); // a fork: the threads are not here
    } else if (owner == 0) {
      const auto place = hang::find_place([](const char* n) { return std::getenv(n); }, 0);
      const bool gpu = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr;
      if (place && place->local_rank == 0 && (gpu || std::getenv("POLYRANK_HANG_DEADLINE")))
        std::fprintf(stderr,
                     "polyrank_hang_preload: %s made no NCCL call that could be seen: it does not "
                     "use NCCL, or it is linked statically (then recompile it with "
                     "polyrank/cuda/nccl_recorded.hpp)\n",
                     program_invocation_short_name);
    }
  }
} farewell_;

} // namespace

// name, parameters, arguments
#define POLYRANK_INTERPOSE(name, parameters, ...)                                                  \
  extern "C" __attribute__((visibility("default"))) ncclResult_t name parameters {                 \
    cuda::recorded_nccl* const r = recorded();                                                     \
    const within call;                                                                             \
    if (r != nullptr) return r->name(__VA_ARGS__, site_of(__builtin_return_address(0)));           \
    static auto* const next = real_as<decltype(::name)>(#name);                                    \
    return next != nullptr ? next(__VA_ARGS__) : ncclInternalError;                                \
  }

POLYRANK_INTERPOSE(ncclCommInitRank, (ncclComm_t * c, int n, ncclUniqueId id, int rank), c, n, id,
                   rank)
POLYRANK_INTERPOSE(ncclCommInitRankConfig,
                   (ncclComm_t * c, int n, ncclUniqueId id, int rank, ncclConfig_t* config), c, n,
                   id, rank, config)
POLYRANK_INTERPOSE(ncclCommSplit,
                   (ncclComm_t parent, int colour, int key, ncclComm_t* c, ncclConfig_t* config),
                   parent, colour, key, c, config)
POLYRANK_INTERPOSE(ncclAllReduce,
                   (const void* in, void* out, size_t n, ncclDataType_t t, ncclRedOp_t op,
                    ncclComm_t c, cudaStream_t s),
                   in, out, n, t, op, c, s)
POLYRANK_INTERPOSE(ncclBroadcast,
                   (const void* in, void* out, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                    cudaStream_t s),
                   in, out, n, t, root, c, s)
POLYRANK_INTERPOSE(ncclBcast,
                   (void* data, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t s),
                   data, n, t, root, c, s)
POLYRANK_INTERPOSE(ncclReduce,
                   (const void* in, void* out, size_t n, ncclDataType_t t, ncclRedOp_t op, int root,
                    ncclComm_t c, cudaStream_t s),
                   in, out, n, t, op, root, c, s)
POLYRANK_INTERPOSE(ncclAllGather,
                   (const void* in, void* out, size_t n, ncclDataType_t t, ncclComm_t c,
                    cudaStream_t s),
                   in, out, n, t, c, s)
POLYRANK_INTERPOSE(ncclReduceScatter,
                   (const void* in, void* out, size_t n, ncclDataType_t t, ncclRedOp_t op,
                    ncclComm_t c, cudaStream_t s),
                   in, out, n, t, op, c, s)
POLYRANK_INTERPOSE(ncclSend,
                   (const void* data, size_t n, ncclDataType_t t, int peer, ncclComm_t c,
                    cudaStream_t s),
                   data, n, t, peer, c, s)
POLYRANK_INTERPOSE(ncclRecv,
                   (void* data, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s),
                   data, n, t, peer, c, s)

#undef POLYRANK_INTERPOSE
#define POLYRANK_INTERPOSE(name, parameters, ...)                                                  \
  extern "C" __attribute__((visibility("default"))) ncclResult_t name parameters {                 \
    cuda::recorded_nccl* const r = recorded();                                                     \
    const within call;                                                                             \
    if (r != nullptr) return r->name(__VA_ARGS__);                                                 \
    static auto* const next = real_as<decltype(::name)>(#name);                                    \
    return next != nullptr ? next(__VA_ARGS__) : ncclInternalError;                                \
  }

POLYRANK_INTERPOSE(ncclCommDestroy, (ncclComm_t c), c)
POLYRANK_INTERPOSE(ncclCommAbort, (ncclComm_t c), c)
POLYRANK_INTERPOSE(ncclCommGetAsyncError, (ncclComm_t c, ncclResult_t* error), c, error)
POLYRANK_INTERPOSE(ncclGroupStart, ())
POLYRANK_INTERPOSE(ncclGroupEnd, ())
