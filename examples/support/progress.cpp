// SPDX-License-Identifier: Apache-2.0
#include "support/progress.hpp"

#include <polyrank/core/text.hpp>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

namespace polyrank::examples {

bool is_fancy(std::FILE* stream) noexcept {
  const auto variable = [](const char* name) -> std::string_view {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
  };
  if (!variable("FORCE_COLOR").empty()) return variable("FORCE_COLOR") != "0";
  // Open MPI gives every rank a pseudo-terminal, wherever its own output goes.
  const bool launched = !variable("OMPI_COMM_WORLD_RANK").empty();
  return variable("NO_COLOR").empty() && variable("TERM") != "dumb" && !launched &&
         isatty(fileno(stream)) == 1;
}

std::string duration_text(double seconds) {
  const auto two = [](long n) { return detail::cat(n < 10 ? "0" : "", n); };
  const long s = std::lround(std::clamp(seconds, 0.0, 3.6e8));
  if (s < 60) return detail::cat(s, " s");
  if (s < 3600) return detail::cat(s / 60, " min ", two(s % 60), " s");
  return detail::cat(s / 3600, " h ", two(s / 60 % 60), " min");
}

std::size_t resident_bytes() noexcept {
  std::FILE* f = std::fopen("/proc/self/statm", "r");
  if (f == nullptr) return 0;
  unsigned long all = 0, resident = 0;
  const int got = std::fscanf(f, "%lu %lu", &all, &resident);
  std::fclose(f);
  return got == 2 ? resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) : 0;
}

progress::progress(options o)
    : options_(o), fancy_(is_fancy(o.to)), start_(clock::now()), last_(start_) {}

bool progress::due() const noexcept {
  return options_.enabled &&
         clock::now() - last_ >= (fancy_ ? options_.fancy_interval : options_.plain_interval);
}

void progress::show(std::size_t done, std::string_view text) {
  if (!options_.enabled) return;
  last_ = clock::now();
  const double spent = std::chrono::duration<double>(last_ - start_).count();
  const std::size_t left = options_.total - std::min(done, options_.total);
  const double eta = done == 0 ? 0 : spent / static_cast<double>(done) * static_cast<double>(left);
  const std::string line =
      detail::cat("step ", done, "/", options_.total, "  ", text, "  ETA ", duration_text(eta));
  std::fprintf(options_.to, fancy_ ? "\r%s\033[K" : "%s\n", line.c_str());
  std::fflush(options_.to);
  line_open_ = fancy_;
}

void progress::end() {
  if (line_open_) std::fputc('\n', options_.to);
  line_open_ = false;
}

} // namespace polyrank::examples
