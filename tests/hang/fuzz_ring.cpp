// Any bytes either are a ring that can be read, imaged and diagnosed, or are refused; likewise the
// messages between hosts.
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/hang/analyze.hpp>
#include <polyrank/hang/report.hpp>
#include <polyrank/launch/hang_message.hpp>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

using namespace polyrank;
using namespace polyrank::hang;

namespace {

/// Gives damaged bytes the chance of a header that is believed: else the parser stops at the magic.
void mend(std::vector<std::uint64_t>& words) {
  using namespace layout;
  if (words.size() <= header_words) return;
  words[f_magic] = magic;
  words[f_version] = version;
  words[f_slots] = std::uint64_t{1} << (words[f_slots] % 4);
  words[f_comm_slots] %= 3;
  if (const auto need = total_words(words[f_slots], words[f_comm_slots]); words.size() < need)
    words.resize(need);
}

void read_all(const std::vector<std::uint64_t>& words) {
  try {
    const ring_view v(std::as_bytes(std::span(words)));
    record r;
    for (std::uint64_t i = v.oldest(), n = 0; i != v.next() && n < v.slots(); ++i, ++n) {
      if (v.read(i, r) && r.what.tag.size() > 23) std::abort();
    }
    std::vector<sample> samples;
    for (int rank = 0; rank < 3; ++rank)
      samples.push_back({.rank = rank,
                         .ring = v,
                         .now = v.at(layout::f_heartbeat_ns),
                         .process = static_cast<process_state>(words[0] >> rank & 3)});
    const verdict found = analyze(samples, {.deadline_ns = 1, .world = 4});
    if (report_text(found).empty() || report_json(found).empty() || report_svg(found).empty())
      std::abort();
    const auto image = v.image(4, 1);
    const ring_view again(std::as_bytes(std::span(image)));
    if (again.slots() > 4) std::abort();
  } catch (const data_error&) {
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const bool repaired = (data[0] & 1) != 0, message = (data[0] & 2) != 0;
  ++data, --size;
  if (message) {
    std::string bytes(reinterpret_cast<const char*>(data), size);
    const launch::hang_key key{};
    if (repaired && bytes.size() >= 24) {
      std::memcpy(bytes.data(), &launch::detail::hang_magic, 8);
      std::memset(bytes.data() + 8, 0, 16);
    }
    if (const auto report = launch::unpack(bytes, key)) {
      for (const remote_sample& r : report->ranks) static_cast<void>(r.view());
      if (!launch::unpack(launch::pack(*report, key), key)) std::abort();
    }
    return 0;
  }
  std::vector<std::uint64_t> words((size + 7) / 8);
  if (size > 0) std::memcpy(words.data(), data, size);
  if (repaired) mend(words);
  read_all(words);
  return 0;
}
