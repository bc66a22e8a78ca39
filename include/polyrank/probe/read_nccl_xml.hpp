// Reads the topology files of NCCL and RCCL (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE): `<system>` with
// `<cpu>`, nested `<pci>`, and in files that were dumped `<gpu>`, `<nvlink>` or `<xgmi>`, `<c2c>`,
// `<nic>`, `<net>`.
//
// A GPU is a `<pci>` of class 0x03.... (AMD accelerators: 0x12....), whether or not it holds a
// `<gpu>`; files for injection hold none, and say nothing about NVLink. Formats from NCCL's
// graph/xml.cc and the files that clouds ship.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/pci_tree.hpp>
#include <polyrank/probe/xml.hpp>

#include <algorithm>
#include <charconv>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace polyrank::probe {

namespace detail {

/// An integer attribute, also hexadecimal ("0x1"); refuses text that is none. `otherwise` where it
/// is absent.
[[nodiscard]] inline std::int64_t integer(const xml_document& doc, const xml_element& e,
                                          std::string_view attribute, std::int64_t otherwise) {
  const std::string* text = e.find(attribute);
  if (text == nullptr) return otherwise;
  std::int64_t value = 0;
  const bool hex = text->starts_with("0x");
  const auto [end, code] = std::from_chars(text->data() + (hex ? 2 : 0),
                                           text->data() + text->size(), value, hex ? 16 : 10);
  if (code != std::errc() || end != text->data() + text->size())
    refuse(doc.name, e.at, '<', e.name, " ", attribute, "=\"", *text, "\">: not an integer");
  return value;
}

/// "0x030200", "030200" -> number; nothing where absent or not hexadecimal.
[[nodiscard]] inline std::optional<std::uint32_t> hex_attribute(const xml_element& e,
                                                                std::string_view attribute) {
  std::string_view text = e.get(attribute);
  if (text.starts_with("0x") || text.starts_with("0X")) text.remove_prefix(2);
  return hex_number(text, 8);
}

/// "32.0 GT/s PCIe", "8 GT/s", "16": the generation; 0 if it is none of the known rates.
[[nodiscard]] inline int generation_of(std::string_view speed) noexcept {
  double rate = 0;
  std::from_chars(speed.data(), speed.data() + speed.size(), rate);
  return pcie_generation(rate);
}

[[nodiscard]] inline std::string vendor_name(std::uint32_t id) {
  return id == 0x10de ? "NVIDIA" : id == 0x1002 ? "AMD" : id == 0x8086 ? "Intel" : "";
}

class nccl_xml_reader {
 public:
  /// `only`: the host_hash of the host to read; empty: all is one host.
  explicit nccl_xml_reader(const xml_document& doc, std::string_view only = {})
      : doc_(doc), only_(only) {
    m_.format = "NCCL XML";
    m_.host = only.empty() ? std::string_view(doc.name) : only;
    tree_.how = pci_tree::shape::switches;
    tree_.across_is_sys = true;
  }

  machine run() {
    const xml_element& root = doc_.nodes[0];
    for (const std::size_t i : root.children) {
      const xml_element& e = doc_.nodes[i];
      if (e.name == "cpu" && !only_.empty() && e.get("host_hash") != only_)
        continue;
      else if (e.name == "cpu")
        cpu(e);
      else if (e.name != "nic" && e.name != "gpu" && e.name != "pci")
        m_.notes.push_back(
            polyrank::detail::cat("line ", e.at.line, ": <", e.name, "> is not read"));
      else
        refuse(doc_.name, e.at, '<', e.name, "> stands outside of a <cpu>");
    }
    if (amd_) m_.format = "RCCL XML";
    relate(m_, tree_, gpu_nodes_, nic_nodes_, {}, source::file);
    resolve_nvlinks(m_);
    if (merged_)
      m_.notes.push_back("two-level Broadcom switches: NCCL merges their levels, so it counts some "
                         "paths that are PXB here as PIX (pci_nccl)");
    return std::move(m_);
  }

 private:
  void cpu(const xml_element& e) {
    const int numa = static_cast<int>(integer(doc_, e, "numaid", -1));
    numa_node node{numa, {}};
    if (const std::string* mask = e.find("affinity")) {
      const auto cpus = parse_cpu_mask(*mask);
      if (!cpus) refuse(doc_.name, e.at, "affinity=\"", *mask, "\" is no CPU mask");
      node.cpus = *cpus;
    }
    if (m_.cpu_model.empty())
      m_.cpu_model = polyrank::detail::cat(e.get("arch"), ' ', e.get("vendor"));
    m_.numa_nodes.push_back(node);
    pci_node host{pci_node::kind::host_bridge, pci_node::none, std::nullopt, 0};
    if (numa >= 0) host.numa = numa;
    const std::size_t at = tree_.add(host);
    for (const std::size_t i : e.children) {
      const xml_element& child = doc_.nodes[i];
      if (child.name == "pci")
        pci(child, at, node);
      else if (child.name == "nic")
        nics(child, at, node, nullptr);
      else if (child.name == "gpu")
        refuse(doc_.name, child.at, "<gpu> stands outside of a <pci>");
    }
  }

