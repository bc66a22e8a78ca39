// SPDX-License-Identifier: Apache-2.0
#include "topo.hpp"

#include "json.hpp"

#include "support/files.hpp"

#include <polyrank/probe/cuda_facts.hpp>
#include <polyrank/probe/diff.hpp>
#include <polyrank/probe/judge_machine.hpp>
#include <polyrank/probe/launch_line.hpp>
#include <polyrank/probe/live.hpp>
#include <polyrank/probe/svg.hpp>
#include <polyrank/probe/table.hpp>
#include <polyrank/probe/tcp_mesh.hpp>

#include <nlohmann/json.hpp>

#include <charconv>
#include <cstdio>

#include <unistd.h>

namespace polyrank::examples {

using namespace probe;

namespace {

/// "0000:20=1" -> {"0000:20", 1}; the domain may be left out.
std::map<std::string, int> numa_map(const std::vector<std::string>& items) {
  std::map<std::string, int> out;
  for (const std::string& item : items) {
    const std::size_t equal = item.find('=');
    int node = 0;
    const char* const end = item.data() + item.size();
    const bool good = equal != std::string::npos &&
                      std::from_chars(item.data() + equal + 1, end, node).ptr == end && node >= 0;
    const auto bridge = good ? parse_pci_address(item.substr(0, equal) + ":00") : std::nullopt;
    const auto plain =
        good && !bridge ? parse_pci_address("0:" + item.substr(0, equal) + ":00") : bridge;
    expects(plain.has_value(), "--numa ", item, ": expected BRIDGE=NODE, such as 0000:20=1");
    out[pci_text(*plain).substr(0, pci_text(*plain).rfind(':'))] = node;
  }
  return out;
}

} // namespace

int run_topo(const topo_options& o) {
  report r;
  if (o.from.empty()) {
    expects(o.numa.empty(), "--numa goes with --from");
    r.machines.push_back(read_live({}, r.findings));
    machine& m = r.machines[0];
    const gpu_answer cuda = gpu_worker(o.gpu_worker).ask("facts", std::chrono::seconds(20));
    if (cuda.good()) {
      add_cuda_facts(m, read_cuda_facts(cuda));
      choose_nccl_transport(m, nccl_settings::from_environment());
    }
    const bool gpu_seen =
        std::any_of(m.gpus.begin(), m.gpus.end(), [](const gpu& g) { return !g.uuid.empty(); });
    for (finding& f : judge_cuda(cuda, gpu_seen, m.host)) r.findings.push_back(std::move(f));
  } else {
    r = read_any(o.from, numa_map(o.numa));
  }
  if (o.from.empty() || r.findings.empty())
    for (const machine& m : r.machines)
      for (finding& f : judge_machine(m)) r.findings.push_back(std::move(f));
  if (!o.json.empty()) write_file(o.json, report_json(r));
  if (!o.svg.empty() && !r.machines.empty()) write_file(o.svg, topology_svg(r.machines[0]));
  std::string text;
  if (!o.quiet)
    for (const machine& m : r.machines) text += topology_text(m) + '\n';
  if (!r.findings.empty()) text += findings_text(r.findings);
  std::fputs(text.c_str(), stdout);
  return exit_code(r.findings);
}

int run_diff(const std::string& before, const std::string& after, const std::string& json,
             bool quiet) {
  const report a = read_any(before), b = read_any(after);
  std::map<std::string, const machine*> hosts;
  for (const machine& m : b.machines) hosts[m.host] = &m;
  std::vector<change> changes;
  const bool single = a.machines.size() == 1 && b.machines.size() == 1;
  for (const machine& m : a.machines) {
    const machine* other = single                   ? &b.machines[0]
                           : hosts.contains(m.host) ? hosts[m.host]
                                                    : nullptr;
    if (other == nullptr) {
      changes.push_back({m.host, "host", "present", ""});
      continue;
    }
    for (change& c : compare(m, *other)) {
      if (!single) c.where = m.host + ": " + c.where;
      changes.push_back(std::move(c));
    }
  }
  for (const machine& m : b.machines)
    if (!single && std::none_of(a.machines.begin(), a.machines.end(),
                                [&](const machine& x) { return x.host == m.host; }))
      changes.push_back({m.host, "host", "", "present"});
  if (!json.empty()) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const change& c : changes)
      list.push_back(
          {{"where", c.where}, {"what", c.what}, {"before", c.before}, {"after", c.after}});
    write_file(
        json,
        nlohmann::ordered_json{{"schema", "polyrank.probe.diff/1"}, {"changes", list}}.dump(1) +
            '\n');
  }
  const std::string text = changes_text(changes);
  std::fputs(text.empty() ? quiet ? "" : "no change\n" : text.c_str(), stdout);
  return changes.empty() ? 0 : 10;
}

int run_launch_line(const launch_options& o) {
  std::vector<finding> ignored;
  const machine m = o.from.empty() ? read_live({}, ignored) : read_any(o.from).machines.at(0);
  launch_request r;
  r.hosts = o.hosts;
  r.ranks_per_host = o.ranks;
  r.program = o.program;
  if (o.from.empty()) r.interfaces = list_interfaces();
  r.as_root = geteuid() == 0;
  std::string text;
  if (o.launcher != "srun") text += launch_text(mpirun_line(m, r));
  if (o.launcher == "both") text += '\n';
  if (o.launcher != "mpirun") text += launch_text(srun_line(m, r));
  std::fputs(text.c_str(), stdout);
  return 0;
}

int run_explain(const std::string& code) {
  if (code.empty()) {
    std::fputs(findings_markdown().c_str(), stdout);
    return 0;
  }
  std::fputs(findings_text({finding{code, "", -1, ""}}).c_str(), stdout);
  return 0;
}

} // namespace polyrank::examples
