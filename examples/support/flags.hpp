// Command-line flags that every program has, and how a program behaves about flags: --help and
// --version print and end with 0; anything wrong is one line on stderr and exit code 2.
//
//     CLI::App app{"Trains a classifier"};
//     common_flags common;
//     add_common_flags(app, common);
//     app.add_option("--steps", steps, "Stop after S steps")->type_name("S");
//     if (const auto code = parse_flags(app, argc, argv)) return *code;
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace CLI {
class App;
class Validator;
} // namespace CLI

namespace polyrank::examples {

struct common_flags {
  std::string json; ///< write the results to this file; empty: do not
  bool quiet = false;
};

/// Adds --json, --quiet and --version.
void add_common_flags(CLI::App& app, common_flags& flags);

/// Adds --on-verdict, for programs that hang::guard watches; in force once the flags are parsed.
void add_guard_flags(CLI::App& app);

/// Checks for add_option(...)->check(): a whole number of at least 1; a whole number of at least 0.
[[nodiscard]] CLI::Validator positive_number();
[[nodiscard]] CLI::Validator whole_number();
/// More than 0, up to 1.
[[nodiscard]] CLI::Validator fraction();

/// Parses; an exit code if the program is to end now. Under a launcher only rank 0 prints.
/// Call it before MPI starts, so that a typing error costs nothing.
[[nodiscard]] std::optional<int> parse_flags(CLI::App& app, int argc, char** argv);

/// True in rank 0 of a job, as far as the launcher's environment tells, and without a launcher.
[[nodiscard]] bool first_process() noexcept;

} // namespace polyrank::examples
