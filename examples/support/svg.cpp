// SPDX-License-Identifier: Apache-2.0
#include "support/svg.hpp"

#include "support/png.hpp"

#include <polyrank/core/text.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace polyrank::examples {

namespace {

/// Two decimals at most: enough for pixels, and files stay small.
std::string px(double value) {
  const double rounded = std::round(value * 100) / 100;
  return detail::cat(rounded == 0 ? 0.0 : rounded);
}

} // namespace

std::string xml_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
    case '&':
      out += "&amp;";
      break;
    case '<':
      out += "&lt;";
      break;
    case '>':
      out += "&gt;";
      break;
    case '"':
      out += "&quot;";
      break;
    default:
      out += c;
    }
  }
  return out;
}

svg::svg(double width, double height, std::string_view title)
    : body_(detail::cat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", px(width),
                        "\" height=\"", px(height), "\" viewBox=\"0 0 ", px(width), " ", px(height),
                        "\" font-family=\"Helvetica, Arial, sans-serif\" role=\"img\">\n<title>",
                        xml_escape(title), "</title>\n")) {
  rectangle(0, 0, width, height, "#ffffff", "none");
}

void svg::text(double x, double y, std::string_view words, const text_style& style) {
  body_ +=
      detail::cat("<text x=\"", px(x), "\" y=\"", px(y), "\" font-size=\"", px(style.size),
                  "\" fill=\"", style.colour, "\" text-anchor=\"", style.anchor, "\"",
                  style.bold ? " font-weight=\"bold\"" : "", ">", xml_escape(words), "</text>\n");
}

void svg::line(double x0, double y0, double x1, double y1, std::string_view colour, double width) {
  body_ += detail::cat("<line x1=\"", px(x0), "\" y1=\"", px(y0), "\" x2=\"", px(x1), "\" y2=\"",
                       px(y1), "\" stroke=\"", colour, "\" stroke-width=\"", px(width), "\"/>\n");
}

void svg::rectangle(double x, double y, double w, double h, std::string_view fill,
                    std::string_view stroke, double stroke_width) {
  body_ += detail::cat("<rect x=\"", px(x), "\" y=\"", px(y), "\" width=\"", px(w), "\" height=\"",
                       px(h), "\" fill=\"", fill, "\" stroke=\"", stroke, "\" stroke-width=\"",
                       px(stroke_width), "\"/>\n");
}

void svg::polyline(std::span<const std::pair<double, double>> points, std::string_view colour,
                   double width) {
  if (points.empty()) return;
  body_ += detail::cat("<polyline fill=\"none\" stroke=\"", colour, "\" stroke-width=\"", px(width),
                       "\" stroke-linejoin=\"round\" points=\"");
  for (const auto& [x, y] : points) body_ += detail::cat(px(x), ",", px(y), " ");
  body_ += "\"/>\n";
}

void svg::circle(double x, double y, double radius, std::string_view colour) {
  body_ += detail::cat("<circle cx=\"", px(x), "\" cy=\"", px(y), "\" r=\"", px(radius),
                       "\" fill=\"", colour, "\"/>\n");
}

void svg::picture(double x, double y, double w, double h, std::span<const std::uint8_t> pixels,
                  std::size_t rows, std::size_t columns) {
  body_ +=
      detail::cat("<image x=\"", px(x), "\" y=\"", px(y), "\" width=\"", px(w), "\" height=\"",
                  px(h), "\" style=\"image-rendering:pixelated\" href=\"data:image/png;base64,",
                  base64(encode_png(pixels, rows, columns)), "\"/>\n");
}

std::vector<double> axis_ticks(double low, double high, std::size_t count) {
  const double rough = (high - low) / static_cast<double>(std::max<std::size_t>(count, 1));
  if (!(rough > 0) || !std::isfinite(rough)) return {low};
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = power;
  for (const double factor : {1.0, 2.0, 5.0, 10.0})
    if (step = factor * power; step >= rough * 0.999) break;
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9), last = std::floor(high / step + 1e-9);
  for (double k = first; k <= last; ++k) ticks.push_back(k == 0 ? 0.0 : k * step);
  return ticks;
}

