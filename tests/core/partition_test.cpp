// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/core/cost_model_file.hpp>
#include <polyrank/core/partition.hpp>

using namespace polyrank;

TEST_CASE("parts cover the range in order, sizes differ by at most one", "[partition]") {
  for (std::size_t count : {0u, 1u, 2u, 7u, 12u, 97u})
    for (std::size_t parts : {1u, 2u, 3u, 5u, 8u, 13u}) {
      std::size_t next = 0;
      for (std::size_t i = 0; i < parts; ++i) {
        const range r = partition(count, parts, i);
        REQUIRE(r.begin == next);
        REQUIRE((r.size() == count / parts || r.size() == count / parts + 1));
        next = r.end;
      }
      REQUIRE(next == count);
    }
}

TEST_CASE("block parts are cut at multiples of the block", "[partition]") {
  for (std::size_t count : {0u, 1u, 4096u, 4097u, 100003u})
    for (std::size_t parts : {1u, 2u, 3u, 8u}) {
      std::size_t next = 0;
      for (std::size_t i = 0; i < parts; ++i) {
        const range r = partition_blocks(count, parts, i, 4096);
        REQUIRE(r.begin == next);
        REQUIRE((r.begin % 4096 == 0 || r.begin == count));
        next = r.end;
      }
      REQUIRE(next == count);
    }
}

TEST_CASE("ranges intersect", "[partition]") {
  REQUIRE(intersect({0, 10}, {5, 20}) == range{5, 10});
  REQUIRE(intersect({0, 3}, {5, 20}).empty());
}

TEST_CASE("the cost model sizes buckets by its latency share", "[cost_model]") {
  const cost_model m{.alpha = 25e-6, .beta = 350e9};
  const std::size_t bytes = m.bucket_bytes(8);
  REQUIRE(14 * m.alpha / m.all_reduce(bytes, 8) == Approx(0.05).epsilon(1e-6));
  REQUIRE(m.all_reduce(bytes, 1) == 0);
}

TEST_CASE("a cost model file gives back what was written; anything else is refused with its place",
          "[cost_model]") {
  const measured_costs c{{2e-5, 1.5e10}, {1e-5, 4e10}, {0, 1.25e9}};
  const measured_costs back = parse_cost_model(cost_model_text(c), "f");
  CHECK(back.ring.alpha == 2e-5);
  CHECK(back.inside.beta == 4e10);
  CHECK(back.between.alpha == 0);
  const std::string head = R"({"schema": "polyrank.cost_model/1", )";
  const measured_costs brief =
      parse_cost_model(head + R"("alpha":1e-6,"beta":2e9,"who":"me"} )", "f");
  CHECK(brief.inside.beta == 2e9); // as the ring
  CHECK(brief.between.alpha == 1e-6);
  const auto refused = [](const std::string& text) {
    try {
      static_cast<void>(parse_cost_model(text, "f"));
      return std::string("accepted");
    } catch (const data_error& e) {
      return std::string(e.what());
    }
  };
  CHECK(refused("") == "f: byte 0: { was expected, of one flat object");
  CHECK(refused("{}").find("no cost model") != std::string::npos);
  CHECK(refused("{}}").find("byte 2: the end") != std::string::npos);
  CHECK(refused(R"({"alpha": 1, "beta": 1})").find("no cost model") != std::string::npos);
  CHECK(refused(head + R"("alpha": 1})").find("no cost model") != std::string::npos);
  CHECK(refused(head + R"("alpha": -1, "beta": 1})") ==
        "f: alpha is -1, it must be a number from 0 on (seconds)");
  CHECK(refused(head + R"("alpha": 1, "beta": 0})").find("beta is 0") != std::string::npos);
  CHECK(refused(head + R"("alpha": 1e999, "beta": 1})").find("alpha") != std::string::npos);
  CHECK(refused(head + R"("alpha": "1", "beta": 1})").find("alpha") != std::string::npos);
  CHECK(refused(head + R"("a\"b": 1})").find("without escapes") != std::string::npos);
  CHECK(refused(head + R"("a": [1]})").find("a number or a string") != std::string::npos);
  CHECK(refused(head + R"("a": 1)").find("} was expected") != std::string::npos);
  CHECK(refused(R"({"schema)").find("a string") != std::string::npos);
  CHECK_THROWS_AS(read_cost_model("/no/such/file"), data_error);
}
