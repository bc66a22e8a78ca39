// SPDX-License-Identifier: Apache-2.0
#include "tools/checkpoint/llmc.hpp"

#include <polyrank/checkpoint/llmc.hpp>
#include <polyrank/checkpoint/posix_files.hpp>
#include <polyrank/checkpoint/safetensors_file.hpp>
#include <polyrank/checkpoint/whole_file.hpp>

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

namespace polyrank::examples {

namespace {

using namespace polyrank::checkpoint;
using polyrank::detail::cat;

const std::string_view plane_names[] = {"optimizer/0/", "optimizer/1/", "master/"};

std::uint64_t number_of(const safetensors_file& f, const std::string& note) {
  const auto at = f.header().notes.find(note);
  std::uint64_t value = 0;
  if (at == f.header().notes.end()) throw data_error(cat(f.name(), ": has no note ", note));
  const std::string& text = at->second;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size())
    throw data_error(cat(f.name(), ": the note ", note, " is '", text, "', no number"));
  return value;
}

/// What the tensors say; heads and vocabulary are in no shape.
llmc::shape shape_of(const safetensors_file& f, const to_llmc_flags& flags) {
  const auto dimension = [&](const char* tensor, std::size_t i) {
    const tensor_entry* t = f.header().find(tensor);
    if (t == nullptr || t->shape.size() <= i || t->shape[i] > 1'000'000)
      throw data_error(cat(f.name(), ": is no GPT-2 with llm.c's names: tensor '", tensor,
                           "' is missing or has another shape"));
    return static_cast<std::uint32_t>(t->shape[i]);
  };
  const auto said = [&](const std::optional<std::size_t>& flag, const char* name) {
    if (!flag && !f.header().notes.contains(cat("llmc.", name)))
      throw usage_error(cat(f.name(), ": does not say the number of ", name, "; add --", name));
    return static_cast<std::uint32_t>(flag ? *flag : number_of(f, cat("llmc.", name)));
  };
  llmc::shape s{.longest = dimension("wpe", 0),
                .vocabulary = said(flags.vocabulary, "vocabulary"),
                .layers = dimension("ln1w", 0),
                .heads = said(flags.heads, "heads"),
                .channels = dimension("wte", 1),
                .padded = dimension("wte", 0)};
  expects(s.heads > 0 && s.channels % s.heads == 0, "--heads ", s.heads, ": ", s.channels,
          " channels do not divide by it");
  expects(s.vocabulary > 0 && s.vocabulary <= s.padded, "--vocabulary ", s.vocabulary,
          ": the file has ", s.padded, " rows for it");
  return s;
}

/// All parameters as floats, tensor after tensor, whose names begin with `prefix`.
std::vector<float> floats_of(const safetensors_file& f, const llmc::shape& s,
                             std::string_view prefix) {
  std::vector<float> all(llmc::parameter_count(s));
  std::span<float> left(all);
  for (const tensor_info& t : llmc::tensors_of(s, dtype::f32)) {
    const std::string name = cat(prefix, t.name);
    const tensor_entry* e = f.header().find(name);
    if (e == nullptr || e->shape != t.shape)
      throw data_error(
          cat(f.name(), ": tensor '", name, "' is missing or not of shape ", text_of(t)));
    read_floats(f, name, left.first(t.count()));
    left = left.subspan(t.count());
  }
  return all;
}

std::string digits(std::size_t value, std::size_t width) {
  const std::string text = cat(value);
  return text.size() < width ? std::string(width - text.size(), '0') + text : text;
}

} // namespace

std::string from_llmc(const from_llmc_flags& f) {
  posix_files files;
  const llmc::model model(files, f.model);
  metadata notes{{"format", "pt"},
                 {"llmc.heads", cat(model.shape.heads)},
                 {"llmc.vocabulary", cat(model.shape.vocabulary)}};
  std::vector<tensor_source> sources;
  const auto tensors = llmc::tensors_of(model.shape, model.type);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    sources.push_back({tensors[i].name, &type_of(model.type), tensors[i].shape, model.bytes(i)});

  std::vector<std::unique_ptr<llmc::state>> open;
  std::vector<const llmc::state*> states;
  for (const std::string& path : f.states) {
    open.push_back(std::make_unique<llmc::state>(files, path, model.shape));
    states.push_back(open.back().get());
  }
  std::vector<std::vector<float>> planes;
  if (!states.empty()) {
    const llmc::progress& at = states[0]->progress;
    for (std::size_t p = 0; p < states[0]->planes(); ++p) {
      planes.push_back(llmc::gather(model.shape, states, p));
      std::span<const float> left(planes.back());
      for (const tensor_info& t : tensors) {
        sources.push_back({cat(plane_names[p], t.name), &type_of(dtype::f32), t.shape,
                           std::as_bytes(left.first(t.count()))});
        left = left.subspan(t.count());
      }
    }
    for (const llmc::state* s : states)
      notes[cat("llmc.random.", s->progress.rank)] = cat(s->progress.random);
    for (const llmc::state* s : states)
      if (!s->loader().empty())
        sources.push_back({cat("loader/", s->progress.rank),
                           &type_of(dtype::u8),
                           {s->loader().size()},
                           s->loader()});
    notes["step"] = cat(at.step);
    notes["llmc.ranks"] = cat(at.ranks);
    notes["llmc.data_file"] = cat(at.data_file);
    notes["llmc.data_sample"] = cat(at.data_sample);
  }
  write_safetensors(files, f.out, sources, notes);
  return cat(f.out, ": ", tensors.size(), " tensors, ", name_of(model.type),
             states.empty() ? "" : cat(", state of step ", states[0]->progress.step));
}

