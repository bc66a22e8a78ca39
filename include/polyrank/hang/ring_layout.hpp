// The layout of a ring: the flight recorder of one rank as a file that other processes can read.
//
//     1536 bytes         header: the words of `field`
//     32 * 64            lanes: how far the GPU is; with the header in the first page
//     comm_slots * 576   table of communicators (comm_entry)
//     slots * 128        records (record)
//
// Numbers are 64-bit words in the machine's byte order; texts are zero-terminated.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/record.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace polyrank::hang {

/// What the host thread is doing, as far as the program says.
enum class host_state : std::uint8_t { init, compute, enqueue, sync, checkpoint, mpi, data, exit };

[[nodiscard]] constexpr std::string_view name_of(host_state s) noexcept {
  constexpr std::array<std::string_view, 8> names{"init",       "compute", "enqueue", "sync",
                                                  "checkpoint", "MPI",     "data",    "exit"};
  return names[static_cast<std::size_t>(s)];
}

/// How far a rank has come.
enum class life : std::uint8_t {
  starting, ///< before the end of MPI_Init
  running,
  leaving, ///< its work is done; it waits for the others to finalise
  failed,  ///< it left by an error, which it has reported
  verdict  ///< it left because of a verdict
};

[[nodiscard]] constexpr std::string_view name_of(life l) noexcept {
  constexpr std::array<std::string_view, 5> names{"starting", "running", "leaving", "failed",
                                                  "verdict"};
  return names[static_cast<std::size_t>(l)];
}

namespace layout {

inline constexpr std::uint64_t magic = 0x3130474e41485250; // "PRHANG01"
inline constexpr std::uint64_t version = 2;
inline constexpr std::size_t first_lane = 192; // words
inline constexpr std::size_t header_words = first_lane + lane::count * lane::words;
inline constexpr std::size_t max_slots = std::size_t{1} << 20;
inline constexpr std::size_t max_comm_slots = 1024;

/// Where each value stands in the header, in words.
enum field : std::size_t {
  f_magic,
  f_version,
  f_rank,
  f_size,
  f_local_rank,
  f_local_size,
  f_pid,
  f_started, ///< start time of the process in clock ticks: tells it from a later one of that pid
  f_pid_namespace,
  f_slots,
  f_comm_slots,
  f_next,  ///< operations ever entered
  f_comms, ///< communicators ever attached
  f_created_ns,
  f_heartbeat_ns, ///< of the watchdog, steady clock
  f_wall_offset,  ///< wall clock minus steady clock, ns
  f_life,
  f_state, ///< host_state
  f_state_since_ns,
  f_state_line,
  f_pauses, ///< pauses that are open
  f_pause_until_ns,
  f_verdict,         ///< exit code it left with, once it did
  f_forks,           ///< children without exec, once seen
  f_sampled_ns,      ///< in an image: when it was taken; else 0
  f_issue_starts,    ///< 1: `started` only means issued (a GPU that cannot stamp)
  f_save,            ///< 1: asked to save and stop
  f_saves,           ///< 1: the program looks at f_save
  f_job = 32,        // 64 bytes
  f_host = 40,       // 64
  f_state_file = 48, // 32
  f_state_text = 52, // 64, next to the file
  f_pause_text = 60, // 64
  f_device = 68,     // 64: GPU of the rank, if any
  f_error = 80       // 512: why it failed
};

inline constexpr std::size_t short_text = 8, file_text = 4, error_text = 64; // words

[[nodiscard]] constexpr std::size_t total_words(std::size_t slots,
                                                std::size_t comm_slots) noexcept {
  return header_words + comm_slots * comm_entry::words + slots * record::words;
}

} // namespace layout
} // namespace polyrank::hang
