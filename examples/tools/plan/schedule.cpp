// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/schedule.hpp"

#include "support/files.hpp"

#include <polyrank/core/cost_model_file.hpp>
#include <polyrank/core/version.hpp>
#include <polyrank/pipeline/ascii.hpp>
#include <polyrank/pipeline/chrome_trace.hpp>
#include <polyrank/pipeline/csv.hpp>
#include <polyrank/pipeline/generators.hpp>
#include <polyrank/pipeline/lower.hpp>
#include <polyrank/pipeline/simulate.hpp>
#include <polyrank/pipeline/svg.hpp>
#include <polyrank/pipeline/tune.hpp>
#include <polyrank/pipeline/validate.hpp>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank::examples {

using namespace polyrank::pipeline;
using json = nlohmann::ordered_json;

namespace {

/// A rank whose row in a picture nobody would read any more.
constexpr std::size_t most_rows = 64;

/// F, B, W, c of a whole rank.
std::array<double, 4> parse_costs(const std::string& text) {
  std::array<double, 4> numbers{};
  const char *at = text.data(), *end = at + text.size();
  for (std::size_t i = 0; i < 4; ++i) {
    const auto [next, error] = std::from_chars(at, end, numbers[i]);
    expects(error == std::errc{} && (i == 3 ? next == end : next != end && *next == ','),
            "--costs wants four numbers F,B,W,c, got \"", text, "\"");
    expects(numbers[i] >= 0 && numbers[i] <= 1e15, "--costs: ", "FBWc"[i], " is ", numbers[i],
            ", it must be from 0 to 1e15");
    at = next + 1;
  }
  expects(numbers[0] + numbers[1] + numbers[2] > 0, "--costs: F, B and W are all 0");
  return numbers;
}

costs costs_of(const schedule_flags& flags, const shape& s) {
  const auto [f, b, w, c] = parse_costs(flags.costs);
  costs out = even_costs(s, f, b, w, c, flags.weight_memory);
  if (!flags.cost_model.empty()) {
    const measured_costs links = read_cost_model(flags.cost_model);
    price_transfers(out, s, links.inside, links.between,
                    flags.has_ranks_per_node ? flags.ranks_per_node : s.ranks,
                    flags.transfer_bytes);
  }
  return out;
}

lane_policy lanes_of(const schedule_flags& flags) {
  return flags.lanes == "per_channel" ? lane_policy::per_channel : lane_policy::single;
}

std::string shape_text(const shape& s) {
  return polyrank::detail::cat(s.ranks, s.ranks == 1 ? " rank x " : " ranks x ", s.chunks,
                               s.chunks == 1 ? " chunk, " : " chunks, ", s.microbatches,
                               s.microbatches == 1 ? " microbatch" : " microbatches");
}

double worst_bubble(const report& r) {
  double worst = 0;
  for (const rank_report& rank : r.ranks) worst = std::max(worst, rank.span_bubble());
  return std::abs(worst) < 1e-9 * r.makespan ? 0 : worst;
}

json to_json(std::string_view name, const table& t, const report& r) {
  json out{{"schedule", name},
           {"stages", t.shape.ranks},
           {"chunks", t.shape.chunks},
           {"microbatches", t.shape.microbatches},
           {"actions", t.actions.size()},
           {"makespan", r.makespan},
           {"bubble", r.bubble_rate(r.makespan)},
           {"span_bubble", worst_bubble(r)},
           {"exposed", r.exposed()},
           {"peak_memory", r.peak_memory()},
           {"ranks", json::array()}};
  for (const rank_report& rank : r.ranks)
    out["ranks"].push_back({{"start", rank.start},
                            {"end", rank.end},
                            {"busy", rank.busy},
                            {"span_bubble", rank.span_bubble()},
                            {"exposed", rank.exposed},
                            {"peak_memory", rank.peak_memory}});
  return out;
}

void write_json(const schedule_flags& flags, const json& value) {
  if (!flags.common.json.empty()) write_file(flags.common.json, value.dump(2) + "\n");
}

/// Everything about one table: numbers, picture, files.
void show(const schedule_flags& flags, const std::string& name, const table& t, const costs& c,
          json extra = {}) {
  const bool small = t.shape.ranks <= most_rows;
  const bool drawn = !flags.svg.empty() || !flags.trace.empty() || (small && !flags.common.quiet);
  const report r = simulate(t, c, {.timeline = drawn});
  if (flags.has_memory_cap)
    expects(r.peak_memory() <= flags.memory_cap * (1 + 1e-9), name, " needs memory for ",
            r.peak_memory(), " microbatches, --memory-cap is ", flags.memory_cap,
            "; without --schedule the fastest that fits is picked");
  if (!flags.svg.empty())
    write_file(flags.svg,
               svg(r, {.title = polyrank::detail::cat(name, ": ", shape_text(t.shape))}));
  if (!flags.trace.empty()) write_file(flags.trace, chrome_trace(r, {.memory = &c}));
  if (!flags.csv.empty()) write_file(flags.csv, to_csv(t));
  json result = to_json(name, t, r);
  if (flags.has_layers) result["layers_per_stage"] = layers_per_stage(t.shape, flags.layers);
  for (auto& [key, value] : extra.items()) result[key] = value;
  write_json(flags, result);
  if (flags.common.quiet) {
    std::printf("%.10g\n", r.makespan);
    return;
  }
  std::printf("%s: %s\n", name.c_str(), shape_text(t.shape).c_str());
  if (flags.has_layers)
    std::printf("layers per stage  %zu\n", layers_per_stage(t.shape, flags.layers));
  std::printf("makespan  %.10g\nbubble    %.2f %%\nexposed   %.10g\npeak      %.10g\n", r.makespan,
              100 * r.bubble_rate(r.makespan), r.exposed(), r.peak_memory());
  if (!small) return;
  std::printf("\n%s\nrank      bubble     exposed        peak\n", ascii(r, flags.columns).c_str());
  for (std::size_t rank = 0; rank < r.ranks.size(); ++rank)
    std::printf("%-4zu %11.6g %11.6g %11.6g\n", rank,
                std::abs(r.ranks[rank].span_bubble()) < 1e-9 ? 0 : r.ranks[rank].span_bubble(),
                r.ranks[rank].exposed, r.ranks[rank].peak_memory);
}

table lowered(const schedule_flags& flags, table t, const costs& c) {
  return flags.lower ? lower(t, c, {.lanes = lanes_of(flags)}) : std::move(t);
}

/// The shape of a schedule with the flags' numbers.
shape shape_with(const schedule_flags& flags, schedule s, std::size_t chunks) {
  const shape at = shape_of(s, flags.stages, flags.microbatches, chunks);
  if (flags.has_layers) (void)layers_per_stage(at, flags.layers);
  return at;
}

int compare(const schedule_flags& flags) {
  std::vector<shape> shapes; // all checked before anything is printed
  for (const schedule s : training_schedules) {
    const bool any = traits_of(s).max_chunks == max_stages && flags.has_chunks;
    shapes.push_back(shape_with(flags, s, any ? flags.chunks : default_chunks(s)));
  }
  json all = json::array();
  if (!flags.common.quiet)
    std::printf("%-12s %6s %10s %9s %12s %10s\n", "schedule", "chunks", "makespan", "bubble %",
                "span bubble", "peak");
  bool fits = false;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const char* name = traits_of(training_schedules[i]).name.data();
    const costs c = costs_of(flags, shapes[i]);
    const table t = lowered(flags, generate(training_schedules[i], shapes[i]), c);
    const report r = simulate(t, c);
    const bool over = flags.has_memory_cap && r.peak_memory() > flags.memory_cap * (1 + 1e-9);
    fits = fits || !over;
    least = std::min(least, r.peak_memory());
    json row = to_json(name, t, r);
    if (flags.has_memory_cap) row["fits"] = !over;
    all.push_back(std::move(row));
    if (flags.common.quiet)
      std::printf("%s %.10g\n", name, r.makespan);
    else
      std::printf("%-12s %6zu %10.10g %9.2f %12.6g %10.6g%s\n", name, shapes[i].chunks, r.makespan,
                  100 * r.bubble_rate(r.makespan), worst_bubble(r), r.peak_memory(),
                  over ? "  over the cap" : "");
  }
  write_json(flags, {{"schedules", all}});
  expects(fits, "no schedule fits into --memory-cap ", flags.memory_cap,
          "; the smallest that works is ", least);
  return 0;
}

