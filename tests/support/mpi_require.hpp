// Assertions that all ranks of a communicator decide together.
//
// A rank-local REQUIRE that fails between two collectives leaves the other ranks waiting for ever.
// MPI_REQUIRE first agrees on the verdict, then fails on every rank or on none:
//
//   MPI_REQUIRE(MPI_COMM_WORLD, sum == 6);   // failed on rank 1 of 4: 5 == 6
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/catch.hpp"

#include <polyrank/host/mpi_include.hpp>

#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace polyrank::test {

/// One rank's view of an assertion.
struct verdict {
  bool ok = false;
  std::string values; // the expression with its values
};

/// What Catch2 made of the expression; exceptions are the caller's to turn into a verdict.
template <class Decomposed>
verdict evaluate(const Decomposed& expression) {
  if constexpr (requires { expression.makeUnaryExpr(); }) {
    return evaluate(expression.makeUnaryExpr());
  } else {
    const Catch::ITransientExpression& base = expression;
    std::ostringstream values;
    base.streamReconstructedExpression(values);
    return {base.getResult(), values.str()};
  }
}

/// Empty where all ranks are content, else the same text on every rank, naming those that are not.
/// @collective
inline std::string disagreement(MPI_Comm comm, const verdict& mine) {
  int all_ok = mine.ok ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &all_ok, 1, MPI_INT, MPI_MIN, comm);
  if (all_ok == 1) {
    return {};
  }
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  std::string text = "failed on";
  for (int r = 0; r < size; ++r) {
    int length = rank == r && !mine.ok ? static_cast<int>(mine.values.size()) : -1;
    MPI_Bcast(&length, 1, MPI_INT, r, comm);
    if (length < 0) {
      continue;
    }
    std::string values =
        rank == r ? mine.values : std::string(static_cast<std::size_t>(length), ' ');
    MPI_Bcast(values.data(), length, MPI_CHAR, r, comm);
    text += "\n  rank " + std::to_string(r) + " of " + std::to_string(size) + ": " + values;
  }
  return text;
}

} // namespace polyrank::test

// The pragma: `Decomposer <= a == b` is meant as it is written.
#define POLYRANK_MPI_ASSERT(fail, name, comm, ...)                                                 \
  do {                                                                                             \
    ::polyrank::test::verdict polyrank_verdict;                                                    \
    try {                                                                                          \
      _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wparentheses\"")           \
          polyrank_verdict = ::polyrank::test::evaluate(Catch::Decomposer() <= __VA_ARGS__);       \
      _Pragma("GCC diagnostic pop")                                                                \
    } catch (const std::exception& polyrank_e) {                                                   \
      polyrank_verdict = {false, std::string("exception: ") + polyrank_e.what()};                  \
    } catch (...) {                                                                                \
      polyrank_verdict = {false, "unknown exception"};                                             \
    }                                                                                              \
    const std::string polyrank_text = ::polyrank::test::disagreement(comm, polyrank_verdict);      \
    if (polyrank_text.empty()) {                                                                   \
      SUCCEED();                                                                                   \
    } else {                                                                                       \
      fail(name "( " #__VA_ARGS__ " ) " << polyrank_text);                                         \
    }                                                                                              \
  } while (false)

/// Ends the test case on every rank of `comm` where the expression is false, or throws, on any.
/// @collective all ranks of comm, same order
#define MPI_REQUIRE(comm, ...) POLYRANK_MPI_ASSERT(FAIL, "MPI_REQUIRE", comm, __VA_ARGS__)

/// The same, but the test case goes on. @collective
#define MPI_CHECK(comm, ...) POLYRANK_MPI_ASSERT(FAIL_CHECK, "MPI_CHECK", comm, __VA_ARGS__)
