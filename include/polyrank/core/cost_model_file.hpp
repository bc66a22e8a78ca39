// Measured cost models as a small file: the probe writes it, grad_sync and the schedule simulator
// read it.
//
//     polyrank_probe bandwidth --cost-model links.json        (under mpirun)
//     POLYRANK_COST_MODEL=links.json mpirun ... train         (grad_sync sizes its buckets)
//     polyrank_plan schedule --cost-model links.json ...      (transfers of a pipeline)
//
// The file is one flat JSON object:
//
//     {"schema": "polyrank.cost_model/1", "alpha": 2.1e-05, "beta": 3.6e+10,
//      "inside_alpha": 1.2e-05, "inside_beta": 4e+10, "between_alpha": ..., "between_beta": ...}
//
// alpha and beta are those of an all-reduce of all ranks; inside_ and between_ (where missing: the
// same) those of one transfer between two ranks of a host, and of two hosts. Seconds, bytes/second.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/cost_model.hpp>
#include <polyrank/core/error.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace polyrank {

struct measured_costs {
  cost_model ring;    ///< an all-reduce of all ranks
  cost_model inside;  ///< one transfer within a host
  cost_model between; ///< one transfer between hosts
};

[[nodiscard]] inline std::string cost_model_text(const measured_costs& c) {
  return detail::cat("{\"schema\": \"polyrank.cost_model/1\", \"alpha\": ", c.ring.alpha,
                     ", \"beta\": ", c.ring.beta, ",\n \"inside_alpha\": ", c.inside.alpha,
                     ", \"inside_beta\": ", c.inside.beta,
                     ",\n \"between_alpha\": ", c.between.alpha,
                     ", \"between_beta\": ", c.between.beta, "}\n");
}

namespace detail {

/// Calls member(name, value) for each member of a flat JSON object of numbers and strings without
/// escapes; strings keep their quotes. Throws data_error naming `file`.
template <class Member>
void each_flat_member(std::string_view text, std::string_view file, Member member) {
  std::size_t at = 0;
  const auto skip_blanks = [&] {
    at = std::min(text.find_first_not_of(" \t\r\n", at), text.size());
  };
  const auto symbol = [&](char c) {
    skip_blanks();
    if (at == text.size() || text[at] != c) return false;
    ++at;
    return true;
  };
  const auto need = [&](bool there, const char* what) {
    if (!there)
      throw data_error(cat(file, ": byte ", at, ": ", what, " was expected, of one flat object"));
  };
  const auto quoted = [&] { // after the first quote
    const std::size_t end = std::min(text.find_first_of("\"\\", at), text.size());
    need(end < text.size() && text[end] == '"', "a string without escapes");
    const std::string_view word = text.substr(at - 1, end - at + 2);
    at = end + 1;
    return word;
  };
  need(symbol('{'), "{");
  if (!symbol('}')) {
    do {
      need(symbol('"'), "a name");
      const std::string_view name = quoted();
      need(symbol(':'), ":");
      std::string_view value;
      if (symbol('"')) {
        value = quoted();
      } else {
        value = text.substr(at, text.find_first_not_of("+-.0123456789eE", at) - at);
        need(!value.empty(), "a number or a string");
        at += value.size();
      }
      member(name.substr(1, name.size() - 2), value);
    } while (symbol(','));
    need(symbol('}'), "}");
  }
  skip_blanks();
  need(at == text.size(), "the end");
}

} // namespace detail

/// Reads the text of a cost model file. Throws data_error naming `file` and what is wrong.
[[nodiscard]] inline measured_costs parse_cost_model(std::string_view text, std::string_view file) {
  constexpr double missing = -1;
  struct field {
    std::string_view name;
    double value = missing;
  };
  field fields[] = {{"alpha"},       {"beta"},          {"inside_alpha"},
                    {"inside_beta"}, {"between_alpha"}, {"between_beta"}};
  bool ours = false;
  detail::each_flat_member(text, file, [&](std::string_view name, std::string_view value) {
    ours = ours || (name == "schema" && value == "\"polyrank.cost_model/1\"");
    for (field& f : fields) {
      if (name != f.name) continue;
      const bool rate = name.ends_with("beta");
      const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), f.value);
      if (code != std::errc() || end != value.data() + value.size() || !std::isfinite(f.value) ||
          f.value < 0 || (rate && f.value == 0))
        throw data_error(detail::cat(file, ": ", name, " is ", value, ", it must be a number ",
                                     rate ? "above 0 (bytes per second)" : "from 0 on (seconds)"));
    }
  });
  if (!ours || fields[0].value < 0 || fields[1].value < 0)
    throw data_error(detail::cat(file, ": no cost model (\"schema\": \"polyrank.cost_model/1\", "
                                       "alpha and beta); polyrank_probe bandwidth --cost-model "
                                       "FILE writes one"));
  const auto model = [&](std::size_t i) {
    return cost_model{fields[i].value < 0 ? fields[0].value : fields[i].value,
                      fields[i + 1].value < 0 ? fields[1].value : fields[i + 1].value};
  };
  return {model(0), model(2), model(4)};
}

/// Reads a cost model file. Throws data_error.
[[nodiscard]] inline measured_costs read_cost_model(const std::string& path) {
  std::FILE* const in = std::fopen(path.c_str(), "rb");
  if (in == nullptr) throw data_error(detail::cat(path, ": cannot open this cost model"));
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), in));
  std::fclose(in);
  return parse_cost_model(text, path);
}

/// The ring's cost model of the file that POLYRANK_COST_MODEL names on rank 0, the same on every
/// rank; the built-in one where the variable is not set. Throws data_error on every rank.
/// @collective
template <class Control>
[[nodiscard]] cost_model agreed_cost_model(Control& control) {
  std::string words;
  if (const char* path = std::getenv("POLYRANK_COST_MODEL");
      control.rank() == 0 && path != nullptr && *path != '\0')
    try {
      words = "=" + cost_model_text(read_cost_model(path));
    } catch (const data_error& e) {
      words = detail::cat("POLYRANK_COST_MODEL: ", e.what());
    }
  words = control.all_gather(words)[0];
  if (words.empty()) return {};
  if (words[0] != '=') throw on_every_rank(data_error(words));
  return parse_cost_model(std::string_view(words).substr(1), "POLYRANK_COST_MODEL").ring;
}

} // namespace polyrank
