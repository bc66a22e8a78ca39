// safetensors files as a whole: read in place through a mapping, so that a part of one tensor costs
// the pages of that part; written tensor by tensor, complete or not at all.
//
//     posix_files files;
//     write_safetensors(files, "model.safetensors",
//                       {{"w", &type_of(dtype::f32), {2, 3}, bytes_of(w)}}, {{"step", "20"}});
//     const safetensors_file f(files, "model.safetensors");
//     f.read("w", 4, part);                              // elements 4 and 5, if part has 8 bytes
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/checkpoint/file_system.hpp>
#include <polyrank/checkpoint/safetensors.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace polyrank::checkpoint {

/// The bytes of an array, to write.
template <class T>
[[nodiscard]] std::span<const std::byte> bytes_of(const std::vector<T>& v) noexcept {
  return std::as_bytes(std::span<const T>(v));
}

/// A safetensors file that is open. Its header has been judged; its data have no checksum.
class safetensors_file {
 public:
  /// @throws data_error if it cannot be read or breaks a rule of the format
  safetensors_file(file_system& files, const fs::path& path)
      : name_(path.string()), view_(files.open(path)),
        header_(parse_header(view_->bytes(), name_)) {}

  [[nodiscard]] const safetensors_header& header() const noexcept { return header_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  /// All bytes of a tensor; valid as long as this lives.
  [[nodiscard]] std::span<const std::byte> bytes(const tensor_entry& t) const noexcept {
    return view_->bytes().subspan(header_.data_begin + t.begin, t.end - t.begin);
  }
  /// The bytes of the header itself.
  [[nodiscard]] std::span<const std::byte> header_bytes() const noexcept {
    return view_->bytes().first(header_.data_begin);
  }
  [[nodiscard]] std::size_t size() const noexcept { return view_->bytes().size(); }

  /// Copies elements from `first` on into `out`, a whole number of elements.
  /// @throws data_error if there is no such tensor, usage_error if it is shorter
  void read(std::string_view tensor, std::uint64_t first, std::span<std::byte> out) const {
    const tensor_entry* t = header_.find(tensor);
    if (t == nullptr) throw data_error(detail::cat(name_, ": has no tensor '", tensor, "'"));
    expects(out.size() % t->type->bytes == 0 && first <= t->count() &&
                out.size() / t->type->bytes <= t->count() - first,
            name_, ": ", out.size(), " bytes from element ", first, " of tensor '", tensor,
            "', which has ", t->count(), " of ", t->type->bytes, " bytes");
    if (!out.empty())
      std::memcpy(out.data(), bytes(*t).data() + first * t->type->bytes, out.size());
  }

 private:
  std::string name_;
  std::unique_ptr<file_view> view_;
  safetensors_header header_;
};

/// A tensor to write.
struct tensor_source {
  std::string name;
  const element_type* type = nullptr;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> bytes;
};

/// What a written file is known by.
struct written_file {
  std::uint64_t bytes = 0;
  std::string header;
};

/// Writes a file of these tensors under its final name, synced, atomically.
/// @throws usage_error if shape and bytes of a tensor differ, data_error if it cannot be written
inline written_file write_safetensors(file_system& files, const fs::path& path,
                                      const std::vector<tensor_source>& tensors,
                                      const metadata& notes = {}) {
  std::vector<tensor_entry> entries;
  std::map<std::string_view, const tensor_source*> sources;
  for (const tensor_source& t : tensors) {
    entries.push_back({t.name, t.type, t.shape});
    sources[t.name] = &t;
  }
  written_file done{.bytes = 0, .header = make_header(entries, notes)};
  done.bytes = done.header.size() + (entries.empty() ? 0 : entries.back().end);
  for (const tensor_entry& t : entries)
    expects(sources[t.name]->bytes.size() == t.end - t.begin, "write_safetensors: tensor '", t.name,
            "' comes with ", sources[t.name]->bytes.size(), " bytes, its shape needs ",
            t.end - t.begin);
  write_atomically(files, path, [&](output_file& f) {
    f.write(std::as_bytes(std::span<const char>(done.header)));
    for (const tensor_entry& t : entries) f.write(sources[t.name]->bytes);
  });
  return done;
}

} // namespace polyrank::checkpoint
