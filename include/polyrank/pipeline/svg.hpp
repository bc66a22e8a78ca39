// A report as a picture: one row per rank, one box per action, the bubble in the margin. Several
// reports are drawn row under row on one time axis: predicted and measured of the same schedule.
//
//     write_file("zb_v.svg", svg(simulate(t, c, {.timeline = true}), {.title = "ZB-V"}));
//
// Blue F, orange B, teal I, green W, grey recompute and update; paler in odd chunks; an overlapped
// pair is framed, its forward above its backward.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/pipeline/render_text.hpp>
#include <polyrank/pipeline/report.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace polyrank::pipeline {

struct svg_options {
  std::string_view title = "";
  double width = 960;
  double row_height = 22;
  bool labels = true; ///< microbatch numbers, where they fit
};

namespace detail {

[[nodiscard]] constexpr char class_of(const action& a) noexcept {
  switch (a.kind) {
  case action_kind::forward:
    return 'f';
  case action_kind::backward:
    return 'b';
  case action_kind::input_grad:
    return 'i';
  case action_kind::weight_grad:
    return 'w';
  case action_kind::recompute:
  case action_kind::optimizer:
    return 'o';
  default:
    return ' ';
  }
}

class svg_writer {
 public:
  svg_writer(std::span<const named_report> reports, const svg_options& options)
      : reports_(reports), options_(options) {
    for (const named_report& n : reports) {
      ranks_ = std::max(ranks_, n.data->ranks.size());
      double first = n.data->ranks.empty() ? 0 : n.data->ranks.front().start;
      for (const rank_report& r : n.data->ranks) first = std::min(first, r.start);
      first_.push_back(first);
      longest_ = std::max(longest_, n.data->makespan);
    }
    scale_ = longest_ > 0 ? (options.width - left - right) / longest_ : 0;
  }

  std::string run() {
    const double top = options_.title.empty() ? 6 : 26;
    const double gap = reports_.size() > 1 ? 8 : 2;
    const double block = static_cast<double>(reports_.size()) * options_.row_height + gap;
    const double height = top + static_cast<double>(ranks_) * block + 24;
    out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ";
    number(options_.width), out_ += ' ', number(height);
    out_ += "\" font-family=\"sans-serif\" font-size=\"11\">\n"
            "<style>text{fill:#222}.c{text-anchor:middle;font-size:10px}rect{stroke:#fff;"
            "stroke-width:.6}.f{fill:#5b9bd5}.b{fill:#f0a04b}.i{fill:#45b5aa}.w{fill:#8cc665}"
            ".o{fill:#aaa}.s{fill-opacity:.55}.j{fill:none;stroke:#333;stroke-width:1.2}"
            ".l{stroke:#ddd}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
    if (!options_.title.empty()) text(left, 17, plain(options_.title), "");
    for (std::size_t rank = 0; rank < ranks_; ++rank)
      for (std::size_t n = 0; n < reports_.size(); ++n)
        if (rank < reports_[n].data->ranks.size())
          row(n, rank,
              top + static_cast<double>(rank) * block +
                  static_cast<double>(n) * options_.row_height);
    const double axis = height - 20;
    out_ += "<path class=\"l\" d=\"M", number(left), out_ += ' ', number(axis), out_ += 'H',
        number(options_.width - right), out_ += "\"/>\n";
    for (int tick = 0; tick <= 4; ++tick) {
      const double t = longest_ * tick / 4;
      text(left + t * scale_, axis + 14, fixed(t, 2), tick == 0 ? "" : "c");
    }
    text(options_.width - right + 6, axis + 14, "bubble", "");
    return out_ + "</svg>\n";
  }

 private:
  static constexpr double left = 64, right = 56;

  void row(std::size_t n, std::size_t rank, double y) {
    const report& r = *reports_[n].data;
    std::string name = polyrank::detail::cat("rank ", rank);
    if (reports_.size() > 1)
      name = n == 0 ? name + " " + plain(reports_[n].name).substr(0, 4)
                    : plain(reports_[n].name).substr(0, 9);
    text(2, y + options_.row_height - 7, name, "");
    double pair = -1; // end of a joined forward, whose backward is next
    for (const event& e : r.timeline) {
      if (e.rank != rank || e.lane != 0 || class_of(e.what) == ' ') continue;
      const bool second = pair == e.end, half = second || e.what.joined != 0;
      box(r.shape, e, first_[n], y + (second ? options_.row_height / 2 : 0),
          half ? options_.row_height / 2 : options_.row_height);
      if (second) frame(e, first_[n], y);
      pair = e.what.joined != 0 ? e.end : -1;
    }
    const double busy = r.ranks[rank].busy;
    const double share = r.makespan > 0 ? 100 * (r.makespan - busy) / r.makespan : 0;
    text(options_.width - right + 6, y + options_.row_height - 7, fixed(share, 1) + " %", "");
  }
  void box(const shape& s, const event& e, double first, double y, double height) {
    const double x = left + (e.start - first) * scale_, w = (e.end - e.start) * scale_;
    out_ += "<rect class=\"";
    out_ += class_of(e.what);
    if (s.chunk_of(e.what.stage) % 2 == 1) out_ += " s";
    out_ += "\" x=\"", number(x), out_ += "\" y=\"", number(y), out_ += "\" width=\"", number(w),
        out_ += "\" height=\"", number(height - 1), out_ += "\"/>\n";
    const std::string label = polyrank::detail::cat(e.what.microbatch);
    if (options_.labels && has_microbatch(e.what.kind) &&
        w >= 6.5 * static_cast<double>(label.size()))
      text(x + w / 2, y + height / 2 + 3, label, "c");
  }
  void frame(const event& e, double first, double y) {
    out_ += "<rect class=\"j\" x=\"", number(left + (e.start - first) * scale_), out_ += "\" y=\"",
        number(y), out_ += "\" width=\"", number((e.end - e.start) * scale_),
        out_ += "\" height=\"", number(options_.row_height - 1), out_ += "\"/>\n";
  }
  void text(double x, double y, std::string_view words, std::string_view style) {
    out_ += "<text x=\"", number(x), out_ += "\" y=\"", number(y), out_ += '"';
    if (!style.empty()) out_ += polyrank::detail::cat(" class=\"", style, '"');
    out_ += polyrank::detail::cat('>', words, "</text>\n");
  }
  void number(double value) { append_fixed(out_, value, 1); }

  std::span<const named_report> reports_;
  svg_options options_;
  std::size_t ranks_ = 0;
  std::vector<double> first_;
  double longest_ = 0, scale_ = 0;
  std::string out_;
};

} // namespace detail

/// The picture of reports with timelines, on one time axis.
[[nodiscard]] inline std::string svg(std::span<const named_report> reports,
                                     const svg_options& options = {}) {
  return detail::svg_writer(reports, options).run();
}
[[nodiscard]] inline std::string svg(const report& r, const svg_options& options = {}) {
  const named_report one{"", &r};
  return svg(std::span(&one, 1), options);
}

} // namespace polyrank::pipeline
