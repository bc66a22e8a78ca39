// The pure parts of the host collectives, checked without MPI.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/host/collectives.hpp>

#include <deque>
#include <map>
#include <set>

using namespace polyrank;
using namespace polyrank::host::detail;

TEST_CASE("doubling steps pair up, end with the full sum everywhere, and agree on every bit",
          "[doubling]") {
  for (int n = 1; n <= 17; ++n) {
    std::vector<std::vector<doubling_step>> steps;
    // Each rank's value as an expression: the bits are equal if the expressions are.
    std::vector<std::string> value;
    for (int r = 0; r < n; ++r) {
      steps.push_back(doubling_steps(r, n));
      value.push_back(std::string(1, static_cast<char>('a' + r)));
    }
    std::map<std::pair<int, int>, std::deque<std::string>> wire;
    std::vector<std::size_t> at(static_cast<std::size_t>(n)), sent(static_cast<std::size_t>(n));
    for (bool moved = true; moved;) {
      moved = false;
      for (int r = 0; r < n; ++r) {
        auto& k = at[static_cast<std::size_t>(r)];
        auto& mine = value[static_cast<std::size_t>(r)];
        const auto& program = steps[static_cast<std::size_t>(r)];
        if (k == program.size()) continue;
        const doubling_step& s = program[k];
        if (s.sends && sent[static_cast<std::size_t>(r)] == k) {
          wire[{r, s.peer}].push_back(mine);
          ++sent[static_cast<std::size_t>(r)];
          moved = true;
        }
        if (!s.sends) sent[static_cast<std::size_t>(r)] = k + 1;
        if (s.receives) {
          auto& inbox = wire[{s.peer, r}];
          if (inbox.empty()) continue;
          const std::string theirs = inbox.front();
          inbox.pop_front();
          mine = !s.adds      ? theirs
                 : r < s.peer ? "(" + mine + theirs + ")"
                              : "(" + theirs + mine + ")";
        }
        ++k;
        sent[static_cast<std::size_t>(r)] = std::max(sent[static_cast<std::size_t>(r)], k);
        moved = true;
      }
    }
    for (int r = 0; r < n; ++r) {
      REQUIRE(at[static_cast<std::size_t>(r)] == steps[static_cast<std::size_t>(r)].size());
      REQUIRE(value[static_cast<std::size_t>(r)] == value[0]);
      std::multiset<char> letters(value[0].begin(), value[0].end());
      REQUIRE(letters.count(static_cast<char>('a' + r)) == 1);
    }
    for (const auto& [link, inbox] : wire) REQUIRE(inbox.empty());
  }
}

TEST_CASE("the binomial tree reaches every rank once, from any root", "[tree]") {
  for (int n = 1; n <= 17; ++n)
    for (int root = 0; root < n; ++root) {
      std::vector<int> parents(static_cast<std::size_t>(n), -2);
      for (int r = 0; r < n; ++r)
        for (const int child : binomial_place(r, n, root).children) {
          REQUIRE(parents[static_cast<std::size_t>(child)] == -2);
          parents[static_cast<std::size_t>(child)] = r;
        }
      for (int r = 0; r < n; ++r) {
        const int parent = binomial_place(r, n, root).parent;
        REQUIRE(parent == (r == root ? -1 : parents[static_cast<std::size_t>(r)]));
        int depth = 0;
        for (int up = r; up != root; up = binomial_place(up, n, root).parent) REQUIRE(++depth <= 5);
      }
    }
}

TEST_CASE("reducers serve every type and operation", "[reduce]") {
  const float a[] = {1, 5, -2}, b[] = {4, 2, -3};
  float out[3];
  reducer_of(dtype::f32, reduce_op::sum)(a, b, out, 3);
  REQUIRE((out[0] == 5 && out[1] == 7 && out[2] == -5));
  reducer_of(dtype::f32, reduce_op::min)(a, b, out, 3);
  REQUIRE((out[0] == 1 && out[1] == 2 && out[2] == -3));
  reducer_of(dtype::f32, reduce_op::max)(a, b, out, 3);
  REQUIRE((out[0] == 4 && out[1] == 5 && out[2] == -2));
  const fp16 h[] = {fp16(1.5f)};
  fp16 sum[1];
  reducer_of(dtype::f16, reduce_op::sum)(h, h, sum, 1);
  REQUIRE(float(sum[0]) == 3.0f);
  const std::int64_t big[] = {std::int64_t{1} << 40};
  std::int64_t twice[1];
  reducer_of(dtype::i64, reduce_op::sum)(big, big, twice, 1);
  REQUIRE(twice[0] == std::int64_t{1} << 41);
}
