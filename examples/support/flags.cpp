// SPDX-License-Identifier: Apache-2.0
#include "support/flags.hpp"

#include <polyrank/core/text.hpp>
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

namespace {

/// CLI11's own range checks accept fractions and answer with limits of 300 digits.
CLI::Validator number_check(const char* what, bool zero_is_fine) {
  return CLI::Validator(
      [=](const std::string& text) {
        const bool digits = !text.empty() && text.size() < 19 &&
                            text.find_first_not_of("0123456789") == std::string::npos;
        const bool zero = text.find_first_not_of('0') == std::string::npos;
        return digits && (zero_is_fine || !zero) ? std::string() : "'" + text + "' is no " + what;
      },
      "");
}

} // namespace

CLI::Validator positive_number() { return number_check("positive number", false); }
CLI::Validator whole_number() { return number_check("whole number", true); }
CLI::Validator fraction() {
  return {[](const std::string& text) {
            double x = 0;
            return CLI::detail::lexical_cast(text, x) && x > 0 && x <= 1
                       ? std::string()
                       : "'" + text + "' is no fraction; take more than 0, up to 1";
          },
          ""};
}

void add_common_flags(CLI::App& app, common_flags& flags) {
  app.set_help_flag("--help", "Print this text and exit");
  app.set_version_flag("--version", app.get_name() + " " POLYRANK_VERSION_STRING,
                       "Print the version and exit");
  app.add_option("--json", flags.json, "Write the results to FILE")->type_name("FILE");
  app.add_flag("--quiet", flags.quiet, "Print the result only");
  app.get_formatter()->column_width(26);
}

void add_guard_flags(CLI::App& app) {
  app.add_option_function<std::string>(
         "--on-verdict",
         [](const std::string& command) { ::setenv("POLYRANK_ON_VERDICT", command.c_str(), 1); },
         "Run CMD if the job hangs; $1 is the report (JSON)")
      ->type_name("CMD");
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
    std::string what = e.what();
    if (app.get_require_subcommand_min() > 0 && argc > 1 && argv[1][0] != '-' &&
        app.get_subcommands([&](const CLI::App* s) { return s->check_name(argv[1]); }).empty())
      what = polyrank::detail::cat(argv[1], " is no subcommand"); // CLI11 says that one is missing
    if (first_process())
      std::fprintf(stderr, "%s: %s; see --help\n", app.get_name().c_str(), what.c_str());
    return 2;
  }
}

} // namespace polyrank::examples
