// The formats, in the ways in which they reach us: damaged by terminals, tickets and editors. All
// texts here are synthetic.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/probe/diff.hpp>
#include <polyrank/probe/judge_machine.hpp>
#include <polyrank/probe/read_topology.hpp>
#include <polyrank/probe/svg.hpp>
#include <polyrank/probe/table.hpp>

using namespace polyrank::probe;

namespace {

std::string refusal(std::string_view text) {
  try {
    static_cast<void>(read_topology(text, "f"));
  } catch (const polyrank::data_error& e) {
    return e.what();
  }
  return "accepted";
}
bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

const std::string tabs = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
                         "GPU0\t X \tNV12\tPXB\t0-7\t0\t\tN/A\n"
                         "GPU1\tNV12\t X \tSYS\t8-15\t1\t\tN/A\n"
                         "NIC0\tPXB\tSYS\t X \t\t\t\t\n\nNIC Legend:\n\n  NIC0: mlx5_bond_0\n";

void is_the_machine(const machine& m) {
  REQUIRE(m.gpus.size() == 2);
  REQUIRE(m.nics.size() == 1);
  CHECK(link_text(m.pair(0, 1)) == "NV12");
  CHECK(m.nics[0].to_gpus == std::vector{path_class::pxb, path_class::sys});
  CHECK(cpu_text(m.gpus[0].cpus.value_or({})) == "0-7");
  CHECK(cpu_text(m.gpus[1].cpus.value_or({})) == "8-15");
  CHECK(m.gpus[0].numa.value_or(-1) == 0);
  CHECK(m.gpus[1].numa.value_or(-1) == 1);
  CHECK_FALSE(m.gpus[0].gpu_numa.known());
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (std::size_t i = 0; (i = text.find(what, i)) != std::string::npos; i += by.size())
    text.replace(i, what.size(), by);
  return text;
}

} // namespace

TEST_CASE("PCI addresses in every spelling are one key") {
  CHECK(pci_text(*parse_pci_address("00000000:3B:00.0")) == "0000:3b:00.0");
  CHECK(parse_pci_address("3b:00.0") == parse_pci_address("0000:3B:00.0"));
  CHECK(pci_text(*parse_pci_address("10000:01:1f.7")) == "10000:01:1f.7");
  for (const char* bad :
       {"", ":", "0000:3b:20.0", "0000:3b:00.8", "0000:3b", "x:00.0", "0000:123:00.0", "0:0:0:0.0"})
    CHECK_FALSE(parse_pci_address(bad).has_value());
}

TEST_CASE("CPU lists and masks") {
  CHECK(cpu_text(*parse_cpu_list("8,0-3,2")) == "0-3,8");
  CHECK(parse_cpu_list("")->empty());
  for (const char* bad : {"1-", "-1", "3-1", "1,,2", "1,", "a", "99999"})
    CHECK_FALSE(parse_cpu_list(bad));
  CHECK(cpu_text(*parse_cpu_mask("00000000,000fffff")) == "0-19");
  CHECK(cpu_text(*parse_cpu_mask("0x00000001,,0x10000000")) == "28,64");
  CHECK_FALSE(parse_cpu_mask("0xf...f"));
  CHECK_FALSE(parse_cpu_mask(""));
}