std::string charts_svg(std::string_view title, std::span<const chart> charts) {
  constexpr double width = 520, height = 340, top = 84, left = 62, right = 20, bottom = 56;
  const double total = width * static_cast<double>(charts.size());
  svg out(total, height + top, title);
  out.text(20, 30, title, {.size = 17, .bold = true});
  double x0 = left;
  for (const chart& c : charts) {
    constexpr double inf = std::numeric_limits<double>::infinity();
    double x_low = inf, x_high = -inf, y_low = inf, y_high = -inf;
    for (const series& s : c.curves)
      for (const auto& [x, y] : s.points) {
        if (!std::isfinite(x) || !std::isfinite(y)) continue;
        x_low = std::min(x_low, x), x_high = std::max(x_high, x);
        y_low = std::min(y_low, y), y_high = std::max(y_high, y);
      }
    if (!(x_low <= x_high)) x_low = y_low = 0, x_high = y_high = 1;
    const double margin = std::max((y_high - y_low) * 0.06, 1e-6);
    y_low -= margin, y_high += margin;
    if (x_high - x_low < 1e-12) x_high = x_low + 1;
    const double w = width - left - right, h = height - bottom;
    const auto at_x = [&](double x) { return x0 + (x - x_low) / (x_high - x_low) * w; };
    const auto at_y = [&](double y) { return top + h - (y - y_low) / (y_high - y_low) * h; };

    out.text(x0, top - 26, c.title, {.size = 14, .bold = true});
    for (const double t : axis_ticks(y_low, y_high, 6)) {
      out.line(x0, at_y(t), x0 + w, at_y(t), "#e3e3e3");
      char label[32];
      std::snprintf(label, sizeof label, "%.4g", t);
      out.text(x0 - 8, at_y(t) + 4, label, {.size = 11, .colour = "#555", .anchor = "end"});
    }
    for (const double t : axis_ticks(x_low, x_high, 6)) {
      char label[32];
      std::snprintf(label, sizeof label, "%.6g", t);
      out.text(at_x(t), top + h + 18, label, {.size = 11, .colour = "#555", .anchor = "middle"});
    }
    out.line(x0, top + h, x0 + w, top + h, "#888");
    out.text(x0 + w / 2, top + h + 38, c.x_label,
             {.size = 12, .colour = "#555", .anchor = "middle"});
    double legend = x0;
    for (const series& s : c.curves) {
      std::vector<std::pair<double, double>> points;
      for (const auto& [x, y] : s.points)
        if (std::isfinite(x) && std::isfinite(y)) points.emplace_back(at_x(x), at_y(y));
      out.polyline(points, s.colour, s.width);
      if (s.markers)
        for (const auto& [x, y] : points) out.circle(x, y, 3, s.colour);
      out.rectangle(legend, top - 17, 14, 4, s.colour, "none");
      out.text(legend + 19, top - 11, s.name, {.size = 11, .colour = "#444"});
      legend += 32 + 6.2 * static_cast<double>(s.name.size());
    }
    x0 += width;
  }
  return out.finish();
}

std::string contact_sheet_svg(const sheet& s, std::size_t cards_per_line) {
  constexpr double card_width = 118, card_height = 138, edge = 84, top = 74, margin = 20;
  const auto lines = static_cast<double>((s.cards.size() + cards_per_line - 1) / cards_per_line);
  svg out(2 * margin + card_width * static_cast<double>(cards_per_line),
          top + lines * card_height + 10, s.title);
  out.text(margin, 30, s.title, {.size = 17, .bold = true});
  out.text(margin, 52, s.subtitle, {.size = 12, .colour = "#555"});
  for (std::size_t i = 0; i < s.cards.size(); ++i) {
    const card& c = s.cards[i];
    const double x = margin + card_width * static_cast<double>(i % cards_per_line);
    const double y = top + card_height * static_cast<double>(i / cards_per_line);
    const std::string_view colour = c.good ? "#2a8a3e" : "#c62828";
    const double middle = x + card_width / 2;
    out.picture(middle - edge / 2, y, edge, edge, c.pixels, s.rows, s.columns);
    out.rectangle(middle - edge / 2 - 1.5, y - 1.5, edge + 3, edge + 3, "none", colour, 3);
    out.text(middle, y + edge + 18, c.caption,
             {.size = 11, .colour = colour, .anchor = "middle", .bold = true});
    out.text(middle, y + edge + 33, c.note, {.size = 11, .colour = "#444", .anchor = "middle"});
  }
  return out.finish();
}

} // namespace polyrank::examples
