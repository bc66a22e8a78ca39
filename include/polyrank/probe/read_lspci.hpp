// Reads `lspci -tv` (also -tvnn, -tvD): a tree drawn with -, +, \ and |. It shows structure and
// names, but no NUMA nodes and no classes: GPUs and NICs are known by their names, and two host
// bridges can be of one NUMA node or of two, so such a pair is "NODE or SYS".
//
//     -+-[0000:00]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 14a4
//      |           +-01.1-[01]--+-00.0  NVIDIA Corporation AD102GL [RTX 6000 Ada Generation]
//      |           |            \-00.1  NVIDIA Corporation AD102 High Definition Audio Controller
//      \-[0000:20]---01.1-[21]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/clean_line.hpp>
#include <polyrank/probe/pci_tree.hpp>

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

namespace detail {

[[nodiscard]] inline bool has_any(std::string_view text,
                                  std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view w) { return text.find(w) != std::string_view::npos; });
}

/// "NVIDIA", "AMD", "Intel" if the name is that of a compute GPU, else empty. `function`: audio,
/// USB and serial ports of a card are functions 1, 2, 3.
[[nodiscard]] inline std::string_view gpu_vendor(std::string_view name, int function) {
  if (function != 0 ||
      has_any(name, {"Audio",       "USB",         "UCSI",        "Switch",      "Bridge",
                     " Port",       "Ethernet",    "nForce",      "MCP",         "Tegra",
                     "BlueField",   "ConnectX",    "Device 1ac0", "Device 1ac1", "Device 1ac2",
                     "Device 1af1", "Device 22a3", "10de:1ac",    "10de:1af1",   "10de:22a3"}))
    return {};
  // The display controllers of server boards.
  if (has_any(name, {"ES1000", "Rage XL", "Rage 128", "RV100", "RN50"})) return {};
  if (name.starts_with("NVIDIA Corporation") || name.starts_with("nVidia Corporation"))
    return "NVIDIA";
  if (name.find("[AMD/ATI]") != std::string_view::npos) return "AMD";
  if (name.starts_with("Intel Corporation") &&
      has_any(name, {"Ponte Vecchio", "Data Center GPU", "Arctic Sound", "[Arc ", "DG2"}))
    return "Intel";
  return {};
}

/// 0: no network device; 1: one that does RDMA by its name; 2: another.
[[nodiscard]] inline int network_kind(std::string_view name) {
  if (has_any(name, {"NVMe", "Storage", "Bridge", "DMA", "SoC Management", "Manager"})) return 0;
  if (has_any(name, {"Mellanox", "ConnectX", "BlueField", "InfiniBand", "Infiniband",
                     "Elastic Fabric Adapter", "Omni-Path", "Omni Path", "Cassini", "Slingshot"}))
    return 1;
  return has_any(name, {"Ethernet", "Network", "NetXtreme", "Elastic Network Adapter"}) ? 2 : 0;
}

/// Whether a line draws the root of a tree.
[[nodiscard]] inline bool starts_lspci(std::string_view line) noexcept {
  return line.starts_with("-[") || line.starts_with("-+-[");
}
/// Whether a line of `lspci -tvv` shows an address range of the device above.
[[nodiscard]] inline bool is_region(std::string_view line) noexcept {
  return line.starts_with("Memory at ") || line.starts_with("I/O ports at ") ||
         line.starts_with("Region ") || line.starts_with("[virtual] ") ||
         line.starts_with("[enhanced] ");
}

class lspci_reader {
 public:
  lspci_reader(std::string_view text, std::string_view name, const std::map<std::string, int>& numa)
      : text_(text), name_(name), numa_(numa) {
    m_.format = "lspci -tv";
    m_.host = name;
  }