std::string to_llmc(const to_llmc_flags& f) {
  posix_files files;
  const safetensors_file from(files, f.file);
  const llmc::shape s = shape_of(from, f);
  const bool stays_bf16 = from.header().find("wte")->type == &type_of(dtype::bf16);
  const dtype type =
      f.precision == "bf16" || (f.precision.empty() && stays_bf16) ? dtype::bf16 : dtype::f32;
  const bool with_state = from.header().find("optimizer/0/wte") != nullptr;
  const bool masters = from.header().find("master/wte") != nullptr;
  const std::size_t step = with_state ? number_of(from, "step") : 0;
  const bool part = f.zero == 1 && f.ranks > 1;
  expects(!part || llmc::divides(s, f.ranks), "--ranks ", f.ranks,
          ": with ZeRO-1 every tensor of llm.c must divide by it");
  const std::size_t had = with_state ? number_of(from, "llmc.ranks") : 0;
  expects(had == f.ranks || from.header().find("loader/0") == nullptr, "--ranks ", f.ranks,
          ": the shuffled data loader in the file is of ", had, " processes; take --ranks ", had);

  const std::filesystem::path dir = f.out;
  make_durable_directory(files, dir);
  const std::vector<float> weights = floats_of(from, s, "");
  std::vector<bf16> narrow;
  std::vector<std::uint64_t> ends{0};
  for (const tensor_info& t : llmc::tensors_of(s, type)) ends.push_back(ends.back() + t.count());
  if (type == dtype::bf16)
    for (const float w : weights) narrow.push_back(bf16(w));
  const std::filesystem::path model = dir / cat("model_", digits(step, 8), ".bin");
  llmc::write_model(files, model, s, type, [&](std::size_t i) {
    const std::uint64_t first = ends[i], count = ends[i + 1] - first;
    return type == dtype::bf16 ? std::as_bytes(std::span<const bf16>(narrow).subspan(first, count))
                               : std::as_bytes(std::span(weights).subspan(first, count));
  });
  if (!with_state) return model.string();

  std::vector<std::vector<float>> planes;
  for (std::size_t p = 0; p < (masters ? 3u : 2u); ++p)
    planes.push_back(floats_of(from, s, plane_names[p]));
  llmc::progress at{.ranks = static_cast<std::uint32_t>(f.ranks),
                    .step = static_cast<std::uint32_t>(step),
                    .masters = masters,
                    .data_file = number_of(from, "llmc.data_file"),
                    .data_sample = number_of(from, "llmc.data_sample") * had / f.ranks};
  for (std::size_t r = 0; r < f.ranks; ++r) {
    std::vector<std::vector<float>> mine;
    std::vector<std::span<const float>> spans;
    for (const auto& plane : planes) {
      if (part) mine.push_back(llmc::part_of(s, plane, f.ranks, r));
      spans.emplace_back(part ? mine.back() : plane);
    }
    at.rank = static_cast<std::uint32_t>(r);
    // More processes than there were draw from seeds of their own.
    const bool known = from.header().notes.contains(cat("llmc.random.", r));
    at.random = number_of(from, cat("llmc.random.", known ? r : 0)) + (known ? 0 : r);
    const tensor_entry* loader = from.header().find(cat("loader/", r));
    llmc::write_state(files, dir / cat("state_", digits(step, 8), '_', digits(r, 5), ".bin"), at,
                      spans,
                      loader == nullptr ? std::span<const std::byte>() : from.bytes(*loader));
  }
  write_atomically(files, dir / cat("DONE_", digits(step, 8)), [](output_file&) {});
  return cat(model.string(), " and the state of step ", step, " for ", f.ranks, " process",
             f.ranks == 1 ? "" : "es");
}

} // namespace polyrank::examples
