// libFuzzer target: the JSON of a report, the facts of a rank, answers of a GPU worker, cost
// models.
// SPDX-License-Identifier: Apache-2.0
#include "json.hpp"

#include <polyrank/core/cost_model_file.hpp>
#include <polyrank/probe/cuda_facts.hpp>
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
  try {
    const probe::gpu_answer a = probe::decode_answer(text);
    const std::string once = probe::encode(a);
    if (probe::encode(probe::decode_answer(once)) != once) std::abort();
    probe::machine m = probe::machine();
    probe::add_cuda_facts(m, probe::read_cuda_facts(a));
  } catch (const data_error&) {
  }
  try {
    const measured_costs c = parse_cost_model(text, "fuzz");
    const std::string once = cost_model_text(c);
    if (cost_model_text(parse_cost_model(once, "again")) != once) std::abort();
  } catch (const data_error&) {
  }
  return 0;
}
