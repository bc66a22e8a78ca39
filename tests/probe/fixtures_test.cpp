// Descriptions of real machines, with the facts that a right parser reports. The files are other
// people's and are read where they lie: POLYRANK_FIXTURES, by default ../shared/fixtures beside the
// source tree. Without them the test is skipped.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/probe/read_topology.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

using namespace polyrank::probe;

namespace {

machine fixture(const std::string& name, const std::map<std::string, int>& numa = {}) {
  const char* given = std::getenv("POLYRANK_FIXTURES");
  const std::filesystem::path file =
      std::filesystem::path(given != nullptr ? given : POLYRANK_FIXTURES_DEFAULT) / "topology" /
      name;
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    std::printf("skipped: no fixture %s (set POLYRANK_FIXTURES to the folder of fixtures)\n",
                file.c_str());
    std::fflush(stdout);
    std::_Exit(77);
  }
  std::stringstream text;
  text << in.rdbuf();
  return read_topology(text.str(), name, numa);
}

std::map<path_class, int> classes(const machine& m) {
  std::map<path_class, int> out;
  for (const gpu_pair& p : m.pairs) ++out[p.pci];
  return out;
}
using counts = std::map<path_class, int>;
constexpr auto PIX = path_class::pix, PXB = path_class::pxb, PHB = path_class::phb,
               NODE = path_class::node, SYS = path_class::sys;

bool nvlink_not_described(const machine& m) {
  return std::all_of(m.pairs.begin(), m.pairs.end(),
                     [](const gpu_pair& p) { return nvlink_text(p.nvlink) == "not described"; });
}
std::vector<std::string> addresses(const machine& m) {
  std::vector<std::string> out;
  for (const gpu& g : m.gpus) out.push_back(pci_text(*g.address));
  return out;
}
std::vector<std::int64_t> numa(const machine& m) {
  std::vector<std::int64_t> out;
  for (const gpu& g : m.gpus) out.push_back(g.numa.value_or(-1));
  return out;
}
std::vector<std::string> nearest(const machine& m, std::size_t g) {
  std::vector<std::string> out;
  for (const std::size_t n : nearest_nics(m, g)) out.push_back(m.nics[n].name);
  return out;
}
const nic& by_name(const machine& m, const std::string& name) {
  for (const nic& n : m.nics)
    if (n.name == name) return n;
  for (const nic& n : m.ethernet)
    if (n.name == name) return n;
  FAIL("no NIC " << name);
  std::abort();
}
using texts = std::vector<std::string>;
using nodes = std::vector<std::int64_t>;
using paths = std::vector<path_class>;

} // namespace

