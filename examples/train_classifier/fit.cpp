// SPDX-License-Identifier: Apache-2.0
#include "train_classifier/fit.hpp"

#include "train_classifier/memory_report.hpp"

#include <polyrank/core/text.hpp>

#include <algorithm>
#include <cstdio>

namespace polyrank::examples {

namespace {

std::string mib(std::size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", static_cast<double>(bytes) / (1 << 20));
  return text;
}

} // namespace

std::string memory_text(const std::vector<memory_line>& lines, const memory_state& now) {
  std::string text = "memory   MiB of rank 0, plan / real:";
  std::size_t known = 0;
  for (const memory_line& l : lines) {
    text += detail::cat(" ", l.what, " ", mib(l.plan), " / ", mib(l.real), ",");
    known += l.real;
  }
  return text + detail::cat(" other ", mib(now.used - std::min(now.used, known)), ", free ",
                            mib(now.free));
}

fit_result fit_micro_batch(std::size_t most, std::size_t limit, bool predict,
                           const std::function<fit_trial(std::size_t)>& attempt,
                           const std::function<void(const fit_trial&)>& say) {
  fit_result r;
  for (std::size_t m = 1; m <= most; m *= 2) {
    const std::size_t n = r.trials.size();
    if (predict && n >= 2) {
      const std::size_t last = r.trials[n - 1].bytes, before = r.trials[n - 2].bytes;
      const std::size_t expected = last + 2 * (last - std::min(last, before));
      if (expected > limit) {
        r.trials.push_back(
            {m, expected, false,
             detail::cat("would take about ", mib(expected), " MiB, the limit is ", mib(limit))});
        say(r.trials.back());
        break;
      }
    }
    fit_trial t = attempt(m);
    if (t.why.empty() && t.bytes > limit)
      t.why = detail::cat("takes ", mib(t.bytes), " MiB, the limit is ", mib(limit));
    r.trials.push_back(t);
    say(t);
    if (!t.why.empty()) break;
    r.best = m;
  }
  return r;
}

std::string growth(std::size_t early, std::size_t late) {
  const std::size_t slack = std::max<std::size_t>(early / 20, std::size_t{16} << 20);
  if (late <= early + slack) return {};
  return detail::cat("grows: ", mib(early), " MiB after step 5, ", mib(late), " after step ",
                     fit_steps);
}

std::string fit_text(const fit_trial& t) {
  return t.why.empty() ? detail::cat("fit      micro-batch ", t.micro_batch, " fits in ",
                                     mib(t.bytes), " MiB")
                       : detail::cat("fit      micro-batch ", t.micro_batch, " does not: ", t.why);
}

} // namespace polyrank::examples
