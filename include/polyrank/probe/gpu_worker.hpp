// The parent's side of the GPU tests. Everything that calls CUDA or NCCL runs in a child, which is
// asked line by line and killed when an answer is late; the next question starts a new one. So this
// side needs neither to build nor to run.
//
//     gpu_worker worker({"/usr/bin/polyrank_probe_gpu"});
//     const gpu_answer a = worker.ask("host_device 0 268435456", std::chrono::seconds(20));
//     if (a.good()) use(a.number("to_device"));
//
// An answer is one line of fields with tabs between: "ok", then name=value; or "failed", code,
// text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/probe/child_process.hpp>

#include <charconv>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank::probe {

struct gpu_answer {
  enum class outcome : unsigned char {
    not_asked,
    ok,
    failed, ///< the worker says why
    late,   ///< no answer in time; the worker was killed
    stuck,  ///< the same, and the kernel cannot end it: the driver hangs
    gone    ///< the worker died
  };
  outcome how = outcome::not_asked;
  int code = 0;     ///< of the call that failed; 0: none
  std::string text; ///< what failed, or how the worker ended
  std::map<std::string, std::string> values;

  [[nodiscard]] bool good() const noexcept { return how == outcome::ok; }
  [[nodiscard]] bool hung() const noexcept { return how == outcome::late || how == outcome::stuck; }
  [[nodiscard]] std::string word(const std::string& name) const {
    const auto found = values.find(name);
    return found == values.end() ? std::string() : found->second;
  }
  /// 0 where there is none.
  [[nodiscard]] double number(const std::string& name) const {
    const std::string text_of = word(name);
    double value = 0;
    std::from_chars(text_of.data(), text_of.data() + text_of.size(), value);
    return value;
  }
  /// Why it is not good, for people.
  [[nodiscard]] std::string complaint() const {
    return hung() ? polyrank::detail::cat("no answer within ", text,
                                          how == outcome::stuck ? ", and cannot be killed" : "")
                  : text;
  }
};

[[nodiscard]] inline std::string encode(const gpu_answer& a) {
  using polyrank::detail::cat;
  constexpr std::string_view heads[] = {"not_asked", "ok", "failed", "late", "stuck", "gone"};
  std::string out(heads[static_cast<std::size_t>(a.how)]);
  const auto put = [&](std::string_view text) {
    out += '\t';
    for (const char c : text) out += c == '\t' || c == '\n' ? ' ' : c;
  };
  if (a.good()) {
    for (const auto& [name, value] : a.values) put(cat(name, '=', value));
  } else {
    put(cat(a.code));
    put(a.text);
  }
  return out;
}

/// @throws data_error for a line that is no answer
[[nodiscard]] inline gpu_answer decode_answer(std::string_view line) {
  if (line.find('\n') != std::string_view::npos)
    throw data_error("GPU worker: an answer of more than one line");
  const auto next = [&] {
    const std::size_t tab = std::min(line.find('\t'), line.size());
    const std::string_view field = line.substr(0, tab);
    line.remove_prefix(std::min(tab + 1, line.size()));
    return field;
  };
  constexpr std::string_view heads[] = {"not_asked", "ok", "failed", "late", "stuck", "gone"};
  const std::string_view head = next();
  gpu_answer a;
  const auto found = std::find(std::begin(heads), std::end(heads), head);
  if (found == std::end(heads))
    throw data_error(
        polyrank::detail::cat("GPU worker: \"", head.substr(0, 40), "\" is no answer"));
  a.how = static_cast<gpu_answer::outcome>(found - std::begin(heads));
  if (!a.good()) {
    const std::string_view code = next();
    std::from_chars(code.data(), code.data() + code.size(), a.code);
    a.text = next();
    return a;
  }
  while (!line.empty()) {
    const std::string_view field = next();
    const std::size_t equal = std::min(field.find('='), field.size());
    a.values[std::string(field.substr(0, equal))] = field.substr(std::min(equal + 1, field.size()));
  }
  return a;
}

class gpu_worker {
 public:
  /// `command` starts a worker; empty: this program has none.
  explicit gpu_worker(std::vector<std::string> command) : command_(std::move(command)) {}

  [[nodiscard]] bool possible() const noexcept { return !command_.empty(); }
  /// Of the worker that runs, or -1.
  [[nodiscard]] pid_t pid() const noexcept { return child_ ? child_->pid() : -1; }

  /// Never throws for what the worker does, never takes (much) longer than `deadline`.
  gpu_answer ask(const std::string& question, std::chrono::milliseconds deadline,
                 const std::function<void()>& meanwhile = {}) {
    gpu_answer a;
    if (!possible()) return a;
    if (!child_) child_.emplace(command_);
    const bool said = child_->say(question);
    if (const auto line = said ? child_->hear(deadline, meanwhile) : std::nullopt) {
      try {
        return decode_answer(*line);
      } catch (const data_error& e) {
        a.how = gpu_answer::outcome::gone;
        a.text = e.what();
      }
    } else if (said && child_->why_silent() == child_process::silence::late) {
      a.how = child_->kill() ? gpu_answer::outcome::late : gpu_answer::outcome::stuck;
      a.text = polyrank::detail::cat(static_cast<double>(deadline.count()) / 1000, " s");
    } else {
      a.how = gpu_answer::outcome::gone;
      a.text = polyrank::detail::cat("the process that asks the GPU ended: ", child_->end_text());
    }
    child_.reset();
    return a;
  }

  /// Ends the worker and all that it holds; the next question starts another.
  void restart() { child_.reset(); }

 private:
  std::vector<std::string> command_;
  std::optional<child_process> child_;
};

} // namespace polyrank::probe
