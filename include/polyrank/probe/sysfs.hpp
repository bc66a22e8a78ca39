// Reads GPUs, NICs, NUMA nodes and the PCI tree from sysfs: no driver is asked, nothing hangs. The
// root can be another folder, so that tests can show any machine.
//
//     machine m = read_sysfs("/sys");
//
// Facts used: the real path of /sys/bus/pci/devices/<address> is the chain of bridges above it;
// current_/max_link_speed and _width; numa_node (-1: not known, usual in virtual machines);
// local_cpulist; iommu_group/type; the ACS control register in the configuration space (readable
// for root only beyond its first 64 bytes).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/pci_tree.hpp>
#include <polyrank/probe/read_nccl_xml.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

namespace detail {

/// The first line of a small file; "" where it cannot be read.
[[nodiscard]] inline std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return std::string(trim(line));
}

/// Names in a folder, sorted; none where there is no folder.
[[nodiscard]] inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> out;
  std::error_code code;
  for (auto i = std::filesystem::directory_iterator(folder, code);
       !code && i != std::filesystem::directory_iterator(); i.increment(code))
    out.push_back(i->path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

/// Whether the ACS extended capability (0x000d) of a bridge redirects requests or completions;
/// false where the configuration space ends too early to tell.
[[nodiscard]] inline bool redirects_p2p(std::string_view config) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(config[i]); };
  std::size_t at = 0x100;
  for (int hops = 0; hops < 64 && at >= 0x100 && at + 8 <= config.size(); ++hops) {
    const unsigned id = byte(at) | static_cast<unsigned>(byte(at + 1)) << 8;
    if (id == 0 || id == 0xffff) return false;
    if (id == 0x000d) return (byte(at + 6) & 0x0c) != 0; // P2P request, completion redirect
    at = static_cast<std::size_t>(byte(at + 3) << 4 | byte(at + 2) >> 4);
  }
  return false;
}

class sysfs_reader {
 public:
  explicit sysfs_reader(std::filesystem::path root) : root_(std::move(root)) { m_.format = "live"; }

  machine run() {
    numa_nodes();
    const auto devices = root_ / "bus/pci/devices";
    for (const std::string& name : names_in(devices)) {
      const auto address = parse_pci_address(name);
      if (address) device(devices / name, *address);
    }
    relate(m_, tree_, gpu_nodes_, nic_nodes_, ethernet_nodes_, source::sysfs);
    if (switches_ > 0)
      m_.notes.push_back(polyrank::detail::cat(switches_, " NVSwitch devices on the PCI bus"));
    return std::move(m_);
  }

 private:
  void numa_nodes() {
    for (const std::string& name : names_in(root_ / "devices/system/node")) {
      const auto id = name.starts_with("node") ? parse_cpu_list(name.substr(4)) : std::nullopt;
      if (!id || id->size() != 1) continue;
      const auto cpus =
          parse_cpu_list(first_line(root_ / "devices/system/node" / name / "cpulist"));
      m_.numa_nodes.push_back({id->front(), cpus.value_or(cpu_list{})});
    }
    std::sort(m_.numa_nodes.begin(), m_.numa_nodes.end(),
              [](const numa_node& a, const numa_node& b) { return a.id < b.id; });
  }

  [[nodiscard]] static std::uint32_t hex_file(const std::filesystem::path& file) {
    std::string text = first_line(file);
    if (text.starts_with("0x")) text.erase(0, 2);
    return hex_number(text, 8).value_or(0);
  }
  [[nodiscard]] static pcie_link link_of(const std::filesystem::path& d, const std::string& which) {
    const auto width = parse_cpu_list(first_line(d / (which + "_link_width")));
    return {generation_of(first_line(d / (which + "_link_speed"))),
            width && width->size() == 1 ? width->front() : 0};
  }

