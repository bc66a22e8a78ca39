// The world: MPI, its ranks, and the progress engine, for as long as a program needs them.
//
//     int main(int argc, char** argv) {
//       polyrank::launch::world world(argc, argv);           // starts MPI; ends it when it goes
//       auto comm = world.communicator();
//       ...
//     }
//
// As a guest, `world::adopt(MPI_COMM_WORLD)` duplicates the caller's communicator and never
// initialises, finalises or aborts MPI. If MPI was initialised below MPI_THREAD_MULTIPLE, all
// communication runs on the calling thread. If the caller finalises MPI first, the world stops with
// it: later operations throw aborted_error, and its destructor leaves MPI alone.
//
// If a world goes away while an exception unwinds, its peers get an abort notice from the engine
// thread; nothing here waits for MPI. A world that owns MPI then ends the job: it leaves the
// program two seconds to report its exception, calls MPI_Abort, and _exit(1) three seconds later.
// launch::run (run.hpp) does this at once and with the cause; programs should use it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/ring.hpp>
#include <polyrank/host/communicator.hpp>
#include <polyrank/launch/cpu_mask.hpp>
#include <polyrank/launch/launcher.hpp>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

namespace polyrank::launch {

struct world_options {
  std::size_t recorder_slots = 4096;              ///< of the flight recorder
  hang::ring* ring = nullptr;                     ///< where to record instead; not owned
  std::size_t max_message = std::size_t{1} << 30; ///< bytes of one MPI message; smaller in tests
  host::tuning tuning{};
};

/// Ends the process even if MPI does not come back: MPI_Abort after `grace`, _exit three seconds
/// later.
inline void end_job(int code, std::chrono::milliseconds grace) noexcept {
  try {
    std::thread([code, grace] {
      std::this_thread::sleep_for(grace + std::chrono::seconds(3));
      _exit(code);
    }).detach();
    if (grace.count() == 0) {
      MPI_Abort(MPI_COMM_WORLD, code);
    } else {
      std::thread([code, grace] {
        std::this_thread::sleep_for(grace);
        MPI_Abort(MPI_COMM_WORLD, code);
      }).detach();
    }
  } catch (...) { // no thread to be had
    _exit(code);
  }
}

class world {
 public:
  using options = world_options;

  /// Starts MPI with MPI_THREAD_MULTIPLE. Throws usage_error where MPI runs already (adopt it) or
  /// where launcher and MPI library do not fit. @collective
  world(int& argc, char**& argv, options o = {}) {
    int running = 0;
    MPI_Initialized(&running);
    expects(running == 0, "world: MPI is initialised already; use world::adopt(communicator)");
    int level = 0;
    host::detail::check_mpi(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level),
                            "MPI_Init_thread");
    start(MPI_COMM_WORLD, true, level, o);
  }

  /// Uses the caller's MPI: duplicates `comm`, frees the duplicate at the end. @collective on comm
  [[nodiscard]] static world adopt(MPI_Comm comm, options o = {}) {
    int running = 0, over = 0, level = 0;
    MPI_Initialized(&running);
    MPI_Finalized(&over);
    expects(running != 0, "world::adopt: MPI is not initialised; call MPI_Init_thread first, or "
                          "use world(argc, argv)");
    expects(over == 0, "world::adopt: MPI is finalised already");
    host::detail::check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
    world w;
    w.start(comm, false, level, o);
    return w;
  }

  world(world&& other) noexcept = default;
  world& operator=(world&&) = delete;
  ~world() {
    if (state_ != nullptr) end();
  }

  [[nodiscard]] int rank() const noexcept { return state_->engine->rank(); }
  [[nodiscard]] int size() const noexcept { return state_->engine->size(); }
  /// Ranks on this host, and this one's number among them.
  [[nodiscard]] int local_rank() const noexcept { return state_->local_rank; }
  [[nodiscard]] int local_size() const noexcept { return state_->local_size; }
  /// Number of hosts of the job.
  [[nodiscard]] int hosts() const noexcept { return state_->hosts; }
  [[nodiscard]] const std::string& host() const noexcept { return state_->host; }
  [[nodiscard]] bool owns_mpi() const noexcept { return state_->owns; }
  /// The launcher that started this process, if any.
  [[nodiscard]] const std::optional<launch::launcher>& launcher() const noexcept {
    return state_->from;
  }
  /// Things a person should know, e.g. a CPU mask that is too small. Of this rank; print them.
  [[nodiscard]] const std::vector<std::string>& warnings() const noexcept {
    return state_->warnings;
  }

  [[nodiscard]] host::progress_engine& engine() noexcept { return *state_->engine; }
  [[nodiscard]] hang::flight_recorder& recorder() noexcept {
    return state_->ring != nullptr ? state_->ring->recorder() : *state_->recorder;
  }
  /// The ring that other processes can read, for its phases and pauses; null where there is none.
  [[nodiscard]] hang::ring* ring() noexcept { return state_->ring; }
  /// True once this rank was asked to save at the next step boundary and stop with exit code 75.
  /// The signal does not reach all ranks at one moment: agree (all_reduce_max) before you act.
  [[nodiscard]] bool save_requested() noexcept {
    return state_->ring != nullptr && state_->ring->save_requested();
  }

  /// A communicator of all ranks; each call makes a new one, with an order of its own. @collective
  [[nodiscard]] host::communicator communicator() {
    return {engine(), engine().everyone(), engine().next_context++, &recorder(), state_->tuning};
  }