TEST_CASE("topo -m: tabs, blanks, ANSI codes, Markdown, quotations, line ends: all one machine") {
  is_the_machine(read_topology(tabs, "f"));
  SECTION("ANSI codes") {
    is_the_machine(read_topology(
        replaced(tabs, "\tGPU0\tGPU1\tNIC0\tCPU", "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU"), "f"));
    is_the_machine(read_topology(
        replaced(replaced(tabs, "\tGPU0\tGPU1", "\t[4mGPU0\tGPU1"), "NUMA ID", "NUMA ID[0m"), "f"));
  }
  SECTION("line ends, byte order mark, prompt, non-breaking blanks") {
    is_the_machine(
        read_topology("\xef\xbb\xbf$ nvidia-smi topo -m\r\n" + replaced(tabs, "\n", "\r\n"), "f"));
    is_the_machine(read_topology(replaced(tabs, "\t", " \xc2\xa0"), "f"));
  }
  SECTION("doubled line ends") { is_the_machine(read_topology(replaced(tabs, "\n", "\n\n"), "f")); }
  SECTION("code fence and quotation") {
    is_the_machine(read_topology("```\n" + tabs + "```\n", "f"));
    is_the_machine(read_topology("> " + replaced(tabs, "\n", "\n> "), "f"));
  }
  SECTION("blanks for tabs, also one only") {
    is_the_machine(read_topology(
        "        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      NV12    PXB     0-7     0               N/A\n"
        "GPU1    NV12     X      SYS     8-15    1               N/A\n"
        "NIC0    PXB     SYS      X\n",
        "f"));
    is_the_machine(read_topology(
        "GPU0 GPU1 NIC0 CPU Affinity NUMA Affinity GPU NUMA ID\nGPU0 X NV12 PXB 0-7 0 N/A\n"
        "GPU1 NV12 X SYS 8-15 1 N/A\nNIC0 PXB SYS X\n",
        "f"));
  }
  SECTION("Markdown table") {
    is_the_machine(
        read_topology("|      | GPU0 | GPU1 | NIC0 | CPU Affinity | NUMA Affinity | GPU NUMA ID |\n"
                      "|------|:----:|------|------|--------------|---------------|-------------|\n"
                      "| **GPU0** | X | NV12 | PXB | 0-7 | 0 | N/A |\n| `GPU1` | NV12 | X | SYS | "
                      "8-15 | 1 | N/A |\n"
                      "| NIC0 | PXB | SYS | X | | | |\n",
                      "f"));
  }
  SECTION("cells that touch") {
    is_the_machine(
        read_topology("GPU0GPU1NIC0CPU AffinityNUMA AffinityGPU NUMA ID\nGPU0XNV12PXB 0-7 0 N/A\n"
                      "GPU1 NV12X SYS 8-15 1 N/A\nNIC0 PXBSYSX\n",
                      "f"));
  }
  SECTION("rows broken over lines, between cells and inside of one") {
    is_the_machine(read_topology(
        "GPU0 GPU1 NIC0 CPU Affinity NUMA\nAffinity GPU NUMA ID\nGPU0 X NV1\n2 PXB 0-7 0 N/A\n"
        "GPU1 NV12 X SYS 8-\n15 1 N/A\nNIC0 PXB\nSYS X\n",
        "f"));
  }
  SECTION("tabs doubled by hand") {
    is_the_machine(read_topology(replaced(tabs, "\tNV12", "\t\tNV12"), "f"));
  }
  SECTION("HTML") {
    is_the_machine(read_topology("<pre class=\"x\"><b>" + tabs + "</pre>\n", "f"));
    is_the_machine(read_topology(
        "<table><tr><th></th><th>GPU0</th><th>GPU1</th><th>NIC0</th><th>CPU Affinity</th>"
        "<th>NUMA Affinity</th></tr>\n<tr><td>GPU0</td><td>X</td><td>NV12</td><td>PXB</td><td>0-7"
        "</td><td>0</td></tr>\n<tr><td>GPU1</td><td>NV12</td><td>X</td><td>SYS</td><td>8-15</td>"
        "<td>1</td></tr>\n</table>\n",
        "f"));
  }
  SECTION("prose about GPUs before the table, a remark right after its last row") {
    is_the_machine(read_topology("GPU1 and GPU0 hang.\nGPU 0: a card\nGPU0 is slow:\n" +
                                     tabs.substr(0, tabs.find("NIC0\tPXB")) + "(the rest cut)\n",
                                 "f"));
  }
  SECTION("NIC rows left out") {
    is_the_machine(read_topology(tabs.substr(0, tabs.find("NIC0\tPXB")), "f"));
  }
}

