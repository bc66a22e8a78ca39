// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/pipeline/ascii.hpp>
#include <polyrank/pipeline/chrome_trace.hpp>
#include <polyrank/pipeline/csv.hpp>
#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/lower.hpp>
#include <polyrank/pipeline/simulate.hpp>
#include <polyrank/pipeline/svg.hpp>

#include <nlohmann/json.hpp>

#include <array>
#include <map>
#include <set>
#include <string>

using namespace polyrank;
using namespace polyrank::pipeline;

namespace {

report drawn(const table& t, double transfer = 0) {
  return simulate(t, even_costs(t.shape, 1, 1, 1, transfer), {.timeline = true});
}

std::size_t count(const std::string& text, std::string_view what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

} // namespace

TEST_CASE("a schedule as text", "[ascii]") {
  REQUIRE(ascii(drawn(generate(schedule::one_f_one_b, 2, 3)), 24) ==
          "rank 0 |F0F1....B0--F2B1--..B2--|\n"
          "rank 1 |..F0B0--F1B1--F2B2--....|\n");
  REQUIRE(ascii(drawn(from_csv("0F0,1F0,(0F1;1B0)OVERLAP_F_B,1F1,0B0,1B1,0B1")), 24) ==
          "rank 0 |F0f0F1-b0-f1B0--b1--B1--|\n");
  // Too narrow for names: letters only, the row still has its length.
  const std::string narrow = ascii(drawn(generate(schedule::one_f_one_b, 4, 64)), 60);
  REQUIRE(narrow.find('\n') == std::string("rank 0 |").size() + 60 + 1);
  REQUIRE(ascii(report{}) == "");
}

TEST_CASE("a schedule as a picture has a box per action and the bubble in the margin", "[svg]") {
  const table t = generate(schedule::dualpipe_v, 4, 8);
  const std::string picture = svg(drawn(t), {.title = "DualPipeV <4 & 8>"});
  std::size_t pairs = 0;
  for (const action& a : t.actions) pairs += a.joined;
  CHECK(count(picture, "<rect class=") == t.actions.size() + pairs);
  CHECK(count(picture, "class=\"j\"") == pairs);
  CHECK(picture.find("DualPipeV 4  8") != std::string::npos);
  CHECK(picture.find("11.1 %") != std::string::npos); // 3 of 27
  CHECK(picture.rfind("</svg>\n") == picture.size() - 7);
  CHECK(picture.size() < 40000);
}

TEST_CASE("predicted and measured are drawn row under row", "[svg][trace]") {
  const table t = generate(schedule::one_f_one_b, 2, 2);
  const report predicted = drawn(t);
  const report measured =
      simulate(t, even_costs(t.shape, 1, 1, 1, 0), {.noise = 0.3, .seed = 5, .timeline = true});
  const std::array<named_report, 2> both{{{"predicted", &predicted}, {"measured", &measured}}};
  const std::string picture = svg(both);
  CHECK(count(picture, "<rect class=") == 2 * t.actions.size());
  CHECK(count(picture, ">measured<") == 2);
  const auto trace = nlohmann::json::parse(chrome_trace(both));
  std::set<std::string> names;
  for (const auto& e : trace["traceEvents"])
    if (e["name"] == "process_name") names.insert(e["args"]["name"].get<std::string>());
  CHECK(names == std::set<std::string>{"predicted rank 0", "predicted rank 1", "measured rank 0",
                                       "measured rank 1"});
}

TEST_CASE("a trace has every action once and every arrow with two ends", "[trace]") {
  const table compute = generate(schedule::zb_v, 3, 5);
  const costs c = even_costs(compute.shape, 1, 1, 1, 0.05);
  for (const bool lowered : {false, true}) {
    const table t = lowered ? lower(compute, c, {.reduce = true, .optimizer = true}) : compute;
    const report r = simulate(t, c, {.timeline = true});
    const auto trace = nlohmann::json::parse(chrome_trace(r, {.microseconds = 1000, .memory = &c}));
    std::size_t boxes = 0;
    std::map<std::size_t, int> arrows;
    double most = 0, last = 0;
    for (const auto& e : trace["traceEvents"]) {
      if (e["ph"] == "X") {
        ++boxes;
        last = std::max(last, e["ts"].get<double>() + e["dur"].get<double>());
      }
      if (e["ph"] == "s") arrows[e["id"].get<std::size_t>()] += 1;
      if (e["ph"] == "f") arrows[e["id"].get<std::size_t>()] += 100;
      if (e["ph"] == "C") most = std::max(most, e["args"]["held"].get<double>());
    }
    CHECK(boxes == t.actions.size());
    CHECK(arrows.size() == 2 * 5 * 4); // both directions, 5 microbatches, 4 boundaries that cross
    for (const auto& [id, ends] : arrows) CHECK(ends == 101);
    double peak = 0;
    for (const rank_report& rank : r.ranks) peak = std::max(peak, rank.peak_activation);
    CHECK(most == Approx(peak));
    CHECK(last == Approx(1000 * r.makespan).epsilon(1e-5));
  }
}
