// Reads hwloc's XML (`lstopo --of xml`, `hwloc-gather-topology`), format 1 and 2: packages, NUMA
// nodes, the PCI tree, and the names that operating system devices give GPUs and NICs.
//
// An I/O device belongs to the NUMA node of the nearest object above it that is no bridge. hwloc
// lists NVLinks only since 2.5, as distances named NVLinkBandwidth; older files do not describe
// them. hwloc gives a PCI link as a rate only: 15.75 GB/s is gen3 x16 or gen4 x8, so neither is
// claimed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/pci_tree.hpp>
#include <polyrank/probe/read_lspci.hpp>
#include <polyrank/probe/read_nccl_xml.hpp>
#include <polyrank/probe/xml.hpp>

#include <charconv>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

namespace detail {

class lstopo_reader {
 public:
  explicit lstopo_reader(const xml_document& doc) : doc_(doc) {
    m_.format = "lstopo XML";
    m_.host = doc.name;
  }

  machine run() {
    const xml_element& root = doc_.nodes[0];
    lists_nvlinks_ = root.get("version").starts_with("3"); // where the infos moved to the root
    infos(root);
    for (const xml_element& e : doc_.nodes)
      if (e.get("subtype") == "GPUMemory")
        gpu_memory_[static_cast<int>(integer(doc_, e, "os_index", -1))] =
            parse_pci_address(info(e, "PCIBusID"));
    for (const std::size_t i : root.children)
      if (doc_.nodes[i].name == "object") object(doc_.nodes[i], {}, pci_node::none);
    std::sort(m_.numa_nodes.begin(), m_.numa_nodes.end(),
              [](const numa_node& a, const numa_node& b) { return a.id < b.id; });
    relate(m_, tree_, gpu_nodes_, nic_nodes_, ethernet_nodes_, source::file);
    for (gpu_pair& p : m_.pairs)
      if (m_.gpus[p.a].nvlink_described && m_.gpus[p.b].nvlink_described)
        p.nvlink = nvlink_count::of(0);
    for (const std::size_t i : root.children)
      if (doc_.nodes[i].name.starts_with("distances2")) distances(doc_.nodes[i]);
    xgmi_peers();
    return std::move(m_);
  }

 private:
  /// Where an I/O device hangs.
  struct locality {
    std::optional<int> numa;
    cpu_list cpus;
  };

  [[nodiscard]] cpu_list mask(const xml_element& e, std::string_view attribute) const {
    const std::string* text = e.find(attribute);
    if (text == nullptr || text->find("f...f") != std::string::npos) return {};
    const auto cpus = parse_cpu_mask(*text);
    if (!cpus) refuse(doc_.name, e.at, attribute, "=\"", *text, "\" is no mask");
    return *cpus;
  }

  /// `tree`: the node of the tree above, for I/O objects.
  void object(const xml_element& e, locality here, std::size_t tree) {
    const std::string_view type = e.get("type");
    if (type == "Bridge") {
      tree = bridge(e, here, tree);
    } else if (type == "PCIDev") {
      tree = device(e, here, tree);
    } else if (type == "NUMANode") {
      const int id = static_cast<int>(integer(doc_, e, "os_index", -1));
      if (gpu_memory_.contains(id)) return;
      m_.numa_nodes.push_back({id, mask(e, "cpuset")});
      here = {id, mask(e, "cpuset")};
    } else if (type != "OSDev" && type != "Misc") {
      if (const cpu_list cpus = mask(e, "cpuset"); !cpus.empty()) here.cpus = cpus;
      cpu_list nodes = mask(e, "nodeset");
      std::erase_if(nodes, [&](int id) { return gpu_memory_.contains(id); });
      if (!nodes.empty())
        here.numa = nodes.size() == 1 ? std::optional<int>(nodes[0]) : std::nullopt;
      infos(e);
    }
    for (const std::size_t i : e.children)
      if (doc_.nodes[i].name == "object") object(doc_.nodes[i], here, tree);
  }