  /// "rank 2/4 host" as it stands before messages.
  [[nodiscard]] std::string label() const {
    return detail::cat("rank ", rank(), '/', size(), ' ', host());
  }

 private:
  struct state {
    explicit state(const world_options& o) : ring(o.ring) {
      if (ring == nullptr) recorder = std::make_unique<hang::flight_recorder>(o.recorder_slots);
    }

    MPI_Comm comm = MPI_COMM_NULL;
    int farewell = MPI_KEYVAL_INVALID; // attribute of MPI_COMM_SELF; MPI_Finalize deletes it first
    bool finalised = false;
    bool owns = false;
    int exceptions = 0; // in flight when the world was made
    int local_rank = 0, local_size = 1, hosts = 1;
    std::string host;
    std::optional<launch::launcher> from;
    std::vector<std::string> warnings;
    host::tuning tuning;
    hang::ring* ring;
    std::unique_ptr<hang::flight_recorder> recorder;
    std::unique_ptr<host::progress_engine> engine;
  };

  world() = default;

  void start(MPI_Comm comm, bool owns, int level, options o) {
    using host::detail::check_mpi;
    auto s = std::make_unique<state>(o);
    s->owns = owns;
    s->exceptions = std::uncaught_exceptions();
    s->tuning = o.tuning;
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    s->host = name;
    s->from = find_launcher([](const char* variable) { return std::getenv(variable); });
    int size = 1;
    check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
    if (owns) {
      char library[MPI_MAX_LIBRARY_VERSION_STRING];
      int length = 0;
      MPI_Get_library_version(library, &length);
      const std::string_view text(library, static_cast<std::size_t>(length));
      const std::string wrong = launcher_mismatch(s->from, size, text.substr(0, text.find(',')));
      if (!wrong.empty()) {
        MPI_Finalize();
        throw usage_error(wrong);
      }
    }
    check_mpi(MPI_Comm_dup(comm, &s->comm), "MPI_Comm_dup");
    MPI_Comm node = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(s->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
              "MPI_Comm_split_type");
    MPI_Comm_rank(node, &s->local_rank);
    MPI_Comm_size(node, &s->local_size);
    MPI_Comm_free(&node);
    const int leads = s->local_rank == 0 ? 1 : 0;
    check_mpi(MPI_Allreduce(&leads, &s->hosts, 1, MPI_INT, MPI_SUM, s->comm), "MPI_Allreduce");
    const std::string mask =
        cpu_mask_warning(usable_cpus(), static_cast<int>(std::thread::hardware_concurrency()));
    if (!mask.empty()) s->warnings.push_back(mask);
    using mode = host::progress_engine::mode;
    s->engine = std::make_unique<host::progress_engine>(
        s->comm, level == MPI_THREAD_MULTIPLE ? mode::threaded : mode::inline_, o.max_message);
    // The engine must not call MPI once MPI_Finalize has begun.
    check_mpi(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, say_farewell, &s->farewell, nullptr),
              "MPI_Comm_create_keyval");
    check_mpi(MPI_Comm_set_attr(MPI_COMM_SELF, s->farewell, s.get()), "MPI_Comm_set_attr");
    state_ = std::move(s);
  }

  static int say_farewell(MPI_Comm, int, void* of, void*) noexcept {
    auto& s = *static_cast<state*>(of);
    if (std::exchange(s.finalised, true)) return MPI_SUCCESS; // end() is at it
    s.engine->close("MPI_Finalize was called while this world was alive; destroy the world first");
    return MPI_SUCCESS;
  }

  void end() noexcept {
    state& s = *state_;
    if (s.finalised) return; // MPI and the engine have ended
    const bool unwinding = std::uncaught_exceptions() > s.exceptions;
    // In inline mode the engine would have to talk to MPI on this thread, which may never return.
    const bool threaded = s.engine->running_mode() == host::progress_engine::mode::threaded;
    const bool second_hand = s.engine->aborted(); // another rank failed first
    if (unwinding && threaded) s.engine->abort(detail::cat(label(), " left by an exception"));
    const bool leak = unwinding || s.engine->aborted();
    s.engine->stop();
    if (leak) {
      if (s.owns) end_job(1, std::chrono::seconds(2));
      // mpirun ends all ranks when one has left: the first to fail gets the time to say why.
      if (s.owns && second_hand) std::this_thread::sleep_for(std::chrono::seconds(1));
      static_cast<void>(state_.release()); // its MPI handles may still be in use by the peers
      return;
    }
    if (s.owns) meet_at_the_end(s.comm);
    s.finalised = true;
    MPI_Comm_delete_attr(MPI_COMM_SELF, s.farewell);
    MPI_Comm_free_keyval(&s.farewell);
    MPI_Comm_free(&s.comm);
    if (s.owns) MPI_Finalize();
  }

  /// Waits until all ranks have come to the end. In MPI_Finalize, mpirun (Open MPI 4.1) may crash
  /// or hang itself when the other ranks end meanwhile for another reason.
  static void meet_at_the_end(MPI_Comm comm) noexcept {
    MPI_Request everyone = MPI_REQUEST_NULL;
    int here = MPI_Ibarrier(comm, &everyone) == MPI_SUCCESS ? 0 : 1;
    for (int turn = 0; here == 0; ++turn) {
      if (MPI_Test(&everyone, &here, MPI_STATUS_IGNORE) != MPI_SUCCESS) return; // a peer is gone
      if (turn > 1000) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  std::unique_ptr<state> state_;
};

} // namespace polyrank::launch
