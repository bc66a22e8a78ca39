// SPDX-License-Identifier: Apache-2.0
#include "train_classifier/checkpoint.hpp"

#include <polyrank/checkpoint/posix_files.hpp>
#include <polyrank/checkpoint/safetensors_file.hpp>
#include <polyrank/checkpoint/whole_file.hpp>
#include <polyrank/core/error.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace polyrank::examples {

namespace {

using json = nlohmann::ordered_json;

/// The flags that the rest of the curve depends on, and the data.
checkpoint::metadata curve_of(const config& c, std::size_t training_pictures) {
  return {{"--seed", detail::cat(c.seed)},
          {"--batch", detail::cat(c.batch)},
          {"--epochs", detail::cat(c.epochs)},
          {"--optimizer", c.optimizer},
          {"training pictures", detail::cat(training_pictures)},
          {"learning rate", detail::cat(c.learning_rate)},
          {"weight decay", detail::cat(c.weight_decay)}};
}

} // namespace

std::string config_json(const config& c) {
  json j{{"data", c.data},
         {"epochs", c.epochs},
         {"batch", c.batch},
         {"hidden", c.hidden},
         {"seed", c.seed},
         {"deterministic", c.deterministic},
         {"precision", "fp32"},
         {"learning_rate", c.learning_rate},
         {"weight_decay", c.weight_decay},
         {"warmup_epochs", c.warmup_epochs}};
  if (c.steps) j["steps"] = *c.steps;
  if (c.deterministic) j["blocks"] = c.blocks;
  if (c.sharded()) {
    j["zero"] = c.zero.value_or(0);
    j["offload"] = c.offload;
    j["accumulate"] = c.accumulate;
    j["clip"] = c.clip;
    j["optimizer"] = c.optimizer;
  }
  return j.dump();
}

std::vector<checkpoint::tensor_info> state_tensors(const std::vector<tensor>& weights,
                                                   std::size_t planes) {
  std::vector<checkpoint::tensor_info> all;
  for (std::size_t plane = 0; plane <= planes; ++plane)
    for (const tensor& t : weights)
      all.push_back({plane == 0 ? t.name : detail::cat("optimizer/", plane - 1, "/", t.name),
                     dtype::f32,
                     {t.shape.begin(), t.shape.end()}});
  return all;
}

checkpoint::metadata make_notes(const config& c, std::size_t training_pictures, float loss,
                                const step_record& last) {
  checkpoint::metadata notes = curve_of(c, training_pictures);
  notes["loss"] = detail::cat(loss);
  notes["updates"] = detail::cat(last.applied);
  const scaler_state& s = last.scaler;
  notes["loss scaler"] = detail::cat(s.scale, ' ', s.clean, ' ', s.patience, ' ', s.at_least);
  return notes;
}

step_record record_of(const checkpoint::manifest& saved) {
  step_record r;
  const auto note = [&saved](const char* name) {
    const auto at = saved.notes.find(name);
    if (at == saved.notes.end())
      throw data_error(detail::cat("the checkpoint has no note '", name, "'"));
    return std::istringstream(at->second);
  };
  if (!(note("updates") >> r.applied) || r.applied > saved.step ||
      !(note("loss scaler") >> r.scaler.scale >> r.scaler.clean >> r.scaler.patience >>
        r.scaler.at_least) ||
      !(r.scaler.scale > 0))
    throw data_error("the checkpoint's notes on updates or loss scaler are damaged");
  r.skipped = saved.step - r.applied;
  return r;
}

float judge_notes(const checkpoint::manifest& saved, const config& c,
                  std::size_t training_pictures) {
  for (const auto& [name, value] : curve_of(c, training_pictures)) {
    const auto was = saved.notes.find(name);
    if (was == saved.notes.end() || was->second != value)
      throw usage_error(detail::cat("--resume: the checkpoint was made with ", name, " ",
                                    was == saved.notes.end() ? "unknown" : was->second,
                                    ", this run has ", value,
                                    "; take the same, or begin anew in "
                                    "another --checkpoint directory"));
  }
  const auto loss = saved.notes.find("loss");
  return loss == saved.notes.end() ? 0 : std::strtof(loss->second.c_str(), nullptr);
}

std::string load_weights(const std::filesystem::path& file, const std::vector<tensor>& weights,
                         std::span<float> values) {
  checkpoint::posix_files files;
  const checkpoint::safetensors_file f(files, file);
  const checkpoint::match m = checkpoint::match_tensors(f.header(), state_tensors(weights, 0));
  if (m.both.empty())
    throw data_error(detail::cat(file.string(), ": no tensor of it fits the model:", m.text()));
  for (const std::size_t i : m.both)
    checkpoint::read_floats(f, weights[i].name,
                            values.subspan(weights[i].offset, weights[i].count()));
  return m.text();
}

void save_weights(const std::filesystem::path& file, const std::vector<tensor>& weights,
                  std::span<const float> values) {
  checkpoint::posix_files files;
  std::vector<checkpoint::tensor_source> sources;
  for (const tensor& t : weights)
    sources.push_back({t.name,
                       &checkpoint::type_of(dtype::f32),
                       {t.shape.begin(), t.shape.end()},
                       std::as_bytes(values.subspan(t.offset, t.count()))});
  checkpoint::write_safetensors(files, file, sources, {{"format", "pt"}});
}

} // namespace polyrank::examples
