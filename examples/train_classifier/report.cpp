// SPDX-License-Identifier: Apache-2.0
#include "train_classifier/report.hpp"

#include "support/svg.hpp"
#include "train_classifier/checkpoint.hpp"

#include <polyrank/core/hash.hpp>
#include <polyrank/optim/lr_schedule.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace polyrank::examples {

namespace {

std::string percent(double fraction) {
  char text[16];
  std::snprintf(text, sizeof text, "%.1f %%", fraction * 100);
  return text;
}

card make_card(const evaluation& e, const dataset& d, std::size_t i) {
  const auto picture = d.test.picture(i);
  card c;
  c.pixels.assign(picture.begin(), picture.end());
  for (std::uint8_t& p : c.pixels) p = static_cast<std::uint8_t>(p * 255u / d.test.white);
  // Rounded down: 100 % would be a claim that the network does not make.
  const double sure = std::floor(static_cast<double>(e.confidence[i]) * 1000) / 10;
  char text[64];
  std::snprintf(text, sizeof text, sure >= 99 ? "%s %.1f%%" : "%s %.0f%%",
                d.class_names[e.predicted[i]].c_str(), sure);
  c.caption = text;
  c.note = "is: " + d.class_names[d.test.labels[i]];
  c.good = e.predicted[i] == d.test.labels[i];
  return c;
}

} // namespace

std::string result_json(const training_result& r, const config& c, const dataset& d,
                        const run_facts& facts) {
  using json = nlohmann::ordered_json;
  json j;
  j["final"] = {{"loss", r.final_loss},
                {"val_accuracy", r.final_validation.accuracy},
                {"test_accuracy", r.test.accuracy},
                {"train_accuracy", r.train.accuracy}};
  j["losses"] = r.losses;
  if (r.first_step > 0) j["first_step"] = r.first_step;
  j["samples_per_second"] = r.samples_per_second;
  j["samples_per_rank"] = r.samples_per_rank;
  j["wire_bytes"] = facts.wire_bytes;
  j["digest"] = hex16(r.digest);
  j["backend"] = facts.backend;
  j["ranks"] = facts.ranks;
  j["communication_ms"] = r.communication_ms;
  if (r.trace) {
    j["trace"] = {{"exposed_percent", r.trace->exposed_percent()},
                  {"clock_error_us", r.trace->clock_error},
                  {"dropped_spans", r.trace->dropped}};
    for (const exposure& e : r.trace->ranks)
      j["trace"]["ranks"].push_back({{"window_us", e.window},
                                     {"communication_us", e.communication},
                                     {"exposed_us", e.exposed}});
  }
  j["dataset"] = d.name;
  j["config"] = json::parse(config_json(c));
  return j.dump(1) + "\n";
}

std::string fit_json(const fit_result& r, std::size_t batch) {
  nlohmann::ordered_json j;
  for (const fit_trial& t : r.trials)
    j["fit"]["trials"].push_back({{"micro_batch", t.micro_batch},
                                  {"bytes", t.bytes},
                                  {"run", t.run},
                                  {"fits", t.why.empty()},
                                  {"why", t.why}});
  j["fit"]["micro_batch"] = r.best;
  j["fit"]["batch"] = batch;
  return j.dump(1) + "\n";
}

std::string metrics_csv(const training_result& r, const config& c) {
  std::string text = "step,epoch,loss,learning_rate,val_accuracy\n";
  const warmup_cosine schedule{.warmup = r.plan.warmup, .total = r.plan.horizon};
  std::size_t measured = 0;
  for (std::size_t k = 0; k < r.losses.size(); ++k) {
    const std::size_t i = r.first_step + k;
    text += detail::cat(i + 1, ",",
                        static_cast<double>(i + 1) / static_cast<double>(r.plan.steps_per_epoch),
                        ",", r.losses[k], ",", c.learning_rate * schedule(i), ",");
    if (measured < r.validation.size() &&
        r.validation[measured].first == static_cast<double>(i + 1))
      text += detail::cat(r.validation[measured++].second);
    text += '\n';
  }
  return text;
}

std::string learning_curve(const training_result& r, const dataset& d) {
  const double per_epoch = static_cast<double>(r.plan.steps_per_epoch);
  series loss{.name = "loss per step", .colour = "#9db7d5", .points = {}, .width = 1};
  series smooth{.name = "smoothed", .colour = "#1f5fa8", .points = {}};
  const std::size_t reach = std::min<std::size_t>(25, r.losses.size() / 20); // to either side
  double window = 0;
  for (std::size_t i = 0, first = 0, end = 0; i < r.losses.size(); ++i) {
    const double epoch = static_cast<double>(r.first_step + i + 1) / per_epoch;
    loss.points.emplace_back(epoch, static_cast<double>(r.losses[i]));
    while (end < std::min(i + reach + 1, r.losses.size()))
      window += static_cast<double>(r.losses[end++]);
    while (first + reach < i) window -= static_cast<double>(r.losses[first++]);
    smooth.points.emplace_back(epoch, window / static_cast<double>(end - first));
  }
  series validation{.name = "validation", .colour = "#2a8a3e", .points = {}, .markers = true};
  for (const auto& [step, accuracy] : r.validation)
    validation.points.emplace_back(step / per_epoch, accuracy);
  const chart charts[] = {{"Training loss (cross entropy)", "epoch", "", {loss, smooth}},
                          {"Accuracy", "epoch", "", {validation}}};
  return charts_svg(detail::cat(d.name, ": validation ", percent(r.final_validation.accuracy),
                                ", test ", percent(r.test.accuracy)),
                    charts);
}

std::string contact_sheet(const evaluation& e, const dataset& d, std::size_t mistakes,
                          std::size_t correct) {
  std::vector<std::size_t> wrong;
  for (std::size_t i = 0; i < e.predicted.size(); ++i)
    if (e.predicted[i] != d.test.labels[i]) wrong.push_back(i);
  std::stable_sort(wrong.begin(), wrong.end(),
                   [&](std::size_t a, std::size_t b) { return e.confidence[a] > e.confidence[b]; });
  sheet s{.title = detail::cat(d.name, ": what the network sees in ", e.predicted.size(),
                               " test pictures"),
          .subtitle = detail::cat(wrong.size(), " mistakes (", percent(1 - e.accuracy),
                                  "). Red: the most confident ", std::min(mistakes, wrong.size()),
                                  " of them, surest first. Green: correct ones, for comparison."),
          .rows = d.test.rows,
          .columns = d.test.columns,
          .cards = {}};
  for (std::size_t k = 0; k < std::min(mistakes, wrong.size()); ++k)
    s.cards.push_back(make_card(e, d, wrong[k]));
  std::vector<std::size_t> shown(d.class_names.size());
  const std::size_t of_each = (correct + shown.size() - 1) / shown.size();
  for (std::size_t i = 0; i < e.predicted.size() && correct > 0; ++i) {
    if (e.predicted[i] != d.test.labels[i] || shown[e.predicted[i]] == of_each) continue;
    ++shown[e.predicted[i]];
    --correct;
    s.cards.push_back(make_card(e, d, i));
  }
  return contact_sheet_svg(s);
}

} // namespace polyrank::examples
