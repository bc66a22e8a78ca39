// manifest.json, the page that makes a folder a checkpoint: what was saved, and by which files it
// is held. It is written last; a folder without it is not a checkpoint.
//
//   {"format": "polyrank checkpoint", "version": 1, "checksum": "<16 hex>", "content": {
//      "step": 20,
//      "notes":   {"seed": "1", ...},
//      "tensors": [{"name": "layer0.weight", "dtype": "f32", "shape": [256, 784]}, ...],
//      "shards":  [{"file": "shard_0.safetensors", "bytes": 1234, "header": "<16 hex>"}, ...]}}
//
// The checksum is that of `content` without blanks. `header` is the checksum of a shard's first
// bytes up to its data, which in turn hold a checksum for each fragment (shard.hpp).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/checkpoint/checksum.hpp>
#include <polyrank/checkpoint/fragments.hpp>
#include <polyrank/checkpoint/safetensors.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::checkpoint {

struct shard_record {
  std::string file; ///< in the checkpoint's folder
  std::uint64_t bytes = 0;
  std::uint64_t header_checksum = 0;
};

struct manifest {
  std::uint64_t step = 0;
  metadata notes; ///< what else it takes to go on: scaler, sampler position, seeds
  std::vector<tensor_info> tensors;
  std::vector<shard_record> shards;
};

inline constexpr std::uint64_t manifest_version = 1;
inline constexpr std::size_t longest_manifest = std::size_t{256} << 20; ///< bytes

/// @throws usage_error for text that is not UTF-8
[[nodiscard]] inline std::string to_json(const manifest& m) {
  using json = nlohmann::ordered_json;
  try {
    json tensors = json::array(), shards = json::array();
    for (const tensor_info& t : m.tensors)
      tensors.push_back({{"name", t.name}, {"dtype", name_of(t.type)}, {"shape", t.shape}});
    for (const shard_record& s : m.shards)
      shards.push_back(
          {{"file", s.file}, {"bytes", s.bytes}, {"header", hex16(s.header_checksum)}});
    const json content{{"step", m.step},
                       {"notes", m.notes.empty() ? json::object() : json(m.notes)},
                       {"tensors", std::move(tensors)},
                       {"shards", std::move(shards)}};
    const std::string dumped = content.dump();
    const std::uint64_t sum = checksum(std::as_bytes(std::span<const char>(dumped)));
    return json{{"format", "polyrank checkpoint"},
                {"version", manifest_version},
                {"checksum", hex16(sum)},
                {"content", content}}
               .dump(1) +
           "\n";
  } catch (const nlohmann::json::exception&) {
    throw usage_error("checkpoint: a tensor name or a note is not in UTF-8");
  }
}

/// Reads the manifest called `name`. Takes any bytes.
/// @throws data_error saying what is wrong with it
[[nodiscard]] inline manifest parse_manifest(std::span<const std::byte> bytes,
                                             std::string_view name) {
  using json = nlohmann::ordered_json;
  const auto refuse = [name](const auto&... what) {
    throw data_error(detail::cat(name, ": ", what...));
  };
  if (bytes.size() > longest_manifest)
    refuse("is ", bytes.size(), " bytes long; a manifest has at most ", longest_manifest);
  const auto number = [](const json& j) {
    if (!j.is_number_unsigned()) throw data_error("");
    return j.get<std::uint64_t>();
  };
  manifest m;
  try {
    const auto* text = reinterpret_cast<const char*>(bytes.data());
    const json j = json::parse(text, text + bytes.size());
    if (!j.is_object() || !j.contains("format") || j["format"] != "polyrank checkpoint")
      refuse("is no manifest of a checkpoint");
    const json& version = j.at("version");
    if (version != manifest_version)
      refuse("has the format version ", version.dump().substr(0, 20),
             ", this program reads version ", manifest_version,
             version.is_number() && version > manifest_version
                 ? ": it was written by a newer polyrank"
                 : "");
    const json& content = j.at("content");
    const std::string dumped = content.dump();
    if (j.at("checksum") != hex16(checksum(std::as_bytes(std::span<const char>(dumped)))))
      refuse("was changed or damaged: its checksum does not fit its content");
    m.step = number(content.at("step"));
    m.notes = content.at("notes").get<metadata>();
    for (const json& t : content.at("tensors")) {
      tensor_info info{.name = t.at("name"), .shape = {}};
      const std::string type = t.at("dtype");
      bool known = false;
      for (int k = 0; k <= static_cast<int>(dtype::f64); ++k)
        if (type == name_of(static_cast<dtype>(k))) {
          info.type = static_cast<dtype>(k);
          known = true;
        }
      if (!known) refuse("tensor '", info.name, "' has the unknown dtype '", type, "'");
      for (const json& d : t.at("shape")) info.shape.push_back(number(d));
      std::uint64_t count = 0;
      if (!count_elements(info.shape, size_of(info.type), count))
        refuse("tensor '", info.name, "' is larger than any file");
      m.tensors.push_back(std::move(info));
    }
    for (const json& s : content.at("shards")) {
      shard_record r{.file = s.at("file"), .bytes = number(s.at("bytes"))};
      if (r.file.find('/') != std::string::npos || r.file.empty() || r.file == "..")
        refuse("names the shard '", r.file, "', which is no plain file name");
      const std::string sum = s.at("header");
      const auto [end, code] =
          std::from_chars(sum.data(), sum.data() + sum.size(), r.header_checksum, 16);
      if (code != std::errc() || end != sum.data() + sum.size()) throw data_error("");
      m.shards.push_back(std::move(r));
    }
  } catch (const nlohmann::json::exception& e) {
    refuse("is damaged: ", std::string_view(e.what()).substr(0, 200));
  } catch (const data_error& e) {
    if (*e.what() != '\0') throw;
    refuse("is damaged: a number is missing or not whole");
  }
  return m;
}

} // namespace polyrank::checkpoint
