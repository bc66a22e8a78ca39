// SPDX-License-Identifier: Apache-2.0
#include "json.hpp"

#include "support/files.hpp"

#include <polyrank/core/version.hpp>
#include <polyrank/probe/read_topology.hpp>

#include <nlohmann/json.hpp>

#include <type_traits>

namespace polyrank::examples {

using namespace probe;
using json = nlohmann::ordered_json;

namespace {

json value_json(const std::string& v) { return v; }
json value_json(std::int64_t v) { return v; }
json value_json(double v) { return v; }
json value_json(bool v) { return v; }
json value_json(const cpu_list& v) { return cpu_text(v); }
json value_json(pcie_link v) { return {{"gen", v.generation}, {"width", v.width}}; }

json links_json(nvlink_count n) { return n.some() ? json(n.links) : json(nvlink_text(n)); }
json or_null(const std::string& text) { return text.empty() ? json() : json(text); }
json address_json(const std::optional<pci_address>& a) { return a ? json(pci_text(*a)) : json(); }
json paths_json(const std::vector<path_class>& paths) {
  json out = json::array();
  for (const path_class p : paths) out.push_back(path_text(p));
  return out;
}
constexpr std::string_view peer_kind(nvlink_peer::kind k) {
  constexpr std::string_view names[] = {"gpu", "switch", "cpu", "assumed switch"};
  return names[static_cast<std::size_t>(k)];
}

json gpu_json(const gpu& g, std::size_t host, std::size_t index, const machine& m) {
  json out{{"host", host},
           {"index", index},
           {"name", g.name},
           {"pci_address", address_json(g.address)},
           {"uuid", or_null(g.uuid)},
           {"model", or_null(g.model)}};
  json sources = json::object();
  each_fact(g, [&](const char* name, const auto& f) {
    if (!f.known()) return;
    out[name] = value_json(*f);
    sources[name] = source_text(f.from);
  });
  if (!out.contains("numa")) out["numa"] = nullptr;
  out["nvlink"] = links_json(g.links());
  json peers = json::array();
  for (const nvlink_peer& p : g.nvlink_peers)
    peers.push_back({{"kind", peer_kind(p.what)}, {"address", p.address}, {"links", p.links}});
  if (!peers.empty()) out["nvlink_peers"] = peers;
  out["family"] = g.family == link_family::xgmi ? "xgmi" : "nvlink";
  json nearest = json::array();
  for (const std::size_t n : nearest_nics(m, index)) nearest.push_back(m.nics[n].name);
  out["nearest_nics"] = nearest;
  out["sources"] = sources;
  return out;
}

json nic_json(const nic& n, std::size_t host) {
  json ports = json::array();
  for (const net_port& p : n.ports) {
    json port{{"name", p.name}};
    if (p.port > 0) port["port"] = p.port;
    if (p.dev >= 0) port["dev"] = p.dev;
    if (p.mbit_s > 0) port["mbit_per_s"] = p.mbit_s;
    if (!p.guid.empty()) port["guid"] = p.guid;
    ports.push_back(std::move(port));
  }
  json out{{"host", host},
           {"name", n.name},
           {"label", n.label},
           {"pci_address", address_json(n.address)},
           {"model", or_null(n.model)},
           {"rdma", n.rdma},
           {"numa", n.numa.known() ? json(*n.numa) : json()},
           {"ports", ports},
           {"to_gpus", paths_json(n.to_gpus)},
           {"to_nics", paths_json(n.to_nics)}};
  if (n.cpus.known()) out["cpus"] = cpu_text(*n.cpus);
  if (n.pcie_now.known()) out["pcie_now"] = value_json(*n.pcie_now);
  if (!n.to_gpus_nccl.empty()) out["to_gpus_nccl"] = paths_json(n.to_gpus_nccl);
  return out;
}

json pair_json(const gpu_pair& p, std::size_t host) {
  json out{{"host", host},
           {"a", p.a},
           {"b", p.b},
           {"pci", path_text(p.pci)},
           {"nvlink", links_json(p.nvlink)},
           {"via", p.via == route::direct      ? json("direct")
                   : p.via == route::by_switch ? json("switch")
                                               : json()},
           {"link", link_text(p)},
           {"source", source_text(p.from)}};
  if (p.node_or_sys) out["pci_candidates"] = {"NODE", "SYS"};
  if (p.pci_nccl != path_class::unknown) out["pci_nccl"] = path_text(p.pci_nccl);
  if (p.family == link_family::xgmi) out["family"] = "xgmi";
  const auto status = [&](const char* name, const fact<std::string>& f) {
    if (f.known()) out[name] = *f;
  };
  status("p2p_read", p.p2p_read);
  status("p2p_write", p.p2p_write);
  status("p2p_atomics", p.p2p_atomics);
  status("p2p_nvlink", p.p2p_nvlink);
  status("nccl", p.nccl);
  if (p.peer_access.known()) out["peer_access"] = *p.peer_access;
  if (p.peer_atomics.known()) out["peer_atomics"] = *p.peer_atomics;
  return out;
}

json number_or_null(double v) { return v > 0 ? json(v) : json(); }

json gpu_link_json(const gpu_link& l) {
  return {{"host", or_null(l.host)},
          {"a", l.a},
          {"b", or_null(l.b)},
          {"kind", kind_text(l.kind)},
          {"route", or_null(l.route)},
          {"latency_s", number_or_null(l.seconds)},
          {"bytes_per_s", number_or_null(l.bytes_per_s)},
          {"usual", number_or_null(l.usual)},
          {"ratio", number_or_null(l.ratio())},
          {"verdict", l.verdict()},
          {"may_be_slow", l.may_be_slow},
          {"text", or_null(l.text)}};
}

json collective_json(const collective_rate& c) {
  return {{"name", c.name},
          {"ranks", c.ranks},
          {"bytes", c.bytes},
          {"seconds", number_or_null(c.seconds)},
          {"algbw", number_or_null(c.algbw())},
          {"busbw", number_or_null(c.busbw())},
          {"data_ok", c.data_ok}};
}

json rank_json(const rank_facts& f) {
  json interfaces = json::array();
  for (const net_interface& i : f.interfaces)
    interfaces.push_back(
        {{"name", i.name}, {"address", i.address}, {"up", i.up}, {"loopback", i.loopback}});
  json out{{"rank", f.rank},
           {"local_rank", f.local_rank},
           {"host", f.host},
           {"pid", f.pid},
           {"cpus", cpu_text(f.cpus)},
           {"host_cpus", f.host_cpus},
           {"cpu_model", f.cpu_model},
           {"kernel", f.kernel},
           {"env", f.env},
           {"limits", f.limits},
           {"versions", f.versions},
           {"libraries", f.libraries},
           {"shm_bytes", f.shm_bytes},
           {"shm_free", f.shm_free},
           {"interfaces", interfaces},
           {"announced", f.announced},
           {"announced_by", f.announced_by},
           {"rdma_nics", f.rdma_nics},
           {"gpu_uuid", or_null(f.gpu_uuid)},
           {"gpu_model", or_null(f.gpu_model)}};
  if (f.data_bytes_per_s > 0) out["data_bytes_per_s"] = f.data_bytes_per_s;
  return out;
}

} // namespace

std::string report_json(const report& r) {
  json hosts = json::array(), gpus = json::array(), pairs = json::array(), nics = json::array(),
       ethernet = json::array(), ranks = json::array(), links = json::array(),
       gpu_links = json::array(), collectives = json::array(), rungs = json::array(),
       findings = json::array();
  for (std::size_t h = 0; h < r.machines.size(); ++h) {
    const machine& m = r.machines[h];
    json nodes = json::array();
    for (const numa_node& n : m.numa_nodes)
      nodes.push_back({{"id", n.id}, {"cpus", cpu_text(n.cpus)}});
    hosts.push_back({{"name", m.host},
                     {"format", m.format},
                     {"cpu_model", or_null(m.cpu_model)},
                     {"driver", or_null(m.driver)},
                     {"numa_nodes", nodes},
                     {"host_bridges", m.host_bridges},
                     {"notes", m.notes}});
    for (std::size_t i = 0; i < m.gpus.size(); ++i) gpus.push_back(gpu_json(m.gpus[i], h, i, m));
    for (const gpu_pair& p : m.pairs) pairs.push_back(pair_json(p, h));
    for (const nic& n : m.nics) nics.push_back(nic_json(n, h));
    for (const nic& n : m.ethernet) ethernet.push_back(nic_json(n, h));
  }
  for (const rank_facts& f : r.ranks) ranks.push_back(rank_json(f));
  for (const rank_link& l : r.rank_links)
    links.push_back({{"a", l.a},
                     {"b", l.b},
                     {"same_host", l.same_host},
                     {"latency_s", l.seconds},
                     {"bytes_per_s", l.bytes_per_s},
                     {"data_ok", l.data_ok}});
  for (const gpu_link& l : r.gpu_links) gpu_links.push_back(gpu_link_json(l));
  for (const collective_rate& c : r.collectives) collectives.push_back(collective_json(c));
  for (const rung& s : r.rungs)
    rungs.push_back({{"name", s.name},
                     {"outcome", outcome_text(s.how)},
                     {"text", s.text},
                     {"seconds", s.seconds}});
  for (const finding& f : r.findings) {
    const finding_kind& k = f.kind();
    findings.push_back({{"code", f.code},
                        {"severity", k.level() == severity::failure ? "failure" : "warning"},
                        {"exit", k.exit},
                        {"title", k.title},
                        {"evidence", f.evidence},
                        {"advice", k.advice},
                        {"reference", k.reference},
                        {"cured_by_reset", k.cured_by_reset},
                        {"rank", f.rank >= 0 ? json(f.rank) : json()},
                        {"host", or_null(f.host)}});
  }
  json out{{"schema", "polyrank.probe/1"},
           {"version", POLYRANK_VERSION_STRING},
           {"exit_code", exit_code(r.findings)},
           {"hosts", hosts},
           {"ranks", ranks},
           {"gpus", gpus},
           {"pairs", pairs},
           {"nics", nics},
           {"ethernet", ethernet},
           {"rank_links", links},
           {"gpu_links", gpu_links},
           {"collectives", collectives},
           {"rungs", rungs},
           {"findings", findings}};
  if (const auto c = r.costs.complete()) out["cost_model"] = json::parse(cost_model_text(*c));
  return out.dump(1) + '\n';
}

namespace {

/// Reads fields of one object; every complaint names file and path.
class fields {
 public:
  fields(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw data_error(where_ + ": an object was expected");
  }
  template <class T>
  [[nodiscard]] T get(const char* key, T otherwise) const {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return otherwise;
    return convert<T>(*found, key);
  }
  template <class T>
  [[nodiscard]] T need(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail(key, "is missing");
    return convert<T>(*found, key);
  }
  [[nodiscard]] const nlohmann::json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  [[nodiscard]] std::string path(const char* key) const {
    return polyrank::detail::cat(where_, '.', key);
  }
  [[noreturn]] void fail(const char* key, const char* what) const {
    throw data_error(polyrank::detail::cat(where_, '.', key, ' ', what));
  }