TEST_CASE("topo -m: older drivers and other machines") {
  SECTION("SOC was SYS, NICs stood in the header, no NUMA column") {
    const machine m =
        read_topology("\tGPU0\tGPU1\tmlx4_0\tCPU Affinity\nGPU0\t X \tSOC\tPHB\t0-7\n"
                      "GPU1\tSOC\t X \tSOC\t8-15\nmlx4_0\tPHB\tSOC\t X \t\n\nLegend:\n",
                      "f");
    CHECK(m.pair(0, 1).pci == path_class::sys);
    CHECK(m.nics[0].name == "mlx4_0");
  }
  SECTION("a virtual machine without affinity: N/A and empty cells") {
    const machine m = read_topology(
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tPHB\t\tN/A\t\tN/A\n"
        "GPU1\tPHB\t X \t\tN/A\t\tN/A\n",
        "f");
    CHECK(m.pair(0, 1).pci == path_class::phb);
    CHECK_FALSE(m.gpus[0].cpus.known());
    const machine numa = read_topology(
        "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t\t1\t\tN/A\n", "f");
    CHECK(*numa.gpus[0].numa == 1);
    CHECK_FALSE(numa.gpus[0].cpus.known());
  }
  SECTION("cells that say nothing need no column of their own") {
    const machine m = read_topology("        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU "
                                    "NUMA ID\nGPU0     X      PHB     N/A     N/A\n"
                                    "GPU1    PHB      X      0-7     N/A\n",
                                    "f");
    CHECK_FALSE(m.gpus[0].cpus.known());
    CHECK(cpu_text(*m.gpus[1].cpus) == "0-7");
  }
  SECTION("a second table is named, not mixed in") {
    const machine m = read_topology(tabs + "\n\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n", "f");
    CHECK(m.gpus.size() == 2);
    CHECK(m.notes.size() == 1);
  }
  SECTION("one GPU") {
    const machine m =
        read_topology("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0\n", "f");
    CHECK(m.gpus.size() == 1);
    CHECK(m.pairs.empty());
    CHECK(nvlink_text(m.gpus[0].links()) == "not described"); // only pairs show NVLinks
  }
  SECTION("two GPUs with many links could be bridged or switched: not claimed") {
    const machine m = read_topology("\tGPU0\tGPU1\nGPU0\t X \tNV12\nGPU1\tNV12\t X \n", "f");
    CHECK(m.pair(0, 1).via == route::unknown);
    const machine bridge = read_topology("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n", "f");
    CHECK(bridge.pair(0, 1).via == route::direct);
  }
  SECTION("links down on one GPU of a switch: the smaller number, and a note") {
    const machine m = read_topology(
        "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV18\tNV18\nGPU1\tNV17\t X \tNV17\nGPU2\tNV18\tNV18\t X \n",
        "f");
    CHECK(m.pair(0, 1).nvlink.links == 17);
    CHECK(m.pair(0, 2).nvlink.links == 18);
    CHECK(m.notes.size() == 2);
  }
}

TEST_CASE("topo -m: what cannot be told is refused with line and column, never shifted") {
  // A cell lost in the middle, at the end, on the diagonal; a word that is none; a row lost.
  CHECK(contains(refusal(replaced(tabs, "GPU1\tNV12\t X \tSYS", "GPU1\t X \tSYS")), "f:3:7"));
  CHECK(contains(refusal("GPU0 GPU1 NIC0 CPU Affinity\nGPU0 X NV12 0-7\nGPU1 NV12 X SYS 0-7\n"),
                 "f:2:13: row GPU0, column NIC0"));
  CHECK(contains(refusal(replaced(tabs, "NV12", "NVX")), "f:2:10"));
  CHECK(contains(refusal(tabs.substr(0, tabs.find("GPU1\tNV12"))), "row of GPU1 is missing"));
  CHECK(contains(refusal(replaced(tabs, "GPU0\t X \tNV12", "GPU0\t X \t")), "f:2:15: row GPU0"));
  CHECK(contains(refusal("| | GPU0 | GPU1 |\n| GPU0 | X | | PIX |\n"), "empty cell"));
  // Two values for three columns, without tabs.
  CHECK(contains(refusal("GPU0 CPU Affinity NUMA Affinity GPU NUMA ID\nGPU0 X 0 N/A\n"),
                 "which is missing cannot be told"));
  // A number that touches: NV1 and 20-19? NV12 and 0-19?
  CHECK(contains(refusal("GPU0 GPU1 CPU Affinity\nGPU0 X NV120-19\nGPU1 NV12 X 0-19\n"), "f:2"));
  CHECK(contains(refusal("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tSYS\t X \n"), "the other way"));
  CHECK(contains(refusal("\tGPU0\tGPU1\nGPU0\t X \tOK\nGPU1\tPIX\t X \n"), "belongs to"));
  CHECK(contains(refusal("\tGPU0\tGPU0\nGPU0\t X \tPIX\n"), "twice"));
  CHECK(contains(refusal(replaced(tabs, "0-7", "0-x")), "no list of numbers"));
  CHECK(contains(refusal("hello\n"), "none of the known formats"));
  CHECK(contains(refusal(""), "empty"));
}

