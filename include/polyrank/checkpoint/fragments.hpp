// What a checkpoint is made of: tensors, and fragments of them, each (tensor, offset, count) in
// elements of that tensor alone. No padding, no rank, no bucket: so whoever saved, anyone can load.
// Pure.
//
//     const std::vector<tensor_info> all{{"w", dtype::f32, {256, 784}}, {"b", dtype::f32, {256}}};
//     even_fragments(all, 1, 4)       // the second quarter of all elements, as fragments
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/dtype.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/partition.hpp>

#include <algorithm>
#include <charconv>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::checkpoint {

/// A tensor of the model or of its optimizer's state. Names are unique in a checkpoint.
struct tensor_info {
  std::string name;
  dtype type = dtype::f32;
  std::vector<std::uint64_t> shape;

  [[nodiscard]] std::uint64_t count() const noexcept {
    std::uint64_t n = 1;
    for (const std::uint64_t d : shape) n *= d;
    return n;
  }
  friend bool operator==(const tensor_info&, const tensor_info&) = default;
};

/// "f32 [256, 784]"
[[nodiscard]] inline std::string text_of(const tensor_info& t) {
  std::string text = polyrank::detail::cat(name_of(t.type), " [");
  for (std::size_t i = 0; i < t.shape.size(); ++i)
    text += polyrank::detail::cat(i > 0 ? ", " : "", t.shape[i]);
  return text + "]";
}

/// Elements [offset, offset + count) of tensor number `tensor`.
struct fragment {
  std::size_t tensor = 0;
  std::uint64_t offset = 0, count = 0;
  friend auto operator<=>(const fragment&, const fragment&) = default;
};

/// Part `index` of `parts` nearly equal parts of all elements, taken end to end: what one rank
/// saves of a state that every rank has. Any number of parts, also more than there are elements.
[[nodiscard]] inline std::vector<fragment> even_fragments(const std::vector<tensor_info>& tensors,
                                                          std::size_t index, std::size_t parts) {
  std::uint64_t total = 0;
  for (const tensor_info& t : tensors) total += t.count();
  const std::uint64_t chunk = ceil_div(total, static_cast<std::uint64_t>(parts));
  const std::uint64_t begin = std::min(total, index * chunk), end = std::min(total, begin + chunk);
  std::vector<fragment> out;
  std::uint64_t at = 0; // where tensor i starts
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t n = tensors[i].count();
    const std::uint64_t from = std::max(at, begin), to = std::min(at + n, end);
    if (from < to) out.push_back({i, from - at, to - from});
    at += n;
  }
  return out;
}

/// The first elements of some tensor that `fragments` do not hold, or hold twice; as words, empty
/// if every element is there once. Sorts `fragments`.
[[nodiscard]] inline std::string coverage_fault(const std::vector<tensor_info>& tensors,
                                                std::vector<fragment>& fragments) {
  std::sort(fragments.begin(), fragments.end());
  std::size_t k = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::uint64_t at = 0;
    for (; k < fragments.size() && fragments[k].tensor == i; ++k) {
      if (fragments[k].offset != at)
        return polyrank::detail::cat("elements [", std::min(at, fragments[k].offset), ", ",
                                     std::max(at, fragments[k].offset), ") of tensor '",
                                     tensors[i].name, "' are in ",
                                     fragments[k].offset > at ? "no file" : "two fragments");
      at += fragments[k].count;
    }
    if (at != tensors[i].count())
      return polyrank::detail::cat("elements [", at, ", ", tensors[i].count(), ") of tensor '",
                                   tensors[i].name, "' are in no file");
  }
  return {};
}

/// Where `have` is not what `want` asks for, a line each; empty if every tensor of both is equal.
[[nodiscard]] inline std::string differences(std::vector<tensor_info> have,
                                             std::vector<tensor_info> want,
                                             std::size_t at_most = 12) {
  const auto by_name = [](const tensor_info& a, const tensor_info& b) { return a.name < b.name; };
  std::sort(have.begin(), have.end(), by_name);
  std::sort(want.begin(), want.end(), by_name);
  std::string text;
  std::size_t lines = 0;
  const auto say = [&](const auto&... pieces) {
    if (++lines <= at_most) text += polyrank::detail::cat("\n  ", pieces...);
  };
  for (std::size_t i = 0, k = 0; i < have.size() || k < want.size();) {
    if (k == want.size() || (i < have.size() && have[i].name < want[k].name)) {
      say("'", have[i].name, "' ", text_of(have[i]), " is in the checkpoint only");
      ++i;
    } else if (i == have.size() || want[k].name < have[i].name) {
      say("'", want[k].name, "' ", text_of(want[k]), " is in the model only");
      ++k;
    } else {
      if (have[i] != want[k])
        say("'", have[i].name, "' is ", text_of(have[i]), " in the checkpoint, ", text_of(want[k]),
            " in the model");
      ++i, ++k;
    }
  }
  if (lines > at_most) text += polyrank::detail::cat("\n  and ", lines - at_most, " more");
  return text;
}

/// The name of a fragment in a shard: "layer0.weight@4096".
[[nodiscard]] inline std::string fragment_name(std::string_view tensor, std::uint64_t offset) {
  return polyrank::detail::cat(tensor, '@', offset);
}

/// Takes a fragment's name apart; false if it is none.
[[nodiscard]] inline bool split_fragment_name(std::string_view name, std::string_view& tensor,
                                              std::uint64_t& offset) {
  const std::size_t at = name.rfind('@');
  if (at == std::string_view::npos || at + 1 == name.size()) return false;
  tensor = name.substr(0, at);
  const char *first = name.data() + at + 1, *last = name.data() + name.size();
  const auto [end, code] = std::from_chars(first, last, offset);
  return code == std::errc() && end == last;
}

} // namespace polyrank::checkpoint
