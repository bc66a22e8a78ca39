// libFuzzer target: the JSON of a report, and the facts of a rank.
// SPDX-License-Identifier: Apache-2.0
#include "json.hpp"

#include <polyrank/probe/table.hpp>

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace polyrank;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const probe::report r = examples::read_report_json(text, "fuzz");
    for (const probe::machine& m : r.machines) static_cast<void>(probe::topology_text(m));
    const std::string once = examples::report_json(r);
    if (examples::report_json(examples::read_report_json(once, "again")) != once) std::abort();
  } catch (const data_error&) {
  } catch (const std::exception& e) {
    if (std::string_view(e.what()).find("UTF-8") == std::string_view::npos) std::abort();
  }
  try {
    const probe::rank_facts f = probe::decode_facts(text);
    const std::string once = probe::encode(f);
    if (probe::encode(probe::decode_facts(once)) != once) std::abort();
  } catch (const data_error&) {
  }
  return 0;
}
