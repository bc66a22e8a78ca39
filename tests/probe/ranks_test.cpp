// Ranks against each other, the JSON of a report, and the commands made from a machine; all pure.
// SPDX-License-Identifier: Apache-2.0
#include "json.hpp"

#include "support/catch.hpp"

#include <polyrank/probe/cuda_facts.hpp>
#include <polyrank/probe/diff.hpp>
#include <polyrank/probe/judge_machine.hpp>
#include <polyrank/probe/launch_line.hpp>
#include <polyrank/probe/rank_bandwidth.hpp>
#include <polyrank/probe/read_topology.hpp>
#include <polyrank/probe/table.hpp>
#include <polyrank/probe/tcp_mesh.hpp>

#include <fstream>
#include <set>
#include <sstream>

using namespace polyrank::probe;
using polyrank::detail::cat;

namespace {

/// Four healthy ranks on two hosts.
std::vector<rank_facts> four() {
  std::vector<rank_facts> out(4);
  for (int r = 0; r < 4; ++r) {
    rank_facts& f = out[static_cast<std::size_t>(r)];
    f.rank = r;
    f.local_rank = r % 2;
    f.host = r < 2 ? "node1" : "node2";
    f.boot_id = f.host;
    f.cpus = {0, 1, 2, 3};
    f.host_cpus = 4;
    f.cpu_model = "CPU";
    f.env = {{"NCCL_DEBUG", "WARN"}};
    f.limits = {{"memlock", -1}, {"nofile", 65536}, {"stack", 8 << 20}};
    f.versions = {{"nccl", "2.28.9"}, {"mpi", "Open MPI v4.1.4"}};
    f.libraries = {"/usr/lib/libmpi.so.40"};
    f.shm_bytes = f.shm_free = std::int64_t{8} << 30;
    f.interfaces = {{"lo", "127.0.0.1", true, true},
                    {"eth0", r < 2 ? "10.0.0.1" : "10.0.0.2", true, false}};
    f.announced_by = "eth0";
    f.announced = f.interfaces[1].address;
    f.port = 47000 + r;
    f.gpu_uuid = "GPU-" + std::to_string(r);
    f.gpu_model = "GPU";
  }
  return out;
}
std::string codes(const std::vector<finding>& findings) {
  std::string out;
  for (const finding& f : findings) out += (out.empty() ? "" : " ") + f.code;
  return out;
}
template <class Change>
std::vector<finding> with(Change change) {
  std::vector<rank_facts> ranks = four();
  change(ranks);
  return judge_ranks(ranks);
}
bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

} // namespace

TEST_CASE("facts of a rank survive the way to the other ranks") {
  rank_facts f = four()[3];
  f.env["NCCL_X"] = "two\nlines\\and a backslash";
  f.data_error = "none\tof\tit";
  CHECK(encode(decode_facts(encode(f))) == encode(f));
  CHECK(decode_facts(encode(f)).env == f.env);
  CHECK_THROWS_AS(decode_facts("rank\tx\n"), polyrank::data_error);
  CHECK_THROWS_AS(decode_facts("nonsense"), polyrank::data_error);
}

