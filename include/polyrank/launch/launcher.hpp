// What the launcher says about this process, read from its environment variables. Pure: takes a
// lookup function, so tests need no launcher.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/text.hpp>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

namespace polyrank::launch {

/// A launcher that set its variables, and the number of ranks it promised.
struct launcher {
  std::string_view name;     ///< "Open MPI", "Slurm", ...
  std::string_view variable; ///< where the number was found
  int ranks = 1;
};

/// The launcher of this process, or nothing where it was started directly. `lookup(name)` returns a
/// C string or null, like std::getenv.
template <class Lookup>
[[nodiscard]] std::optional<launcher> find_launcher(Lookup lookup) {
  constexpr struct {
    const char *name, *variable;
  } known[] = {{"Open MPI", "OMPI_COMM_WORLD_SIZE"},
               {"PMI (MPICH, Intel MPI)", "PMI_SIZE"},
               {"Slurm", "SLURM_STEP_NUM_TASKS"}};
  for (const auto& k : known) {
    const char* value = lookup(k.variable);
    if (value == nullptr) continue;
    const std::string_view text(value);
    int ranks = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
    if (error == std::errc() && end == text.data() + text.size() && ranks > 0)
      return launcher{k.name, k.variable, ranks};
  }
  return std::nullopt;
}

/// Empty if MPI's number of ranks fits what the launcher promised; else what is wrong and what to
/// do.
[[nodiscard]] inline std::string launcher_mismatch(const std::optional<launcher>& from,
                                                   int mpi_size, std::string_view mpi_library) {
  if (!from || from->ranks == mpi_size) return {};
  return detail::cat("the launcher (", from->name, ", ", from->variable, "=", from->ranks,
                     ") started ", from->ranks, " ranks, but MPI counts ", mpi_size,
                     ": the program is linked with another MPI (", mpi_library,
                     ") than the launcher's; use the mpirun of that MPI");
}

} // namespace polyrank::launch
