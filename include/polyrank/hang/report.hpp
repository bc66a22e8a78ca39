// A verdict as text, JSON and a picture of who waits for whom. Pure.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/verdict.hpp>
#include <polyrank/hang/words.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::hang {

/// The whole report: the headline, the ranks, what to try, a public reference, hosts to leave out.
[[nodiscard]] inline std::string report_text(const verdict& v) {
  using polyrank::detail::cat;
  if (v.code == verdict_code::none) return "no hang found\n";
  std::string out = v.headline + '\n';
  for (const std::string& line : v.table) out += cat("  ", line, '\n');
  if (static_cast<std::size_t>(v.ranks) > v.table.size() && v.table.size() == 12)
    out += cat("    ... and ", static_cast<std::size_t>(v.ranks) - v.table.size(), " more ranks\n");
  for (const std::string& f : v.findings) out += cat("  finding: ", f, '\n');
  const verdict_class& about_it = about(v.code);
  out += cat("  try: ", about_it.advice, '\n');
  if (!about_it.reference.empty()) out += cat("  see: ", about_it.reference, '\n');
  if (!v.hosts.empty()) {
    out += "  run without it: --exclude=";
    for (std::size_t i = 0; i < v.hosts.size(); ++i) out += (i == 0 ? "" : ",") + v.hosts[i];
    out += '\n';
  }
  return out;
}

namespace detail {

[[nodiscard]] inline std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 32) out += c;
  }
  return out + '"';
}
[[nodiscard]] inline std::string json_text(const std::vector<std::string>& texts) {
  std::string out = "[";
  for (const std::string& t : texts) out += (out.size() > 1 ? ", " : "") + json_text(t);
  return out + ']';
}

} // namespace detail

[[nodiscard]] inline std::string report_json(const verdict& v) {
  using detail::json_text, polyrank::detail::cat;
  std::string out =
      cat("{\"schema\": \"polyrank.hang/1\", \"verdict\": ", json_text(name_of(v.code)),
          ", \"exit_code\": ", exit_code(v.code),
          ", \"confidence\": ", json_text(v.certain ? "high" : "low"), ", \"tie\": ", v.tie,
          ", \"ranks\": ", v.ranks, ", \"suspects\": [");
  for (std::size_t i = 0; i < v.suspects.size(); ++i) out += cat(i == 0 ? "" : ", ", v.suspects[i]);
  out += "], ";
  if (v.has_operation)
    out += cat("\"operation\": {\"comm\": ", v.operation.comm,
               ", \"kind\": ", json_text(name_of(v.operation.what.kind)),
               ", \"seq\": ", v.operation.seq, ", \"tag\": ", json_text(v.operation.what.tag),
               ", \"type\": ", json_text(name_of(v.operation.what.type)),
               ", \"count\": ", v.operation.what.count, ", \"site\": ",
               json_text(cat(v.operation.what.site.file, ':', v.operation.what.site.line)), "}, ");
  out += cat("\"headline\": ", json_text(v.headline), ", \"ranks_table\": ", json_text(v.table),
             ", \"findings\": ", json_text(v.findings),
             ", \"advice\": ", json_text(about(v.code).advice),
             ", \"reference\": ", json_text(about(v.code).reference),
             ", \"exclude\": ", json_text(v.hosts), ", \"waits\": [");
  for (std::size_t i = 0; i < v.waits.size(); ++i)
    out += cat(i == 0 ? "" : ", ", '[', v.waits[i].from, ", ", v.waits[i].to, ']');
  return out + "]}\n";
}

/// Who waits for whom: the ranks on a circle, suspects in red. The first 64 ranks that take part.
[[nodiscard]] inline std::string report_svg(const verdict& v) {
  using polyrank::detail::cat;
  std::vector<int> ranks = v.suspects;
  for (const wait_edge& w : v.waits) {
    ranks.push_back(w.from);
    ranks.push_back(w.to);
  }
  if (ranks.empty())
    for (int r = 0; r < std::min(v.ranks, 64); ++r) ranks.push_back(r);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  if (ranks.size() > 64) ranks.resize(64);
  const auto number = [](double x) { return cat(std::round(x * 10) / 10); };
  const auto place = [&](std::size_t i, double radius) {
    const double turn = 2 * std::numbers::pi * static_cast<double>(i) /
                            static_cast<double>(std::max<std::size_t>(ranks.size(), 1)) -
                        std::numbers::pi / 2;
    return std::pair{260 + radius * std::cos(turn), 290 + radius * std::sin(turn)};
  };
  std::string out =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 520 540\" "
      "font-family=\"sans-serif\" "
      "font-size=\"13\">\n<defs><marker id=\"a\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" "
      "markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" "
      "fill=\"#666\"/></marker></defs>\n<rect width=\"520\" height=\"540\" fill=\"#fff\"/>\n";
  out += cat("<text x=\"12\" y=\"24\" font-size=\"16\">", name_of(v.code),
             ": who waits for whom</text>\n");
  if (v.has_operation) {
    std::string what;
    for (const char c : detail::words_for(v.operation))
      what += c == '<' ? "&lt;" : c == '&' ? "&amp;" : c == '>' ? "&gt;" : std::string(1, c);
    out += cat("<text x=\"12\" y=\"44\" fill=\"#444\">", what, "</text>\n");
  }
  const auto index = [&](int rank) {
    return static_cast<std::size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) -
                                    ranks.begin());
  };
  for (const wait_edge& w : v.waits) {
    const std::size_t from = index(w.from), to = index(w.to);
    if (from >= ranks.size() || to >= ranks.size() || from == to) continue;
    const auto [x0, y0] = place(from, 200);
    auto [x1, y1] = place(to, 200);
    const double dx = x1 - x0, dy = y1 - y0, length = std::sqrt(dx * dx + dy * dy);
    const double cut = (length - 19) / length;
    x1 = x0 + (x1 - x0) * cut;
    y1 = y0 + (y1 - y0) * cut;
    out += cat("<line x1=\"", number(x0), "\" y1=\"", number(y0), "\" x2=\"", number(x1),
               "\" y2=\"", number(y1), "\" stroke=\"#999\" marker-end=\"url(#a)\"/>\n");
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto [x, y] = place(i, 200);
    const bool suspect =
        std::find(v.suspects.begin(), v.suspects.end(), ranks[i]) != v.suspects.end();
    out += cat("<circle cx=\"", number(x), "\" cy=\"", number(y), "\" r=\"17\" fill=\"",
               suspect ? "#d33" : "#e8eef7", "\" stroke=\"#446\"/><text x=\"", number(x), "\" y=\"",
               number(y + 5), "\" text-anchor=\"middle\" fill=\"", suspect ? "#fff" : "#000", "\">",
               ranks[i], "</text>\n");
  }
  return out + "</svg>\n";
}

} // namespace polyrank::hang