TEST_CASE("healthy ranks give no finding; each fault gives its own and names the odd one") {
  CHECK(judge_ranks(four()).empty());
  const auto env = with([](auto& r) { r[3].env["NCCL_ALGO"] = "Ring"; });
  CHECK(codes(env) == "env_differs");
  CHECK(env[0].evidence ==
        "NCCL_ALGO: unset on ranks 0-2 (node1, node2), \"Ring\" on rank 3 (node2)");
  CHECK(exit_code(env) == 22);
  CHECK(
      with([](auto& r) { r[0].env["NCCL_SOCKET_IFNAME"] = "eth0"; }).empty()); // each host its own
  CHECK(codes(with([](auto& r) { r[1].versions["nccl"] = "2.27.3"; })) == "version_differs");
  CHECK(codes(with([](auto& r) { r[1].versions.erase("nccl"); })) == "version_differs");
  CHECK(codes(with([](auto& r) { r[1].limits["memlock"] = 65536; })) == "limits_differ");
  CHECK(codes(with([](auto& r) { r[1].gpu_uuid = r[0].gpu_uuid; })) == "gpu_twice");
  CHECK(with([](auto& r) { r[2].gpu_uuid = r[0].gpu_uuid; }).empty()); // on another host
  CHECK(with([](auto& r) {                                             // meant
          r[1].gpu_uuid = r[0].gpu_uuid;
          for (auto& f : r) f.env["POLYRANK_SHARE_GPU"] = "1";
        })
            .empty());
  CHECK(codes(with([](auto& r) { r[1].gpu_model = "older GPU"; })) == "gpu_differs");
  CHECK(codes(with([](auto& r) { r[1].cpu_model = "older CPU"; })) == "cpu_differs");
  CHECK(codes(with([](auto& r) { r[2].rdma_nics = {"mlx5_0"}; })) == "nics_differ");
  CHECK(codes(with([](auto& r) { r.pop_back(); })) == "uneven_hosts");
  CHECK(codes(with([](auto& r) { r[0].libraries.push_back("/opt/lib/libmpi.so.40"); })) ==
        "library_twice");
  CHECK(codes(with([](auto& r) { r[0].cpus = {2}; })) == "one_cpu");
  CHECK(codes(with([](auto& r) { r[0].cpus = r[1].cpus = {2}; })) == "one_cpu one_cpu cpus_shared");
  CHECK(codes(with([](auto& r) { r[0].gpu_cpus = {8, 9}; })) == "cpus_far");
  CHECK(codes(with([](auto& r) { r[0].env["NCCL_SOCKET_IFNAME"] = "ib0"; })) == "env_interface");
  CHECK(codes(with([](auto& r) { r[0].env["NCCL_SOCKET_IFNAME"] = "^docker0"; })) ==
        "env_loopback");
  CHECK(with([](auto& r) { r[0].env["NCCL_SOCKET_IFNAME"] = "^docker0,lo"; }).empty());
  const auto disable = [](const char* name, bool nics, const char* share) {
    return codes(with([&](auto& r) {
      for (auto& f : r) {
        f.env[name] = "1";
        f.env["POLYRANK_SHARE_GPU"] = share;
        if (nics) f.rdma_nics = {"mlx5_0"};
      }
    }));
  };
  CHECK(disable("NCCL_P2P_DISABLE", false, "0") == "env_slow env_slow env_slow env_slow");
  CHECK(disable("NCCL_IB_DISABLE", true, "0") == "env_slow env_slow env_slow env_slow");
  CHECK(disable("NCCL_IB_DISABLE", false, "0").empty()); // nothing to lose
  CHECK(disable("NCCL_P2P_DISABLE", true, "1").empty());
  CHECK(codes(with([](auto& r) {
          for (auto& f : r) f.env["CUDA_LAUNCH_BLOCKING"] = "1";
        })) == "env_blocking env_blocking env_blocking env_blocking");
  CHECK(codes(with([](auto& r) {
          for (auto& f : r) f.limits["nofile"] = 1024;
        })) == "nofile_low nofile_low nofile_low nofile_low");
  CHECK(codes(with([](auto& r) {
          for (auto& f : r) f.limits["container CPU percent"] = 150; // for two ranks a host
        })) == "cpus_shared cpus_shared");
  const auto shm =
      with([](auto& r) { r[2].shm_bytes = r[2].shm_free = 64 << 20; }); // Docker's default
  CHECK(codes(shm) == "shm_too_low");
  CHECK(contains(shm[0].evidence, "64 MiB free of 64 MiB; 2 ranks need 66 MiB"));
  CHECK(codes(with([](auto& r) { r[2].shm_stale = 3; })) == "shm_stale");
  CHECK(codes(with([](auto& r) { r[2].data_error = "/data: no files"; })) == "data_unreadable");
  CHECK(codes(with([](auto& r) {
          for (auto& f : r) f.data_bytes_per_s = f.rank == 1 ? 1e6 : 1e9;
        })) == "data_slow");
}

TEST_CASE("the text names each kind of finding once, failures first, with whom it was seen on") {
  std::vector<finding> all;
  for (int r = 0; r < 10; ++r) all.push_back({"one_cpu", "rank " + std::to_string(r), r, "node1"});
  all.push_back({"env_differs", "NCCL_ALGO", -1, ""});
  const std::string text = findings_text(all);
  CHECK(text.starts_with("FAIL  env_differs: "));
  CHECK(text.find("one_cpu") == text.rfind("one_cpu"));
  CHECK(contains(text, "seen: node1: rank 7\n            and 2 more\n      do: "));
  CHECK(!contains(text, "rank 8"));
}

