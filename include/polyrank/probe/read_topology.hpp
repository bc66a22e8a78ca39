// Reads a description of a machine in whatever format it is.
//
//     machine m = read_topology(text, "topo.txt");     // the name appears in errors
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/read_lspci.hpp>
#include <polyrank/probe/read_lstopo.hpp>
#include <polyrank/probe/read_nccl_xml.hpp>
#include <polyrank/probe/read_topo_matrix.hpp>

#include <map>
#include <string>
#include <string_view>

namespace polyrank::probe {

/// NCCL and RCCL topology XML, lstopo XML, `nvidia-smi topo -m`, `topo -p2p`, `lspci -tv`.
/// `numa`: the node of host bridges, for lspci.
/// @throws data_error with line and column, or with the formats that are known
[[nodiscard]] inline machine read_topology(std::string_view text, std::string_view name,
                                           const std::map<std::string, int>& numa = {}) {
  std::string_view start = text.substr(text.starts_with("\xef\xbb\xbf") ? 3 : 0);
  start = trim(start);
  if (start.empty()) refuse(name, {1, 1}, "the file is empty");
  if (start.starts_with('<')) {
    const xml_document doc = parse_xml(text, name);
    const xml_element& root = doc.nodes[0];
    if (root.name == "system") return read_nccl_xml(doc);
    if (root.name == "topology") return read_lstopo(doc);
    if (root.name == "graphs")
      refuse(name, root.at,
             "a graph of NCCL (NCCL_GRAPH_DUMP_FILE); it tells how rings run, not how "
             "the machine is linked: use NCCL_TOPO_DUMP_FILE");
    refuse(name, root.at, "<", root.name, ">: neither NCCL's <system> nor hwloc's <topology>");
  }
  for (const std::string_view line : lines_of(text))
    if (line.starts_with("-[") || line.starts_with("-+-[")) return read_lspci(text, name, numa);
  if (has_matrix(text)) return read_topo_matrix(text, name);
  refuse(name, {1, 1},
         "none of the known formats: NCCL or RCCL topology XML, lstopo XML, `nvidia-smi topo -m`, "
         "`nvidia-smi topo -p2p r`, `lspci -tv`, JSON of polyrank_probe");
}

} // namespace polyrank::probe
