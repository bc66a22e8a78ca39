// mpi.h without MPI's long-removed C++ bindings (they cost a second per file and trip warnings).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <polyrank/core/error.hpp>

#include <string>

namespace polyrank::host::detail {

/// Throws comm_error naming `call` unless `code` is MPI_SUCCESS.
inline void check_mpi(int code, const char* call, call_site site = call_site::here()) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw comm_error(call, code, std::string(text, static_cast<std::size_t>(length)), site);
}

} // namespace polyrank::host::detail