TEST_CASE("NCCL's choice of interface") {
  const std::vector<net_interface> all{{"lo", "127.0.0.1", true, true},
                                       {"docker0", "172.17.0.1", true, false},
                                       {"eth0", "10.0.0.1", true, false},
                                       {"eth1", "", true, false},
                                       {"ib0", "10.1.0.1", false, false}};
  const auto chosen = [&](const char* spec) {
    const auto i = choose_interface(all, spec);
    return i ? all[*i].name : "none";
  };
  CHECK(chosen("") == "eth0"); // ib0 is down
  CHECK(chosen("docker") == "docker0");
  CHECK(chosen("=eth") == "none");
  CHECK(chosen("=eth0") == "eth0");
  CHECK(chosen("eth1") == "none");
  CHECK(chosen("^lo,docker") == "eth0");
  CHECK(chosen("^docker0") == "lo"); // the trap
}

TEST_CASE("TCP outcomes become causes") {
  const std::vector<rank_facts> ranks = four();
  const auto judge = [](const std::vector<rank_facts>& r, tcp_outcome how) {
    std::vector<std::vector<tcp_outcome>> o(4, std::vector<tcp_outcome>(4, tcp_outcome::ok));
    o[0][2] = o[0][3] = o[1][2] = o[1][3] = how;
    return judge_tcp(r, o);
  };
  CHECK(judge(ranks, tcp_outcome::ok).empty());
  const auto blocked = judge(ranks, tcp_outcome::timed_out);
  CHECK(codes(blocked) == "port_blocked");
  CHECK(blocked[0].evidence == "ranks 0-1 cannot reach ranks 2-3 on node2 at 10.0.0.2 (eth0) from "
                               "node1, TCP port 47002, 47003");
  CHECK(codes(judge(ranks, tcp_outcome::refused)) == "port_refused");
  CHECK(codes(judge(ranks, tcp_outcome::rejected)) == "port_blocked");
  CHECK(codes(judge(ranks, tcp_outcome::unreachable)) == "wrong_interface");
  std::vector<rank_facts> loopback = ranks;
  for (const std::size_t r : {2, 3}) {
    loopback[r].announced_by = "lo";
    loopback[r].announced = "127.0.0.1";
  }
  CHECK(codes(judge(loopback, tcp_outcome::refused)) == "wrong_interface");
}

TEST_CASE("a TCP greeting tells who answered; nobody there is a refusal") {
  std::uint16_t port = 0;
  {
    const tcp_greeter greeter("127.0.0.1", 0, 42);
    port = greeter.port();
    CHECK(tcp_try("127.0.0.1", port, 42, std::chrono::seconds(20)) == tcp_outcome::ok);
    CHECK(tcp_try("127.0.0.1", port, 43, std::chrono::seconds(20)) == tcp_outcome::other_program);
  }
  CHECK(tcp_try("127.0.0.1", port, 42, std::chrono::seconds(20)) == tcp_outcome::refused);
  CHECK(tcp_try("no address", 1, 42, std::chrono::seconds(1)) == tcp_outcome::unreachable);
  CHECK_THROWS_AS(tcp_greeter("192.0.2.77", 0, 1), polyrank::error);
}

TEST_CASE("rounds of pairs meet every pair once, nobody twice in a round") {
  for (const int n : {1, 2, 3, 5, 8, 9, 16}) {
    std::set<std::pair<int, int>> seen;
    for (const auto& round : pair_rounds(n)) {
      std::set<int> busy;
      for (const auto& [a, b] : round) {
        CHECK(seen.insert({a, b}).second);
        CHECK(busy.insert(a).second);
        CHECK(busy.insert(b).second);
      }
      if (n <= 8) CHECK(round.size() == 1);
    }
    CHECK(seen.size() == static_cast<std::size_t>(n * (n - 1) / 2));
  }
}