  /// What hwloc says of the machine as a whole.
  void infos(const xml_element& e) {
    if (const std::string_view host = info(e, "HostName"); !host.empty()) m_.host = host;
    if (m_.cpu_model.empty()) m_.cpu_model = info(e, "CPUModel");
    if (const std::string_view hwloc = info(e, "hwlocVersion"); !hwloc.empty()) version(hwloc);
  }

  void version(std::string_view text) {
    int high = 0, low = 0;
    const char* const end = text.data() + text.size();
    const auto [p, code] = std::from_chars(text.data(), end, high);
    if (code == std::errc() && p != end) std::from_chars(p + 1, end, low);
    lists_nvlinks_ = lists_nvlinks_ || high > 2 || (high == 2 && low >= 5);
  }

  std::size_t bridge(const xml_element& e, const locality& here, std::size_t parent) {
    if (e.get("bridge_type").starts_with("0-")) { // from the host
      pci_node host{pci_node::kind::host_bridge, pci_node::none, here.numa, 0};
      const std::string_view buses = e.get("bridge_pci"); // "0000:[00-0c]"
      if (const std::size_t open = buses.find('['); open != std::string_view::npos)
        m_.host_bridges.push_back(
            polyrank::detail::cat(buses.substr(0, open), buses.substr(open + 1, 2)));
      return tree_.add(host);
    }
    return tree_.add({pci_node::kind::bridge, parent, std::nullopt, 0});
  }

  std::size_t device(const xml_element& e, const locality& here, std::size_t parent) {
    const std::size_t at = tree_.add({pci_node::kind::device, parent, std::nullopt, 0});
    const std::string_view id = e.get("pci_busid");
    const auto address = parse_pci_address(id);
    if (!address) refuse(doc_.name, e.at, "pci_busid=\"", id, "\" is no PCI address");
    const std::string_view kind = e.get("pci_type"); // "0302 [10de:15f8] [10de:118f] a1"
    const auto class_id = hex_number(kind.substr(0, 4), 4);
    const auto vendor = kind.size() > 10 ? hex_number(kind.substr(6, 4), 4) : std::nullopt;
    if (!class_id) refuse(doc_.name, e.at, "pci_type=\"", kind, "\" does not start with a class");
    const bool display = *class_id >> 8 == 0x03 || *class_id >> 8 == 0x12;
    const bool known_vendor = vendor && (*vendor == 0x10de || *vendor == 0x1002);
    const bool of_board = kind.starts_with("0300 [1002:515e]") || // ES1000, Rage XL
                          kind.starts_with("0300 [1002:4752]");
    const bool has_memory = std::any_of(gpu_memory_.begin(), gpu_memory_.end(),
                                        [&](const auto& of) { return of.second == address; });
    if (display && ((known_vendor && !of_board) || has_memory || has_compute(e)))
      add_gpu(e, *address, vendor, here, at);
    else if (*class_id >> 8 == 0x02)
      add_nic(e, *address, *class_id, here, at);
    return at;
  }

  [[nodiscard]] bool has_compute(const xml_element& e) const {
    return std::any_of(e.children.begin(), e.children.end(), [&](std::size_t i) {
      const std::string_view name = doc_.nodes[i].get("name");
      return name.starts_with("cuda") || name.starts_with("nvml") || name.starts_with("rsmi") ||
             name.starts_with("ze");
    });
  }
  [[nodiscard]] std::string_view info(const xml_element& e, std::string_view name) const {
    for (const std::size_t i : e.children)
      if (doc_.nodes[i].name == "info" && doc_.nodes[i].get("name") == name)
        return doc_.nodes[i].get("value");
    return {};
  }
  [[nodiscard]] static double rate(const xml_element& e) {
    return std::strtod(std::string(e.get("pci_link_speed", "0")).c_str(), nullptr);
  }