TEST_CASE("AWS p4d: devices of one bus differ in device number only, NVLink is not described") {
  const machine m = fixture("aws_p4d.nccl.xml");
  CHECK(addresses(m) == texts{"0000:10:1c.0", "0000:10:1d.0", "0000:20:1c.0", "0000:20:1d.0",
                              "0000:90:1c.0", "0000:90:1d.0", "0000:a0:1c.0", "0000:a0:1d.0"});
  CHECK(numa(m) == nodes{0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(classes(m) == counts{{PIX, 4}, {PHB, 8}, {SYS, 16}});
  for (const std::size_t a : {0, 2, 4, 6}) CHECK(m.pair(a, a + 1).pci == PIX);
  CHECK(nvlink_not_described(m));
  REQUIRE(m.nics.size() == 4);
  CHECK(m.nics[1].to_gpus == paths{PHB, PHB, PIX, PIX, SYS, SYS, SYS, SYS});
  CHECK(*m.gpus[0].pcie_now == pcie_link{3, 16});
}

TEST_CASE("Azure NDv2: every GPU in a PCI domain of its own") {
  const machine m = fixture("azure_ndv2_v100.nccl.xml");
  CHECK(m.gpus.size() == 8);
  CHECK(pci_text(*m.gpus[7].address) == "0008:00:00.0");
  CHECK(numa(m) == nodes{0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(classes(m) == counts{{PHB, 12}, {SYS, 16}});
  CHECK(nvlink_not_described(m));
  REQUIRE(m.nics.size() == 1);
  CHECK(m.nics[0].to_gpus == paths{PHB, PHB, PHB, PHB, SYS, SYS, SYS, SYS});
}

TEST_CASE("Azure NDv4: the order of the file is not the order of addresses") {
  const machine m = fixture("azure_ndv4_a100.nccl.xml");
  CHECK(classes(m) == counts{{PIX, 4}, {SYS, 24}});
  CHECK(addresses(m) == texts{"0003:00:00.0", "0004:00:00.0", "0001:00:00.0", "0002:00:00.0",
                              "000d:00:00.0", "000e:00:00.0", "000b:00:00.0", "000c:00:00.0"});
  CHECK(numa(m) == nodes{0, 0, 1, 1, 2, 2, 3, 3});
  CHECK(m.nics.size() == 8);
  const std::map<std::string, int> node{
      {"0101:00:00.0", 1}, {"0102:00:00.0", 1}, {"0103:00:00.0", 0}, {"0104:00:00.0", 0},
      {"0105:00:00.0", 3}, {"0106:00:00.0", 3}, {"0107:00:00.0", 2}, {"0108:00:00.0", 2}};
  for (const auto& [name, where] : node) CHECK(*by_name(m, name).numa == where);
  for (std::size_t g = 0; g < 8; ++g) CHECK(nearest(m, g).size() == 2);
  for (const nic& n : m.nics) CHECK(std::count(n.to_gpus.begin(), n.to_gpus.end(), SYS) == 6);
}

TEST_CASE("Azure NDv5: each GPU alone with its NIC") {
  const machine m = fixture("azure_ndv5_h100.nccl.xml");
  CHECK(classes(m) == counts{{PHB, 12}, {SYS, 16}});
  CHECK(pci_text(*m.gpus[3].address) == "0008:00:00.0");
  CHECK(numa(m) == nodes{0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(nvlink_not_described(m));
  for (std::size_t g = 0; g < 8; ++g) {
    CHECK(nearest(m, g) == texts{"010" + std::to_string(g + 1) + ":00:00.0"});
    int phb = 0, sys = 0;
    for (const nic& n : m.nics) {
      phb += n.to_gpus[g] == PHB ? 1 : 0;
      sys += n.to_gpus[g] == SYS ? 1 : 0;
    }
    CHECK(phb == 3);
    CHECK(sys == 4);
  }
  CHECK(*m.gpus[0].pcie_now == pcie_link{5, 16});
}

TEST_CASE("Oracle H100: 18 links to four switches, NICs with gaps in their names") {
  const machine m = fixture("oci_h100.nccl.xml");
  CHECK(classes(m) == counts{{PHB, 12}, {SYS, 16}});
  for (std::size_t g = 0; g < 8; ++g) {
    const gpu& x = m.gpus[g];
    CHECK(*x.sm == 90);
    CHECK(*x.dev == static_cast<std::int64_t>(g));
    CHECK(*x.rank == static_cast<std::int64_t>(g));
    CHECK(*x.gpudirect_rdma);
    CHECK(x.links() == nvlink_count::of(18));
    std::multiset<int> per_switch;
    std::set<std::string> switches;
    for (const nvlink_peer& p : x.nvlink_peers) {
      CHECK(p.what == nvlink_peer::kind::nv_switch);
      per_switch.insert(p.links);
      switches.insert(p.address);
    }
    CHECK(per_switch == std::multiset<int>{4, 4, 5, 5});
    CHECK(switches ==
          std::set<std::string>{"0000:1a:00.0", "0000:1b:00.0", "0000:1c:00.0", "0000:1d:00.0"});
    CHECK(*x.pcie_now == pcie_link{5, 16}); // the upper bridge says 5.0 GT/s; that is not the GPU's
    REQUIRE(nearest(m, g).size() == 1);
    const nic& n = m.nics[nearest_nics(m, g)[0]];
    CHECK(n.to_gpus[g] == PXB);
    CHECK(n.to_gpus_nccl[g] == PIX); // NCCL merges the two levels of the switch
  }
  for (const gpu_pair& p : m.pairs) {
    CHECK(link_text(p) == "NV18");
    CHECK(p.via == route::by_switch);
  }
  REQUIRE(m.nics.size() == 8);
  texts names;
  for (const nic& n : m.nics) {
    REQUIRE(n.ports.size() == 2);
    CHECK(n.ports[0].guid == n.ports[1].guid);
    CHECK(n.ports[1].port == 2);
    for (const net_port& p : n.ports) {
      CHECK(p.dev == static_cast<std::int64_t>(names.size()));
      CHECK(p.mbit_s == 180000);
      names.push_back(p.name);
    }
  }
  CHECK(names == texts{"mlx5_0", "mlx5_1", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7",
                       "mlx5_8", "mlx5_9", "mlx5_10", "mlx5_12", "mlx5_13", "mlx5_14", "mlx5_15",
                       "mlx5_16", "mlx5_17"});
}

TEST_CASE("MI300X: a full mesh of xGMI in RCCL's dialect") {
  const machine m = fixture("mi300x_8gpu.rccl.xml");
  CHECK(m.gpus.size() == 8);
  CHECK(m.pairs.size() == 28);
  for (const gpu_pair& p : m.pairs) {
    CHECK(link_text(p) == "XGMI1");
    CHECK(p.via == route::direct);
  }
  for (const gpu& g : m.gpus) {
    CHECK(g.links() == nvlink_count::of(7));
    CHECK(*g.vendor == "AMD");
    CHECK(*g.compute_units == 304);
    CHECK_FALSE(g.sm.known());
  }
  CHECK(numa(m) == nodes{0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(m.nics.size() == 8);
  for (std::size_t g = 0; g < 8; ++g) {
    CHECK(nearest(m, g) == texts{"mlx5_" + std::to_string(g)});
    CHECK(m.nics[g].to_gpus[g] == PXB);
    CHECK(m.nics[g].ports[0].mbit_s == 400000);
  }
}

TEST_CASE("DGX-1: hybrid cube mesh, NIC columns out of order, the older legend") {
  const machine m = fixture("dgx1_v100.topo_m.txt");
  CHECK(m.gpus.size() == 8);
  const std::set<std::pair<int, int>> one{{0, 1}, {0, 2}, {1, 3}, {2, 6},
                                          {3, 7}, {4, 5}, {4, 6}, {5, 7}},
      two{{0, 3}, {0, 4}, {1, 2}, {1, 5}, {2, 3}, {4, 7}, {5, 6}, {6, 7}};
  for (const gpu_pair& p : m.pairs) {
    const std::pair<int, int> ab{static_cast<int>(p.a), static_cast<int>(p.b)};
    const std::string want = one.contains(ab) ? "NV1" : two.contains(ab) ? "NV2" : "SYS";
    CHECK(link_text(p) == want);
    if (want != "SYS") CHECK(p.via == route::direct);
    CHECK(nvlink_text(p.nvlink) == (want == "SYS" ? "none" : want.substr(2)));
  }
  for (std::size_t g = 0; g < 8; ++g) {
    CHECK(m.gpus[g].links() == nvlink_count::of(6));
    CHECK(cpu_text(*m.gpus[g].cpus) == (g < 4 ? "0-19,40-59" : "20-39,60-79"));
    CHECK_FALSE(m.gpus[g].numa.known());
  }
  REQUIRE(m.nics.size() == 4);
  CHECK(m.nics[1].name == "mlx5_2");
  CHECK(by_name(m, "mlx5_0").to_gpus == paths{PIX, PIX, PHB, PHB, SYS, SYS, SYS, SYS});
  CHECK(by_name(m, "mlx5_1").to_gpus == paths{PHB, PHB, PIX, PIX, SYS, SYS, SYS, SYS});
  CHECK(by_name(m, "mlx5_2").to_gpus == paths{SYS, SYS, SYS, SYS, PIX, PIX, PHB, PHB});
  CHECK(by_name(m, "mlx5_3").to_gpus == paths{SYS, SYS, SYS, SYS, PHB, PHB, PIX, PIX});
  CHECK(by_name(m, "mlx5_0").to_nics == paths{PIX, SYS, PHB, SYS}); // itself, _2, _1, _3
  CHECK(by_name(m, "mlx5_2").to_nics == paths{SYS, PIX, SYS, PHB});
}

TEST_CASE("H200 with ten NICs: NV18 is the GPU's total to the switch") {
  const machine m = fixture("h200_8gpu_10nic.topo_m.txt");
  CHECK(m.pairs.size() == 28);
  for (const gpu_pair& p : m.pairs) {
    CHECK(link_text(p) == "NV18");
    CHECK(p.via == route::by_switch);
  }
  for (std::size_t g = 0; g < 8; ++g) {
    CHECK(m.gpus[g].links() == nvlink_count::of(18));
    CHECK(*m.gpus[g].numa == (g < 4 ? 0 : 1));
    CHECK(cpu_text(*m.gpus[g].cpus) == (g < 4 ? "0-63,128-191" : "64-127,192-255"));
    CHECK_FALSE(m.gpus[g].gpu_numa.known());
  }
  const std::vector<texts> want{{"mlx5_3"}, {"mlx5_5"}, {"mlx5_4"}, {"mlx5_0", "mlx5_1", "mlx5_2"},
                                {"mlx5_7"}, {"mlx5_9"}, {"mlx5_8"}, {"mlx5_6"}};
  for (std::size_t g = 0; g < 8; ++g) CHECK(nearest(m, g) == want[g]);
  for (const nic& n : m.nics)
    for (std::size_t g = 0; g < 8; ++g)
      if (n.to_gpus[g] != PIX) {
        const bool first_socket = by_name(m, n.name).to_gpus[0] != SYS;
        CHECK(n.to_gpus[g] == (first_socket == (g < 4) ? NODE : SYS));
      }
  CHECK(m.nics[0].to_nics[1] == PIX);
  CHECK(m.nics[1].to_nics[2] == PIX);
  CHECK(m.nics[0].label == "NIC0");
}

TEST_CASE("One machine seen by nvidia-smi and by lspci: four RTX 6000 Ada on two sockets") {
  const machine smi = fixture("rtx6000ada_4gpu_2socket.topo_m.txt");
  CHECK(smi.pair(0, 1).pci == NODE);
  CHECK(smi.pair(2, 3).pci == NODE);
  CHECK(classes(smi) == counts{{NODE, 2}, {SYS, 4}});
  for (const gpu_pair& p : smi.pairs) CHECK(nvlink_text(p.nvlink) == "none");
  CHECK(numa(smi) == nodes{0, 0, 1, 1});
  CHECK(cpu_text(*smi.gpus[0].cpus) == "0-31");
  CHECK(cpu_text(*smi.gpus[3].cpus) == "32-63");
  CHECK(smi.nics[0].to_gpus == paths{NODE, NODE, SYS, SYS});
  CHECK(smi.nics[3].to_gpus == paths{SYS, SYS, NODE, NODE});
  CHECK(smi.nics[0].to_nics == paths{PIX, PIX, SYS, SYS});
  CHECK(smi.nics[2].to_nics == paths{SYS, SYS, PIX, PIX});

  const machine alone = fixture("rtx6000ada_4gpu_2socket.lspci_tv.txt");
  CHECK(alone.host_bridges == texts{"0000:00", "0000:20", "0000:40", "0000:60", "0000:80",
                                    "0000:a0", "0000:c0", "0000:e0"});
  CHECK(addresses(alone) == texts{"0000:01:00.0", "0000:41:00.0", "0000:c1:00.0", "0000:e1:00.0"});
  for (const gpu_pair& p : alone.pairs) {
    CHECK(p.pci == path_class::unknown);
    CHECK(p.node_or_sys);
    CHECK(nvlink_text(p.nvlink) == "not described");
  }
  texts nics;
  for (const nic& n : alone.nics) nics.push_back(n.name);
  CHECK(nics == texts{"0000:21:00.0", "0000:21:00.1", "0000:81:00.0", "0000:81:00.1"});
  CHECK(alone.nics[0].to_nics[1] == PIX);

  const machine tree = fixture("rtx6000ada_4gpu_2socket.lspci_tv.txt", {{"0000:00", 0},
                                                                        {"0000:20", 0},
                                                                        {"0000:40", 0},
                                                                        {"0000:80", 1},
                                                                        {"0000:c0", 1},
                                                                        {"0000:e0", 1}});
  for (std::size_t i = 0; i < smi.pairs.size(); ++i) CHECK(tree.pairs[i].pci == smi.pairs[i].pci);
  for (std::size_t i = 0; i < smi.nics.size(); ++i) {
    CHECK(tree.nics[i].to_gpus == smi.nics[i].to_gpus);
    CHECK(tree.nics[i].to_nics == smi.nics[i].to_nics);
  }
}

TEST_CASE("One machine seen by nvidia-smi and by lspci: two RTX 6000 Ada on one socket") {
  const machine smi = fixture("rtx6000ada_2gpu_1socket.topo_m.txt");
  CHECK(smi.pair(0, 1).pci == PHB);
  CHECK(smi.nics[0].to_gpus == paths{NODE, NODE});
  CHECK(smi.nics[1].to_nics[0] == PIX);
  CHECK(cpu_text(*smi.gpus[1].cpus) == "0-23");
  CHECK(numa(smi) == nodes{0, 0});

  const machine alone = fixture("rtx6000ada_2gpu_1socket.lspci_tv.txt");
  CHECK(alone.host_bridges == texts{"0000:00", "0000:20", "0000:c0", "0000:e0"});
  CHECK(addresses(alone) == texts{"0000:c1:00.0", "0000:c2:00.0"}); // no ASPEED
  CHECK(alone.pair(0, 1).pci == PHB);
  const machine tree = fixture("rtx6000ada_2gpu_1socket.lspci_tv.txt",
                               {{"0000:00", 0}, {"0000:20", 0}, {"0000:c0", 0}, {"0000:e0", 0}});
  REQUIRE(tree.nics.size() == smi.nics.size());
  for (std::size_t i = 0; i < smi.nics.size(); ++i)
    CHECK(tree.nics[i].to_gpus == smi.nics[i].to_gpus);
}

TEST_CASE("P2P matrix: a capability, not a link class") {
  const machine m = fixture("four_gpu_pairs.p2p_r.txt");
  CHECK(m.gpus.size() == 4);
  for (const gpu_pair& p : m.pairs) {
    const bool joined = (p.a == 0 && p.b == 1) || (p.a == 2 && p.b == 3);
    CHECK(*p.p2p_read == (joined ? "OK" : "NS"));
    CHECK(p.pci == path_class::unknown);
    CHECK(nvlink_text(p.nvlink) == "not described");
    CHECK_FALSE(p.p2p_write.known());
  }
}

TEST_CASE("hwloc: two P100 and a NIC under one switch, nothing on the other node") {
  const machine m = fixture("p100_2gpu_1nic.lstopo.xml");
  CHECK(addresses(m) == texts{"0000:04:00.0", "0000:07:00.0"});
  CHECK(m.pair(0, 1).pci == PIX);
  CHECK(nvlink_not_described(m));
  REQUIRE(m.nics.size() == 1);
  CHECK(m.nics[0].name == "mlx5_0");
  CHECK(pci_text(*m.nics[0].address) == "0000:08:00.0");
  CHECK(m.nics[0].ports[1].name == "hsi0");
  CHECK(m.nics[0].to_gpus == paths{PIX, PIX});
  CHECK(numa(m) == nodes{0, 0});
  CHECK(*m.nics[0].numa == 0);
  REQUIRE(m.numa_nodes.size() == 2);
  CHECK(cpu_text(m.numa_nodes[0].cpus) == "0-17,36-53");
  CHECK(cpu_text(m.numa_nodes[1].cpus) == "18-35,54-71");
  REQUIRE(m.ethernet.size() == 2);
  CHECK(by_name(m, "enp12s0f1").to_gpus == paths{PHB, PHB});
  CHECK(*m.ethernet[0].numa == 0);
  CHECK(*m.gpus[0].pcie_gb_per_s == Approx(15.75).epsilon(0.001));
  CHECK_FALSE(m.gpus[0].pcie_now.known()); // gen3 x16 and gen4 x8 have this rate
  CHECK(m.gpus[0].model == "Tesla P100-PCIE-16GB");
}