int validate_file(const schedule_flags& flags) {
  const std::vector<std::byte> bytes = read_file(flags.validate);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  table t;
  try {
    t = from_csv(text, {flags.stages, flags.chunks, flags.microbatches});
  } catch (const data_error& e) {
    throw data_error(polyrank::detail::cat(flags.validate, ": ", e.what()));
  }
  t.lanes = lanes_of(flags);
  expects(flags.lanes.empty() || flags.lower || t.has_transfers(), flags.validate,
          " has no transfers, so --lanes has no effect; --lower adds them");
  std::optional<fault> found = validate(t);
  const costs c = costs_of(flags, t.shape);
  if (!found && flags.lower) {
    t = lowered(flags, std::move(t), c);
    found = validate(t);
  }
  if (!found) {
    if (!flags.common.quiet) std::printf("%s: valid\n", flags.validate.c_str());
    show(flags, flags.validate, t, c, {{"valid", true}});
    return 0;
  }
  json cycle = json::array();
  for (const step& s : found->cycle)
    cycle.push_back({{"rank", s.rank}, {"index", s.index}, {"action", text_of(s.what)}});
  write_json(flags, {{"valid", false}, {"fault", found->text}, {"cycle", cycle}});
  std::printf("%s: %s\n", flags.validate.c_str(), found->text.c_str());
  if (!flags.common.quiet)
    for (std::size_t n = 0; n + 1 < found->cycle.size(); n += 2)
      std::printf("  %-32s waits for %s\n", text_of(found->cycle[n]).c_str(),
                  text_of(found->cycle[n + 1]).c_str());
  return 1;
}