  void add_gpu(const xml_element& e, pci_address address, std::optional<std::uint32_t> vendor,
               const locality& here, std::size_t at) {
    gpu g;
    g.name = polyrank::detail::cat("GPU", m_.gpus.size());
    g.address = address;
    g.model = info(e, "PCIDevice");
    if (g.model.empty()) g.model = e.get("name"); // hwloc 1
    if (vendor) g.vendor = {vendor_name(*vendor), source::file};
    if (here.numa) g.numa = {*here.numa, source::file};
    if (!here.cpus.empty()) g.cpus = {here.cpus, source::file};
    for (const auto& [id, of] : gpu_memory_)
      if (of == address) g.gpu_numa.learn(id, source::file);
    if (rate(e) > 0) g.pcie_gb_per_s = {rate(e), source::file};
    for (const std::size_t i : e.children) {
      const xml_element& os = doc_.nodes[i];
      if (os.get("type") != "OSDev") continue;
      if (os.get("name").starts_with("nvml") || os.get("name").starts_with("rsmi")) {
        g.nvlink_described = lists_nvlinks_;
        for (const char* name : {"NVIDIAUUID", "AMDUUID"})
          if (!info(os, name).empty()) g.uuid = info(os, name);
        if (const std::string_view peers = info(os, "XGMIPeers"); !peers.empty()) {
          g.family = link_family::xgmi;
          peers_[std::string(os.get("name"))] = {m_.gpus.size(),
                                                 polyrank::detail::cat(' ', peers, ' ')};
        }
      }
      if (!info(os, "GPUModel").empty()) g.model = info(os, "GPUModel");
      by_index_[e_index(os)] = m_.gpus.size();
    }
    by_index_[e_index(e)] = m_.gpus.size();
    gpu_nodes_.push_back(at);
    m_.gpus.push_back(std::move(g));
  }

  void add_nic(const xml_element& e, pci_address address, std::uint32_t class_id,
               const locality& here, std::size_t at) {
    nic n;
    n.address = address;
    n.model = info(e, "PCIDevice");
    if (here.numa) n.numa = {*here.numa, source::file};
    if (!here.cpus.empty()) n.cpus = {here.cpus, source::file};
    const std::string_view ids = e.get("pci_type"); // "0200 [17db:0501] ..."
    bool rdma = class_id == 0x0207 || has_any(ids, {"[17db:", "[1d0f:efa"}); // Slingshot, EFA
    for (const std::size_t i : e.children) {
      const xml_element& os = doc_.nodes[i];
      if (os.get("type") != "OSDev") continue;
      net_port port;
      port.name = os.get("name");
      const bool open_fabrics = os.get("osdev_type") == "3" || os.get("subtype") == "OpenFabrics" ||
                                !info(os, "NodeGUID").empty();
      if (open_fabrics) port.guid = info(os, "NodeGUID");
      rdma = rdma || open_fabrics;
      // The RDMA name first: it is the one that NCCL uses.
      n.ports.insert(open_fabrics ? n.ports.begin() : n.ports.end(), std::move(port));
    }
    n.name = n.ports.empty() ? pci_text(address) : n.ports[0].name;
    std::vector<nic>& list = rdma ? m_.nics : m_.ethernet;
    n.label = polyrank::detail::cat(rdma ? "NIC" : "ETH", list.size());
    (rdma ? nic_nodes_ : ethernet_nodes_).push_back(at);
    list.push_back(std::move(n));
  }

  [[nodiscard]] std::string e_index(const xml_element& e) const {
    return std::string(e.get("gp_index"));
  }

  /// XGMIPeers, "rsmi1 rsmi2": which GPUs are linked, but neither how nor by how many links.
  void xgmi_peers() {
    for (const auto& [name_a, a] : peers_)
      for (const auto& [name_b, b] : peers_) {
        if (a.gpu >= b.gpu ||
            a.names.find(polyrank::detail::cat(' ', name_b, ' ')) == std::string::npos)
          continue;
        gpu_pair& p = m_.pair(a.gpu, b.gpu);
        p.family = link_family::xgmi;
        p.nvlink.what = nvlink_count::knowledge::unknown;
        m_.gpus[a.gpu].nvlink_uncounted = m_.gpus[b.gpu].nvlink_uncounted = true;
      }
  }

