// What the watchdogs of two hosts say to each other, as bytes. Pure. Reading trusts nothing: any
// bytes give a report or nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/side_channel.hpp>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank::launch {

/// What one host's leader tells.
struct host_report {
  int host = 0; ///< number of the host
  int code = 0; ///< with which the job ends, or 0
  std::vector<hang::remote_sample> ranks{};
};

namespace detail {
using namespace polyrank::detail;

inline constexpr std::uint64_t hang_magic = 0x31676e6168727000;
inline constexpr std::size_t most_image_bytes = std::size_t{1} << 18;

struct report_head {
  std::uint64_t magic = hang_magic;
  std::array<std::uint64_t, 2> key{};
  std::uint32_t host = 0, code = 0, ranks = 0, unused = 0;
};
struct rank_head {
  std::uint32_t rank = 0, process = 0, where = 0, words = 0;
};

} // namespace detail

using hang_key = std::array<std::uint64_t, 2>;

[[nodiscard]] inline std::string pack(const host_report& r, const hang_key& key) {
  const auto add = [](std::string& out, const auto& value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  std::string out;
  add(out, detail::report_head{.key = key,
                               .host = static_cast<std::uint32_t>(r.host),
                               .code = static_cast<std::uint32_t>(r.code),
                               .ranks = static_cast<std::uint32_t>(r.ranks.size())});
  for (const hang::remote_sample& s : r.ranks) {
    const bool fits = s.image.size() * 8 <= detail::most_image_bytes;
    add(out, detail::rank_head{
                 .rank = static_cast<std::uint32_t>(s.rank),
                 .process = static_cast<std::uint32_t>(s.process),
                 .where = static_cast<std::uint32_t>(std::min<std::size_t>(s.where.size(), 128)),
                 .words = fits ? static_cast<std::uint32_t>(s.image.size()) : 0});
    out += std::string_view(s.where).substr(0, 128);
    if (fits) out.append(reinterpret_cast<const char*>(s.image.data()), s.image.size() * 8);
  }
  return out;
}

/// Nothing where the bytes are no report, or one of another job.
[[nodiscard]] inline std::optional<host_report> unpack(std::string_view bytes,
                                                       const hang_key& key) {
  const auto take = [&](auto& value) {
    if (bytes.size() < sizeof value) return false;
    std::memcpy(&value, bytes.data(), sizeof value);
    bytes.remove_prefix(sizeof value);
    return true;
  };
  detail::report_head head;
  if (!take(head) || head.magic != detail::hang_magic || head.key != key || head.host >= 1 << 24 ||
      head.code > 255)
    return std::nullopt;
  host_report r{.host = static_cast<int>(head.host), .code = static_cast<int>(head.code)};
  for (std::uint32_t i = 0; i < head.ranks; ++i) {
    detail::rank_head s;
    if (!take(s) || s.rank >= 1 << 24 || s.where > 128 || s.words * 8 > detail::most_image_bytes ||
        bytes.size() < s.where + std::size_t{s.words} * 8)
      return std::nullopt;
    hang::remote_sample sample{.rank = static_cast<int>(s.rank)};
    sample.process = static_cast<hang::process_state>(std::min(s.process, 4u));
    for (const char c : bytes.substr(0, s.where))
      sample.where += static_cast<unsigned char>(c) >= 32 && c != 127 ? c : '?';
    bytes.remove_prefix(s.where);
    sample.image.resize(s.words);
    if (s.words > 0) std::memcpy(sample.image.data(), bytes.data(), std::size_t{s.words} * 8);
    bytes.remove_prefix(std::size_t{s.words} * 8);
    r.ranks.push_back(std::move(sample));
  }
  return r;
}

} // namespace polyrank::launch