int pick(const schedule_flags& flags) {
  tune_request q;
  q.ranks = flags.stages;
  q.microbatches = {flags.microbatches};
  if (flags.has_chunks) q.chunks = {flags.chunks};
  q.memory_cap = flags.memory_cap;
  q.costs_of = [&](const shape& s) { return costs_of(flags, s); };
  const tuned best = tune(q);
  const costs c = costs_of(flags, best.table.shape);
  show(flags, best.name, lowered(flags, best.table, c), c);
  return 0;
}

void check_flags(const schedule_flags& flags) {
  const bool one = !flags.schedule.empty(), file = !flags.validate.empty();
  expects(one + file + flags.compare <= 1,
          "--schedule, --compare and --validate exclude each other");
  expects(one || file || flags.compare || flags.has_memory_cap,
          "say --schedule NAME, --compare, --validate FILE, or --memory-cap X to pick one");
  expects(file || (flags.has_stages && flags.has_microbatches),
          "--stages and --microbatches are needed");
  const auto at_least_one = [](bool given, std::size_t n, const char* flag) {
    expects(!given || n > 0, flag, " must be at least 1, got 0");
  };
  at_least_one(flags.has_stages, flags.stages, "--stages");
  at_least_one(flags.has_chunks, flags.chunks, "--chunks");
  at_least_one(flags.has_microbatches, flags.microbatches, "--microbatches");
  expects(!flags.compare || (flags.svg.empty() && flags.trace.empty() && flags.csv.empty()),
          "--svg, --trace and --csv want one schedule, not --compare");
  expects(!flags.compare || !flags.has_columns, "--columns wants one schedule, not --compare");
  expects(!(file && flags.has_layers), "--layers does not go with --validate");
  expects(!flags.has_columns || (flags.columns >= 20 && flags.columns <= 10000),
          "--columns must be from 20 to 10000, got ", flags.columns);
  expects(!flags.has_memory_cap || (flags.memory_cap > 0 && flags.memory_cap <= 1e15),
          "--memory-cap must be above 0 and at most 1e15, got ", flags.memory_cap);
  expects(flags.weight_memory >= 0 && flags.weight_memory <= 1,
          "--weight-memory must be from 0 to 1, got ", flags.weight_memory);
  expects(flags.lanes.empty() || flags.lanes == "single" || flags.lanes == "per_channel",
          "--lanes must be single or per_channel, got \"", flags.lanes, "\"");
  expects(flags.lanes.empty() || flags.lower || file,
          "--lanes has an effect with --lower or --validate only");
  const auto numbers = parse_costs(flags.costs);
  const bool measured = !flags.cost_model.empty();
  expects(!measured || numbers[3] == 0,
          "--cost-model prices the transfers, so the c of --costs must be 0");
  expects(measured == flags.has_transfer_bytes,
          "--cost-model and --transfer-bytes go together: the time of a transfer needs both");
  expects(measured || !flags.has_ranks_per_node, "--ranks-per-node goes with --cost-model");
  at_least_one(flags.has_ranks_per_node, flags.ranks_per_node, "--ranks-per-node");
}

} // namespace

