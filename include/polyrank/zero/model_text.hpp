// What a sharded optimizer's ranks must have in common, as text that they compare; and what no
// model may have.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/dtype.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/text.hpp>
#include <polyrank/data_parallel/parameter.hpp>
#include <polyrank/optim/parameter_groups.hpp>
#include <polyrank/zero/options.hpp>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace polyrank {

template <element G, element V>
[[nodiscard]] std::vector<std::string> names_of(const std::vector<parameter<G, V>>& parameters) {
  std::vector<std::string> names;
  for (const auto& p : parameters) names.push_back(p.name);
  return names;
}

/// One line for types and options, one for each parameter.
template <elementwise_optimizer O, element G, element V>
[[nodiscard]] std::string describe_model(const std::vector<parameter<G, V>>& parameters,
                                         const parameter_groups<O>& groups,
                                         const sharded_options& o) {
  const std::vector<std::string> names = names_of(parameters);
  std::string text =
      detail::cat("gradients ", name_of(dtype_of<G>), ", values ", name_of(dtype_of<V>), ", stage ",
                  o.stage, ", clip ", static_cast<int>(o.clip), " to ", o.max_norm,
                  ", microbatches ", o.microbatches, ", blocks ", o.blocks, '\n');
  for (std::size_t i = 0; i < parameters.size(); ++i)
    text += detail::cat("parameter '", names[i], "' of ", parameters[i].count, " in group '",
                        groups.groups()[groups.group_of(i)].name, "'\n");
  return text;
}

/// "rank 1: x; rank 3: y" of what each rank has to say.
[[nodiscard]] inline std::string by_rank(const std::vector<std::string>& said) {
  std::string text;
  for (std::size_t r = 0; r < said.size(); ++r)
    if (!said[r].empty()) text += detail::cat(text.empty() ? "rank " : "; rank ", r, ": ", said[r]);
  return text;
}

/// Throws usage_error if two parameters share memory: a weight with two names would be updated
/// twice, by two states.
template <element G, element V>
void refuse_ties(const std::vector<parameter<G, V>>& parameters) {
  std::map<const void*, const std::string*> owners;
  for (const auto& p : parameters)
    for (const void* memory :
         {static_cast<const void*>(p.value), static_cast<const void*>(p.gradient)})
      if (memory != nullptr && p.count > 0)
        if (const auto [at, added] = owners.emplace(memory, &p.name); !added)
          throw usage_error(detail::cat("parameters '", *at->second, "' and '", p.name,
                                        "' share memory: a tied weight is one parameter; declare "
                                        "it once, add up the gradients "
                                        "of its uses, and call ready() behind the last of them"));
}

} // namespace polyrank
