// The folder of a run's checkpoints: which are complete, which is the last, what is left over.
//
//   run/checkpoints/
//     lock                           held by the job that saves here
//     step_000000000020/             manifest.json is there: complete
//     step_000000000040/             no manifest: a save that was interrupted, never loaded
//     step_000000000040.1/           the same step saved again
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/checkpoint/file_system.hpp>
#include <polyrank/checkpoint/manifest.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank::checkpoint {

inline constexpr std::string_view manifest_name = "manifest.json";

/// The folder of one checkpoint.
struct step_folder {
  std::uint64_t step = 0, attempt = 0;
  fs::path path;
  bool complete = false;
};

/// "step_000000000020", "step_000000000020.1"
[[nodiscard]] inline std::string step_name(std::uint64_t step, std::uint64_t attempt) {
  std::string digits = detail::cat(step);
  if (digits.size() < 12) digits.insert(0, 12 - digits.size(), '0');
  return detail::cat("step_", digits, attempt == 0 ? "" : detail::cat('.', attempt));
}

/// The opposite of step_name(); nothing for other names.
[[nodiscard]] inline std::optional<std::pair<std::uint64_t, std::uint64_t>>
parse_step_name(std::string_view name) {
  constexpr std::string_view prefix = "step_";
  if (name.substr(0, prefix.size()) != prefix) return {};
  std::pair<std::uint64_t, std::uint64_t> found;
  const char *p = name.data() + prefix.size(), *end = name.data() + name.size();
  auto r = std::from_chars(p, end, found.first);
  if (r.ec != std::errc()) return {};
  if (r.ptr != end && *r.ptr == '.') r = std::from_chars(r.ptr + 1, end, found.second);
  if (r.ec != std::errc() || r.ptr != end || step_name(found.first, found.second) != name)
    return {};
  return found;
}

/// All checkpoints in `directory`, the oldest first.
[[nodiscard]] inline std::vector<step_folder> list_steps(file_system& files,
                                                         const fs::path& directory) {
  std::vector<step_folder> all;
  for (const std::string& name : files.list(directory))
    if (const auto numbers = parse_step_name(name))
      all.push_back({numbers->first, numbers->second, directory / name,
                     files.exists(directory / name / manifest_name)});
  std::sort(all.begin(), all.end(), [](const step_folder& a, const step_folder& b) {
    return std::pair(a.step, a.attempt) < std::pair(b.step, b.attempt);
  });
  return all;
}

/// The newest complete checkpoint, or nothing.
[[nodiscard]] inline std::optional<step_folder> latest_step(file_system& files,
                                                            const fs::path& directory) {
  const std::vector<step_folder> all = list_steps(files, directory);
  for (std::size_t i = all.size(); i-- > 0;)
    if (all[i].complete) return all[i];
  return {};
}

/// Removes a checkpoint, manifest first: half removed, it is no checkpoint any more.
inline void remove_step(file_system& files, const fs::path& path) {
  if (files.exists(path / manifest_name)) {
    files.remove(path / manifest_name);
    files.sync_directory(path);
  }
  for (const std::string& name : files.list(path)) files.remove(path / name);
  files.remove(path);
}

/// Removes what interrupted saves left, and complete checkpoints beyond the newest `keep` (0: all
/// stay). Only by who holds the lock, and with no save under way.
inline void tidy(file_system& files, const fs::path& directory, std::size_t keep) {
  const std::vector<step_folder> all = list_steps(files, directory);
  std::size_t complete = 0;
  for (std::size_t i = all.size(); i-- > 0;)
    if (!all[i].complete || (++complete > keep && keep > 0)) remove_step(files, all[i].path);
}

/// What to do about a checkpoint that cannot be read: a sentence that offers the one before it.
[[nodiscard]] inline std::string way_out(file_system& files, const fs::path& broken) {
  const fs::path directory = folder_of(broken);
  const std::vector<step_folder> all = list_steps(files, directory);
  const step_folder* before = nullptr;
  for (const step_folder& s : all) {
    if (s.path.filename() == broken.filename()) break;
    if (s.complete) before = &s;
  }
  if (before == nullptr) return "; there is no complete checkpoint before it";
  return detail::cat("; the one before it, of step ", before->step, ", is complete: move ",
                     broken.string(), " away to resume from ", before->path.string());
}

} // namespace polyrank::checkpoint
