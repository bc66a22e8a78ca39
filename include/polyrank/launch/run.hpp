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
//
// A job that hangs ends with a verdict: which rank, which operation, what to do, and an exit code
// from 80 to 88 (hang/guard.hpp). `POLYRANK_HANG_DEADLINE=SECONDS` sets how long nothing may move,
// 0 switches it off; `world.ring()->pause("checkpoint")` marks what may take longer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/guard.hpp>
#include <polyrank/launch/hang_star.hpp>
#include <polyrank/launch/ras.hpp>
#include <polyrank/launch/world.hpp>

#include <cstdio>
#include <exception>
#include <string>
#include <utility>

namespace polyrank::launch {

namespace detail {

/// The guard as the environment asks for it. Where nobody asked and its file cannot be made, the
/// program runs without and says so.
[[nodiscard]] inline std::unique_ptr<hang::guard> make_guard(bool watch, std::size_t slots) {
  hang::guard_options o;
  if (watch) o = hang::guard_options::from_environment();
  o.slots = slots;
  o.witness = &ras_witness;
  try {
    return std::make_unique<hang::guard>(o);
  } catch (const data_error& e) {
    if (std::getenv("POLYRANK_HANG_DEADLINE") != nullptr ||
        std::getenv("POLYRANK_HANG_DIR") != nullptr)
      throw;
    std::fputs(cat("no hang diagnosis: ", e.what(), "\n").c_str(), stderr);
    return std::make_unique<hang::guard>(hang::guard_options{});
  }
}

} // namespace detail

/// Runs `body(world&) -> int`, watched for hangs unless `watch` is false. With the guard, the only
/// part of the library that prints or ends a job.
template <class Body>
[[nodiscard]] int run(int argc, char** argv, Body body, world::options o = {}, bool watch = true) {
  const auto say = [](const std::string& who, const char* what) {
    std::fputs(detail::cat("[", who, "] error: ", what, "\n").c_str(), stderr);
  };
  std::unique_ptr<hang::guard> guard;
  std::unique_ptr<world> w;
  try {
    guard = detail::make_guard(watch, o.recorder_slots);
    if (o.ring == nullptr) o.ring = guard->ring();
    w = std::make_unique<world>(argc, argv, o);
    guard->running();
    if (w->local_rank() == 0)
      if (const std::string line = guard->left_behind(); !line.empty())
        std::fputs(detail::cat("[", w->host(), "] ", line, "\n").c_str(), stderr);
    if (guard->on() && w->hosts() > 1) guard->connect(make_hang_star(*w, guard->deadline()));
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
    std::string waiting;
    if (!shared && !second_hand) // does not come back where the recorders explain the error
      waiting = guard->failed(e.what(), dynamic_cast<const comm_error*>(&e) != nullptr ||
                                            dynamic_cast<const mismatch_error*>(&e) != nullptr);
    if (shared ? w->rank() == 0 : !second_hand) {
      say(w->label(), e.what());
      if (!shared && w->recorder().size() > 0)
        std::fputs(
            detail::cat("[", w->label(), "] last operations:\n", w->recorder().text(8)).c_str(),
            stderr);
      if (!waiting.empty()) std::fputs((waiting + '\n').c_str(), stderr);
      std::fflush(stderr);
    }
    if (shared) {
      guard->leaving();
      w.reset(); // an orderly end: every rank comes here
      guard.reset();
      std::exit(code);
    }
    // Peers that wait in an operation learn the cause from the engine, then MPI ends them.
    w->engine().abort(detail::cat(w->label(), ": ", e.what()));
    if (second_hand) {
      guard->released();         // two seconds, in which the first one ends the job
      say(w->label(), e.what()); // nobody has
    }
    w->engine().stop();
    end_job(code, std::chrono::seconds(0));
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1)); // until one of them ends us
  };

  int code = 1;
  try {
    code = body(*w);
    guard->leaving();
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
