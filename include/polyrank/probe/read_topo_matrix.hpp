// Reads `nvidia-smi topo -m` and `nvidia-smi topo -p2p r|w|n|a|p`.
//
// In `topo -m`, NV# hides the PCI class; on NVSwitch machines the number is the GPU's total to the
// switch, on directly linked ones it belongs to the pair. The words differ between drivers: SOC was
// SYS before 2017, NICs stood in the header by name before "NIC Legend" came.
// `topo -p2p` is a capability, not a link class.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/matrix_text.hpp>
#include <polyrank/probe/model.hpp>

#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

namespace detail {

class topo_matrix_reader {
 public:
  topo_matrix_reader(std::string_view text, std::string_view name)
      : name_(name), text_(text), reader_(text, name), table_(reader_.run()) {}

  machine run() {
    m_.host = name_;
    for (std::size_t i = 0; i < table_.devices.size(); ++i) {
      const bool is_gpu = numbered(table_.devices[i], "GPU") == table_.devices[i].size();
      kinds_.push_back({is_gpu, is_gpu ? m_.gpus.size() : m_.nics.size()});
      if (is_gpu) {
        m_.gpus.emplace_back();
        m_.gpus.back().name = table_.devices[i];
      } else {
        m_.nics.emplace_back();
        m_.nics.back().name = m_.nics.back().label = table_.devices[i];
      }
    }
    m_.make_pairs();
    for (gpu_pair& p : m_.pairs) p.from = source::file;
    is_p2p() ? capabilities() : links();
    for (std::size_t i = table_.end; i < reader_.lines().size(); ++i)
      if (trim(reader_.lines()[i].text).starts_with("GPU0")) {
        m_.notes.push_back(
            polyrank::detail::cat("line ", i + 1, ": another table, which is not read"));
        break;
      }
    return std::move(m_);
  }

 private:
  struct kind {
    bool is_gpu;
    std::size_t index;
  };

  [[nodiscard]] bool is_p2p() const {
    for (const matrix_row& r : table_.rows)
      for (const matrix_cell& c : r.cells)
        if (c.text != "X" && c.text != "N/A") return is_status(c.text);
    return table_.tail.empty() && text_.find("CNS") != std::string_view::npos;
  }
  [[nodiscard]] static bool is_status(std::string_view word) {
    for (const std::string_view s : {"OK", "NS", "CNS", "GNS", "TNS", "DR", "U"})
      if (word == s) return true;
    return false;
  }
  [[nodiscard]] std::size_t device_of(std::string_view name) const {
    return static_cast<std::size_t>(std::find(table_.devices.begin(), table_.devices.end(), name) -
                                    table_.devices.begin());
  }

  void links() {
    m_.format = "nvidia-smi topo -m";
    const std::size_t n = table_.devices.size();
    std::vector<std::vector<const matrix_cell*>> cells(n, std::vector<const matrix_cell*>(n));
    for (const matrix_row& r : table_.rows) {
      const std::size_t a = device_of(r.name);
      for (std::size_t b = 0; b < n; ++b) cells[a][b] = &r.cells[b];
      affinity(r, kinds_[a]);
    }
    for (nic& x : m_.nics) {
      x.to_gpus.assign(m_.gpus.size(), path_class::unknown);
      x.to_nics.assign(m_.nics.size(), path_class::unknown);
    }
    for (std::size_t a = 0; a < n; ++a)
      for (std::size_t b = 0; b < n; ++b)
        if (cells[a][b] != nullptr && a != b) link(a, b, *cells[a][b], cells[b][a]);
    for (nic& x : m_.nics)
      x.to_nics[static_cast<std::size_t>(&x - m_.nics.data())] = path_class::pix;
    for (gpu& g : m_.gpus) g.nvlink_described = m_.gpus.size() > 1; // shown by pairs only
    infer_route(m_);
    totals();
    nic_legend();
    numa_nodes();
  }

  /// One cell, compared with its mirror.
  void link(std::size_t a, std::size_t b, const matrix_cell& c, const matrix_cell* mirror) {
    if (is_status(c.text))
      refuse(name_, c.at, "\"", c.text, "\" belongs to `topo -p2p`, the table is a `topo -m`");
    int count = 0;
    const bool nv = numbered(c.text, "NV") == c.text.size();
    if (nv) std::from_chars(c.text.data() + 2, c.text.data() + c.text.size(), count);
    if (nv && (count < 1 || count > 144))
      refuse(name_, c.at, "\"", c.text, "\": no GPU has that many NVLinks");
    const path_class path =
        nv ? path_class::unknown : parse_path(c.text).value_or(path_class::unknown);
    if (mirror != nullptr) {
      const bool mirror_nv = numbered(mirror->text, "NV") == mirror->text.size();
      if (nv != mirror_nv || (!nv && mirror->text != c.text && a < b))
        refuse(name_, c.at, table_.devices[a], " to ", table_.devices[b], " is ", c.text, ", but ",
               mirror->text, " the other way (line ", mirror->at.line, ", column ",
               mirror->at.column, ")");
      if (nv && a < b && mirror->text != c.text)
        m_.notes.push_back(polyrank::detail::cat(
            table_.devices[a], " shows ", c.text, " to ", table_.devices[b], ", which shows ",
            mirror->text, " back: links of one of them are down; the smaller number counts"));
    }
    const kind x = kinds_[a], y = kinds_[b];
    if (x.is_gpu && y.is_gpu) {
      gpu_pair& p = m_.pair(x.index, y.index);
      p.pci = path;
      if (!nv)
        p.nvlink = c.text == "N/A" ? nvlink_count{nvlink_count::knowledge::unknown, 0}
                                   : nvlink_count::of(0);
      else if (!p.nvlink.some() || count < p.nvlink.links)
        p.nvlink = nvlink_count::of(count);
    } else if (nv) {
      refuse(name_, c.at, "NVLinks between ", table_.devices[a], " and ", table_.devices[b],
             ", one of which is no GPU");
    } else if (!x.is_gpu) {
      (y.is_gpu ? m_.nics[x.index].to_gpus : m_.nics[x.index].to_nics)[y.index] = path;
    } else {
      m_.nics[y.index].to_gpus[x.index] = path; // NIC rows may be missing
    }
  }

