// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/core/error.hpp>

#include <cstring>

using namespace polyrank;

TEST_CASE("an error keeps where it was made", "[error]") {
  const usage_error e("batch 10 is not a multiple of 4 ranks");
  REQUIRE(std::strcmp(e.site().file_name(), "error_test.cpp") == 0);
  REQUIRE(e.site().line == __LINE__ - 2);
  REQUIRE_FALSE(e.collective());
  REQUIRE(on_every_rank(e).collective());
}

TEST_CASE("texts are built from strings, numbers and booleans", "[error]") {
  REQUIRE(detail::cat("rank ", 3, " of ", std::size_t{4}, ' ', true, ' ', 0.5) ==
          "rank 3 of 4 true 0.5");
  REQUIRE_THROWS_WITH(expects(false, "size ", 7), "size 7");
  REQUIRE_NOTHROW(expects(true, "unused"));
}

TEST_CASE("typed errors carry their facts", "[error]") {
  REQUIRE(comm_error("MPI_Send", 5, "invalid rank").code() == 5);
  REQUIRE(std::string(comm_error("MPI_Send", 5, "invalid rank").what()) ==
          "MPI_Send -> invalid rank (code 5)");
  REQUIRE(out_of_memory("arena", 100, 10).bytes_asked() == 100);
  REQUIRE(aborted_error("rank 2: boom").cause() == "rank 2: boom");
}