  machine run() {
    std::size_t number = 0, indent = 0, next = 0;
    for (const std::string_view raw : lines_of(text_)) {
      line_ = clean(raw, ++number);
      const std::size_t start = line_.text.find_first_not_of(" \t");
      if (start == std::string::npos) continue;
      const bool root = starts_lspci(std::string_view(line_.text).substr(start));
      if (m_.host_bridges.empty()) { // prompts and prose go before; all of it may be indented
        if (!root) continue;
        indent = start;
      } else if (open_.empty()) { // the tree is complete
        if (root && next == 0) next = number;
        continue;
      }
      line_.drop(std::min(indent, start));
      // Editors eat the blank below "-+-[0000:00]"; nothing else of a tree stands in its column.
      if (!root && std::string_view("+|\\").find(line_.text[0]) != std::string_view::npos) {
        line_.text.insert(0, 1, ' ');
        line_.columns.insert(line_.columns.begin(), line_.columns.front());
      }
      read(line_.text);
    }
    if (m_.host_bridges.empty())
      refuse(name_, {1, 1}, "no line that starts a tree (\"-[0000:00]-\")");
    if (!open_.empty())
      refuse(name_, {number, 1}, "the tree is cut off: a branch hangs in column ",
             open_.back().column + indent + 1, ", and no \"\\-\" ends it");
    if (!named_)
      refuse(name_, {1, 1}, "the devices have no names, which tell what is a GPU: use `lspci -tv`");
    const auto locate = [&](auto& devices, const std::vector<std::size_t>& at) {
      for (std::size_t i = 0; i < at.size(); ++i)
        if (const auto numa = tree_.numa_of(at[i])) devices[i].numa = {*numa, source::inferred};
    };
    locate(m_.gpus, gpu_nodes_);
    locate(m_.nics, nic_nodes_);
    locate(m_.ethernet, ethernet_nodes_);
    relate(m_, tree_, gpu_nodes_, nic_nodes_, ethernet_nodes_, source::file);
    if (next > 0)
      m_.notes.push_back(polyrank::detail::cat("line ", next, ": another tree, which is not read"));
    if (std::any_of(m_.pairs.begin(), m_.pairs.end(),
                    [](const gpu_pair& p) { return p.node_or_sys; }))
      m_.notes.push_back("lspci shows no NUMA nodes: pairs on different host bridges are NODE or "
                         "SYS (node_or_sys); `nvidia-smi topo -m` or sysfs tells which");
    return std::move(m_);
  }

 private:
  /// What hangs at a column: a bus, and the bridge that leads to it.
  struct branch {
    std::size_t column;
    std::uint32_t domain = 0;
    int bus = -1; ///< -1: the root, whose items are host bridges
    std::size_t node = pci_node::none;
  };

  template <class... Pieces>
  [[noreturn]] void fail(std::size_t column, const Pieces&... what) const {
    refuse(name_, line_.at(column), what...);
  }

  void read(std::string_view line) {
    branch here{0};
    std::size_t i = 0;
    if (line[0] == '-') {
      if (!open_.empty()) fail(0, "a second tree starts here");
      i = 1;
    } else {
      i = line.find_first_not_of(" |");
      if (i == std::string_view::npos) return; // only trunks
      if (is_region(line.substr(i))) return;   // of `lspci -tvv`
      if (line[i] != '+' && line[i] != '\\') fail(i, "'+' or '\\' expected");
      while (!open_.empty() && open_.back().column > i) open_.pop_back();
      if (open_.empty() || open_.back().column != i)
        fail(i, "no branch of the lines above ends in this column");
      here = open_.back();
      if (line[i] == '\\') open_.pop_back();
      ++i;
    }
    while (true) {
      // The connector: dashes, with a '+' where more items follow below.
      while (i < line.size() && (line[i] == '-' || line[i] == '+')) {
        if (line[i] == '+') {
          here.column = i;
          open_.push_back(here);
        }
        ++i;
      }
      if (i >= line.size()) return; // a bridge with nothing behind it
      if (line[i] == '[') {
        i = bus(line, i, here);
        continue;
      }
      i = device(line, i, here);
      if (i >= line.size() || line[i] != '-') return;
    }
  }

  /// "[0000:20]", "[01]", "[01-13]": the items that follow are on this bus.
  std::size_t bus(std::string_view line, std::size_t i, branch& here) {
    const std::size_t end = line.find(']', i);
    if (end == std::string_view::npos) fail(i, "'[' without ']'");
    std::string_view inside = line.substr(i + 1, end - i - 1);
    if (const std::size_t dash = inside.find('-'); dash != std::string_view::npos)
      inside = inside.substr(0, dash);
    if (const std::size_t colon = inside.find(':'); colon != std::string_view::npos) {
      const auto domain = hex_number(inside.substr(0, colon), 8);
      if (!domain) fail(i + 1, "a PCI domain was expected");
      here.domain = *domain;
      inside = inside.substr(colon + 1);
    }
    const auto number = hex_number(inside, 2);
    if (!number) fail(i + 1, "a bus number was expected");
    here.bus = static_cast<int>(*number);
    if (here.node == pci_node::none) {
      here.node = tree_.add({pci_node::kind::host_bridge, pci_node::none, std::nullopt, 0});
      pci_address root{here.domain, static_cast<std::uint8_t>(here.bus), 0, 0};
      m_.host_bridges.push_back(pci_text(root).substr(0, pci_text(root).rfind(':')));
      if (const auto known = numa_.find(m_.host_bridges.back()); known != numa_.end())
        tree_.nodes[here.node].numa = known->second;
    } else {
      tree_.nodes[here.node].what = pci_node::kind::bridge;
    }
    return end + 1;
  }