  void device(const std::filesystem::path& link, pci_address address) {
    const std::uint32_t class_id = hex_file(link / "class"), vendor = hex_file(link / "vendor");
    const std::uint32_t base = class_id >> 16;
    const bool is_gpu = (base == 0x03 || base == 0x12) && (vendor == 0x10de || vendor == 0x1002);
    if (class_id >> 8 == 0x0680 && vendor == 0x10de) ++switches_;
    if (!is_gpu && base != 0x02) return;
    std::error_code code;
    const auto real = std::filesystem::canonical(link, code);
    if (code) return;
    const std::string numa_text = first_line(link / "numa_node");
    std::optional<int> node;
    if (const auto n = parse_cpu_list(numa_text); n && n->size() == 1) node = n->front();
    const bool only_one = !node && m_.numa_nodes.size() == 1; // then there is no doubt
    if (only_one) node = m_.numa_nodes[0].id;
    const source numa_from = only_one ? source::inferred : source::sysfs;
    const std::size_t parent = chain(real.parent_path(), node, is_gpu);
    const std::size_t at = tree_.add({pci_node::kind::device, parent, std::nullopt, 0});
    const auto cpus = parse_cpu_list(first_line(link / "local_cpulist"));
    pcie_link now = link_of(link, "current"), most = link_of(link, "max");
    const pcie_link port = link_of(real.parent_path(), "max"); // what the other end can do
    if (port.known())
      most = {std::min(most.generation, port.generation), std::min(most.width, port.width)};

    const auto common = [&](auto& d) {
      d.address = address;
      if (node) d.numa = {*node, numa_from};
      if (cpus && !cpus->empty()) d.cpus = {*cpus, source::sysfs};
      if (now.known()) d.pcie_now = {now, source::sysfs};
    };
    if (is_gpu) {
      gpu g;
      g.name = polyrank::detail::cat("GPU", m_.gpus.size());
      common(g);
      g.vendor = {vendor_name(vendor), source::sysfs};
      if (most.known()) g.pcie_max = {most, source::sysfs};
      if (const std::string type = first_line(link / "iommu_group/type"); !type.empty())
        g.iommu = {type, source::sysfs};
      gpu_nodes_.push_back(at);
      m_.gpus.push_back(std::move(g));
    } else {
      nic n;
      common(n);
      const bool rdma = ports(link, n) || class_id >> 8 == 0x0207;
      n.name = n.ports.empty() ? pci_text(address) : n.ports[0].name;
      auto& list = rdma ? m_.nics : m_.ethernet;
      n.label = polyrank::detail::cat(rdma ? "NIC" : "ETH", list.size());
      (rdma ? nic_nodes_ : ethernet_nodes_).push_back(at);
      list.push_back(std::move(n));
    }
  }

  /// The nodes of the bridges above a device, from the path of their folders.
  std::size_t chain(const std::filesystem::path& folder, std::optional<int> numa, bool gpu_below) {
    const std::string key = folder.string();
    if (const auto known = bridges_.find(key); known != bridges_.end()) {
      if (gpu_below) check_acs(folder);
      return known->second;
    }
    const std::string name = folder.filename().string();
    pci_node node{pci_node::kind::bridge, pci_node::none, std::nullopt, 0};
    if (!parse_pci_address(name)) { // "pci0000:00"
      node.what = pci_node::kind::host_bridge;
      node.numa = numa;
      if (name.starts_with("pci")) m_.host_bridges.push_back(name.substr(3));
    } else {
      node.parent = chain(folder.parent_path(), numa, gpu_below);
      if (gpu_below) check_acs(folder);
    }
    return bridges_[key] = tree_.add(node);
  }
  void check_acs(const std::filesystem::path& bridge) {
    const std::string name = bridge.filename().string();
    if (!parse_pci_address(name) || !looked_at_.insert(name).second) return;
    std::ifstream in(bridge / "config", std::ios::binary);
    std::string config(4096, '\0');
    in.read(config.data(), 4096);
    config.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
    if (redirects_p2p(config)) m_.acs_redirect.push_back(name);
  }

  /// Network and RDMA names of a PCI function; true if it does RDMA.
  bool ports(const std::filesystem::path& d, nic& n) const {
    bool rdma = false;
    for (const std::string& name : names_in(d / "infiniband")) {
      net_port p;
      p.name = name;
      const std::string rate =
          first_line(d / "infiniband" / name / "ports/1/rate"); // "200 Gb/sec (4X HDR)"
      std::int64_t gbit = 0;
      std::from_chars(rate.data(), rate.data() + rate.size(), gbit);
      p.mbit_s = gbit * 1000;
      p.guid = first_line(d / "infiniband" / name / "node_guid");
      n.ports.push_back(std::move(p));
      rdma = true;
    }
    std::vector<std::filesystem::path> folders{d / "net"};
    for (const std::string& name : names_in(d))
      if (name.starts_with("virtio")) folders.push_back(d / name / "net");
    for (const auto& folder : folders)
      for (const std::string& name : names_in(folder)) {
        net_port p;
        p.name = name;
        const std::string speed = first_line(folder / name / "speed");
        std::int64_t mbit = 0;
        std::from_chars(speed.data(), speed.data() + speed.size(), mbit);
        p.mbit_s = std::max<std::int64_t>(mbit, 0);
        n.ports.push_back(std::move(p));
      }
    return rdma;
  }

  std::filesystem::path root_;
  machine m_;
  pci_tree tree_;
  std::map<std::string, std::size_t> bridges_;
  std::set<std::string> looked_at_;
  std::vector<std::size_t> gpu_nodes_, nic_nodes_, ethernet_nodes_;
  int switches_ = 0;
};

} // namespace detail

/// The machine as the kernel under `root` shows it. Never throws for what is missing.
[[nodiscard]] inline machine read_sysfs(const std::filesystem::path& root) {
  return detail::sysfs_reader(root).run();
}

} // namespace polyrank::probe
