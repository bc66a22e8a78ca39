// A shard: the fragments that one rank saved, as a safetensors file that any reader of that format
// opens. Tensor "name@offset" of shape [count] is a fragment; the note "checksums" holds theirs, 16
// hex digits each, in the order of the file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/checkpoint/checksum.hpp>
#include <polyrank/checkpoint/fragments.hpp>
#include <polyrank/checkpoint/manifest.hpp>
#include <polyrank/checkpoint/safetensors_file.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::checkpoint {

/// The bytes of one fragment, in host memory.
struct fragment_data {
  fragment where;
  std::span<const std::byte> bytes;
};

/// Writes a shard under its final name, synced, atomically.
inline shard_record write_shard(file_system& files, const fs::path& path,
                                const std::vector<tensor_info>& tensors,
                                const std::vector<fragment_data>& fragments) {
  // make_header() orders by width; the checksums are to stand in that order already.
  std::vector<const fragment_data*> order;
  for (const fragment_data& f : fragments) order.push_back(&f);
  std::stable_sort(order.begin(), order.end(), [&](const auto* a, const auto* b) {
    return size_of(tensors[a->where.tensor].type) > size_of(tensors[b->where.tensor].type);
  });
  std::vector<tensor_source> sources;
  std::string sums;
  for (const fragment_data* f : order) {
    const tensor_info& t = tensors[f->where.tensor];
    sources.push_back(
        {fragment_name(t.name, f->where.offset), &type_of(t.type), {f->where.count}, f->bytes});
    sums += hex16(checksum(f->bytes));
  }
  const written_file w = write_safetensors(files, path, sources, {{"checksums", sums}});
  return {.file = path.filename().string(),
          .bytes = w.bytes,
          .header_checksum = checksum(std::as_bytes(std::span<const char>(w.header)))};
}

/// A shard that is open and fits its record; what its fragments hold is judged when they are read.
class shard_file {
 public:
  /// `index`: number of a tensor by its name.
  /// @throws data_error naming the shard
  shard_file(file_system& files, const fs::path& path, const shard_record& record,
             const std::vector<tensor_info>& tensors,
             const std::map<std::string, std::size_t, std::less<>>& index)
      : file_(open(files, path, record)) {
    const auto& entries = file_.header().tensors;
    const auto note = file_.header().notes.find("checksums");
    const std::string_view sums =
        note == file_.header().notes.end() ? std::string_view() : note->second;
    if (sums.size() != 16 * entries.size()) refuse("has no checksum for each fragment");
    for (std::size_t i = 0; i < entries.size(); ++i) {
      std::string_view tensor;
      fragment f;
      std::uint64_t sum = 0;
      if (!split_fragment_name(entries[i].name, tensor, f.offset))
        refuse("'", entries[i].name, "' is no fragment");
      const auto at = index.find(tensor);
      if (at == index.end()) refuse("'", entries[i].name, "' is of no tensor of the checkpoint");
      f.tensor = at->second;
      f.count = entries[i].count();
      const tensor_info& t = tensors[f.tensor];
      if (entries[i].type != &type_of(t.type) || f.offset > t.count() ||
          f.count > t.count() - f.offset)
        refuse("fragment '", entries[i].name, "' does not fit into its tensor");
      const char* digits = sums.data() + 16 * i;
      if (std::from_chars(digits, digits + 16, sum, 16).ptr != digits + 16)
        refuse("has no checksum for each fragment");
      fragments_.push_back(f);
      sums_.push_back(sum);
    }
    good_.resize(entries.size(), false);
  }

  [[nodiscard]] const std::vector<fragment>& fragments() const noexcept { return fragments_; }

  /// The bytes of fragment i, compared with their checksum the first time.
  /// @throws data_error naming file and tensor
  [[nodiscard]] std::span<const std::byte> bytes(std::size_t i) {
    const tensor_entry& e = file_.header().tensors[i];
    const std::span<const std::byte> all = file_.bytes(e);
    if (!good_[i]) {
      if (checksum(all) != sums_[i])
        refuse("the data of '", e.name, "' are damaged: their checksum does not fit");
      good_[i] = true;
    }
    return all;
  }

 private:
  static safetensors_file open(file_system& files, const fs::path& path, const shard_record& r) {
    const auto refuse = [&](const auto&... what) {
      throw data_error(detail::cat(path.string(), ": ", what...));
    };
    if (!files.exists(path)) refuse("this shard of the checkpoint is missing");
    const auto view = files.open(path);
    if (view->bytes().size() != r.bytes)
      refuse("has ", view->bytes().size(), " bytes, was written with ", r.bytes);
    safetensors_file f(files, path);
    if (checksum(f.header_bytes()) != r.header_checksum)
      refuse("its header was changed or damaged: the checksum does not fit the manifest");
    return f;
  }
  template <class... Pieces>
  [[noreturn]] void refuse(const Pieces&... what) const {
    throw data_error(detail::cat(file_.name(), ": ", what...));
  }

  safetensors_file file_;
  std::vector<fragment> fragments_;
  std::vector<std::uint64_t> sums_;
  std::vector<bool> good_;
};

} // namespace polyrank::checkpoint