  void pci(const xml_element& e, std::size_t parent, const numa_node& node) {
    const std::string* id = e.find("busid");
    if (id == nullptr) refuse(doc_.name, e.at, "<pci> without busid");
    const auto address = parse_pci_address(*id);
    if (!address) refuse(doc_.name, e.at, "busid=\"", *id, "\" is no PCI address");
    const auto class_id = hex_attribute(e, "class");
    if (!class_id) refuse(doc_.name, e.at, "<pci busid=\"", *id, "\"> without a class");
    // Addresses of bridges are often made up; those of devices are keys.
    if (*class_id >> 8 != 0x0604 && !seen_.insert(*address).second)
      refuse(doc_.name, e.at, "busid=\"", *id, "\" appears twice");
    const std::uint32_t base = *class_id >> 16, kind = *class_id >> 8;
    const bool is_gpu = base == 0x03 || base == 0x12;
    pci_node node_of{kind == 0x0604 ? pci_node::kind::bridge : pci_node::kind::device, parent,
                     std::nullopt, ids_of(e)};
    const std::size_t at = tree_.add(node_of);
    merged_ = merged_ || merged_into_parent(tree_, at);
    const pcie_link link{generation_of(e.get("link_speed")),
                         static_cast<int>(integer(doc_, e, "link_width", 0))};
    if (is_gpu) gpu_device(e, at, *address, link, node);
    bool has_nic = false;
    for (const std::size_t i : e.children) {
      const xml_element& child = doc_.nodes[i];
      if (child.name == "pci") pci(child, at, node);
      if (child.name == "gpu" && !is_gpu)
        refuse(doc_.name, child.at, "<gpu> in a <pci> of class ", e.get("class"),
               ", which is no GPU's (0x03...., AMD also 0x12....)");
      if (child.name == "nic") {
        nics(child, at, node, &e);
        has_nic = true;
      }
    }
    if (base == 0x02 && !has_nic) add_nic(at, *address, link, node, {});
  }

  [[nodiscard]] static std::uint64_t ids_of(const xml_element& e) {
    std::uint64_t ids = 0;
    for (const char* part : {"vendor", "device", "subsystem_vendor", "subsystem_device"})
      ids = ids << 16 | (hex_attribute(e, part).value_or(0) & 0xffff);
    return ids;
  }

  void gpu_device(const xml_element& e, std::size_t at, pci_address address, pcie_link link,
                  const numa_node& node) {
    gpu g;
    g.name = polyrank::detail::cat("GPU", m_.gpus.size());
    g.address = address;
    if (node.id >= 0) g.numa = {node.id, source::file};
    if (!node.cpus.empty()) g.cpus = {node.cpus, source::file};
    if (link != pcie_link{}) g.pcie_now = {link, source::file};
    if (const auto vendor = hex_attribute(e, "vendor"); vendor && !vendor_name(*vendor).empty())
      g.vendor = {vendor_name(*vendor), source::file};
    for (const std::size_t i : e.children) {
      const xml_element& child = doc_.nodes[i];
      if (child.name != "gpu") continue;
      g.nvlink_described = true;
      const bool amd = child.find("gcn") != nullptr || g.vendor.value_or("") == "AMD";
      amd_ = amd_ || amd;
      const auto learn = [&](fact<std::int64_t>& f, const char* attribute) {
        if (child.find(attribute) != nullptr)
          f = {integer(doc_, child, attribute, 0), source::file};
      };
      learn(amd ? g.compute_units : g.sm, "sm"); // RCCL writes its compute units there
      learn(g.rank, "rank");
      learn(g.dev, "dev");
      if (child.find("gdr") != nullptr)
        g.gpudirect_rdma = {integer(doc_, child, "gdr", 0) != 0, source::file};
      for (const std::size_t j : child.children) nvlink(g, doc_.nodes[j]);
    }
    gpu_nodes_.push_back(at);
    m_.gpus.push_back(std::move(g));
  }