void add_schedule(CLI::App& app, schedule_flags& f) {
  CLI::App* sub = app.add_subcommand("schedule", "Generate, compare, check and draw schedules");
  add_common_flags(*sub, f.common);
  sub->set_version_flag("--version", "polyrank_plan " POLYRANK_VERSION_STRING,
                        "Print the version and exit");
  std::string names;
  for (const schedule_traits& t : schedules)
    names += (names.empty() ? "" : " ") + std::string(t.name);
  sub->add_option("--schedule", f.schedule, "One of " + names)->type_name("NAME");
  sub->add_flag("--compare", f.compare, "All schedules that train, side by side");
  sub->add_option("--validate", f.validate,
                  "Check a table in PyTorch's CSV format, with or without communication; exit "
                  "code 1 and the cycle where it deadlocks")
      ->type_name("FILE");
  const auto number = [&](const char* name, std::size_t& value, bool& given, const char* text) {
    sub->add_option_function<std::size_t>(
           name, [&](std::size_t n) { value = n, given = true; }, text)
        ->check(CLI::NonNegativeNumber) // "-1" would wrap around
        ->type_name("N");
  };
  number("--stages", f.stages, f.has_stages, "Pipeline ranks p");
  number("--microbatches", f.microbatches, f.has_microbatches, "Microbatches m of a step");
  number("--chunks", f.chunks, f.has_chunks,
         "Chunks v of the model on every rank (default: 2 where a schedule uses them)");
  number("--layers", f.layers, f.has_layers, "Layers of the model; p * v must divide them");
  sub->add_option("--costs", f.costs,
                  "Times of one microbatch on a whole rank: forward, input gradient, weight "
                  "gradient, one transfer (default: 1,1,1,0)")
      ->type_name("F,B,W,c");
  sub->add_option("--cost-model", f.cost_model,
                  "Price transfers by the links that polyrank_probe bandwidth --cost-model FILE "
                  "measured; --costs in seconds then")
      ->type_name("FILE");
  number("--transfer-bytes", f.transfer_bytes, f.has_transfer_bytes,
         "Bytes of one transfer, with --cost-model");
  number("--ranks-per-node", f.ranks_per_node, f.has_ranks_per_node,
         "Ranks of a host, with --cost-model (default: all)");
  sub->add_option("--weight-memory", f.weight_memory,
                  "Share of an activation that the weight gradient still needs (default: 0.5)")
      ->type_name("X");
  sub->add_option_function<double>(
         "--memory-cap", [&](double x) { f.memory_cap = x, f.has_memory_cap = true; },
         "Activations a rank can hold, in microbatches; alone it picks the fastest schedule "
         "that fits")
      ->type_name("X");
  sub->add_flag("--lower", f.lower, "Add sends and receives, and simulate the lanes");
  sub->add_option("--lanes", f.lanes,
                  "single: one stream for all communication of a rank (default); per_channel: "
                  "one per peer, direction and kind")
      ->type_name("POLICY");
  number("--columns", f.columns, f.has_columns, "Width of the picture in text (default: 120)");
  sub->add_option("--svg", f.svg, "Draw the schedule into FILE")->type_name("FILE");
  sub->add_option("--trace", f.trace, "Write a Chrome trace, for ui.perfetto.dev")
      ->type_name("FILE");
  sub->add_option("--csv", f.csv, "Write the table in PyTorch's CSV format")->type_name("FILE");
}

int run_schedule(const schedule_flags& flags) {
  check_flags(flags);
  if (!flags.validate.empty()) return validate_file(flags);
  if (flags.compare) return compare(flags);
  if (flags.schedule.empty()) return pick(flags);
  const schedule s = schedule_from(flags.schedule);
  const shape at = shape_with(flags, s, flags.has_chunks ? flags.chunks : default_chunks(s));
  const costs c = costs_of(flags, at);
  show(flags, flags.schedule, lowered(flags, generate(s, at), c), c);
  return 0;
}

} // namespace polyrank::examples
