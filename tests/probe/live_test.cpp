// Live facts against machines that are not there: synthetic sysfs trees in a temporary folder, and
// a shared library that answers like NVML.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/probe/gpu_worker.hpp>
#include <polyrank/probe/judge_machine.hpp>
#include <polyrank/probe/live.hpp>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <sys/wait.h>
#include <unistd.h>

using namespace polyrank::probe;
namespace fs = std::filesystem;

namespace {

/// A folder that looks like /sys.
class synthetic_sysfs {
 public:
  synthetic_sysfs() {
    std::string pattern = (fs::temp_directory_path() / "polyrank-sysfs-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) FAIL("no temporary folder");
    root = pattern;
    fs::create_directories(root / "bus/pci/devices");
  }
  ~synthetic_sysfs() {
    std::error_code code;
    fs::remove_all(root, code);
  }
  void numa_node(int id, const std::string& cpus) {
    write(root / "devices/system/node" / ("node" + std::to_string(id)) / "cpulist", cpus);
  }
  /// `path`: bridges and device below "pci0000:00", as the kernel nests them.
  fs::path device(const std::string& path, const std::string& class_id, const std::string& vendor,
                  int numa) {
    const fs::path folder = root / "devices" / path;
    write(folder / "class", class_id);
    write(folder / "vendor", vendor);
    write(folder / "numa_node", std::to_string(numa));
    write(folder / "local_cpulist", numa < 0 ? "0-7" : numa == 0 ? "0-3" : "4-7");
    for (const char* which : {"current", "max"}) {
      write(folder / (std::string(which) + "_link_speed"), "16.0 GT/s PCIe");
      write(folder / (std::string(which) + "_link_width"), "16");
    }
    fs::create_directory_symlink(fs::relative(folder, root / "bus/pci/devices"),
                                 root / "bus/pci/devices" / folder.filename());
    return folder;
  }
  static void write(const fs::path& file, const std::string& text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text << '\n';
  }
  fs::path root;
};

/// The machine that fake NVML `name` describes, over `sysfs`.
struct seen {
  machine m;
  std::vector<finding> findings;
  [[nodiscard]] std::string codes() const {
    std::string out;
    for (const finding& f : findings) out += f.code + ' ';
    return out;
  }
};
seen look(const std::string& name, const fs::path& sysfs) {
  setenv("POLYRANK_FAKE_NVML", name.c_str(), 1);
  seen s;
  live_options o;
  o.sysfs = sysfs;
  o.nvml_library = name == "none" ? "libpolyrank-no-such-library.so" : POLYRANK_FAKE_NVML_LIBRARY;
  o.call_deadline = std::chrono::milliseconds(name == "hang" ? 100 : 5000);
  s.m = read_live(o, s.findings);
  for (finding& f : judge_machine(s.m)) s.findings.push_back(std::move(f));
  return s;
}
fs::path nowhere() { return "/polyrank/no/such/folder"; }

} // namespace

TEST_CASE("sysfs: switch, root port, host bridge, NUMA node of a synthetic tree") {
  synthetic_sysfs s;
  s.numa_node(0, "0-3");
  s.numa_node(1, "4-7");
  const std::string sw = "pci0000:00/0000:00:01.0/0000:01:00.0/";
  const fs::path first = s.device(sw + "0000:02:00.0/0000:03:00.0", "0x030200", "0x10de", 0);
  s.device(sw + "0000:02:01.0/0000:04:00.0", "0x030200", "0x10de", 0);
  s.device(sw + "0000:02:02.0/0000:05:00.0/0000:06:00.0/0000:07:00.0", "0x030200", "0x10de", 0);
  s.device("pci0000:00/0000:00:02.0/0000:08:00.0", "0x030200", "0x10de", 0);
  s.device("pci0000:20/0000:20:01.0/0000:21:00.0", "0x030200", "0x10de", 0);
  s.device("pci0000:80/0000:80:01.0/0000:81:00.0", "0x120000", "0x1002", 1);
  s.device("pci0000:80/0000:80:02.0/0000:82:00.0", "0x030000", "0x1a03", 1); // ASPEED: no GPU
  const fs::path hca = s.device(sw + "0000:02:03.0/0000:09:00.0", "0x020700", "0x15b3", 0);
  s.write(hca / "infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)");
  s.write(hca / "net/ib0/speed", "200000");
  const fs::path eth = s.device("pci0000:00/0000:00:03.0", "0x020000", "0x1af4", 0);
  s.write(eth / "virtio0/net/eth0/speed", "-1");
  s.write(first / "iommu_group/type", "DMA-FQ");
  s.write(s.root / "devices" / (sw + "0000:02:00.0/max_link_width"), "8");
  s.write(s.root / "devices" / (sw + "0000:02:00.0/max_link_speed"), "8.0 GT/s PCIe");

  const machine m = read_sysfs(s.root);
  REQUIRE(m.gpus.size() == 6);
  CHECK(pci_text(*m.gpus[0].address) == "0000:03:00.0");
  CHECK(m.pair(0, 1).pci == path_class::pix);
  CHECK(m.pair(0, 2).pci == path_class::pxb);
  CHECK(m.pair(0, 3).pci == path_class::phb);
  CHECK(m.pair(0, 4).pci == path_class::node);
  CHECK(m.pair(0, 5).pci == path_class::sys);
  CHECK(nvlink_text(m.pair(0, 1).nvlink) == "not described");
  CHECK(*m.gpus[0].pcie_max == pcie_link{3, 8}); // the port can do less than the card
  CHECK(*m.gpus[0].iommu == "DMA-FQ");
  CHECK(*m.gpus[5].vendor == "AMD");
  REQUIRE(m.nics.size() == 1);
  CHECK(m.nics[0].name == "mlx5_0");
  CHECK(m.nics[0].ports[0].mbit_s == 200000);
  CHECK(m.nics[0].to_gpus[0] == path_class::pix);
  REQUIRE(m.ethernet.size() == 1);
  CHECK(m.ethernet[0].name == "eth0");
  CHECK(m.numa_nodes[1].cpus == cpu_list{4, 5, 6, 7});
}

TEST_CASE("sysfs: in a virtual machine the node is not known, unless there is only one") {
  synthetic_sysfs s;
  s.device("pci0001:00/0001:00:00.0", "0x030200", "0x10de", -1);
  s.device("pci0002:00/0002:00:00.0", "0x030200", "0x10de", -1);
  CHECK(read_sysfs(s.root).pair(0, 1).node_or_sys);
  s.numa_node(0, "0-7");
  s.write(s.device("pci0000:00/0000:00:03.0", "0x020000", "0x1af4", -1) / "virtio0/net/eth0/speed",
          "-1");
  const machine sockets = read_sysfs(s.root);
  REQUIRE(sockets.nics.size() == 1); // without RDMA, plain network functions are what NCCL takes
  CHECK(sockets.nics[0].name == "eth0");
  CHECK_FALSE(sockets.nics[0].rdma);
  CHECK(sockets.nics[0].to_gpus == std::vector{path_class::node, path_class::node});
  CHECK(sockets.ethernet.empty());
  CHECK(read_sysfs(s.root).pair(0, 1).pci == path_class::node);
  CHECK(read_sysfs(s.root).gpus[0].numa.from == source::inferred);
}

TEST_CASE("sysfs: a recorded virtual machine with one H200") {
  synthetic_sysfs s; // made of the recorded lines: path name=value name=value ...
  std::ifstream in(std::string(POLYRANK_RECORDED) + "/h200_vm.sysfs.txt");
  int devices = 0;
  for (std::string line; std::getline(in, line); ++devices) {
    std::istringstream words(line);
    std::string path, word;
    words >> path;
    const fs::path folder = s.device(path.substr(std::string("/sys/devices/").size()), "", "", 0);
    std::map<std::string, std::string> attributes;
    std::string name;
    while (words >> word) { // values may hold blanks
      const std::size_t equal = word.find('=');
      if (equal != std::string::npos) name = word.substr(0, equal);
      attributes[name] += equal != std::string::npos ? word.substr(equal + 1) : ' ' + word;
    }
    s.write(folder / "class", attributes["class"]);
    s.write(folder / "vendor", attributes["vendor"]);
    s.write(folder / "numa_node", attributes["numa"]);
    s.write(folder / "local_cpulist", attributes["cpus"]);
    for (const auto& [key, file] : {std::pair("now", "current"), std::pair("max", "max")}) {
      const std::string& both = attributes[key]; // "32.0 GT/s PCIe/16"
      const std::size_t slash = both.rfind('/');
      s.write(folder / (std::string(file) + "_link_speed"), both.substr(0, slash));
      s.write(folder / (std::string(file) + "_link_width"), both.substr(slash + 1));
    }
  }
  REQUIRE(devices == 2);
  s.numa_node(0, "0-15");
  const machine m = read_sysfs(s.root);
  REQUIRE(m.gpus.size() == 1);
  CHECK(pci_text(*m.gpus[0].address) == "0000:00:06.0");
  CHECK(*m.gpus[0].vendor == "NVIDIA");
  CHECK(*m.gpus[0].pcie_max == pcie_link{5, 16});
  CHECK(*m.gpus[0].numa == 0); // -1 in the file, but there is only one node
  CHECK(m.gpus[0].numa.from == source::inferred);
  REQUIRE(m.nics.size() == 1);
  CHECK(m.nics[0].to_gpus.at(0) == path_class::phb);
}

TEST_CASE("ACS control is read from the configuration space, unless it ends early") {
  std::string config(4096, '\0');
  CHECK_FALSE(detail::redirects_p2p(config.substr(0, 64)));
  config[0x100] = 0x0b; // another capability first, the next at 0x140
  config[0x102] = 0x01;
  config[0x103] = 0x14;
  config[0x140] = 0x0d;
  CHECK_FALSE(detail::redirects_p2p(config));
  config[0x146] = 0x1d;
  CHECK(detail::redirects_p2p(config));
  config[0x103] = 0x10; // a chain that points at itself ends
  CHECK_FALSE(detail::redirects_p2p(config));
}

TEST_CASE("NVML: eight GPUs on NVSwitch") {
  const seen s = look("nvswitch", nowhere());
  REQUIRE(s.m.gpus.size() == 8);
  for (const gpu_pair& p : s.m.pairs) {
    CHECK(link_text(p) == "NV18");
    CHECK(p.via == route::by_switch);
    CHECK(p.from == source::nvml);
    CHECK(*p.p2p_read == "OK");
    CHECK(*p.nccl == "P2P");
  }
  CHECK(s.m.pair(0, 1).pci == path_class::node);
  CHECK(s.m.pair(0, 7).pci == path_class::sys);
  CHECK(*s.m.gpus[0].sm == 90);
  CHECK(*s.m.gpus[0].fabric_health == "ok");
  CHECK(*s.m.gpus[0].nvlink_version == 4);
  CHECK(s.codes().empty()); // gen1 while idle is no finding
}

TEST_CASE("NVML: hybrid cube mesh, links of each pair") {
  const seen s = look("cube", nowhere());
  CHECK(link_text(s.m.pair(0, 1)) == "NV1");
  CHECK(link_text(s.m.pair(0, 3)) == "NV2");
  CHECK(link_text(s.m.pair(0, 4)) == "NV2");
  CHECK(link_text(s.m.pair(0, 7)) == "SYS");
  CHECK(s.m.pair(0, 1).via == route::direct);
  for (const gpu& g : s.m.gpus) CHECK(g.links() == nvlink_count::of(6));
}

TEST_CASE("NVML: PCIe over two sockets; P2P is not supported, so NCCL takes shared memory") {
  const seen s = look("pcie", nowhere());
  REQUIRE(s.m.gpus.size() == 4);
  CHECK(nvlink_text(s.m.pair(0, 1).nvlink) == "none");
  CHECK(*s.m.pair(0, 1).p2p_read == "CNS");
  CHECK(*s.m.pair(0, 1).nccl == "SHM");
}

TEST_CASE("NVML: bridged pairs, one link of one bridge down") {
  const seen s = look("bridged", nowhere());
  CHECK(link_text(s.m.pair(0, 1)) == "NV4");
  CHECK(s.m.pair(0, 1).via == route::direct);
  CHECK(link_text(s.m.pair(2, 3)) == "NV3");
  CHECK(link_text(s.m.pair(1, 2)) == "SYS");
  CHECK(s.codes() == "nvlink_down nvlink_uneven ");
}

TEST_CASE("NVML: one GPU that left the fabric, MIG, a narrow slot, a busy GPU") {
  const seen lost = look("lost_fabric", nowhere());
  CHECK(lost.codes() == "fabric_lost ");
  CHECK(lost.findings[0].evidence.find("GPU5") == 0);
  CHECK(look("mig", nowhere()).codes() == "mig_on ");
  CHECK(look("downtrained", nowhere()).codes() == "pcie_downtrained ");
  const seen hidden = look("hidden", nowhere());
  CHECK(hidden.codes() == "gpu_busy memory_taken ");
  CHECK(hidden.findings[0].evidence.ends_with("97 % busy, by a process that is hidden from here"));
  CHECK(hidden.findings[1].evidence.ends_with("30.0 GiB of 80.0 GiB in use"));
  CHECK(look("fallen", nowhere()).codes() == "gpu_lost ");
}

TEST_CASE("NVML: processes on the GPU by pid and name, orphans marked") {
  const seen busy = look("busy", nowhere());
  CHECK(busy.codes() == "gpu_busy ");
  CHECK(busy.findings[0].evidence.find("pid 4711") != std::string::npos);
  synthetic_sysfs proc;
  proc.write(proc.root / "4711/status", "Name:\ttrain\nPPid:\t1");
  proc.write(proc.root / "4712/status", "Name:\ttrain\nPPid:\t4000");
  CHECK(process_text(4711, 3ULL << 30, proc.root) == "pid 4711 train, 3072 MiB, orphan");
  CHECK(process_text(4712, ~0ULL, proc.root) == "pid 4712 train");
  CHECK(process_text(4713, 1ULL << 20, proc.root) == "pid 4713 of another container, 1 MiB");
}

TEST_CASE("NVML: GPUs on the bus that the driver does not give us are left out, the rest keeps its "
          "paths") {
  synthetic_sysfs s;
  s.numa_node(0, "0-3");
  s.numa_node(1, "4-7");
  s.device("pci0000:00/0000:00:01.0/0000:09:00.0", "0x030200", "0x10de", 0);
  s.device("pci0000:10/0000:10:01.0/0000:11:00.0", "0x030200", "0x10de", 0);
  const seen one = look("vm", s.root);
  REQUIRE(one.m.gpus.size() == 1);
  CHECK(pci_text(*one.m.gpus[0].address) == "0000:11:00.0");
  CHECK(one.m.gpus[0].numa.from == source::sysfs);
  CHECK(one.m.gpus[0].uuid == "GPU-synthetic-0");
  CHECK(one.m.gpus[0].name == "GPU0");
}

TEST_CASE("no GPU, no library, no driver, another version, a call that never returns") {
  CHECK(look("empty", nowhere()).codes() == "no_gpu ");
  CHECK(look("none", nowhere()).codes() == "no_gpu ");
  CHECK(look("no_driver", nowhere()).codes() == "no_gpu ");
  CHECK(exit_code(look("none", nowhere()).findings) == 23);
  CHECK(look("mismatch", nowhere()).codes() == "driver_mismatch ");
  const seen hung = look("hang", nowhere());
  CHECK(hung.codes() == "nvml_hung ");
  CHECK(hung.findings[0].evidence == "nvmlDeviceGetUUID");
}

TEST_CASE("a child answers line by line; late, gone and deaf ones are told apart") {
  using namespace std::chrono_literals;
  child_process child({"/bin/sh", "-c", "read x; echo \"got $x\"; echo more; exec sleep 1000"});
  REQUIRE(child.say("this"));
  CHECK(child.hear(20s) == "got this");
  CHECK(child.hear(20s) == "more");
  int looks = 0;
  CHECK_FALSE(child.hear(50ms, [&] { ++looks; }).has_value());
  CHECK(child.why_silent() == child_process::silence::late);
  CHECK(looks > 0);
  const pid_t pid = child.pid();
  CHECK(child.kill());
  CHECK(::kill(pid, 0) != 0);
  child_process brief({"/bin/sh", "-c", "kill -SEGV $$"});
  CHECK_FALSE(brief.hear(20s).has_value());
  CHECK(brief.why_silent() == child_process::silence::gone);
  CHECK(brief.end_text().starts_with("signal 11"));
  child_process missing({"/no/such/program"});
  CHECK_FALSE(missing.hear(20s).has_value());
  CHECK(missing.end_text() == "exit code 127");
}

TEST_CASE("a child does not outlive its parent, even one that is killed") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t parent = fork();
  if (parent == 0) {
    child_process child({"/bin/sh", "-c", "trap '' TERM HUP; exec sleep 1000"});
    const pid_t pid = child.pid();
    if (write(ends[1], &pid, sizeof pid) != sizeof pid) _exit(1);
    raise(SIGKILL);
  }
  pid_t child = 0;
  REQUIRE(read(ends[0], &child, sizeof child) == sizeof child);
  int status = 0;
  REQUIRE(waitpid(parent, &status, 0) == parent);
  CHECK(WIFSIGNALED(status));
  const auto alive = [&] { // a dead child that nobody collects is a zombie
    std::ifstream in("/proc/" + std::to_string(child) + "/stat");
    std::string text;
    std::getline(in, text);
    return !text.empty() && text.find(") Z") == std::string::npos;
  };
  for (int i = 0; i < 1000 && alive(); ++i) usleep(10000);
  CHECK_FALSE(alive());
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("a worker that is late is killed and replaced; nonsense is no answer") {
  using namespace std::chrono_literals;
  gpu_worker none({});
  CHECK(none.ask("facts", 1s).how == gpu_answer::outcome::not_asked);
  gpu_worker worker({"/bin/sh", "-c",
                     "while read q; do case $q in sleep) exec sleep 1000;; odd) echo odd;; "
                     "*) printf 'ok\\tpid=%s\\tdata=ok\\n' $$;; esac; done"});
  const gpu_answer first = worker.ask("facts", 20s);
  REQUIRE(first.good());
  CHECK(worker.ask("facts", 20s).word("pid") == first.word("pid"));
  const gpu_answer late = worker.ask("sleep", 50ms);
  CHECK(late.how == gpu_answer::outcome::late);
  CHECK(late.complaint() == "no answer within 0.05 s");
  const gpu_answer second = worker.ask("facts", 20s);
  REQUIRE(second.good());
  CHECK(second.word("pid") != first.word("pid"));
  CHECK(worker.ask("odd", 20s).how == gpu_answer::outcome::gone);
}

TEST_CASE("bits that users misread: health mask, clock reasons, P2P status") {
  CHECK(fabric_health_text(0xaa) == "ok");
  CHECK(fabric_health_text(0) == "ok");
  CHECK(fabric_health_text(0x11) == "degraded bandwidth, route unhealthy");
  CHECK(throttle_text(0x3) == "none");
  CHECK(throttle_text(0x44) == "power cap, hardware thermal");
  CHECK(p2p_status_text(5) == "NS");
  CHECK(p2p_status_text(99) == "U");
}
