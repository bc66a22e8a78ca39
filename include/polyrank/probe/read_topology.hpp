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
#include <utility>
#include <vector>

namespace polyrank::probe {

namespace detail {

/// The XML in a text: all of it, or an element <system> or <topology> that starts a line, as below
/// a prompt or in a code fence. What goes before and after turns into blanks, so places stay. Empty
/// if there is none.
[[nodiscard]] inline std::string xml_in(std::string_view text) {
  const std::string_view start = trim(text.substr(text.starts_with("\xef\xbb\xbf") ? 3 : 0));
  for (const std::string_view whole : {"<?", "<!", "<system", "<topology", "<graphs"})
    if (start.starts_with(whole)) return std::string(text);
  for (const std::string_view root : {"system", "topology"}) {
    const std::string open = polyrank::detail::cat("\n<", root);
    const std::string close = polyrank::detail::cat("</", root, '>');
    const std::size_t from = text.find(open), to = text.rfind(close);
    if (from == std::string_view::npos) continue;
    const std::size_t end = to < text.size() && to > from ? to + close.size() : text.size();
    std::string out(text);
    for (std::size_t i = 0; i < out.size(); ++i)
      if ((i < from || i >= end) && out[i] != '\n') out[i] = ' ';
    return out;
  }
  return {};
}

} // namespace detail

/// NCCL and RCCL topology XML, lstopo XML, `nvidia-smi topo -m`, `topo -p2p`, `lspci -tv`. Text
/// around them, such as a ticket's, is left out; of several in one file the first is read.
/// `numa`: the node of host bridges, for lspci.
/// @throws data_error with line and column, or with the formats that are known
[[nodiscard]] inline std::vector<machine>
read_machines(std::string_view text, std::string_view name,
              const std::map<std::string, int>& numa = {}) {
  if (trim(text).empty()) refuse(name, {1, 1}, "the file is empty");
  if (const std::string xml = detail::xml_in(text); !xml.empty()) {
    const xml_document doc = parse_xml(xml, name);
    const xml_element& root = doc.nodes[0];
    if (root.name == "system") return read_nccl_xml(doc);
    if (root.name == "topology") return {read_lstopo(doc)};
    if (root.name == "graphs")
      refuse(name, root.at,
             "a graph of NCCL (NCCL_GRAPH_DUMP_FILE); it tells how rings run, not how "
             "the machine is linked: use NCCL_TOPO_DUMP_FILE");
    refuse(name, root.at, "<", root.name, ">: neither NCCL's <system> nor hwloc's <topology>");
  }
  const std::size_t table = matrix_line(text), tree = lspci_line(text);
  if (table < tree) {
    machine m = read_topo_matrix(text, name);
    if (tree != no_line)
      m.notes.push_back(
          polyrank::detail::cat("line ", tree, ": a tree of lspci, which is not read"));
    return {m};
  }
  if (tree != no_line) return {read_lspci(text, name, numa)};
  refuse(name, {1, 1},
         "none of the known formats: NCCL or RCCL topology XML, lstopo XML, `nvidia-smi topo -m` "
         "(with a header GPU0 GPU1 ... CPU Affinity), `nvidia-smi topo -p2p r`, `lspci -tv`, JSON "
         "of polyrank_probe");
}

/// The one machine of a text. @throws data_error also if it describes several
[[nodiscard]] inline machine read_topology(std::string_view text, std::string_view name,
                                           const std::map<std::string, int>& numa = {}) {
  std::vector<machine> all = read_machines(text, name, numa);
  if (all.size() != 1) refuse(name, {1, 1}, "the file describes ", all.size(), " hosts");
  return std::move(all[0]);
}

} // namespace polyrank::probe