TEST_CASE("topo -p2p: which capability, and the worse of both directions") {
  const machine m =
      read_topology("$ nvidia-smi topo -p2p w\n \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tGNS\tX\n", "f");
  CHECK(*m.pair(0, 1).p2p_write == "GNS");
  CHECK_FALSE(m.pair(0, 1).p2p_read.known());
}

TEST_CASE("NCCL XML: NVLink described, described as none, and not described are three things") {
  const auto file = [](const char* first, const char* second) {
    return std::string("<?xml version=\"1.0\"?><!-- a --><system version='1'><cpu numaid=\"-1\" "
                       "affinity=\"3\">") +
           "<pci busid=\"0000:01:00.0\" class=\"0x030200\" link_speed=\"16 GT/s\" "
           "link_width=\"16\">" +
           first + "</pci><pci busid=\"0000:02:00.0\" class=\"0x030000\">" + second +
           "</pci></cpu></system>";
  };
  CHECK(nvlink_text(read_topology(file("", ""), "f").pair(0, 1).nvlink) == "not described");
  CHECK(nvlink_text(read_topology(file("<gpu/>", "<gpu/>"), "f").pair(0, 1).nvlink) == "none");
  CHECK(nvlink_text(read_topology(file("<gpu/>", ""), "f").pair(0, 1).nvlink) == "not described");
  const machine direct =
      read_topology(file("<gpu><nvlink target='0000:02:00.0' count='2' tclass='0x030000'/></gpu>",
                         "<gpu><nvlink target='0000:01:00.0' count='2' tclass='0x030000'/></gpu>"),
                    "f");
  CHECK(link_text(direct.pair(0, 1)) == "NV2");
  CHECK(direct.pair(0, 1).via == route::direct);
  CHECK_FALSE(direct.gpus[0].numa.known());
  // In a virtual machine the far end is hidden; NCCL takes it for a switch.
  const machine hidden = read_topology(
      file("<gpu><nvlink target='fffffff:ffff:ff' count='12' tclass='0x068000'/></gpu>",
           "<gpu><nvlink target='fffffff:ffff:ff' count='12' tclass='0x068000'/></gpu>"),
      "f");
  CHECK(hidden.pair(0, 1).via == route::by_switch);
  CHECK(hidden.gpus[0].nvlink_peers[0].what == nvlink_peer::kind::assumed_switch);
  // Below a prompt, in a code fence.
  const std::string pasted = "$ cat topo.xml\n```\n" + file("", "").substr(31) + "\n```\n$ exit\n";
  CHECK(read_topology(pasted, "f").gpus.size() == 2);
  CHECK(contains(refusal(replaced(pasted, "0000:02", "0000:01")), "f:3:"));
  // Links to a CPU are no links between GPUs.
  const machine power = read_topology(
      file("<gpu><nvlink target='0004:00:00.0' count='3' tclass='0x068001'/></gpu>", "<gpu/>"),
      "f");
  CHECK(nvlink_text(power.pair(0, 1).nvlink) == "none");
}

TEST_CASE("NCCL XML: bridges may share a made-up address, devices not; sockets do no RDMA") {
  const auto file = [](std::string_view gpu, std::string_view inside) {
    return polyrank::detail::cat(
        "<system><cpu numaid=\"0x1\"><pci busid=\"c5:00.0\" class=\"0x060400\"><pci "
        "busid=\"01:00.0\" class=\"0x030200\"/></pci><pci busid=\"c5:00.0\" "
        "class=\"0x060400\"><pci busid=\"",
        gpu, "\" class=\"0x030200\"/></pci><nic><net name=\"eth0\" port=\"0\"/></nic>", inside,
        "</cpu></system>");
  };
  const machine m = read_topology(file("02:00.0", ""), "f");
  CHECK(m.pair(0, 1).pci == path_class::phb);
  CHECK(*m.gpus[0].numa == 1);
  CHECK_FALSE(m.nics.at(0).rdma);
  CHECK(contains(refusal(file("01:00.0", "")), "appears twice"));
  CHECK(contains(refusal(file("02:00.0", "<gpu dev=\"0\"/>")), "outside of a <pci>"));
  CHECK(contains(refusal(file("02:00.0", "<pci busid=\"03:00.0\" class=\"0x060400\"><gpu/></pci>")),
                 "is no GPU's"));
}

