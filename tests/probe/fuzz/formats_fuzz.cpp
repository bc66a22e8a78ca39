// libFuzzer target: whatever bytes come, a description of a machine is read or refused, and what
// was read can be drawn, printed and compared.
// SPDX-License-Identifier: Apache-2.0
#include <polyrank/probe/diff.hpp>
#include <polyrank/probe/judge_machine.hpp>
#include <polyrank/probe/read_topology.hpp>
#include <polyrank/probe/svg.hpp>
#include <polyrank/probe/table.hpp>

#include <cstdint>
#include <cstdlib>

namespace {

using namespace polyrank::probe;

void use(const machine& m) {
  const std::size_t n = m.gpus.size();
  if (m.pairs.size() != n * (n - 1) / 2) std::abort();
  for (const nic& x : m.nics)
    if (x.to_gpus.size() != n || x.to_nics.size() != m.nics.size()) std::abort();
  static_cast<void>(topology_text(m));
  static_cast<void>(topology_svg(m));
  static_cast<void>(judge_machine(m));
  if (!compare(m, m).empty()) std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    for (const machine& m : read_machines(text, "fuzz")) use(m);
  } catch (const polyrank::data_error&) {
  }
  return 0;
}
