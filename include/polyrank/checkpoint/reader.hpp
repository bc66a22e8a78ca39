// Reads a checkpoint, whoever wrote it: any part of any tensor, put together from the fragments
// that overlap it. Data are compared with their checksums before they are handed out.
//
//     checkpoint::reader r(files, "run/checkpoints/step_000000000020");
//     r.expect(tensors_of_my_model);
//     r.read("layer0.weight", my_offset, std::as_writable_bytes(my_part));
//
// Nothing is read before it is asked for, so a rank reads the fragments that it needs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/checkpoint/directory.hpp>
#include <polyrank/checkpoint/shard.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::checkpoint {

class reader {
 public:
  /// Opens the checkpoint in folder `path`: its manifest and all shards' headers are judged.
  /// @throws data_error naming file and fault, and the complete checkpoint before this one
  reader(file_system& files, fs::path path) : files_(&files), path_(std::move(path)) {
    try {
      const fs::path page = path_ / manifest_name;
      if (!files.exists(page))
        throw data_error(
            detail::cat(path_.string(), ": is no complete checkpoint: it has no ", manifest_name));
      manifest_ = parse_manifest(files.open(page)->bytes(), page.string());
      for (std::size_t i = 0; i < manifest_.tensors.size(); ++i)
        if (!index_.emplace(manifest_.tensors[i].name, i).second)
          throw data_error(detail::cat(page.string(), ": tensor '", manifest_.tensors[i].name,
                                       "' is there twice"));
      std::vector<fragment> all;
      for (std::size_t s = 0; s < manifest_.shards.size(); ++s) {
        const shard_record& record = manifest_.shards[s];
        shards_.push_back(std::make_unique<shard_file>(files, path_ / record.file, record,
                                                       manifest_.tensors, index_));
        const std::vector<fragment>& held = shards_.back()->fragments();
        for (std::size_t k = 0; k < held.size(); ++k) {
          if (held[k].count == 0) continue;
          all.push_back(held[k]);
          places_.push_back({held[k], s, k});
        }
      }
      std::sort(places_.begin(), places_.end(),
                [](const place& a, const place& b) { return a.where < b.where; });
      const std::string fault = coverage_fault(manifest_.tensors, all);
      if (!fault.empty()) throw data_error(detail::cat(path_.string(), ": ", fault));
    } catch (const data_error& e) {
      offer(e);
    }
  }

  [[nodiscard]] const manifest& content() const noexcept { return manifest_; }
  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

  /// @throws mismatch_error listing the tensors that differ in name, type or shape
  void expect(const std::vector<tensor_info>& tensors) const {
    const std::string text = differences(manifest_.tensors, tensors);
    if (!text.empty())
      throw mismatch_error(detail::cat(path_.string(), ": is of another model:", text));
  }

  /// Copies elements from `first` on of a tensor into `out`, a whole number of elements.
  /// @throws data_error if there is no such tensor or its data are damaged
  void read(std::string_view tensor, std::uint64_t first, std::span<std::byte> out) {
    const auto at = index_.find(tensor);
    if (at == index_.end())
      throw data_error(detail::cat(path_.string(), ": has no tensor '", tensor, "'"));
    const tensor_info& t = manifest_.tensors[at->second];
    const std::size_t width = size_of(t.type);
    expects(out.size() % width == 0 && first <= t.count() &&
                out.size() / width <= t.count() - first,
            path_.string(), ": ", out.size(), " bytes from element ", first, " of '", tensor,
            "', which has ", t.count(), " of ", width, " bytes");
    const std::uint64_t last = first + out.size() / width;
    auto p = std::upper_bound(places_.begin(), places_.end(), fragment{at->second, first, ~0ULL},
                              [](const fragment& f, const place& x) { return f < x.where; });
    if (p != places_.begin()) --p; // the fragment that begins at or before `first`
    for (; p != places_.end() && p->where.tensor <= at->second; ++p) {
      const fragment& f = p->where;
      const std::uint64_t from = std::max(first, f.offset), to = std::min(last, f.offset + f.count);
      if (f.tensor != at->second || from >= to) {
        if (f.tensor == at->second && f.offset >= last) break;
        continue;
      }
      std::memcpy(out.data() + (from - first) * width, bytes(*p).data() + (from - f.offset) * width,
                  (to - from) * width);
    }
  }

 private:
  struct place {
    fragment where;
    std::size_t shard = 0, number = 0;
  };

  [[nodiscard]] std::span<const std::byte> bytes(const place& p) {
    try {
      return shards_[p.shard]->bytes(p.number);
    } catch (const data_error& e) {
      offer(e);
    }
  }
  [[noreturn]] void offer(const data_error& e) {
    std::string more;
    try {
      more = way_out(*files_, path_);
    } catch (const data_error&) { // the first error says more
    }
    throw data_error(e.what() + more);
  }

  file_system* files_;
  fs::path path_;
  manifest manifest_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::vector<std::unique_ptr<shard_file>> shards_;
  std::vector<place> places_; // sorted
};

/// Runs `work` on every rank; if it throws on one, all ranks throw that text. @collective
template <control_channel Control, class Work>
void together(Control& control, Work work) {
  std::string failure;
  bool differs = false; // the model, not the file
  try {
    work();
  } catch (const aborted_error&) {
    throw;
  } catch (const std::exception& e) {
    failure = *e.what() != '\0' ? e.what() : "unknown failure";
    differs = dynamic_cast<const mismatch_error*>(&e) != nullptr;
  }
  differs = control.all_reduce_max(differs ? 1 : 0) != 0;
  const std::vector<std::string> all = control.all_gather(failure);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    const std::string text = r == 0 ? all[0] : detail::cat("rank ", r, ": ", all[r]);
    if (differs) throw on_every_rank(mismatch_error(text));
    throw on_every_rank(data_error(text));
  }
}

/// The folder of the newest complete checkpoint in `directory`, as rank 0 sees it; nothing if there
/// is none. @collective
template <control_channel Control>
[[nodiscard]] std::optional<fs::path> agree_on_latest(Control& control, file_system& files,
                                                      const fs::path& directory) {
  std::string found;
  together(control, [&] {
    if (control.rank() != 0) return;
    if (const auto step = latest_step(files, directory)) found = step->path.string();
  });
  found = control.all_gather(found)[0];
  if (found.empty()) return {};
  return fs::path(found);
}

} // namespace polyrank::checkpoint
