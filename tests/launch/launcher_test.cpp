// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/launch/cpu_mask.hpp>
#include <polyrank/launch/launcher.hpp>

#include <map>
#include <string>

using namespace polyrank::launch;

namespace {
auto lookup_in(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}
} // namespace

TEST_CASE("launchers are known by their variables", "[launcher]") {
  REQUIRE_FALSE(find_launcher(lookup_in({})));
  const auto ompi =
      find_launcher(lookup_in({{"OMPI_COMM_WORLD_SIZE", "8"}, {"SLURM_STEP_NUM_TASKS", "2"}}));
  REQUIRE(ompi);
  REQUIRE(ompi->name == "Open MPI");
  REQUIRE(ompi->ranks == 8);
  REQUIRE(find_launcher(lookup_in({{"PMI_SIZE", "3"}}))->ranks == 3);
  REQUIRE(find_launcher(lookup_in({{"SLURM_STEP_NUM_TASKS", "3"}}))->name == "Slurm");
  for (const char* junk : {"", "x", "4x", "-1", "0", "99999999999999"})
    REQUIRE_FALSE(find_launcher(lookup_in({{"PMI_SIZE", junk}})));
}

TEST_CASE("a launcher of another MPI is named, with what to do", "[launcher]") {
  const auto from = find_launcher(lookup_in({{"PMI_SIZE", "4"}}));
  REQUIRE(launcher_mismatch(from, 4, "Open MPI v4").empty());
  REQUIRE(launcher_mismatch(std::nullopt, 1, "Open MPI v4").empty());
  const std::string text = launcher_mismatch(from, 1, "Open MPI v4");
  REQUIRE(text.find("PMI_SIZE=4") != std::string::npos);
  REQUIRE(text.find("Open MPI v4") != std::string::npos);
  REQUIRE(text.find("use the mpirun of that MPI") != std::string::npos);
}

TEST_CASE("a mask of one CPU is warned about, where there are more", "[cpu_mask]") {
  REQUIRE(usable_cpus() >= 1);
  REQUIRE(cpu_mask_warning(2, 64).empty());
  REQUIRE(cpu_mask_warning(1, 1).empty());
  REQUIRE(cpu_mask_warning(1, 64).find("--bind-to none") != std::string::npos);
}
