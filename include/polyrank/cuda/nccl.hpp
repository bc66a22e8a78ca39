// NCCL: its errors, its element types, and whether header and library fit.
//
//     cuda::check(ncclCommCount(comm, &n), "ncclCommCount");
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/dtype.hpp>
#include <polyrank/core/error.hpp>

#include <nccl.h>

#include <string>
#include <string_view>

#include <dlfcn.h>

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0),
              "polyrank needs NCCL 2.19 or later; point NCCL_ROOT to one");

namespace polyrank::cuda {

/// A call into NCCL failed.
class nccl_error : public comm_error {
 public:
  nccl_error(const std::string& call, int code, const std::string& reason,
             call_site site = call_site::here())
      : comm_error(call, code, reason, site) {}
};

/// Throws nccl_error naming `call` unless `code` is ncclSuccess (or ncclInProgress). `comm` gives
/// NCCL's own last words.
inline void check(ncclResult_t code, const char* call, ncclComm_t comm = nullptr,
                  call_site site = call_site::here()) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  const char* last = ncclGetLastError(comm);
  throw nccl_error(
      call, static_cast<int>(code),
      polyrank::detail::cat(ncclGetErrorString(code), last != nullptr && *last != '\0' ? ": " : "",
                            last != nullptr ? last : "",
                            code == ncclSystemError ? "; NCCL_DEBUG=INFO says more" : ""),
      site);
}

[[nodiscard]] constexpr ncclDataType_t nccl_type(dtype t) noexcept {
  switch (t) {
  case dtype::u8:
    return ncclUint8;
  case dtype::i32:
    return ncclInt32;
  case dtype::i64:
    return ncclInt64;
  case dtype::f16:
    return ncclFloat16;
  case dtype::bf16:
    return ncclBfloat16;
  case dtype::f32:
    return ncclFloat32;
  case dtype::f64:
    break;
  }
  return ncclFloat64;
}

/// Never ncclAvg: it rounds 1/n to the element type and keeps NCCL off its best algorithms.
[[nodiscard]] constexpr ncclRedOp_t nccl_op(reduce_op op) noexcept {
  return op == reduce_op::sum ? ncclSum : op == reduce_op::min ? ncclMin : ncclMax;
}

/// "2.28.9" of 22809.
[[nodiscard]] inline std::string nccl_version_text(int code) {
  const int major = code >= 10000 ? code / 10000 : code / 1000;
  const int rest = code >= 10000 ? code % 10000 : code % 1000;
  return polyrank::detail::cat(major, '.', rest / 100, '.', rest % 100);
}

/// What a program should know about the NCCL it runs with.
struct nccl_verdict {
  std::string refusal; ///< not empty: it must not be used
  std::string warning; ///< not empty: tell the user
};

/// Judges the library `loaded` (version code, from `path`) for a program compiled with the header
/// `compiled`: pure.
[[nodiscard]] inline nccl_verdict judge_nccl(int compiled, int loaded, std::string_view path) {
  using polyrank::detail::cat;
  const std::string both = cat("compiled with NCCL ", nccl_version_text(compiled),
                               ", running with ", nccl_version_text(loaded), " (", path, ")");
  if (loaded / 10000 != compiled / 10000 || loaded / 100 < compiled / 100)
    return {.refusal = cat("NCCL header and library do not fit: ", both,
                           "; put the library of the header first in LD_LIBRARY_PATH, or rebuild "
                           "with NCCL_ROOT set to the one that is loaded"),
            .warning = {}};
  nccl_verdict v;
  if (loaded / 100 != compiled / 100) v.warning = both;
  if (loaded >= 22803 && loaded < 22809)
    v.warning = cat("NCCL ", nccl_version_text(loaded), " (", path,
                    ") is known to hang now and then; 2.28.9 does not");
  return v;
}

/// Version code of the loaded library.
[[nodiscard]] inline int loaded_nccl() {
  int code = 0;
  check(ncclGetVersion(&code), "ncclGetVersion");
  return code;
}

/// File that the loaded library came from.
[[nodiscard]] inline std::string loaded_nccl_path() {
  Dl_info info{};
  // dladdr wants an object pointer; POSIX lets the cast pass.
  if (dladdr(reinterpret_cast<const void*>(&ncclGetVersion), &info) == 0 ||
      info.dli_fname == nullptr)
    return "unknown file";
  return info.dli_fname;
}

} // namespace polyrank::cuda