  void nvlink(gpu& g, const xml_element& e) {
    if (e.name == "c2c") {
      g.c2c_links = {integer(doc_, e, "count", 1), source::file};
      return;
    }
    if (e.name != "nvlink" && e.name != "xgmi") return;
    if (e.name == "xgmi") g.family = link_family::xgmi;
    nvlink_peer peer;
    peer.address = e.get("target");
    const std::int64_t links = integer(doc_, e, "count", 1);
    if (links < 0 || links > 1024) refuse(doc_.name, e.at, "count=\"", links, "\" of links");
    peer.links = static_cast<int>(links);
    const auto address = parse_pci_address(peer.address);
    if (address) peer.address = pci_text(*address);
    const auto target = hex_attribute(e, "tclass");
    // Where a virtual machine hides the far end, NCCL takes it for a switch, and says class
    // 0x068000.
    if (!address)
      peer.what = nvlink_peer::kind::assumed_switch;
    else if (target && *target == 0x068001)
      peer.what = nvlink_peer::kind::cpu;
    else if (target && *target >> 8 == 0x0680)
      peer.what = nvlink_peer::kind::nv_switch;
    else
      peer.what = nvlink_peer::kind::gpu;
    g.nvlink_peers.push_back(std::move(peer));
  }

  void nics(const xml_element& e, std::size_t parent, const numa_node& node,
            const xml_element* device) {
    std::vector<net_port> ports;
    for (const std::size_t i : e.children) {
      const xml_element& child = doc_.nodes[i];
      if (child.name != "net") continue;
      ports.push_back({std::string(child.get("name")),
                       static_cast<int>(integer(doc_, child, "port", 0)),
                       integer(doc_, child, "dev", -1), integer(doc_, child, "speed", 0),
                       std::string(child.get("guid"))});
    }
    if (device != nullptr) {
      const pcie_link link{generation_of(device->get("link_speed")),
                           static_cast<int>(integer(doc_, *device, "link_width", 0))};
      return add_nic(parent, parse_pci_address(device->get("busid")), link, node, std::move(ports));
    }
    // A virtual NIC hangs under the CPU itself.
    const std::size_t at = tree_.add({pci_node::kind::device, parent, std::nullopt, 0});
    add_nic(at, std::nullopt, {}, node, std::move(ports));
  }

  void add_nic(std::size_t at, std::optional<pci_address> address, pcie_link link,
               const numa_node& node, std::vector<net_port> ports) {
    nic n;
    n.address = address;
    n.label = polyrank::detail::cat("NIC", m_.nics.size());
    n.name = !ports.empty() && !ports[0].name.empty() ? ports[0].name
             : address                                ? pci_text(*address)
                                                      : n.label;
    if (node.id >= 0) n.numa = {node.id, source::file};
    if (!node.cpus.empty()) n.cpus = {node.cpus, source::file};
    if (link != pcie_link{}) n.pcie_now = {link, source::file};
    // Sockets have no port number; the ports of RDMA devices count from 1.
    n.rdma = ports.empty() ||
             std::any_of(ports.begin(), ports.end(), [](const net_port& p) { return p.port > 0; });
    n.ports = std::move(ports);
    nic_nodes_.push_back(at);
    m_.nics.push_back(std::move(n));
  }

  const xml_document& doc_;
  std::string_view only_;
  machine m_;
  pci_tree tree_;
  std::vector<std::size_t> gpu_nodes_, nic_nodes_;
  std::set<pci_address> seen_;
  bool merged_ = false, amd_ = false;
};

} // namespace detail

/// The machines that a topology file of NCCL or RCCL describes: several, by host_hash, where NVLink
/// joins hosts (MNNVL). @throws data_error
[[nodiscard]] inline std::vector<machine> read_nccl_xml(const xml_document& doc) {
  std::vector<std::string_view> hosts;
  for (const std::size_t i : doc.nodes[0].children)
    if (const std::string* host = doc.nodes[i].find("host_hash");
        host != nullptr && hosts.size() <= 1024 &&
        std::find(hosts.begin(), hosts.end(), *host) == hosts.end())
      hosts.push_back(*host);
  std::vector<machine> out;
  if (hosts.size() < 2) {
    out.push_back(detail::nccl_xml_reader(doc).run());
    return out;
  }
  for (const std::size_t i : doc.nodes[0].children)
    if (const xml_element& e = doc.nodes[i]; e.name == "cpu" && e.find("host_hash") == nullptr)
      refuse(doc.name, e.at, "a <cpu> without host_hash in a file of several hosts");
  if (hosts.size() > 1024)
    refuse(doc.name, doc.nodes[0].at, "the file describes more than 1024 hosts (host_hash)");
  for (const std::string_view host : hosts) {
    out.push_back(detail::nccl_xml_reader(doc, host).run());
    out.back().notes.push_back(polyrank::detail::cat(
        "one of ", hosts.size(), " hosts in the file; pairs between hosts are not listed"));
  }
  return out;
}

} // namespace polyrank::probe
