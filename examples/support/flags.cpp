// SPDX-License-Identifier: Apache-2.0
#include "support/flags.hpp"

#include <polyrank/core/version.hpp>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace polyrank::examples {

bool first_process() noexcept {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "MV2_COMM_WORLD_RANK"})
    if (const char* rank = std::getenv(name); rank != nullptr) return std::string(rank) == "0";
  return true;
}

void add_common_flags(CLI::App& app, common_flags& flags) {
  app.set_help_flag("--help", "Print this text and exit");
  app.set_version_flag("--version", app.get_name() + " " POLYRANK_VERSION_STRING,
                       "Print the version and exit");
  app.add_option("--json", flags.json, "Write the results to FILE")->type_name("FILE");
  app.add_flag("--quiet", flags.quiet, "Print the result only");
  app.get_formatter()->column_width(26);
}

std::optional<int> parse_flags(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    if (first_process()) std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::CallForVersion& e) {
    if (first_process()) std::puts(e.what());
    return 0;
  } catch (const CLI::ParseError& e) {
    if (first_process())
      std::fprintf(stderr, "%s: %s; see --help\n", app.get_name().c_str(), e.what());
    return 2;
  }
}

} // namespace polyrank::examples
