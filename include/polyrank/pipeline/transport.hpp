// How tensors travel between the ranks of a pipeline: streams ("lanes") with a communicator each,
// the same code for threads, MPI and NCCL.
//
//     peer_transport link(comm, t.lanes);       // comm: the pipeline's ranks, in order of stages
//     executor run(link, stages, t, ...);
//
// With lane_policy::single everything is on one communicator and one stream. per_channel has one
// communicator of two ranks for each (edge, direction, forward or backward): 4 splits for the even
// edges of the ring of ranks, 4 for the odd ones, 4 more for the last edge of an odd ring.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/buffer.hpp>
#include <polyrank/backend/concepts.hpp>
#include <polyrank/pipeline/table.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace polyrank::pipeline {

/// What an executor asks of a transport. exchange() enqueues one message on the lane's stream; the
/// stream goes on when it has been received (rendezvous) or earlier.
template <class T>
concept transport = backend<typename T::backend> &&
                    requires(T& t, const shape& s, const action& a, std::size_t lane,
                             std::span<std::byte> data, std::string_view tag) {
                      { t.rank() } -> std::same_as<int>;
                      { t.size() } -> std::same_as<int>;
                      requires control_channel<std::remove_cvref_t<decltype(t.control())>>;
                      { t.policy() } -> std::same_as<lane_policy>;
                      { t.lane(lane) } -> std::same_as<typename T::backend::stream&>;
                      t.exchange(s, a, data, tag);
                    };

/// The channel of a transfer between rank r and its peer: which edge of the ring of ranks (even,
/// odd, the last one of an odd ring), which way, forward or backward. Equal on both ends.
[[nodiscard]] constexpr std::size_t channel_of(const shape& s, std::size_t r,
                                               const action& a) noexcept {
  const std::size_t q = peer_of(s, a);
  const bool up = s.ranks == 2 ? r == 0 : (r + 1) % s.ranks == q; // q follows r
  const std::size_t lower = up ? r : q;
  const std::size_t group = s.ranks % 2 == 1 && lower + 1 == s.ranks ? 2 : lower % 2;
  const bool backward =
      a.kind == action_kind::send_backward || a.kind == action_kind::recv_backward;
  return 4 * group + (is_send(a.kind) == up ? 0u : 2u) + (backward ? 1u : 0u);
}

/// The transport over a communicator of the seam. @collective
template <communicator Comm>
  requires point_to_point<Comm, std::byte> && point_to_point<Comm, std::int32_t> && splittable<Comm>
class peer_transport {
 public:
  using backend = typename Comm::backend;
  using stream = typename backend::stream;

  /// `comm`: rank r of it is rank r of the pipeline; it must outlive this. Connects neighbours, so
  /// that the first step is like the others. @collective
  explicit peer_transport(Comm& comm, lane_policy policy = lane_policy::single)
      : comm_(&comm), policy_(policy) {
    const std::size_t lanes = policy == lane_policy::single ? 2 : max_lanes;
    for (std::size_t lane = 1; lane < lanes; ++lane) lanes_.push_back(comm.make_stream());
    if (policy == lane_policy::per_channel && size() > 1) split();
    connect();
  }

  [[nodiscard]] int rank() const { return comm_->rank(); }
  [[nodiscard]] int size() const { return comm_->size(); }
  [[nodiscard]] decltype(auto) control() { return comm_->control(); }
  [[nodiscard]] lane_policy policy() const noexcept { return policy_; }
  /// Lanes count from 1.
  [[nodiscard]] stream& lane(std::size_t lane) { return lanes_[lane - 1]; }
  [[nodiscard]] Comm& communicator() noexcept { return *comm_; }

  void exchange(const shape& s, const action& a, std::span<std::byte> data, std::string_view tag) {
    const auto r = static_cast<std::size_t>(rank());
    stream& on_lane = lane(lane_of(s, policy_, r, a));
    if (policy_ == lane_policy::single)
      return send(*comm_, static_cast<int>(peer_of(s, a)), data, is_send(a.kind), on_lane, tag);
    Comm& pair = channels_[channel_of(s, r, a)];
    send(pair, 1 - pair.rank(), data, is_send(a.kind), on_lane, tag);
  }

 private:
  static void send(Comm& comm, int peer, std::span<std::byte> data, bool sends, stream& s,
                   std::string_view tag) {
    const transfer<std::byte> one{peer, data.data(), data.size(), sends};
    comm.template exchange<std::byte>(std::span(&one, 1), on(s, tag));
  }

  void split() {
    const int p = size(), r = rank();
    for (int group = 0; group < (p == 2 ? 1 : p % 2 == 1 ? 3 : 2); ++group) {
      // The edge of this group that rank r is on, by its lower end; none: a communicator of its
      // own.
      int edge = p + r;
      for (const int lower : {r, (r + p - 1) % p}) {
        const int of = p % 2 == 1 && lower + 1 == p ? 2 : lower % 2;
        if (of == group && (p > 2 || lower == 0)) edge = lower;
      }
      for (int channel = 0; channel < 4; ++channel) channels_.push_back(comm_->split(edge, r));
    }
  }

  /// One small message both ways over every edge: NCCL connects on first use.
  void connect() {
    if (size() == 1) return;
    buffer<std::int32_t> words(4, backend::memory());
    std::int32_t* const w = words.data();
    const auto greet = [&](Comm& comm, int next, int previous, stream& s) {
      const transfer<std::int32_t> both[] = {{next, w, 1, true},
                                             {previous, w + 1, 1, false},
                                             {previous, w + 2, 1, true},
                                             {next, w + 3, 1, false}};
      comm.template exchange<std::int32_t>(both, on(s, "connect"));
    };
    backend::template fill<std::int32_t>(words.span(), 0, lane(1));
    greet(*comm_, (rank() + 1) % size(), (rank() + size() - 1) % size(), lane(1));
    lane(1).synchronize();
    for (std::size_t c = 0; c < channels_.size(); ++c)
      if (channels_[c].size() == 2) {
        const int peer = 1 - channels_[c].rank();
        greet(channels_[c], peer, peer, lane(1));
        lane(1).synchronize();
      }
  }

  Comm* comm_;
  lane_policy policy_;
  std::vector<Comm> channels_; // 4 for each group of edges
  std::vector<stream> lanes_;  // last: drained before the communicators go
};

} // namespace polyrank::pipeline
