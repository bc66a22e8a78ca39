// What one rank knows about itself: place, environment, limits, libraries, CPUs, interfaces. It
// travels to the other ranks as text (one "key value" line each), so that they can be compared
// before anything else is tried.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/probe/cpu_list.hpp>

#include <charconv>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

/// A network interface of a host.
struct net_interface {
  std::string name;
  std::string address; ///< IPv4 or IPv6, as text; empty: none
  bool up = true, loopback = false;
};

struct rank_facts {
  int rank = 0, local_rank = 0;
  std::string host, boot_id;
  std::int64_t pid = 0;
  cpu_list cpus;     ///< this rank may run on
  int host_cpus = 0; ///< online
  std::string cpu_model, kernel;
  std::map<std::string, std::string> env; ///< NCCL_*, CUDA_*, UCX_*, ...
  /// "memlock", "nofile", "stack" (-1: unlimited), "container memory", "container CPU percent".
  std::map<std::string, std::int64_t> limits;
  std::map<std::string, std::string>
      versions;                       ///< "nccl", "cuda driver", "nvidia driver", "mpi", ...
  std::vector<std::string> libraries; ///< paths of cuda, nccl, cublas and mpi libraries
  std::int64_t shm_bytes = -1, shm_free = -1; ///< of /dev/shm; -1: there is none
  std::int64_t shm_stale = 0;                 ///< nccl-* files of nobody
  std::vector<net_interface> interfaces;
  std::string announced;    ///< the address at which this rank listens
  std::string announced_by; ///< its interface
  std::int64_t port = 0;
  std::vector<std::string> rdma_nics;
  std::string gpu_uuid, gpu_model; ///< of the GPU that the local rank takes; empty: none
  cpu_list gpu_cpus;
  std::string launcher_problem;
  std::string data_error;      ///< reading the data directory failed
  double data_bytes_per_s = 0; ///< 0: not measured
};

namespace detail {

/// Newlines and backslashes are escaped, so that a value is one line.
[[nodiscard]] inline std::string one_line(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
  return out;
}
[[nodiscard]] inline std::string many_lines(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size())
      out += text[i];
    else
      out += text[++i] == 'n' ? '\n' : text[i];
  }
  return out;
}

} // namespace detail

[[nodiscard]] inline std::string encode(const rank_facts& f) {
  std::string out;
  const auto put = [&](std::string_view key, const auto& value) {
    out += polyrank::detail::cat(key, '\t');
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(value)>>)
      out += polyrank::detail::cat(value);
    else
      out += detail::one_line(value);
    out += '\n';
  };
  put("rank", f.rank);
  put("local_rank", f.local_rank);
  put("host", f.host);
  put("boot_id", f.boot_id);
  put("pid", f.pid);
  put("cpus", cpu_text(f.cpus));
  put("host_cpus", f.host_cpus);
  put("cpu_model", f.cpu_model);
  put("kernel", f.kernel);
  for (const auto& [k, v] : f.env) put("env:" + k, v);
  for (const auto& [k, v] : f.limits) put("limit:" + k, v);
  for (const auto& [k, v] : f.versions) put("version:" + k, v);
  for (const std::string& l : f.libraries) put("library", l);
  put("shm_bytes", f.shm_bytes);
  put("shm_free", f.shm_free);
  put("shm_stale", f.shm_stale);
  for (const net_interface& i : f.interfaces)
    put("interface", polyrank::detail::cat(i.name, ' ', i.up ? "up" : "down", ' ',
                                           i.loopback ? "loopback" : "net", ' ', i.address));
  put("announced", f.announced);
  put("announced_by", f.announced_by);
  put("port", f.port);
  for (const std::string& n : f.rdma_nics) put("rdma", n);
  put("gpu_uuid", f.gpu_uuid);
  put("gpu_model", f.gpu_model);
  put("gpu_cpus", cpu_text(f.gpu_cpus));
  put("launcher", f.launcher_problem);
  put("data_error", f.data_error);
  put("data_rate", f.data_bytes_per_s);
  return out;
}

/// @throws data_error for a line that is none of ours
[[nodiscard]] inline rank_facts decode_facts(std::string_view text) {
  rank_facts f;
  const auto number = [](std::string_view value, auto& into) {
    const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), into);
    if (code != std::errc() || end != value.data() + value.size())
      throw data_error(polyrank::detail::cat("facts of a rank: \"", value, "\" is no number"));
  };
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t tab = line.find('\t');
    if (tab == std::string_view::npos) throw data_error("facts of a rank: a line without a tab");
    const std::string_view key = line.substr(0, tab), raw = line.substr(tab + 1);
    const std::string value = detail::many_lines(raw);
    if (key == "rank")
      number(raw, f.rank);
    else if (key == "local_rank")
      number(raw, f.local_rank);
    else if (key == "host")
      f.host = value;
    else if (key == "boot_id")
      f.boot_id = value;
    else if (key == "pid")
      number(raw, f.pid);
    else if (key == "cpus")
      f.cpus = parse_cpu_list(raw).value_or(cpu_list{});
    else if (key == "host_cpus")
      number(raw, f.host_cpus);
    else if (key == "cpu_model")
      f.cpu_model = value;
    else if (key == "kernel")
      f.kernel = value;
    else if (key.starts_with("env:"))
      f.env[std::string(key.substr(4))] = value;
    else if (key.starts_with("limit:"))
      number(raw, f.limits[std::string(key.substr(6))]);
    else if (key.starts_with("version:"))
      f.versions[std::string(key.substr(8))] = value;
    else if (key == "library")
      f.libraries.push_back(value);
    else if (key == "shm_bytes")
      number(raw, f.shm_bytes);
    else if (key == "shm_free")
      number(raw, f.shm_free);
    else if (key == "shm_stale")
      number(raw, f.shm_stale);
    else if (key == "interface") {
      net_interface i;
      std::string_view rest = value;
      const auto word = [&] {
        const std::size_t blank = std::min(rest.find(' '), rest.size());
        const std::string_view w = rest.substr(0, blank);
        rest.remove_prefix(std::min(blank + 1, rest.size()));
        return w;
      };
      i.name = word();
      i.up = word() == "up";
      i.loopback = word() == "loopback";
      i.address = rest;
      f.interfaces.push_back(i);
    } else if (key == "announced")
      f.announced = value;
    else if (key == "announced_by")
      f.announced_by = value;
    else if (key == "port")
      number(raw, f.port);
    else if (key == "rdma")
      f.rdma_nics.push_back(value);
    else if (key == "gpu_uuid")
      f.gpu_uuid = value;
    else if (key == "gpu_model")
      f.gpu_model = value;
    else if (key == "gpu_cpus")
      f.gpu_cpus = parse_cpu_list(raw).value_or(cpu_list{});
    else if (key == "launcher")
      f.launcher_problem = value;
    else if (key == "data_error")
      f.data_error = value;
    else if (key == "data_rate")
      number(raw, f.data_bytes_per_s);
    else
      throw data_error(polyrank::detail::cat("facts of a rank: unknown key \"", key, '"'));
  }
  return f;
}

} // namespace polyrank::probe