 private:
  template <class T>
  [[nodiscard]] T convert(const nlohmann::json& v, const char* key) const {
    if constexpr (std::is_same_v<T, std::string>) {
      if (!v.is_string()) fail(key, "is no text");
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!v.is_boolean()) fail(key, "is neither true nor false");
    } else if constexpr (std::is_integral_v<T>) {
      if (!v.is_number_integer()) fail(key, "is no integer");
      const auto wide = v.get<std::int64_t>();
      if (!std::in_range<T>(wide)) fail(key, "is out of range");
      return static_cast<T>(wide);
    } else if (!v.is_number()) {
      fail(key, "is no number");
    }
    return v.get<T>();
  }

  const nlohmann::json& object_;
  std::string where_;
};

void read_value(const fields& f, const char* key, std::string& into) {
  into = f.need<std::string>(key);
}
void read_value(const fields& f, const char* key, std::int64_t& into) {
  into = f.need<std::int64_t>(key);
}
void read_value(const fields& f, const char* key, double& into) { into = f.need<double>(key); }
void read_value(const fields& f, const char* key, bool& into) { into = f.need<bool>(key); }
void read_value(const fields& f, const char* key, cpu_list& into) {
  const auto cpus = parse_cpu_list(f.need<std::string>(key));
  if (!cpus) f.fail(key, "is no list of CPUs");
  into = *cpus;
}
void read_value(const fields& f, const char* key, pcie_link& into) {
  const fields link(*f.find(key), f.path(key));
  into = {link.need<int>("gen"), link.need<int>("width")};
}

source read_source(const std::string& text, const fields& f, const char* key) {
  for (int i = 0; i < 6; ++i)
    if (text == source_text(static_cast<source>(i))) return static_cast<source>(i);
  f.fail(key, "is no source");
}
path_class read_path(const std::string& text, const fields& f, const char* key) {
  const auto path = parse_path(text);
  if (!path) f.fail(key, "is no path class");
  return *path;
}
nvlink_count read_links(const fields& f) {
  using k = nvlink_count::knowledge;
  const nlohmann::json* v = f.find("nvlink");
  if (v == nullptr) return {};
  if (v->is_number_integer()) return nvlink_count::of(f.need<int>("nvlink"));
  const std::string text = f.need<std::string>("nvlink");
  for (const k what : {k::not_described, k::unknown, k::none})
    if (text == nvlink_text({what, 0})) return {what, 0};
  f.fail("nvlink", "is neither a number nor one of its words");
}
std::optional<pci_address> read_address(const fields& f) {
  const auto text = f.get<std::string>("pci_address", "");
  if (text.empty()) return std::nullopt;
  const auto address = parse_pci_address(text);
  if (!address) f.fail("pci_address", "is no PCI address");
  return address;
}

gpu read_gpu(const fields& f) {
  gpu g;
  g.name = f.need<std::string>("name");
  g.address = read_address(f);
  g.uuid = f.get<std::string>("uuid", "");
  g.model = f.get<std::string>("model", "");
  const nlohmann::json* sources = f.find("sources");
  each_fact(g, [&](const char* name, auto& target) {
    if (f.find(name) == nullptr) return;
    typename std::remove_cvref_t<decltype(*target)> value{};
    read_value(f, name, value);
    source from = source::file;
    if (sources != nullptr) {
      const fields s(*sources, f.path("sources"));
      from = read_source(s.get<std::string>(name, "file"), s, name);
    }
    target = {std::move(value), from};
  });
  const auto links = read_links(f).what;
  g.nvlink_described = links != nvlink_count::knowledge::not_described;
  g.nvlink_uncounted = links == nvlink_count::knowledge::unknown;
  if (f.get<std::string>("family", "nvlink") == "xgmi") g.family = link_family::xgmi;
  if (const nlohmann::json* peers = f.find("nvlink_peers"); peers != nullptr) {
    if (!peers->is_array()) f.fail("nvlink_peers", "is no array");
    for (const auto& item : *peers) {
      const fields p(item, f.path("nvlink_peers"));
      nvlink_peer peer;
      const auto kind = p.need<std::string>("kind");
      for (int i = 0; i < 4; ++i)
        if (kind == peer_kind(static_cast<nvlink_peer::kind>(i)))
          peer.what = static_cast<nvlink_peer::kind>(i);
      peer.address = p.get<std::string>("address", "");
      peer.links = p.need<int>("links");
      g.nvlink_peers.push_back(std::move(peer));
    }
  }
  return g;
}

std::vector<path_class> read_paths(const fields& f, const char* key) {
  std::vector<path_class> out;
  const nlohmann::json* list = f.find(key);
  if (list == nullptr) return out;
  if (!list->is_array()) f.fail(key, "is no array");
  for (const auto& item : *list) {
    if (!item.is_string()) f.fail(key, "holds something that is no text");
    out.push_back(read_path(item.get<std::string>(), f, key));
  }
  return out;
}

nic read_nic(const fields& f) {
  nic n;
  n.name = f.need<std::string>("name");
  n.label = f.get<std::string>("label", "");
  n.rdma = f.get<bool>("rdma", true);
  n.address = read_address(f);
  n.model = f.get<std::string>("model", "");
  if (f.find("numa") != nullptr) n.numa = {f.need<std::int64_t>("numa"), source::file};
  if (f.find("cpus") != nullptr) {
    cpu_list cpus;
    read_value(f, "cpus", cpus);
    n.cpus = {std::move(cpus), source::file};
  }
  if (f.find("pcie_now") != nullptr) {
    pcie_link link;
    read_value(f, "pcie_now", link);
    n.pcie_now = {link, source::file};
  }
  n.to_gpus = read_paths(f, "to_gpus");
  n.to_nics = read_paths(f, "to_nics");
  n.to_gpus_nccl = read_paths(f, "to_gpus_nccl");
  if (const nlohmann::json* ports = f.find("ports"); ports != nullptr) {
    if (!ports->is_array()) f.fail("ports", "is no array");
    for (const auto& item : *ports) {
      const fields p(item, f.path("ports"));
      n.ports.push_back({p.need<std::string>("name"), p.get<int>("port", 0),
                         p.get<std::int64_t>("dev", -1), p.get<std::int64_t>("mbit_per_s", 0),
                         p.get<std::string>("guid", "")});
    }
  }
  return n;
}

void read_pair(const fields& f, machine& m) {
  const auto a = f.need<std::size_t>("a"), b = f.need<std::size_t>("b");
  if (a >= b || b >= m.gpus.size()) f.fail("b", "names no pair of GPUs of this host");
  gpu_pair& p = m.pair(a, b);
  p.pci = read_path(f.need<std::string>("pci"), f, "pci");
  p.node_or_sys = f.find("pci_candidates") != nullptr;
  if (f.find("pci_nccl") != nullptr)
    p.pci_nccl = read_path(f.need<std::string>("pci_nccl"), f, "pci_nccl");
  p.nvlink = read_links(f);
  const auto via = f.get<std::string>("via", "");
  p.via = via == "direct" ? route::direct : via == "switch" ? route::by_switch : route::unknown;
  if (f.get<std::string>("family", "") == "xgmi") p.family = link_family::xgmi;
  p.from = read_source(f.get<std::string>("source", "file"), f, "source");
  const auto status = [&](const char* key, fact<std::string>& into) {
    if (f.find(key) != nullptr) into = {f.need<std::string>(key), p.from};
  };
  status("p2p_read", p.p2p_read);
  status("p2p_write", p.p2p_write);
  status("p2p_atomics", p.p2p_atomics);
  status("p2p_nvlink", p.p2p_nvlink);
  status("nccl", p.nccl);
  if (f.find("peer_access") != nullptr) p.peer_access = {f.need<bool>("peer_access"), source::cuda};
  if (f.find("peer_atomics") != nullptr)
    p.peer_atomics = {f.need<bool>("peer_atomics"), source::cuda};
}

gpu_link read_gpu_link(const fields& f) {
  gpu_link l;
  l.host = f.get<std::string>("host", "");
  l.a = f.need<std::string>("a");
  l.b = f.get<std::string>("b", "");
  const auto kind = f.need<std::string>("kind");
  bool known = false;
  for (int i = 0; i < 6; ++i)
    if (kind == kind_text(static_cast<transfer_kind>(i))) {
      l.kind = static_cast<transfer_kind>(i);
      known = true;
    }
  if (!known) f.fail("kind", "is no kind of transfer");
  l.route = f.get<std::string>("route", "");
  l.seconds = f.get<double>("latency_s", 0);
  l.bytes_per_s = f.get<double>("bytes_per_s", 0);
  l.usual = f.get<double>("usual", 0);
  l.may_be_slow = f.get<bool>("may_be_slow", false);
  l.text = f.get<std::string>("text", "");
  const auto verdict = f.get<std::string>("verdict", "");
  l.how = verdict == "CORRUPT"  ? gpu_link::state::corrupt
          : verdict == "HUNG"   ? gpu_link::state::hung
          : verdict == "failed" ? gpu_link::state::failed
                                : gpu_link::state::ok;
  return l;
}

} // namespace

