// One file for the whole model: a checkpoint's tensors as a single safetensors file for other
// programs, and such a file as the start of a model here.
//
//     export_safetensors(reader, files, "model.safetensors", is_weight);
//
//     const safetensors_file f(files, "model.safetensors");
//     const match m = match_tensors(f.header(), tensors);   // names and shapes that fit
//     for (std::size_t i : m.both) read_floats(f, tensors[i].name, place_of(i));
//     m.text()                                              // what stays as it was, and why
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/checkpoint/reader.hpp>
#include <polyrank/checkpoint/safetensors_file.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::checkpoint {

/// Writes the tensors for which `wanted(name)` holds, with the checkpoint's notes and step. Holds
/// one tensor in memory at a time. One rank does it.
/// @throws data_error if data are damaged or the file cannot be written
template <class Wanted>
void export_safetensors(reader& from, file_system& files, const fs::path& path, Wanted wanted) {
  std::vector<tensor_entry> entries;
  for (const tensor_info& t : from.content().tensors)
    if (wanted(std::string_view(t.name))) entries.push_back({t.name, &type_of(t.type), t.shape});
  metadata notes = from.content().notes;
  notes["step"] = detail::cat(from.content().step);
  notes["format"] = "pt"; // what Python's readers of the format look for
  const std::string header = make_header(entries, notes);
  write_atomically(files, path, [&](output_file& f) {
    f.write(std::as_bytes(std::span<const char>(header)));
    std::vector<std::byte> bytes;
    for (const tensor_entry& t : entries) {
      bytes.resize(t.end - t.begin);
      from.read(t.name, 0, bytes);
      f.write(bytes);
    }
  });
}

/// Which tensors of a model a file has.
struct match {
  std::vector<std::size_t> both;   ///< same name and shape; index into the model's tensors
  std::vector<std::string> kept;   ///< of the model, as they were, with the reason
  std::vector<std::string> unused; ///< of the file only

  /// A line each for what did not match; empty if all did.
  [[nodiscard]] std::string text() const {
    std::string out;
    for (const std::string& k : kept) out += detail::cat("\n  kept as it was: ", k);
    for (const std::string& u : unused) out += detail::cat("\n  in the file only: ", u);
    return out;
  }
};

[[nodiscard]] inline match match_tensors(const safetensors_header& file,
                                         const std::vector<tensor_info>& model) {
  const auto dims = [](const std::vector<std::uint64_t>& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) text += detail::cat(i > 0 ? ", " : "", shape[i]);
    return text + "]";
  };
  match m;
  std::map<std::string_view, bool> known;
  for (std::size_t i = 0; i < model.size(); ++i) {
    known[model[i].name] = true;
    const tensor_entry* t = file.find(model[i].name);
    if (t == nullptr)
      m.kept.push_back(
          detail::cat("'", model[i].name, "' ", dims(model[i].shape), " is not in the file"));
    else if (t->shape != model[i].shape)
      m.kept.push_back(detail::cat("'", model[i].name, "' is ", dims(model[i].shape),
                                   " in the model, ", dims(t->shape), " in the file"));
    else
      m.both.push_back(i);
  }
  for (const tensor_entry& t : file.tensors)
    if (!known.contains(t.name)) m.unused.push_back(detail::cat("'", t.name, "' ", dims(t.shape)));
  return m;
}

/// Reads a whole tensor of F32, F16, BF16 or F64 as floats.
/// @throws data_error for other types
inline void read_floats(const safetensors_file& file, std::string_view tensor,
                        std::span<float> out) {
  const tensor_entry* t = file.header().find(tensor);
  if (t == nullptr) throw data_error(detail::cat(file.name(), ": has no tensor '", tensor, "'"));
  expects(t->count() == out.size(), file.name(), ": tensor '", tensor, "' has ", t->count(),
          " elements, not ", out.size());
  const std::byte* from = file.bytes(*t).data();
  const auto convert = [&]<class T>(T value) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::memcpy(&value, from + i * sizeof(T), sizeof(T));
      out[i] = static_cast<float>(value);
    }
  };
  if (t->type->name == "F32")
    convert(0.0f);
  else if (t->type->name == "F64")
    convert(0.0);
  else if (t->type->name == "BF16")
    convert(bf16());
  else if (t->type->name == "F16")
    convert(fp16());
  else
    throw data_error(detail::cat(file.name(), ": tensor '", tensor, "' is ", t->type->name,
                                 "; only F32, F16, BF16 and F64 become floats"));
}

} // namespace polyrank::checkpoint