TEST_CASE("NCCL XML: several hosts in one file, told apart by host_hash") {
  const auto cpu = [](const char* hash, const char* address) {
    return polyrank::detail::cat("<cpu ", hash, " numaid=\"0\"><pci busid=\"", address,
                                 "\" class=\"0x030200\"><gpu/></pci></cpu>");
  };
  // The same address on both: each host has its own.
  const std::string two =
      polyrank::detail::cat("<system>", cpu("host_hash=\"0xa\"", "0008:06:00.0"),
                            cpu("host_hash=\"0xb\"", "0008:06:00.0"),
                            cpu("host_hash=\"0xb\"", "0009:06:00.0"), "</system>");
  const std::vector<machine> all = read_machines(two, "f");
  REQUIRE(all.size() == 2);
  CHECK(all[0].gpus.size() == 1);
  CHECK(all[1].host == "0xb");
  CHECK(all[1].pair(0, 1).pci == path_class::sys);
  CHECK(contains(refusal(two), "2 hosts"));
  CHECK(contains(refusal(replaced(two, "<system>", "<system>" + cpu("", "01:00.0"))),
                 "without host_hash"));
}

TEST_CASE("XML: entities, size, depth and broken files are refused with their place") {
  CHECK(contains(refusal("<!DOCTYPE a [<!ENTITY x \"y\">]><a/>"), "DOCTYPE declares"));
  CHECK(contains(refusal("<system a=\"&x;\"/>"), "not expanded"));
  CHECK(contains(refusal("<system>\n  <cpu>\n</system>"), "f:3:1: </system> ends <cpu> of line 2"));
  CHECK(contains(refusal("<system><cpu numaid=\"0\">"), "cut off"));
  CHECK(contains(refusal("<system><cpu numaid=\"zero\"/></system>"), "not an integer"));
  CHECK(contains(refusal("<system><cpu><pci busid=\"1\" class=\"0x03\"/></cpu></system>"),
                 "no PCI address"));
  CHECK(contains(refusal("<graphs/>"), "NCCL_TOPO_DUMP_FILE"));
  std::string deep = "<system>";
  for (int i = 0; i < 300; ++i) deep += "<a>";
  CHECK(contains(refusal(deep), "deep"));
  CHECK(parse_xml("<a b='&lt;&#65;&amp;'>x<![CDATA[<]]></a>", "f").nodes[0].get("b") == "<A&");
}

TEST_CASE("lspci: one root, nested switches, a column that no line above has") {
  const machine m =
      read_topology("-[0000:00]-+-00.0  Intel Corporation Host Bridge\n"
                    "           +-01.0-[01-04]----00.0-[02-04]--+-00.0-[03]----00.0  NVIDIA "
                    "Corporation GA100 [A100]\n"
                    "           |                               \\-01.0-[04]--+-00.0  NVIDIA "
                    "Corporation GA100 [A100]\n"
                    "           |                                            \\-00.1  NVIDIA "
                    "Corporation Audio Controller\n"
                    "           \\-02.0-[05]----00.0  NVIDIA Corporation GA100 [A100]\n",
                    "f");
  REQUIRE(m.gpus.size() == 3);
  CHECK(m.pair(0, 1).pci == path_class::pix);
  CHECK(m.pair(0, 2).pci == path_class::phb);
  CHECK(pci_text(*m.gpus[1].address) == "0000:04:00.0");
  CHECK(contains(refusal("-[0000:00]-+-00.0  a\n         \\-01.0  b\n"), "f:2:10"));
  CHECK(contains(refusal("-[0000:00]-+-zz.0  a\n"), "f:1:14"));
}