TEST_CASE("cost models of links within hosts and between them; odd links are found") {
  std::vector<rank_link> links{{0, 1, true, 1e-6, 8e9, true},
                               {0, 2, false, 2e-5, 1e9, true},
                               {1, 2, false, 2e-5, 1.1e9, true},
                               {0, 3, false, 2e-5, 1e8, true}};
  CHECK(fit_cost_model(links, false)->beta == 1e9);
  CHECK(fit_cost_model(links, false)->alpha == 2e-5);
  CHECK(fit_cost_model(links, true)->beta == 8e9);
  CHECK_FALSE(fit_cost_model({}, true).has_value());
  link_costs costs;
  CHECK_FALSE(costs.complete().has_value());
  costs.inside = fit_cost_model(links, true);
  costs.between = fit_cost_model(links, false);
  CHECK(costs.complete()->ring.beta == 1e9); // the slowest, where no ring was measured
  CHECK(costs.complete()->inside.beta == 8e9);
  CHECK(codes(judge_rank_links(links, four())) == "rank_link_slow");
  links[0].data_ok = false;
  CHECK(exit_code(judge_rank_links(links, four())) == 20);
}

TEST_CASE("a report survives JSON; broken JSON is refused with its place") {
  const std::string file =
      "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\tPXB\t0-7\t0\n"
      "GPU1\tNV4\t X \tSYS\t8-15\t1\nNIC0\tPXB\tSYS\t X \t\t\n";
  report r;
  r.machines.push_back(read_topology(file, "f"));
  r.machines.push_back(read_topology(file, "g"));
  r.ranks = four();
  r.machines[0].pair(0, 1).peer_access = {true, source::cuda};
  r.machines[1].gpus[0].pcie_loaded = {{4, 16}, source::nvml};
  r.gpu_links.resize(2);
  r.gpu_links[0].a = "GPU0";
  r.gpu_links[1] = {transfer_kind::nccl, "node1", "rank 0", "rank 1", "NV4", gpu_link::state::hung,
                    "no answer",         1e-5,    3e9,      4e9,      true};
  r.findings.push_back({"port_blocked", "x", 1, "node1"});
  const std::string once = polyrank::examples::report_json(r);
  report back = polyrank::examples::read_report_json(once, "r");
  back.ranks = r.ranks; // ranks are not read back
  CHECK(polyrank::examples::report_json(back) == once);
  using polyrank::examples::read_report_json;
  for (
      const char* bad :
      {"{", "[]", "{}", R"({"schema":"other"})", R"({"schema":"polyrank.probe/1","gpus":[{}]})",
       R"({"schema":"polyrank.probe/1","hosts":[{}],"gpus":[{"name":1}]})",
       R"({"schema":"polyrank.probe/1","hosts":[{}],"pairs":[{"a":0,"b":1,"pci":"PIX"}]})",
       R"({"schema":"polyrank.probe/1","hosts":[{}],"gpus":[{"name":"G","numa":99999999999999999999}]})"})
    CHECK_THROWS_AS(read_report_json(bad, "r"), polyrank::data_error);
  CHECK_THROWS_AS(read_report_json(std::string(100000, '['), "r"), polyrank::data_error);
}

TEST_CASE("answers of a GPU worker survive their line; broken ones are refused") {
  gpu_answer a;
  a.how = gpu_answer::outcome::failed;
  a.code = 209;
  a.text = "no\tkernel\nimage";
  CHECK(decode_answer(encode(a)).text == "no kernel image");
  CHECK(decode_answer(encode(a)).code == 209);
  CHECK_THROWS_AS(decode_answer("hello"), polyrank::data_error);
  CHECK(decode_answer("ok\tx=1.5\ty=a=b").number("x") == 1.5);
  CHECK(decode_answer("ok\tx=1.5\ty=a=b").word("y") == "a=b");
  CHECK(decode_answer("ok").number("x") == 0);
  const auto facts = [](const char* device) {
    return read_cuda_facts(decode_answer(std::string("ok\tdevice0=") + device));
  };
  CHECK(facts("0000:1B:00.0|GPU-1|H200|90|150754820096").devices[0].sm == 90);
  CHECK_THROWS_AS(facts("0000:1B:00.0|GPU-1|H200|90"), polyrank::data_error);
  CHECK_THROWS_AS(facts("0000:1B:00.0|GPU-1|H200|x|1"), polyrank::data_error);
  CHECK_THROWS_AS(facts("somewhere|GPU-1|H200|90|1"), polyrank::data_error);
}

