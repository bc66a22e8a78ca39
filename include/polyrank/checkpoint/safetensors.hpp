// The header of a safetensors file (https://github.com/huggingface/safetensors): which tensors it
// holds, of which type and shape, and where. Bytes in, values out; files are safetensors_file.hpp.
//
//   8 bytes   N, the length of the header, little-endian
//   N bytes   JSON: {"__metadata__": {text: text}, "name": {"dtype": "F32", "shape": [2, 3],
//             "data_offsets": [begin, end]}, ...}, filled up with blanks
//   the rest  the tensors, end to end in some order, without holes; offsets count from here
//
// parse_header() takes bytes of any origin: what breaks a rule is refused with the rule and the
// tensor, and memory stays proportional to the header.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/dtype.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/partition.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank::checkpoint {

namespace detail {
using polyrank::detail::cat;
} // namespace detail

/// An element type of the format.
struct element_type {
  std::string_view name;
  std::size_t bytes;
};

inline constexpr element_type element_types[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
    {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
    {"U32", 4},  {"F32", 4}, {"I64", 8}, {"U64", 8},     {"F64", 8}};

/// Null for a type that the format does not have.
[[nodiscard]] constexpr const element_type* find_type(std::string_view name) noexcept {
  for (const element_type& t : element_types)
    if (t.name == name) return &t;
  return nullptr;
}

/// The format's name of our types.
[[nodiscard]] constexpr const element_type& type_of(dtype t) noexcept {
  switch (t) {
  case dtype::u8:
    return *find_type("U8");
  case dtype::i32:
    return *find_type("I32");
  case dtype::i64:
    return *find_type("I64");
  case dtype::f16:
    return *find_type("F16");
  case dtype::bf16:
    return *find_type("BF16");
  case dtype::f32:
    return *find_type("F32");
  case dtype::f64:
    break;
  }
  return *find_type("F64");
}

/// Writes the elements of a shape to `count`; false if they or their bytes overflow 63 bits.
[[nodiscard]] inline bool count_elements(std::span<const std::uint64_t> shape, std::size_t width,
                                         std::uint64_t& count) noexcept {
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  count = 1;
  for (const std::uint64_t d : shape)
    if (d == 0) {
      count = 0;
      return true;
    }
  for (const std::uint64_t d : shape) {
    if (d > most / width / count) return false;
    count *= d;
  }
  return true;
}

/// One tensor of a file.
struct tensor_entry {
  std::string name;
  const element_type* type = nullptr;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0, end = 0; ///< bytes, from the start of the data

  [[nodiscard]] std::uint64_t count() const noexcept { return (end - begin) / type->bytes; }
};

using metadata = std::map<std::string, std::string>;

struct safetensors_header {
  std::vector<tensor_entry> tensors; ///< in the order of their bytes
  metadata notes;                    ///< "__metadata__"
  std::uint64_t data_begin = 0;      ///< byte of the file where the data starts

  /// Null if there is none of this name.
  [[nodiscard]] const tensor_entry* find(std::string_view name) const {
    const auto at = by_name.find(name);
    return at == by_name.end() ? nullptr : &tensors[at->second];
  }
  std::map<std::string, std::size_t, std::less<>> by_name; ///< index into `tensors`
};

inline constexpr std::uint64_t longest_header = 100'000'000; ///< the format's own limit

namespace detail {

/// Takes the header's JSON event by event, so that nothing is built that the format does not have,
/// and a name given twice is seen. Returns false at the first fault, with its words in `wrong`.
class header_events : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<tensor_entry> tensors;
  metadata notes;
  std::string wrong;

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a truth value"); }
  bool number_integer(number_integer_t) override { return value("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return value("a number that is not whole");
  }
  bool binary(binary_t&) override { return value("binary data"); }
  bool number_unsigned(number_unsigned_t n) override {
    if (where_ == place::shape) {
      tensors.back().shape.push_back(n);
      return true;
    }
    if (where_ != place::offsets) return value("a number");
    if (offsets_ >= 2) return refuse("more than two data_offsets");
    (offsets_++ == 0 ? tensors.back().begin : tensors.back().end) = n;
    return true;
  }
  bool string(string_t& text) override {
    if (where_ == place::note) {
      where_ = place::notes;
      return notes.emplace(key_, text).second || fault(cat("metadata '", key_, "' is there twice"));
    }
    if (where_ != place::type) return value("a text");
    tensors.back().type = find_type(text);
    where_ = place::entry;
    return tensors.back().type != nullptr || refuse("unknown dtype '", text.substr(0, 40), "'");
  }
  bool start_object(std::size_t) override {
    if (where_ == place::start)
      where_ = place::top;
    else if (where_ == place::name)
      where_ = place::entry;
    else if (where_ == place::metadata)
      where_ = place::notes;
    else
      return value("an object");
    return true;
  }
  bool key(string_t& text) override {
    key_ = text;
    if (where_ == place::top) {
      if (text == "__metadata__") {
        where_ = place::metadata;
        return !std::exchange(seen_notes_, true) || fault("__metadata__ is there twice");
      }
      tensors.push_back({.name = text, .type = nullptr, .shape = {}});
      seen_ = offsets_ = 0;
      where_ = place::name;
      return true;
    }
    if (where_ == place::notes) {
      where_ = place::note;
      return true;
    }
    const std::string_view keys[] = {"dtype", "shape", "data_offsets"};
    const place places[] = {place::type, place::shape_start, place::offsets_start};
    for (unsigned k = 0; k < 3; ++k)
      if (text == keys[k]) {
        if ((seen_ & (1u << k)) != 0) return refuse(text, " is there twice");
        seen_ |= 1u << k;
        where_ = places[k];
        return true;
      }
    return refuse("unknown key '", text.substr(0, 40), "'");
  }
  bool end_object() override {
    if (where_ == place::entry) {
      if (seen_ != 7) return refuse("dtype, shape or data_offsets is missing");
      where_ = place::top;
    } else if (where_ == place::notes) {
      where_ = place::top;
    } else {
      where_ = place::end;
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (where_ == place::shape_start)
      where_ = place::shape;
    else if (where_ == place::offsets_start)
      where_ = place::offsets;
    else
      return value("a list");
    return true;
  }
  bool end_array() override {
    if (where_ == place::offsets && offsets_ != 2) return refuse("fewer than two data_offsets");
    where_ = place::entry;
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::json::exception&) override {
    return fault(cat("the header is no JSON at its byte ", at));
  }

 private:
  enum class place {
    start,
    top,
    name,
    entry,
    type,
    shape_start,
    shape,
    offsets_start,
    offsets,
    metadata,
    notes,
    note,
    end
  };

  bool fault(std::string what) {
    if (wrong.empty()) wrong = std::move(what);
    return false;
  }
  template <class... Pieces>
  bool refuse(const Pieces&... pieces) {
    return fault(cat("tensor '", tensors.back().name.substr(0, 200), "': ", pieces...));
  }
  bool value(std::string_view what) {
    return fault(cat("the header has ", what, " where the format has none",
                     key_.empty() ? "" : cat(" (near '", key_.substr(0, 200), "')")));
  }

  place where_ = place::start;
  std::string key_;
  unsigned seen_ = 0, offsets_ = 0;
  bool seen_notes_ = false;
};

} // namespace detail

/// Reads and judges the header of `file`, all bytes of a file called `name`.
/// @throws data_error naming the file, the tensor and the rule that is broken
[[nodiscard]] inline safetensors_header parse_header(std::span<const std::byte> file,
                                                     std::string_view name) {
  const auto refuse = [name](const auto&... what) {
    throw data_error(detail::cat(name, ": no valid safetensors file: ", what...));
  };
  std::uint64_t length = 0;
  if (file.size() < 8) refuse("truncated: it has ", file.size(), " bytes");
  std::memcpy(&length, file.data(), 8);
  if (length > longest_header)
    refuse("its header would have ", length, " bytes, the limit is ", longest_header);
  if (length > file.size() - 8)
    refuse("truncated: its header has ", length, " bytes, the file ", file.size());
  const auto* text = reinterpret_cast<const char*>(file.data() + 8);
  if (length == 0 || *text != '{') refuse("its header does not start with {");

  safetensors_header h;
  detail::header_events events;
  if (!nlohmann::json::sax_parse(text, text + length, &events)) refuse(events.wrong);
  h.tensors = std::move(events.tensors);
  h.notes = std::move(events.notes);
  h.data_begin = 8 + length;

  const std::uint64_t data = file.size() - h.data_begin;
  for (const tensor_entry& t : h.tensors) {
    std::uint64_t count = 0;
    if (t.begin > t.end || t.end > data)
      refuse("tensor '", t.name, "' lies at [", t.begin, ", ", t.end, ") of ", data,
             " bytes of data; the file is truncated or damaged");
    if (!count_elements(t.shape, t.type->bytes, count) || count * t.type->bytes != t.end - t.begin)
      refuse("tensor '", t.name, "' has ", t.end - t.begin, " bytes, which its shape and type ",
             t.type->name, " do not need");
  }
  std::stable_sort(h.tensors.begin(), h.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < h.tensors.size(); ++i) {
    const tensor_entry& t = h.tensors[i];
    if (t.begin != at)
      refuse("tensor '", t.name, "' starts at byte ", t.begin,
             " of the data, the one before ends at ", at, ": ",
             t.begin < at ? "they overlap" : "there is a hole");
    at = t.end;
    if (!h.by_name.emplace(t.name, i).second) refuse("tensor '", t.name, "' is there twice");
  }
  if (at != data) refuse(data - at, " bytes after the last tensor belong to none");
  return h;
}

/// Gives `tensors` their places, widest elements first so that all are aligned, and returns the
/// start of the file up to the data, a multiple of 8 bytes. `begin` and `end` are written.
/// @throws usage_error for two tensors of one name, for sizes that overflow and names not in UTF-8
[[nodiscard]] inline std::string make_header(std::vector<tensor_entry>& tensors,
                                             const metadata& notes = {}) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto& a, const auto& b) { return a.type->bytes > b.type->bytes; });
  nlohmann::ordered_json j = nlohmann::ordered_json::object();
  if (!notes.empty()) j["__metadata__"] = notes;
  std::uint64_t at = 0;
  std::map<std::string_view, int> names;
  std::vector<std::pair<std::string, nlohmann::ordered_json>> entries; // [] searches, so not here
  for (tensor_entry& t : tensors) {
    std::uint64_t count = 0;
    expects(t.name != "__metadata__" && ++names[t.name] == 1, "safetensors: the tensor name '",
            t.name, "' is taken");
    expects(count_elements(t.shape, t.type->bytes, count) &&
                count * t.type->bytes <= std::numeric_limits<std::int64_t>::max() - at,
            "safetensors: tensor '", t.name, "' overflows the file");
    t.begin = at;
    at += count * t.type->bytes;
    t.end = at;
    entries.emplace_back(t.name, nlohmann::ordered_json{{"dtype", t.type->name},
                                                        {"shape", t.shape},
                                                        {"data_offsets", {t.begin, t.end}}});
  }
  std::string text;
  try {
    text = j.dump();
    text.pop_back();
    for (const auto& [name, entry] : entries) {
      if (text.size() > 1) text += ',';
      text += nlohmann::json(name).dump() + ':' + entry.dump();
    }
    text += '}';
  } catch (const nlohmann::json::exception&) {
    throw usage_error("safetensors: a tensor name or a note is not in UTF-8");
  }
  text.append(round_up(text.size(), 8) - text.size(), ' ');
  expects(text.size() <= longest_header, "safetensors: the header would have ", text.size(),
          " bytes, the format's limit is ", longest_header, "; write several files");
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text;
}

} // namespace polyrank::checkpoint