TEST_CASE("lspci: in tickets, indented, quoted, with address ranges; cut off or without names") {
  const std::string tree =
      "-+-[0000:00]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 14d8\n"
      " |           +-01.1-[01]--+-00.0  NVIDIA Corporation AD102 [GeForce RTX 4090]\n"
      " |           |            \\-00.1  NVIDIA Corporation AD102 High Definition Audio\n"
      " |           \\-08.1-[0d]--+-00.0  Advanced Micro Devices, Inc. [AMD/ATI] Raphael\n"
      " |                        \\-00.2  Advanced Micro Devices, Inc. [AMD] VanGogh PSP/CCP\n"
      " \\-[0000:40]-+-01.0-[41]----00.0  NVIDIA Corporation AD102 [GeForce RTX 4090]\n"
      "             \\-03.0-[42]----00.0  Advanced Micro Devices, Inc. [AMD/ATI] ES1000\n";
  const auto right = [](const std::string& text) {
    const machine m = read_topology(text, "f");
    REQUIRE(m.gpus.size() == 2); // neither the processor's display nor the board's
    CHECK(pci_text(*m.gpus[1].address) == "0000:41:00.0");
    return m;
  };
  right("$ lspci -tv\n" + tree + "user@host:~$ lspci -nn\n00:00.0 Host bridge\n");
  right("```\n    " + replaced(tree, "\n", "\n    ") + "```\n");
  right("> " + replaced(tree, "\n", "\n> "));
  right(replaced(replaced(tree, "\n |", "\n|"), "\n \\-[", "\n\\-[")); // an eaten blank
  right(replaced(tree, "4090]\n", "4090]\n |           |  |   Memory at de000000 (32-bit)\n"));
  CHECK(right(tree + tree).notes.at(0) == "line 8: another tree, which is not read");
  CHECK(right("<pre>" + tree + "</pre>").pair(0, 1).node_or_sys);
  CHECK(contains(refusal(tree.substr(0, tree.find(" \\-["))), "cut off"));
  CHECK(contains(refusal(replaced(tree, "|           +-01", "garbage     +-01")), "f:2:2"));
  CHECK(contains(refusal("-[0000:00]-+-00.0\n           \\-01.0-[01]----00.0\n"), "lspci -tv"));
  const machine told = read_topology(tree, "f", {{"0000:00", 0}, {"0000:40", 1}});
  CHECK(told.pair(0, 1).pci == path_class::sys);
  CHECK(told.gpus[1].numa.value_or(-1) == 1);
  // The table of a ticket comes first, and says what else is there.
  CHECK(read_topology(tabs + tree, "f").notes.at(0) ==
        "line 9: a tree of lspci, which is not read");
}

TEST_CASE("hwloc: NVLink rates between GPUs and through a switch") {
  const auto file = [](const char* distances) {
    return std::string("<!DOCTYPE topology SYSTEM \"hwloc2.dtd\"><topology version=\"2.0\"><object "
                       "type=\"Machine\" "
                       "cpuset=\"0xf\" nodeset=\"0x1\"><info name=\"hwlocVersion\" "
                       "value=\"2.9.0\"/><object type=\"Bridge\" "
                       "bridge_type=\"0-1\" bridge_pci=\"0000:[00-02]\">") +
           "<object type=\"PCIDev\" gp_index=\"10\" pci_busid=\"0000:01:00.0\" pci_type=\"0302 "
           "[10de:20b0] [0000:0000] a1\">"
           "<object type=\"OSDev\" gp_index=\"11\" name=\"nvml0\" osdev_type=\"1\"/></object>"
           "<object type=\"PCIDev\" gp_index=\"12\" pci_busid=\"0000:02:00.0\" pci_type=\"0302 "
           "[10de:20b0] [0000:0000] a1\">"
           "<object type=\"OSDev\" gp_index=\"13\" name=\"nvml1\" "
           "osdev_type=\"1\"/></object></object></object>" +
           distances + "</topology>";
  };
  CHECK(nvlink_text(read_topology(file(""), "f").pair(0, 1).nvlink) == "none");
  CHECK(read_topology(file(""), "f").pair(0, 1).pci == path_class::phb);
  const machine m = read_topology(
      file("<distances2 type=\"OSDev\" nbobjs=\"2\" name=\"NVLinkBandwidth\" indexing=\"gp\">"
           "<indexes length=\"5\">11 13 </indexes><u64values length=\"9\">1000000 50000 50000 "
           "1000000 </u64values></distances2>"),
      "f");
  CHECK(nvlink_text(m.pair(0, 1).nvlink) == "unknown"); // linked, but the number is not said
  CHECK(nvlink_text(m.gpus[0].links()) == "unknown");
  CHECK(link_text(m.pair(0, 1)) == "NV?");
  CHECK(m.pair(0, 1).via == route::direct);
  // Through a switch; and to the CPU, which joins no GPUs.
  const auto through = [&](const char* what) {
    const std::string text = polyrank::detail::cat(
        "<distances2hetero nbobjs=\"3\" name=\"NVLinkBandwidth\"><indexes>OSDev:11 OSDev:13 ", what,
        ":20</indexes><u64values>9 0 5 0 9 5 5 5 9</u64values></distances2hetero>");
    return read_topology(file(text.c_str()), "f");
  };
  CHECK(through("PCIDev").pair(0, 1).via == route::by_switch);
  CHECK(link_text(through("Package").pair(0, 1)) == "PHB");
  // AMD's: who is linked, and no more.
  const auto peers = [&](const char* of_first) {
    return read_topology(
        replaced(replaced(file(""), "name=\"nvml0\" osdev_type=\"1\"/>",
                          polyrank::detail::cat("name=\"rsmi0\"><info name=\"XGMIPeers\" value=\"",
                                                of_first, " \"/></object>")),
                 "name=\"nvml1\" osdev_type=\"1\"/>",
                 "name=\"rsmi1\"><info name=\"XGMIPeers\" value=\"rsmi0 \"/></object>"),
        "f");
  };
  CHECK(link_text(peers("rsmi2 rsmi1").pair(0, 1)) == "XGMI?");
  CHECK(link_text(peers("rsmi11").pair(0, 1)) == "PHB");
}

