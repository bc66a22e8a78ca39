// The main function of a distributed program: runs a body in a world of its own and turns whatever
// it throws into one message and one exit code for the whole job.
//
//     int main(int argc, char** argv) {
//       return polyrank::launch::run(argc, argv, [](polyrank::launch::world& world) {
//         ...
//         return 0;
//       });
//     }
//
// Exit codes: what the body returns; 2 for usage_error; 1 for everything else. An error that every
// rank has (`collective()`) is printed by rank 0 alone; a rank that was only aborted by another one
// prints nothing, since that one has.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/launch/world.hpp>

#include <cstdio>
#include <exception>
#include <string>
#include <utility>

namespace polyrank::launch {

/// Runs `body(world&) -> int`. The only function of the library that prints or ends a job.
template <class Body>
[[nodiscard]] int run(int argc, char** argv, Body body, world::options o = {}) {
  const auto say = [](const std::string& who, const char* what) {
    std::fputs(detail::cat("[", who, "] error: ", what, "\n").c_str(), stderr);
  };
  std::unique_ptr<world> w;
  try {
    w = std::make_unique<world>(argc, argv, o);
  } catch (const std::exception& e) {
    say("start", e.what());
    return dynamic_cast<const usage_error*>(&e) != nullptr ? 2 : 1;
  }

  // Ends the job for a failure of this rank; a failure that all ranks share needs no abort.
  const auto fail = [&](const std::exception& e) {
    const auto* ours = dynamic_cast<const error*>(&e);
    const int code = dynamic_cast<const usage_error*>(&e) != nullptr ? 2 : 1;
    const bool shared = ours != nullptr && ours->collective();
    const bool second_hand = dynamic_cast<const aborted_error*>(&e) != nullptr;
    if (shared ? w->rank() == 0 : !second_hand) {
      say(w->label(), e.what());
      if (!shared && w->recorder().size() > 0)
        std::fputs(
            detail::cat("[", w->label(), "] last operations:\n", w->recorder().text(8)).c_str(),
            stderr);
      std::fflush(stderr);
    }
    if (shared) {
      w.reset(); // an orderly end: every rank comes here
      std::exit(code);
    }
    // Peers that wait in an operation learn the cause from the engine, then MPI ends them.
    w->engine().abort(detail::cat(w->label(), ": ", e.what()));
    if (second_hand)
      std::this_thread::sleep_for(std::chrono::seconds(2)); // the first one ends the job
    w->engine().stop();
    end_job(code, std::chrono::seconds(0));
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1)); // until one of them ends us
  };

  int code = 1;
  try {
    code = body(*w);
    w.reset();
    return code;
  } catch (const std::exception& e) {
    fail(e);
  } catch (...) {
    fail(error("an exception that is no std::exception"));
  }
  return code;
}

} // namespace polyrank::launch
