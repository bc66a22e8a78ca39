// How the watchdogs of several hosts tell each other what they see. The diagnosis takes it as an
// interface: launch/hang_star.hpp is one over TCP. Never MPI: it must work when MPI does not.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/process.hpp>
#include <polyrank/hang/scan.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace polyrank::hang {

/// A rank of another host, as that host's watchdog last told.
struct remote_sample {
  int rank = 0;
  process_state process = process_state::unknown; ///< unreachable: its host is silent
  std::string host{}, where{};
  std::vector<std::uint64_t> image{}; ///< of its ring; may be empty

  [[nodiscard]] sample view() const {
    sample s{.rank = rank, .process = process, .where = where, .host = host};
    if (!image.empty()) {
      try {
        s.ring = ring_view(std::as_bytes(std::span(image)));
        s.now = s.ring.at(layout::f_sampled_ns);
      } catch (const data_error&) { // a damaged message: known by name only
      }
    }
    return s;
  }
};

class side_channel {
 public:
  virtual ~side_channel() = default;
  /// The leader of a host tells the others what it sees of its ranks.
  virtual void publish(std::vector<remote_sample> mine) = 0;
  /// What the other hosts' leaders told.
  [[nodiscard]] virtual std::vector<remote_sample> others() = 0;
  /// Whether this process decides for hosts that it can reach.
  [[nodiscard]] virtual bool in_charge() = 0;
  /// Whether nobody in charge can be reached.
  [[nodiscard]] virtual bool cut_off() = 0;
  /// Tells the other hosts that the job ends with `code`.
  virtual void decide(int code) noexcept = 0;
  /// The code that another host told, or 0.
  [[nodiscard]] virtual int decided() noexcept = 0;
};

} // namespace polyrank::hang