TEST_CASE("hwloc: memory of a GPU is no node of the host; format 3 keeps its infos at the end") {
  const machine m = read_topology(
      "<topology version=\"3.0\"><object type=\"Machine\" cpuset=\"0xf\" nodeset=\"0x3\"><object "
      "type=\"NUMANode\" os_index=\"0\" cpuset=\"0xf\" nodeset=\"0x1\"/><object type=\"NUMANode\" "
      "os_index=\"1\" cpuset=\"0xf\" nodeset=\"0x2\" subtype=\"GPUMemory\"><info "
      "name=\"PCIBusID\" value=\"0009:01:00.0\"/></object><object type=\"Bridge\" "
      "bridge_type=\"0-1\" bridge_pci=\"0009:[01-01]\"><object type=\"PCIDev\" gp_index=\"5\" "
      "pci_busid=\"0009:01:00.0\" pci_type=\"0302 [10de:2342] [0000:0000] a1 "
      "00\"/></object></object>"
      "<info name=\"HostName\" value=\"gh\"/></topology>",
      "f");
  CHECK(m.host == "gh");
  REQUIRE(m.numa_nodes.size() == 1);
  REQUIRE(m.gpus.size() == 1);
  CHECK(m.gpus[0].numa.value_or(-1) == 0);
  CHECK(m.gpus[0].gpu_numa.value_or(-1) == 1);
}

TEST_CASE("diff: what changed, whatever the order of the devices") {
  const machine before = read_topology(tabs, "before");
  CHECK(compare(before, before).empty());
  const machine after =
      read_topology(replaced(replaced(tabs, "NV12", "NV8"), "PXB", "NODE"), "after");
  const std::string text = changes_text(compare(before, after));
  CHECK(contains(text, "GPU0-GPU1: NVLinks 12 -> 8"));
  CHECK(contains(text, "mlx5_bond_0-GPU0: PCI path PXB -> NODE"));
  machine fewer = before;
  fewer.gpus.pop_back();
  fewer.make_pairs();
  CHECK(contains(changes_text(compare(before, fewer)), "GPU1: GPU present -> gone"));
}

TEST_CASE("findings of a machine name the device") {
  machine m;
  m.host = "node1";
  m.gpus.resize(2);
  m.gpus[0].name = "GPU0";
  m.gpus[1].name = "GPU1";
  m.make_pairs();
  for (gpu& g : m.gpus) {
    g.nvlink_present = {18, source::nvml};
    g.nvlink_active = {18, source::nvml};
    g.fabric_state = {"completed", source::nvml};
  }
  CHECK(judge_machine(m).empty());
  m.gpus[1].nvlink_active = {16, source::nvml};
  m.gpus[1].fabric_state = {"in progress", source::nvml};
  m.gpus[0].pcie_now = {pcie_link{1, 8}, source::sysfs}; // idle: gen1 is no finding, x8 is
  m.gpus[0].pcie_max = {pcie_link{5, 16}, source::sysfs};
  std::string codes;
  for (const finding& f : judge_machine(m)) codes += f.code + ' ';
  CHECK(codes == "pcie_downtrained nvlink_down fabric_lost nvlink_uneven ");
  CHECK(exit_code(judge_machine(m)) == 20);
}

TEST_CASE("pictures and tables hold what a file says as text, never as markup") {
  machine m = read_topology(tabs, "<script>");
  const std::string svg = topology_svg(m);
  CHECK(contains(svg, "&lt;script&gt;"));
  CHECK_FALSE(contains(svg, "<script>"));
  CHECK(parse_xml(svg, "svg").nodes.size() > 5);
  CHECK(contains(topology_text(m), "NV12"));
}