  /// NVLinkBandwidth or XGMIBandwidth: a square matrix of MB/s between objects.
  void distances(const xml_element& e) {
    const std::string_view name = e.get("name");
    if (name != "NVLinkBandwidth" && name != "XGMIBandwidth") return;
    struct object {
      std::size_t gpu; // pci_node::none: not one
      bool is_switch;
    };
    std::vector<object> objects;
    std::vector<double> values;
    for (const std::size_t i : e.children) {
      const xml_element& part = doc_.nodes[i];
      std::string_view text = part.text;
      while (!(text = trim(text)).empty()) {
        const std::size_t end = std::min(text.find_first_of(" \t\r\n"), text.size());
        std::string_view word = text.substr(0, end);
        if (part.name == "indexes") {
          // "OSDev:250" where types differ; links to a "Package:3" are not links between GPUs.
          const std::size_t colon = word.rfind(':');
          const auto found = by_index_.find(std::string(word.substr(colon + 1)));
          const bool is_gpu = found != by_index_.end();
          objects.push_back({is_gpu ? found->second : pci_node::none,
                             !is_gpu && (colon == std::string_view::npos ||
                                         word.starts_with("OSDev") || word.starts_with("PCI"))});
        } else if (part.name == "u64values") {
          values.push_back(std::strtod(std::string(word).c_str(), nullptr));
        }
        text.remove_prefix(end);
      }
    }
    if (objects.empty() || values.size() != objects.size() * objects.size())
      refuse(doc_.name, e.at, "distances ", name, ": ", objects.size(), " objects, but ",
             values.size(), " values");
    const std::size_t gpus = m_.gpus.size();
    std::vector<double> between(gpus * gpus), to_switch(gpus);
    for (std::size_t i = 0; i < objects.size(); ++i)
      for (std::size_t j = 0; j < objects.size() && objects[i].gpu != pci_node::none; ++j) {
        const double value = values[i * objects.size() + j];
        if (objects[j].gpu != pci_node::none)
          between[objects[i].gpu * gpus + objects[j].gpu] = value;
        else if (objects[j].is_switch)
          to_switch[objects[i].gpu] += value;
      }
    for (gpu_pair& p : m_.pairs) {
      const double direct = between[p.a * gpus + p.b];
      const double shared = std::min(to_switch[p.a], to_switch[p.b]);
      if (direct <= 0 && shared <= 0) continue;
      if (name == "XGMIBandwidth")
        p.family = m_.gpus[p.a].family = m_.gpus[p.b].family = link_family::xgmi;
      p.nvlink.what = nvlink_count::knowledge::unknown; // a rate, not a number of links
      p.via = direct > 0 ? route::direct : route::by_switch;
      m_.gpus[p.a].nvlink_uncounted = m_.gpus[p.b].nvlink_uncounted = true;
    }
    for (gpu_pair& p : m_.pairs)
      if (p.nvlink.what == nvlink_count::knowledge::not_described) p.nvlink = nvlink_count::of(0);
  }

  const xml_document& doc_;
  machine m_;
  pci_tree tree_;
  std::vector<std::size_t> gpu_nodes_, nic_nodes_, ethernet_nodes_;
  std::map<std::string, std::size_t> by_index_; // hwloc's gp_index -> GPU
  struct xgmi {
    std::size_t gpu;
    std::string names;
  };
  std::map<std::string, xgmi> peers_;                    // "rsmi0" -> what its XGMIPeers say
  std::map<int, std::optional<pci_address>> gpu_memory_; // NUMA nodes that are a GPU's memory
  bool lists_nvlinks_ = false;
};

} // namespace detail

/// The machine that an hwloc file describes. @throws data_error
[[nodiscard]] inline machine read_lstopo(const xml_document& doc) {
  return detail::lstopo_reader(doc).run();
}

} // namespace polyrank::probe
