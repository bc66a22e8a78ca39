// Parameter groups: options of an optimizer that differ between parameters, such as no weight decay
// on biases and norms, or a smaller rate for an embedding.
//
//     parameter_groups<adamw> groups(names, {.lr = 6e-4, .weight_decay = 0.1});
//     groups.split("no decay", {.lr = 6e-4, .weight_decay = 0}, names_with{{"bias", "norm"}});
//     groups.split("embedding", {.lr = 6e-5, .beta2 = 0.95}, names_with{{"wte", "wpe"}});
//     for (step = 1; ...) {
//       groups.at(step, schedule(step - 1));                                // once a step
//       for (i = 0; ...) apply<adamw>(w[i], g[i], state[i], groups[i], grad_scale);
//     }
//
// On a device a group is one cuda::optimizer over the tensors of group.parameters, and one launch a
// step with group.numbers; a sharded_optimizer takes the groups in the place of options. State and
// formula are those of the optimizer: groups change numbers only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/optim/optimizer.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank {

/// Whether a parameter's name has one of the words in it.
struct names_with {
  std::vector<std::string> words;

  [[nodiscard]] bool operator()(std::string_view name) const noexcept {
    for (const std::string& word : words)
      if (name.find(word) != std::string_view::npos) return true;
    return false;
  }
};

template <elementwise_optimizer O>
class parameter_groups {
 public:
  using options = typename O::options;

  struct group {
    std::string name;
    options settings;
    std::vector<std::size_t> parameters; ///< their indices, ascending
    typename O::hyper numbers;           ///< of the step that at() was called for last
  };

  /// All parameters in one group, "rest". Its numbers are those of step 1 until at() is called.
  parameter_groups(std::vector<std::string> names, options rest)
      : names_(std::move(names)), group_of_(names_.size(), 0) {
    groups_.push_back({"rest", rest, {}, O::at(rest, 1, 1)});
    for (std::size_t i = 0; i < names_.size(); ++i) groups_[0].parameters.push_back(i);
  }

  /// Moves those of the rest for whose name `takes` is true into a group of their own.
  /// @throws usage_error where there is none (a word misspelt?), or the group exists
  template <class Takes>
  parameter_groups& split(std::string name, options settings, Takes takes) {
    for (const group& g : groups_)
      expects(g.name != name, "parameter_groups: there is a group '", name, "' already");
    group mine{std::move(name), settings, {}, O::at(settings, 1, 1)};
    std::vector<std::size_t> rest;
    for (const std::size_t i : groups_[0].parameters)
      (takes(std::string_view(names_[i])) ? mine.parameters : rest).push_back(i);
    expects(!mine.parameters.empty(), "parameter_groups: group '", mine.name,
            "' takes none of the ", rest.size(), " parameters that are left",
            rest.empty() ? "" : detail::cat(", such as '", names_[rest[0]], "'"));
    for (const std::size_t i : mine.parameters) group_of_[i] = groups_.size();
    groups_[0].parameters = std::move(rest);
    groups_.push_back(std::move(mine));
    return *this;
  }

  /// Makes the numbers of step `step` (from 1) in every group; `lr_factor` scales every rate.
  void at(std::uint64_t step, double lr_factor = 1) {
    for (group& g : groups_) g.numbers = O::at(g.settings, step, lr_factor);
  }

  /// The numbers for parameter `i`.
  [[nodiscard]] const typename O::hyper& operator[](std::size_t i) const {
    return groups_[group_of(i)].numbers;
  }
  /// Which of groups() has parameter `i`.
  [[nodiscard]] std::size_t group_of(std::size_t i) const {
    expects(i < names_.size(), "parameter_groups: parameter ", i, " of ", names_.size());
    return group_of_[i];
  }
  [[nodiscard]] const std::vector<std::string>& names() const noexcept { return names_; }

  /// The rest first (it may be empty), then in the order of split().
  [[nodiscard]] const std::vector<group>& groups() const noexcept { return groups_; }

 private:
  std::vector<std::string> names_;
  std::vector<std::size_t> group_of_; // by parameter
  std::vector<group> groups_;
};

} // namespace polyrank