  void affinity(const matrix_row& r, kind k) {
    for (std::size_t t = 0; t < table_.tail.size(); ++t) {
      const matrix_cell& c = r.tail[t];
      if (c.text.empty() || c.text == "N/A") continue;
      const auto list = parse_cpu_list(c.text);
      if (!list)
        refuse(name_, c.at, "row ", r.name, ", ", table_.tail[t], ": \"", c.text,
               "\" is no list of numbers");
      if (!k.is_gpu) refuse(name_, c.at, "row ", r.name, " is no GPU, yet it has an affinity");
      gpu& g = m_.gpus[k.index];
      if (table_.tail[t] == "CPU Affinity")
        g.cpus = {*list, source::file};
      else if (table_.tail[t] == "GPU NUMA ID")
        g.gpu_numa = {list->front(), source::file};
      else if (list->size() == 1)
        g.numa = {list->front(), source::file};
      else
        m_.notes.push_back(
            polyrank::detail::cat(r.name, " is near NUMA nodes ", c.text, ": no single node"));
    }
  }

  /// Links of one GPU: its largest pair on a switch, else the sum over its pairs.
  void totals() {
    struct total {
      int sum = 0, most = 0;
      bool by_switch = false, unknown = false;
    };
    std::vector<total> totals(m_.gpus.size());
    for (const gpu_pair& p : m_.pairs)
      for (const std::size_t g : {p.a, p.b}) {
        totals[g].sum += p.nvlink.links;
        totals[g].most = std::max(totals[g].most, p.nvlink.links);
        totals[g].by_switch |= p.via == route::by_switch;
        totals[g].unknown |= p.nvlink.what == nvlink_count::knowledge::unknown;
      }
    for (std::size_t i = 0; i < m_.gpus.size(); ++i)
      if (!totals[i].unknown && m_.gpus.size() > 1)
        m_.gpus[i].nvlink_active = {totals[i].by_switch ? totals[i].most : totals[i].sum,
                                    source::inferred};
  }

  /// "  NIC0: mlx5_0" after the table.
  void nic_legend() {
    for (std::size_t i = table_.end; i < reader_.lines().size(); ++i) {
      const clean_line& l = reader_.lines()[i];
      const std::string_view line = trim(l.text);
      const std::size_t n = numbered(line, "NIC");
      if (n == 0 || n >= line.size() || line[n] != ':') continue;
      for (nic& x : m_.nics)
        if (x.label == line.substr(0, n)) x.name = trim(line.substr(n + 1));
    }
    for (nic& x : m_.nics)
      if (x.name != x.label || numbered(x.name, "NIC") == 0) x.ports = {{x.name, 0, -1, 0, ""}};
  }

  void numa_nodes() {
    std::map<int, cpu_list> nodes;
    for (const gpu& g : m_.gpus)
      if (g.numa.known()) nodes[static_cast<int>(*g.numa)] = g.cpus.value_or({});
    for (auto& [id, cpus] : nodes) m_.numa_nodes.push_back({id, std::move(cpus)});
  }

  void capabilities() {
    m_.format = "nvidia-smi topo -p2p";
    // Which capability a table is about is said only by the command that made it.
    char which = 'r';
    if (const std::size_t at = text_.find("-p2p ");
        at != std::string_view::npos && at + 5 < text_.size())
      which = text_[at + 5];
    else if (const std::size_t dot = name_.find(".p2p_");
             dot != std::string_view::npos && dot + 5 < name_.size())
      which = name_[dot + 5];
    for (const matrix_row& r : table_.rows) {
      const kind x = kinds_[device_of(r.name)];
      for (std::size_t b = 0; b < table_.devices.size(); ++b) {
        const kind y = kinds_[b];
        const matrix_cell& c = r.cells[b];
        if (!x.is_gpu || !y.is_gpu)
          refuse(name_, c.at, "`topo -p2p` lists GPUs only, not ", table_.devices[b]);
        if (c.text == "X") continue;
        if (!is_status(c.text) && c.text != "N/A")
          refuse(name_, c.at, "\"", c.text, "\" belongs to `topo -m`, the table is a `topo -p2p`");
        gpu_pair& p = m_.pair(x.index, y.index);
        fact<std::string>& f = which == 'w'   ? p.p2p_write
                               : which == 'a' ? p.p2p_atomics
                               : which == 'n' ? p.p2p_nvlink
                                              : p.p2p_read;
        if (!f.known() || *f == "OK") f = {c.text, source::file}; // the worse of both directions
      }
    }
  }

  std::string_view name_, text_;
  matrix_reader reader_;
  matrix_table table_;
  std::vector<kind> kinds_;
  machine m_;
};

} // namespace detail

/// The machine that `nvidia-smi topo -m` or `topo -p2p` shows. @throws data_error with line and
/// column
[[nodiscard]] inline machine read_topo_matrix(std::string_view text, std::string_view name) {
  return detail::topo_matrix_reader(text, name).run();
}

} // namespace polyrank::probe