  /// "01.1" with a name, or with a bus behind it.
  std::size_t device(std::string_view line, std::size_t i, branch& here) {
    if (here.bus < 0) fail(i, "a host bridge \"[0000:00]\" was expected");
    const std::size_t end = std::min(line.find_first_of(" -", i), line.size());
    const std::string_view word = line.substr(i, end - i);
    const std::size_t dot = word.find('.');
    const auto device = hex_number(word.substr(0, dot), 2);
    const auto function =
        dot == std::string_view::npos ? std::nullopt : hex_number(word.substr(dot + 1), 1);
    if (!device || !function || *device > 0x1f || *function > 7)
      fail(i, "a device \"01.0\" was expected, not \"", word, "\"");
    if (tree_.nodes.size() > 100'000) fail(i, "more than 100000 devices");
    const pci_address address{here.domain, static_cast<std::uint8_t>(here.bus),
                              static_cast<std::uint8_t>(*device),
                              static_cast<std::uint8_t>(*function)};
    const std::size_t node = tree_.add({pci_node::kind::device, here.node, std::nullopt, 0});
    const std::string_view name = trim(line.substr(end));
    const bool leads_on = end < line.size() && line[end] == '-';
    here.node = node;
    if (!leads_on) known_by_name(name, address, node);
    return leads_on ? end : line.size();
  }

  void known_by_name(std::string_view name, pci_address address, std::size_t node) {
    named_ = named_ || !name.empty();
    // The display of an AMD processor sits beside its security processor: not a GPU to train on.
    if (has_any(name, {"PSP", "Cryptographic Coprocessor", "CCP"}) && !m_.gpus.empty()) {
      const pci_address& last = *m_.gpus.back().address;
      if (last.domain == address.domain && last.bus == address.bus &&
          last.device == address.device) {
        m_.gpus.pop_back();
        gpu_nodes_.pop_back();
      }
    }
    if (const std::string_view vendor = gpu_vendor(name, address.function); !vendor.empty()) {
      gpu g;
      g.name = polyrank::detail::cat("GPU", m_.gpus.size());
      g.address = address;
      g.model = name;
      g.vendor = {std::string(vendor), source::file};
      gpu_nodes_.push_back(node);
      m_.gpus.push_back(std::move(g));
    } else if (const int kind = network_kind(name); kind != 0) {
      std::vector<nic>& list = kind == 1 ? m_.nics : m_.ethernet;
      nic n;
      n.address = address;
      n.name = pci_text(address);
      n.label = polyrank::detail::cat(kind == 1 ? "NIC" : "ETH", list.size());
      n.model = name;
      (kind == 1 ? nic_nodes_ : ethernet_nodes_).push_back(node);
      list.push_back(std::move(n));
    }
  }

  std::string_view text_, name_;
  const std::map<std::string, int>& numa_;
  clean_line line_;
  bool named_ = false; ///< a device with a name was seen
  machine m_;
  pci_tree tree_;
  std::vector<branch> open_;
  std::vector<std::size_t> gpu_nodes_, nic_nodes_, ethernet_nodes_;
};

} // namespace detail

/// The line where a tree of lspci starts; no_line if none does.
[[nodiscard]] inline std::size_t lspci_line(std::string_view text) {
  std::size_t number = 0;
  for (const std::string_view line : lines_of(text)) {
    ++number;
    if (detail::starts_lspci(trim(clean(line, number).text))) return number;
  }
  return no_line;
}

/// The machine that `lspci -tv` shows. `numa`: the node of host bridges ("0000:20"), where it is
/// known from elsewhere. @throws data_error with line and column
[[nodiscard]] inline machine read_lspci(std::string_view text, std::string_view name,
                                        const std::map<std::string, int>& numa = {}) {
  return detail::lspci_reader(text, name, numa).run();
}

} // namespace polyrank::probe