/// How deep brackets nest, strings left out: bounded before parsing, since that recurses.
static int depth_of(std::string_view text) {
  int depth = 0, most = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      most = std::max(most, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return most;
}

report read_report_json(std::string_view text, std::string_view name) {
  if (text.size() > max_text_bytes)
    throw data_error(polyrank::detail::cat(name, ": more than 64 MiB"));
  if (depth_of(text) > 32)
    throw data_error(polyrank::detail::cat(name, ": nested more than 32 deep"));
  nlohmann::json j;
  try {
    j = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    throw data_error(polyrank::detail::cat(name, ": ", e.what()));
  }
  const fields top(j, std::string(name));
  const auto schema = top.get<std::string>("schema", "");
  if (schema != "polyrank.probe/1")
    throw data_error(
        polyrank::detail::cat(name, ": schema \"", schema, "\", expected \"polyrank.probe/1\""));
  const auto each = [&](const char* key, const auto& use) {
    const nlohmann::json* list = top.find(key);
    if (list == nullptr) return;
    if (!list->is_array()) top.fail(key, "is no array");
    for (std::size_t i = 0; i < list->size(); ++i)
      use(fields((*list)[i], polyrank::detail::cat(name, ": ", key, '[', i, ']')));
  };
  report r;
  each("hosts", [&](const fields& f) {
    machine m;
    m.host = f.get<std::string>("name", "");
    m.format = f.get<std::string>("format", "");
    m.cpu_model = f.get<std::string>("cpu_model", "");
    m.driver = f.get<std::string>("driver", "");
    if (const nlohmann::json* nodes = f.find("numa_nodes"); nodes != nullptr) {
      if (!nodes->is_array()) f.fail("numa_nodes", "is no array");
      for (const auto& item : *nodes) {
        const fields n(item, f.path("numa_nodes"));
        numa_node node{n.need<int>("id"), {}};
        read_value(n, "cpus", node.cpus);
        m.numa_nodes.push_back(std::move(node));
      }
    }
    const auto texts = [&](const char* key, std::vector<std::string>& into) {
      const nlohmann::json* list = f.find(key);
      if (list == nullptr) return;
      if (!list->is_array()) f.fail(key, "is no array");
      for (const auto& item : *list) {
        if (!item.is_string()) f.fail(key, "holds something that is no text");
        into.push_back(item.get<std::string>());
      }
    };
    texts("host_bridges", m.host_bridges);
    texts("notes", m.notes);
    r.machines.push_back(std::move(m));
  });
  const auto host_of = [&](const fields& f) -> machine& {
    const auto h = f.get<std::size_t>("host", 0);
    if (h >= r.machines.size()) f.fail("host", "names no host");
    return r.machines[h];
  };
  each("gpus", [&](const fields& f) { host_of(f).gpus.push_back(read_gpu(f)); });
  for (const machine& m : r.machines)
    if (m.gpus.size() > 1024)
      throw data_error(polyrank::detail::cat(name, ": more than 1024 GPUs in one host"));
  for (machine& m : r.machines) m.make_pairs();
  each("pairs", [&](const fields& f) { read_pair(f, host_of(f)); });
  each("nics", [&](const fields& f) { host_of(f).nics.push_back(read_nic(f)); });
  each("ethernet", [&](const fields& f) { host_of(f).ethernet.push_back(read_nic(f)); });
  each("gpu_links", [&](const fields& f) { r.gpu_links.push_back(read_gpu_link(f)); });
  each("findings", [&](const fields& f) {
    finding found;
    found.code = f.need<std::string>("code");
    const auto kinds = finding_kinds();
    if (std::none_of(kinds.begin(), kinds.end(),
                     [&](const finding_kind& k) { return k.code == found.code; }))
      return; // of a later version
    found.evidence = f.get<std::string>("evidence", "");
    found.host = f.get<std::string>("host", "");
    found.rank = f.get<int>("rank", -1);
    r.findings.push_back(std::move(found));
  });
  return r;
}

report read_any(const std::string& path, const std::map<std::string, int>& numa) {
  const auto bytes = read_file(path, max_text_bytes);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (trim(text).starts_with('{')) return read_report_json(text, path);
  report r;
  r.machines = read_machines(text, path, numa);
  return r;
}

} // namespace polyrank::examples