TEST_CASE("CUDA's facts complete a machine without NVML: atomics between GPUs mean NVLink") {
  machine m;
  for (const int bus : {0x1b, 0x43, 0x52, 0x9d}) {
    gpu g;
    g.address = pci_address{0, static_cast<std::uint8_t>(bus), 0, 0};
    g.vendor = {"NVIDIA", source::sysfs};
    m.gpus.push_back(g);
  }
  m.make_pairs();
  m.pair(0, 1).pci = path_class::sys;
  const cuda_facts f = read_cuda_facts(decode_answer(
      "ok\tdriver=13000\truntime=12080\tdevice0=0000:43:00.0|GPU-b|H200|90|1000"
      "\tdevice1=0000:1B:00.0|GPU-a|H200|90|1000\tdevice2=0000:52:00.0|GPU-c|H200|90|1000"
      "\tdevice3=0000:FF:00.0|GPU-x|H200|90|1000\tpeer0.1=1|1|0\tpeer0.2=1|0|1\tpeer1.2=0|0|1"));
  add_cuda_facts(m, f);
  CHECK(m.gpus[0].uuid == "GPU-a");
  CHECK(m.gpus[0].sm.from == source::cuda);
  CHECK(link_text(m.pair(0, 1)) == "NV?");
  CHECK(m.pair(0, 1).from == source::cuda);
  CHECK(nvlink_text(m.pair(1, 2).nvlink) == "none");
  CHECK(nvlink_text(m.pair(0, 2).nvlink) == "not described");
  CHECK_FALSE(*m.gpus[3].cuda); // on the bus, but not for this process
  REQUIRE(m.notes.size() == 1);
  CHECK(contains(m.notes[0], "0000:ff:00.0"));
  const auto code = [](int c, bool seen) {
    gpu_answer a;
    a.how = gpu_answer::outcome::failed;
    a.code = c;
    return codes(judge_cuda(a, seen, "h"));
  };
  CHECK(code(35, true) == "driver_too_old");
  CHECK(code(35, false).empty()); // there is no driver at all
  CHECK(code(100, false).empty());
  CHECK(code(100, true) == "cuda_unusable");
  CHECK(code(802, true) == "fabric_not_ready");
  CHECK(code(803, true) == "driver_mismatch");
  CHECK(code(999, true) == "cuda_unusable");
  CHECK(codes(judge_cuda({}, true, "h")).empty());
}

TEST_CASE("measured links against what such links usually give") {
  CHECK(usual_pcie({5, 16}) == 55e9);
  CHECK(usual_pcie({4, 8}) == 12.5e9);
  CHECK(usual_pcie({}) == 0);
  CHECK(usual_nvlink(90, 18) == 396e9);
  CHECK(usual_nvlink(80, 12) == 276e9);
  CHECK(usual_nvlink(86, 4) == 48e9);
  CHECK(usual_nvlink(0, 4) == 0);
  gpu_link l;
  l.a = "GPU0";
  l.b = "GPU1";
  l.kind = transfer_kind::peer;
  l.usual = 25e9;
  const auto judged = [&](double rate, bool may_be_slow = false) {
    l.bytes_per_s = rate;
    l.may_be_slow = may_be_slow;
    return cat(l.verdict(), ' ', codes(judge_gpu_links({l})));
  };
  CHECK(judged(25e9) == "ok ");
  CHECK(judged(21.3e9) == "ok ");
  CHECK(judged(21e9) == "slow link_slow");
  CHECK(judged(14e9) == "BAD link_bad");
  CHECK(judged(14e9, true) == "slow link_slow"); // through the CPU that is no fault
  CHECK(judged(0) == "not judged ");
  l.how = gpu_link::state::corrupt;
  CHECK(exit_code(judge_gpu_links({l})) == 21);
  l.how = gpu_link::state::hung;
  CHECK(exit_code(judge_gpu_links({l})) == 21);
  l.b.clear();
  CHECK(codes(judge_gpu_links({l})) == "gpu_test_hung");
}

