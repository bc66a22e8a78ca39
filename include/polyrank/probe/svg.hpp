// The topology of a machine as a picture: GPUs on a circle, NVLinks as lines whose width is their
// number, a switch in the middle where there is one, PCI classes as thin lines, NICs outside next
// to their nearest GPU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/model.hpp>

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

namespace detail {

class picture {
 public:
  explicit picture(const machine& m) : m_(m) {
    const double n = static_cast<double>(std::max<std::size_t>(m.gpus.size(), 1));
    radius_ = std::max(150.0, n * 22);
    size_ = 2 * radius_ + 360;
  }

  std::string run() {
    out_ = polyrank::detail::cat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", px(size_), "\" height=\"",
        px(size_ + 60), "\" font-family=\"sans-serif\" font-size=\"12\">\n<title>", escape(m_.host),
        "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n");
    text(16, 24, polyrank::detail::cat(m_.host, "  (", m_.format, ")"), "start", 14);
    const bool by_switch = std::any_of(m_.pairs.begin(), m_.pairs.end(),
                                       [](const gpu_pair& p) { return p.via == route::by_switch; });
    for (const gpu_pair& p : m_.pairs) pair(p);
    if (by_switch) {
      for (std::size_t i = 0; i < m_.gpus.size(); ++i)
        if (m_.gpus[i].links().some())
          line(at(i, radius_), {middle(), middle()}, "#2a7", m_.gpus[i].links().links, "");
      box({middle(), middle()}, 92, 34, "#dfd", "NVSwitch", "");
    }
    std::vector<double> taken(m_.gpus.size());
    for (std::size_t k = 0; k < m_.nics.size(); ++k) nic_box(k, taken);
    for (std::size_t i = 0; i < m_.gpus.size(); ++i) {
      const gpu& g = m_.gpus[i];
      static constexpr std::string_view fills[] = {"#cde", "#fdc", "#edc", "#dcf", "#cfe", "#eee"};
      const std::size_t colour = g.numa.known() ? static_cast<std::size_t>(*g.numa) % 5 : 5;
      box(at(i, radius_), 100, 36, fills[colour], g.name,
          g.address        ? pci_text(*g.address)
          : g.numa.known() ? polyrank::detail::cat("NUMA ", *g.numa)
                           : "");
    }
    text(16, size_ + 44,
         "colour: NUMA node; green: NVLink or xGMI, width = links; grey: PCI (PIX, PXB, "
         "PHB full; NODE, SYS dashed)",
         "start", 11);
    return out_ + "</svg>\n";
  }

 private:
  struct point {
    double x, y;
  };
  [[nodiscard]] static std::string px(double v) {
    return polyrank::detail::cat(std::round(v * 10) / 10);
  }
  [[nodiscard]] static std::string escape(std::string_view text) {
    std::string out;
    for (const char c : text) {
      if (c == '&')
        out += "&amp;";
      else if (c == '<')
        out += "&lt;";
      else if (c == '>')
        out += "&gt;";
      else if (c == '"')
        out += "&quot;";
      else if (static_cast<unsigned char>(c) >= ' ')
        out += c;
    }
    return out;
  }
  [[nodiscard]] double middle() const { return size_ / 2 + 10; }
  [[nodiscard]] point at(std::size_t gpu, double r) const {
    const double angle = 2 * 3.14159265358979 * static_cast<double>(gpu) /
                         static_cast<double>(std::max<std::size_t>(m_.gpus.size(), 1));
    return {middle() + r * std::sin(angle), middle() - r * std::cos(angle)};
  }
  void text(double x, double y, std::string_view words, std::string_view anchor, double size) {
    out_ +=
        polyrank::detail::cat("<text x=\"", px(x), "\" y=\"", px(y), "\" text-anchor=\"", anchor,
                              "\" font-size=\"", px(size), "\">", escape(words), "</text>\n");
  }
  void line(point a, point b, std::string_view colour, double width, std::string_view dash) {
    out_ += polyrank::detail::cat("<line x1=\"", px(a.x), "\" y1=\"", px(a.y), "\" x2=\"", px(b.x),
                                  "\" y2=\"", px(b.y), "\" stroke=\"", colour, "\" stroke-width=\"",
                                  px(width), dash.empty() ? "" : "\" stroke-dasharray=\"", dash,
                                  "\"/>\n");
  }
  void box(point c, double w, double h, std::string_view fill, std::string_view first,
           std::string_view second) {
    out_ += polyrank::detail::cat("<rect x=\"", px(c.x - w / 2), "\" y=\"", px(c.y - h / 2),
                                  "\" width=\"", px(w), "\" height=\"", px(h),
                                  "\" rx=\"5\" fill=\"", fill, "\" stroke=\"#567\"/>\n");
    text(c.x, second.empty() ? c.y + 4 : c.y - 2, first, "middle", 12);
    if (!second.empty()) text(c.x, c.y + 12, second, "middle", 10);
  }
  void pair(const gpu_pair& p) {
    const point a = at(p.a, radius_), b = at(p.b, radius_);
    if (p.via == route::by_switch) return;
    if (p.nvlink.some()) {
      line(a, b, "#2a7", 1.5 * p.nvlink.links, "");
      text((a.x * 2 + b.x) / 3, (a.y * 2 + b.y) / 3, link_text(p), "middle", 10);
    } else if (p.pci != path_class::unknown && m_.gpus.size() <= 16) {
      const bool far_path = p.pci == path_class::node || p.pci == path_class::sys;
      line(a, b, p.pci == path_class::sys ? "#ccc" : "#888", 1, far_path ? "4 4" : "");
    }
  }
  void nic_box(std::size_t k, std::vector<double>& taken) {
    const nic& n = m_.nics[k];
    std::size_t nearest = m_.gpus.size();
    for (std::size_t g = 0; g < n.to_gpus.size() && g < m_.gpus.size(); ++g)
      if (n.to_gpus[g] != path_class::unknown &&
          (nearest == m_.gpus.size() || n.to_gpus[g] < n.to_gpus[nearest]))
        nearest = g;
    if (nearest == m_.gpus.size()) return;
    const point home = at(nearest, radius_);
    const point c = at(nearest, radius_ + 76 + taken[nearest]);
    taken[nearest] += 28;
    line(home, c, "#a63", 1, n.to_gpus[nearest] > path_class::pxb ? "4 4" : "");
    box(c, 92, 22, "#ffd", n.name, "");
  }

  const machine& m_;
  double radius_ = 0, size_ = 0;
  std::string out_;
};

} // namespace detail

/// A standalone SVG document.
[[nodiscard]] inline std::string topology_svg(const machine& m) { return detail::picture(m).run(); }

} // namespace polyrank::probe
