// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/host/loopback.hpp>
#include <polyrank/launch/mesh.hpp>

#include <atomic>
#include <set>

using namespace polyrank;
using launch::axis;
using launch::mesh_shape;
using launch::rest;

namespace {
std::string refusal(std::vector<axis> axes, int ranks) {
  try {
    const mesh_shape shape(std::move(axes), ranks);
  } catch (const usage_error& e) {
    return e.what();
  }
  return "";
}
} // namespace

TEST_CASE("every rank has coordinates of its own, groups partition the ranks", "[mesh]") {
  for (const auto& axes : {std::vector<axis>{{"dp", rest}},
                           {{"pp", 2}, {"dp", rest}, {"tp", 2}},
                           {{"a", 3}, {"b", 1}, {"c", rest}}})
    for (const int ranks : {12, 24}) {
      const mesh_shape shape(axes, ranks);
      std::set<std::vector<int>> seen;
      for (int r = 0; r < ranks; ++r) {
        std::vector<int> place;
        for (std::size_t i = 0; i < axes.size(); ++i) {
          const int c = shape.coordinate(r, i);
          place.push_back(c);
          REQUIRE((c >= 0 && c < shape.axes()[i].size));
          const auto group = shape.group(r, i);
          REQUIRE(group[static_cast<std::size_t>(c)] == r);
          for (const int member : group) REQUIRE(shape.group(member, i) == group);
        }
        REQUIRE(seen.insert(place).second);
      }
    }
}

TEST_CASE("the last axis varies fastest", "[mesh]") {
  const mesh_shape shape({{"dp", rest}, {"tp", 2}}, 8);
  REQUIRE(shape.group(3, 1) == std::vector<int>{2, 3});
  REQUIRE(shape.group(3, 0) == std::vector<int>{1, 3, 5, 7});
  REQUIRE(shape.text() == "dp 4 x tp 2");
}

TEST_CASE("shapes that do not fit are refused with the reason", "[mesh]") {
  REQUIRE(refusal({{"dp", 3}}, 8) == "mesh: dp 3 does not fit 8 ranks");
  REQUIRE(refusal({{"dp", rest}, {"tp", 3}}, 8) == "mesh: dp rest x tp 3 does not fit 8 ranks");
  REQUIRE(refusal({{"dp", 16}}, 8).find("needs more than the 8 ranks") != std::string::npos);
  REQUIRE(refusal({{"dp", rest}, {"tp", rest}}, 8).find("both 'dp' and 'tp' take the rest") !=
          std::string::npos);
  REQUIRE(refusal({{"dp", 2}, {"dp", 4}}, 8).find("two axes are named 'dp'") != std::string::npos);
  REQUIRE(refusal({{"dp", -2}}, 8).find("has -2 ranks") != std::string::npos);
  REQUIRE(refusal({}, 8).find("at least one axis") != std::string::npos);
  REQUIRE(refusal({{"dp", 1 << 30}, {"tp", 1 << 30}}, 8).find("needs more than") !=
          std::string::npos);
}

TEST_CASE("a mesh reduces along one axis at a time", "[mesh]") {
  std::atomic<int> bad{0};
  host::loopback::run(6, [&](host::loopback::communicator& comm) {
    launch::mesh grid(comm, {{"pp", 2}, {"dp", rest}});
    host::stream s;
    std::vector<float> x{static_cast<float>(comm.rank())}, along_dp(1), along_pp(1);
    grid.along("dp").all_reduce<float>(x, std::span(along_dp), reduce_op::sum, on(s));
    grid.along("pp").all_reduce<float>(x, std::span(along_pp), reduce_op::sum, on(s));
    s.synchronize();
    if (along_dp[0] != (comm.rank() < 3 ? 0 + 1 + 2 : 3 + 4 + 5)) ++bad;
    if (along_pp[0] != static_cast<float>(2 * (comm.rank() % 3) + 3)) ++bad;
    if (grid.coordinate("pp") != comm.rank() / 3) ++bad;
    try {
      static_cast<void>(grid.along("tp"));
      ++bad;
    } catch (const usage_error&) {
    }
  });
  REQUIRE(bad == 0);
}