TEST_CASE("bus bandwidth as nccl-tests has it; the ring that explains the times") {
  collective_rate c{"all_reduce", 4, 1000, 1e-6, true};
  CHECK(c.busbw() == Approx(1.5e9));
  c.name = "all_gather";
  CHECK(c.busbw() == Approx(0.75e9));
  c.name = "broadcast";
  CHECK(c.busbw() == Approx(1e9));
  c.ranks = 1;
  CHECK(c.busbw() == Approx(1e9));
  std::vector<collective_rate> rates;
  const polyrank::cost_model truth{4e-6, 250e9};
  for (const std::size_t bytes : {std::size_t{1024}, std::size_t{1} << 20, std::size_t{1} << 27})
    rates.push_back({"all_reduce", 8, bytes, truth.all_reduce(bytes, 8), true});
  rates.push_back({"broadcast", 8, 1024, 1, true}); // not of the ring
  CHECK(fit_ring(rates)->alpha == Approx(4e-6));
  CHECK(fit_ring(rates)->beta == Approx(250e9));
  rates.resize(1);
  CHECK_FALSE(fit_ring(rates).has_value());
}

TEST_CASE("a recorded H200: its matrix, its P2P table and our JSON of it say the same") {
  const auto read = [](const char* name) {
    return polyrank::examples::read_any(std::string(POLYRANK_RECORDED) + "/h200_vm." + name);
  };
  const machine live = read("json").machines.at(0), matrix = read("topo_m.txt").machines.at(0),
                p2p = read("p2p_r.txt").machines.at(0);
  REQUIRE(live.gpus.size() == 1);
  for (const machine& other : {matrix, p2p})
    for (const change& c : compare(other, live)) CHECK(c.what == "NIC"); // they list GPUs only
  CHECK(*matrix.gpus[0].cpus == *live.gpus[0].cpus);
  CHECK(*matrix.gpus[0].numa == 0);
  const gpu& g = live.gpus[0];
  CHECK(g.model == "NVIDIA H200");
  CHECK(*g.sm == 90);
  CHECK(*g.cuda);
  CHECK(g.cuda.from == source::cuda);
  CHECK(*g.pcie_max == pcie_link{5, 16});
  CHECK(g.pcie_max.from == source::sysfs);
  CHECK(nvlink_text(g.links()) == "none"); // one GPU alone
  CHECK(judge_machine(live).empty());
}

TEST_CASE("launch line: bound by node where the GPUs follow the nodes, else not") {
  machine m;
  m.numa_nodes = {{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}};
  for (int i = 0; i < 4; ++i) {
    gpu g;
    g.numa = {i / 2, source::file};
    g.cpus = {i < 2 ? cpu_list{0, 1, 2, 3} : cpu_list{4, 5, 6, 7}, source::file};
    m.gpus.push_back(g);
  }
  launch_request r;
  r.hosts = 2;
  CHECK(contains(mpirun_line(m, r).command, "-n 8 --host H1:4,H2:4 --map-by ppr:2:numa:PE=2"));
  CHECK(contains(srun_line(m, r).command, "--cpu-bind=mask_cpu:0xf,0xf,0xf0,0xf0"));
  m.gpus[0].numa = {1, source::file};
  CHECK(contains(mpirun_line(m, r).command, "--bind-to none"));
  // CPUs known from the GPUs only; not at all; fewer than ranks.
  m.numa_nodes.clear();
  CHECK(contains(srun_line(m, r).command, "--cpus-per-task=2 "));
  for (gpu& g : m.gpus) g.cpus = {};
  CHECK_FALSE(contains(srun_line(m, r).command, "--cpus-per-task"));
  m.numa_nodes = {{0, {0, 1}}};
  r.hosts = 16;
  r.ranks_per_host = 3;
  CHECK(contains(srun_line(m, r).command, "--ntasks-per-node=3 --overcommit"));
  CHECK(contains(mpirun_line(m, r).command, "-n 48 --host H1:3,H2:3,...,H16:3 "));
  CHECK(contains(launch_text(mpirun_line(m, r)), "16 hosts x 3, with 4 GPUs"));
}

TEST_CASE("the guide holds the table of findings as the code has it, and every code once") {
  std::ifstream in(POLYRANK_PROBE_PAGE);
  std::stringstream page;
  page << in.rdbuf();
  const bool current = contains(page.str(), findings_markdown()); // else: polyrank_probe explain
  CHECK(current);
  std::set<std::string_view> seen;
  for (const finding_kind& k : finding_kinds()) CHECK(seen.insert(k.code).second);
}
