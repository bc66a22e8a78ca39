// SPDX-License-Identifier: Apache-2.0
#include "train_classifier/checkpoint.hpp"

#include "support/files.hpp"

#include <polyrank/core/error.hpp>
#include <polyrank/core/hash.hpp>
#include <polyrank/core/partition.hpp>
#include <polyrank/optim/adamw.hpp>

#include <nlohmann/json.hpp>

#include <bit>
#include <cstring>

namespace polyrank::examples {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

namespace {

using json = nlohmann::ordered_json;
constexpr std::string_view magic = "PRKSTATE";

void append(std::vector<std::byte>& out, const void* data, std::size_t bytes) {
  const auto* p = static_cast<const std::byte*>(data);
  out.insert(out.end(), p, p + bytes);
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

std::vector<std::byte> encode(const checkpoint& c) {
  json layout = json::array();
  for (const tensor& t : parameters_of(c.model))
    layout.push_back({{"name", t.name}, {"shape", t.shape}, {"offset", t.offset}});
  const json header{
      {"format", 1},
      {"step", c.step},
      {"config", json::parse(c.config_json)},
      {"model",
       {{"inputs", c.model.inputs}, {"hidden", c.model.hidden}, {"classes", c.model.classes}}},
      {"layout", std::move(layout)},
      {"optimizer", "adamw"},
      {"planes", adamw::state_count},
      {"count", c.parameters.size()}};
  std::string text = header.dump();
  text.append(round_up(magic.size() + 8 + text.size(), 64) - (magic.size() + 8 + text.size()), ' ');
  std::vector<std::byte> out;
  out.reserve(24 + text.size() + (c.parameters.size() + c.state.size()) * sizeof(float));
  const std::uint64_t length = text.size();
  append(out, magic.data(), magic.size());
  append(out, &length, sizeof length);
  append(out, text.data(), text.size());
  append(out, c.parameters.data(), c.parameters.size() * sizeof(float));
  append(out, c.state.data(), c.state.size() * sizeof(float));
  const std::uint64_t hash = hash_bytes(out.data(), out.size());
  append(out, &hash, sizeof hash);
  return out;
}

checkpoint decode(std::span<const std::byte> bytes, std::string_view name) {
  const auto fail = [name](std::size_t at, const auto&... what) {
    throw data_error(detail::cat(name, ": ", what..., " (at byte ", at, ")"));
  };
  const auto number_at = [bytes](std::size_t at) {
    std::uint64_t value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  if (bytes.size() < 24)
    fail(bytes.size(), "truncated: ", bytes.size(), " bytes are no checkpoint");
  if (std::memcmp(bytes.data(), magic.data(), magic.size()) != 0)
    fail(0, "not a checkpoint: it does not start with ", magic);
  const std::uint64_t length = number_at(8);
  if (length > bytes.size() - 24)
    fail(8, "truncated: the header has ", length, " bytes, the file ", bytes.size());
  checkpoint c;
  std::size_t count = 0;
  try {
    const auto* text = reinterpret_cast<const char*>(bytes.data() + 16);
    const json header = json::parse(text, text + length);
    c.step = header.at("step");
    c.config_json = header.at("config").dump();
    c.seed = header.at("config").at("seed");
    const json& model = header.at("model");
    c.model = {model.at("inputs"), model.at("hidden"), model.at("classes")};
    count = header.at("count");
    if (header.at("optimizer") != "adamw")
      fail(16, "the optimizer is ", header.at("optimizer").dump(), ", not adamw");
  } catch (const json::exception& e) {
    fail(16, "the header is corrupt: ", std::string_view(e.what()));
  }
  if (count != parameter_count(c.model))
    fail(16, "the header counts ", count, " parameters, its model ", c.model.text(), " has ",
         parameter_count(c.model));
  const std::size_t begin = 16 + length, floats = count * (1 + adamw::state_count);
  const std::size_t expected = begin + floats * sizeof(float) + 8;
  if (bytes.size() < expected)
    fail(bytes.size(), "truncated: ", expected, " bytes expected, here are ", bytes.size());
  if (bytes.size() > expected)
    fail(expected, bytes.size() - expected, " bytes too many at the end");
  if (hash_bytes(bytes.data(), expected - 8) != number_at(expected - 8))
    fail(expected - 8, "corrupt: the hash does not fit the content");
  c.parameters.resize(count);
  c.state.resize(floats - count);
  std::memcpy(c.parameters.data(), bytes.data() + begin, count * sizeof(float));
  std::memcpy(c.state.data(), bytes.data() + begin + count * sizeof(float),
              c.state.size() * sizeof(float));
  return c;
}

std::filesystem::path save(const checkpoint& c, const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "state.prk";
  write_file(path, std::span<const std::byte>(encode(c)));
  return path;
}

} // namespace polyrank::examples
