// Any bytes: from_csv() reads a table or throws data_error; what it read survives to_csv(); and
// validate(), simulate() and lower() of it end without a crash.
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/pipeline/csv.hpp>
#include <polyrank/pipeline/lower.hpp>
#include <polyrank/pipeline/simulate.hpp>
#include <polyrank/pipeline/validate.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

using namespace polyrank;
using namespace polyrank::pipeline;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void exercise(std::string_view text) {
  table t;
  try {
    t = from_csv(text);
  } catch (const data_error&) {
    return;
  } catch (const usage_error&) { // a shape beyond the limits
    return;
  }
  const table back = from_csv(to_csv(t), {t.shape.ranks, t.shape.chunks, t.shape.microbatches});
  require(back.actions == t.actions && back.row == t.row);
  const costs c = even_costs(t.shape, 1, 1, 1, 0.05);
  for (lane_policy lanes : {lane_policy::single, lane_policy::per_channel}) {
    t.lanes = lanes;
    const auto found = validate(t);
    require(!found || !found->text.empty());
    require(!found || found->kind != fault_kind::deadlock || !found->cycle.empty());
    if (found) continue;
    require(simulate(t, c).makespan > 0);
    try {
      require(!validate(lower(t, c, {.lanes = lanes})));
    } catch (const usage_error&) { // it has communication already
    }
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 4096) return 0;
  exercise({reinterpret_cast<const char*>(data), size});
  return 0;
}
