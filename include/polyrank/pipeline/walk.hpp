// The engine beneath validate(), simulate() and lower(): executes a table in virtual time.
//
// Every rank has one compute stream and some lanes; a stream runs its actions in issue order. An
// action starts when the one before it on its stream has ended and its inputs are there:
//
//     F  its tensor has arrived           SEND  its producer has ended, and the receiver is ready
//     B, I  its gradient has arrived      RECV  its slot is free, and the sender is ready
//     W, RECOMPUTE, RESHARD  nothing      UNSHARD  all compute issued before it has ended
//     OPTIMIZER  all lanes have           REDUCE, TIED_REDUCE  the stage's last B or W has ended
//
// Nothing is buffered (rendezvous): a transfer holds both lanes from the moment both ends are at
// the head of theirs. In a table without transfers a tensor arrives by itself, `transfer` seconds
// after its producer.
//
// Such a network is deterministic (Kahn 1974): whatever order streams are advanced in, the same
// actions complete at the same times. So no event queue is needed: a rank is advanced until it
// blocks, and put on a stack again when a neighbour unblocks it. State is a few flat arrays of one
// number per (stage, microbatch); there are no edges and no allocation per action.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hash.hpp>
#include <polyrank/pipeline/costs.hpp>
#include <polyrank/pipeline/table.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace polyrank::pipeline::detail {

inline constexpr double not_yet = -1; ///< times are >= 0

/// Bit k is set where the table has an action of kind k.
[[nodiscard]] inline std::uint32_t kinds_of(const table& t) noexcept {
  std::uint32_t mask = 0;
  for (const action& a : t.actions) mask |= 1u << static_cast<unsigned>(a.kind);
  return mask;
}
[[nodiscard]] constexpr bool has_kind(std::uint32_t mask, action_kind k) noexcept {
  return (mask >> static_cast<unsigned>(k) & 1u) != 0;
}
inline constexpr std::uint32_t transfer_mask = 15u << 7; ///< the four sends and receives
inline constexpr std::uint32_t lane_mask = 127u << 7;

/// A stream's head: where it stands.
struct place {
  std::size_t rank = 0, index = 0;
};

/// Two lane heads that face each other with different tensors.
struct mispaired {
  place a, b;
};

/// Executes table `t` (which passed the census of validate()). `Lanes`: it has lane actions.
/// Observer: compute(rank, index, start, end, sent), where `sent` is when the input left its
/// producer, and lane(rank, lane, index, start, end).
template <bool Lanes, class Observer>
class walker {
 public:
  walker(const table& t, std::span<const stage_costs> stages, double tied, double pair_factor,
         Observer& seen, double noise = 0, std::uint64_t seed = 0)
      : t_(t), cost_(stages), tied_(tied), pair_(pair_factor), seen_(seen), noise_(noise),
        seed_(seed), m_(t.shape.microbatches), stages_(t.shape.stages()),
        streams_(!Lanes                                ? 1
                 : t.lanes == lane_policy::per_channel ? max_lanes
                                                       : 2) {
    const std::size_t cells = stages_ * m_, ranks = t.shape.ranks;
    in_f_.assign(cells, not_yet), in_b_.assign(cells, not_yet);
    std::fill_n(in_f_.begin(), m_, 0.0);
    rank_of_.resize(stages_), crosses_.assign(stages_, 0);
    for (std::size_t s = 0; s < stages_; ++s)
      rank_of_[s] = static_cast<std::uint32_t>(t.shape.rank_of(s));
    for (std::size_t s = 0; s + 1 < stages_; ++s) crosses_[s] = rank_of_[s] != rank_of_[s + 1];
    heads_.assign(ranks * streams_, {});
    waiting_.assign(ranks, nothing), queued_.assign(ranks, 0);
    const std::uint32_t kinds = kinds_of(t);
    explicit_ = (kinds & transfer_mask) != 0;
    trains_ = has_kind(kinds, action_kind::backward) || has_kind(kinds, action_kind::input_grad);
    if constexpr (Lanes) {
      if (explicit_) out_f_.assign(cells, not_yet), out_b_.assign(cells, not_yet);
      finished_.assign(stages_, 0), live_.assign(stages_, 0.0), passed_.assign(stages_, not_yet);
      done_.assign(stages_, trains_ ? not_yet : 0.0);
      if (has_kind(kinds, action_kind::unshard))
        for (const action& a : t.actions)
          if (a.kind == action_kind::unshard) live_[a.stage] = not_yet;
      if (!t.slots.empty()) {
        slot_base_.reserve(stages_ + 1);
        std::size_t total = 0;
        for (const slot_counts& n : t.slots)
          slot_base_.push_back(total), total += n.activation + n.gradient;
        slots_.assign(total, {});
      }
    }
    for (std::size_t r = 0; r < ranks; ++r)
      for (std::size_t lane = 0; lane < streams_; ++lane) {
        at(r, lane).cursor = t.row[r];
        if constexpr (Lanes) skip(r, lane);
      }
  }

  /// Runs as far as it goes; true: to the end.
  bool run() {
    for (std::size_t r = t_.shape.ranks; r-- > 0;) wake(r);
    while (!stack_.empty() && !mispaired_) {
      const std::size_t r = stack_.back();
      stack_.pop_back();
      queued_[r] = 0;
      bool moved = true;
      while (moved && !mispaired_) {
        moved = advance_compute(r);
        if constexpr (Lanes)
          for (std::size_t lane = 1; lane < streams_; ++lane)
            while (step_lane(r, lane)) moved = true;
        else
          break;
      }
    }
    if (mispaired_) return false;
    for (std::size_t r = 0; r < t_.shape.ranks; ++r)
      for (std::size_t lane = 0; lane < streams_; ++lane)
        if (at(r, lane).cursor != t_.row[r + 1]) return false;
    return true;
  }

  [[nodiscard]] const std::optional<mispaired>& wrong_pair() const noexcept { return mispaired_; }
  [[nodiscard]] std::size_t streams() const noexcept { return streams_; }
  [[nodiscard]] std::size_t head(std::size_t rank, std::size_t lane) const noexcept {
    return heads_[rank * streams_ + lane].cursor;
  }
  [[nodiscard]] std::size_t lane(std::size_t rank, const action& a) const noexcept {
    if (!Lanes) return 0;
    return lane_of(t_.shape, t_.lanes, rank, a);
  }

  /// What the blocked head `index` of `rank` waits for: calls need(rank, action) for each.
  template <class Need>
  void explain(std::size_t rank, std::size_t index, Need&& need) const {
    const action a = t_.actions[index];
    const std::size_t s = a.stage, k = a.microbatch;
    const auto grad_of = [&](std::size_t stage) {
      need(rank_of_[stage], make_action(action_kind::backward, stage, k));
      need(rank_of_[stage], make_action(action_kind::input_grad, stage, k));
    };
    const auto input = [&](const action& op) {
      const bool forward = op.kind == action_kind::forward;
      const std::size_t stage = op.stage, mb = op.microbatch;
      if (Lanes && live_[stage] < 0) need(rank, make_action(action_kind::unshard, stage));
      if (forward && in_f_[cell(op)] < 0) {
        if (explicit_ && crosses_[stage - 1])
          need(rank, make_action(action_kind::recv_forward, stage, mb));
        else
          need(rank_of_[stage - 1], make_action(action_kind::forward, stage - 1, mb));
      }
      if (!forward && in_b_[cell(op)] < 0) {
        if (stage + 1 == stages_)
          need(rank, make_action(action_kind::forward, stage, mb));
        else if (explicit_ && crosses_[stage])
          need(rank, make_action(action_kind::recv_backward, stage, mb));
        else
          for (action_kind kind : {action_kind::backward, action_kind::input_grad})
            need(rank_of_[stage + 1], make_action(kind, stage + 1, mb));
      }
    };
    switch (a.kind) {
    case action_kind::forward:
      input(a);
      if (a.joined) input(t_.actions[index + 1]);
      return;
    case action_kind::backward:
    case action_kind::input_grad:
      return input(a);
    case action_kind::optimizer:
      if constexpr (Lanes)
        for (std::size_t l = 1; l < streams_; ++l)
          if (head(rank, l) < index) need(rank, t_.actions[head(rank, l)]);
      return;
    default:
      break;
    }
    if constexpr (Lanes) {
      if (a.kind == action_kind::send_forward && out_f_[cell(a)] < 0)
        return need(rank, make_action(action_kind::forward, s, k));
      if (a.kind == action_kind::send_backward && out_b_[cell(a)] < 0) return grad_of(s);
      if (is_recv(a.kind) && slot_ready(a) < 0) {
        const std::size_t holder = slots_[slot(a)].holder;
        if (!trains_) return need(rank, make_action(action_kind::forward, s, holder));
        need(rank, make_action(action_kind::backward, s, holder));
        return need(rank, make_action(action_kind::weight_grad, s, holder));
      }
      if (a.kind == action_kind::unshard) return need(rank, t_.actions[head(rank, 0)]);
      if (a.kind == action_kind::reduce || (a.kind == action_kind::tied_reduce && done_[s] < 0)) {
        for (std::size_t i = head(rank, 0); i < t_.row[rank + 1]; ++i) {
          const action& b = t_.actions[i];
          if (b.stage == s &&
              (b.kind == action_kind::backward || b.kind == action_kind::weight_grad))
            return need(rank, b);
        }
        return;
      }
      need(peer(a), partner_of(t_.shape, a));
    }
  }

 private:
  static constexpr std::size_t nothing = ~std::size_t{0};

  struct stream {
    std::size_t cursor = 0;  // the head
    double clock = 0;        // end of the action before it
    double posted = not_yet; // when the head, a transfer that waits for its peer, was ready
  };
  struct slot_state {
    double free = 0; // since when; not_yet while a microbatch is in it
    std::uint32_t holder = 0;
  };
  stream& at(std::size_t r, std::size_t lane) noexcept { return heads_[r * streams_ + lane]; }
  [[nodiscard]] std::size_t cell(const action& a) const noexcept {
    return a.stage * m_ + a.microbatch;
  }
  /// peer_of() without divisions.
  [[nodiscard]] std::size_t peer(const action& a) const noexcept {
    switch (a.kind) {
    case action_kind::send_forward:
    case action_kind::recv_backward:
      return rank_of_[a.stage + std::size_t{1}];
    case action_kind::recv_forward:
    case action_kind::send_backward:
      return rank_of_[a.stage - std::size_t{1}];
    case action_kind::tied_reduce:
      return rank_of_[a.stage == 0 ? stages_ - 1 : 0];
    default:
      return rank_of_[a.stage];
    }
  }
  void wake(std::size_t r) {
    if (queued_[r] != 0) return;
    queued_[r] = 1;
    stack_.push_back(r);
  }
  [[nodiscard]] double duration(const action& a, double seconds) const noexcept {
    if (noise_ == 0) return seconds;
    const std::uint64_t key =
        static_cast<std::uint64_t>(a.kind) << 56 | std::uint64_t{a.stage} << 32 | a.microbatch;
    const double u = static_cast<double>(hash_combine(seed_, key) >> 11) * 0x1p-53; // [0, 1)
    return seconds * (1 + noise_ * (2 * u - 1));
  }
  [[nodiscard]] double duration(const action& a) const noexcept {
    return duration(a, duration_of(cost_[a.stage], a.kind));
  }

  // Tensors that arrive ---------------------------------------------------------------------------
  void deliver(std::vector<double>& in, std::size_t c, std::size_t stage, bool backward,
               double time) {
    in[c] = time;
    const std::size_t q = rank_of_[stage];
    if (Lanes || waiting_[q] == 2 * c + (backward ? 1 : 0)) wake(q);
  }
  void forward_done(const action& a, double end) {
    const std::size_t c = cell(a), s = a.stage;
    if (s + 1 == stages_)
      in_b_[c] = end; // the loss
    else if (Lanes && explicit_ && crosses_[s])
      out_f_[c] = end;
    else
      deliver(in_f_, c + m_, s + 1, false, end + (crosses_[s] ? cost_[s].transfer : 0));
    if (Lanes && !trains_) release(a, end);
  }
  void backward_done(const action& a, double end) {
    const std::size_t c = cell(a), s = a.stage;
    if (s == 0) return;
    if (Lanes && explicit_ && crosses_[s - 1])
      out_b_[c] = end;
    else
      deliver(in_b_, c - m_, s - 1, true, end + (crosses_[s - 1] ? cost_[s - 1].transfer : 0));
  }
  /// The last reader of a microbatch's slots has ended.
  void release(const action& a, double end) {
    if constexpr (Lanes) {
      if (++finished_[a.stage] == m_) done_[a.stage] = end;
      if (slot_base_.empty()) return;
      const slot_counts& n = t_.slots[a.stage];
      const std::size_t base = slot_base_[a.stage];
      if (n.activation > 0) slots_[base + a.microbatch % n.activation].free = end;
      if (n.gradient > 0) slots_[base + n.activation + a.microbatch % n.gradient].free = end;
    }
  }

  // The compute stream ----------------------------------------------------------------------------
  /// When the input of F, B or I is there; not_yet, and remembers what it waits for.
  double input_ready(std::size_t r, const action& a) {
    const bool backward = a.kind != action_kind::forward;
    const std::size_t c = cell(a);
    double ready = (backward ? in_b_ : in_f_)[c];
    if (ready < 0) waiting_[r] = 2 * c + (backward ? 1 : 0);
    if constexpr (Lanes) {
      if (live_[a.stage] < 0) return not_yet;
      if (ready >= 0) ready = std::max(ready, live_[a.stage]);
    }
    return ready;
  }
  /// When that input left its producer.
  [[nodiscard]] double sent(const action& a) const noexcept {
    const std::size_t c = cell(a), s = a.stage;
    const bool backward = a.kind != action_kind::forward;
    const std::size_t boundary = backward ? s : s - 1;
    if (backward ? s + 1 == stages_ : s == 0) return 0;
    if (!crosses_[boundary]) return (backward ? in_b_ : in_f_)[c];
    if (Lanes && explicit_) return backward ? out_b_[c + m_] : out_f_[c - m_];
    return (backward ? in_b_ : in_f_)[c] - cost_[boundary].transfer;
  }

  bool advance_compute(std::size_t r) {
    std::size_t i = at(r, 0).cursor;
    const std::size_t end = t_.row[r + 1], from = i;
    double now = at(r, 0).clock;
    const auto stop = [&] { // true: at least one action ran
      at(r, 0).cursor = i;
      at(r, 0).clock = now;
      return i != from;
    };
    while (i < end) {
      const action a = t_.actions[i];
      double start = now, finish;
      switch (a.kind) {
      case action_kind::forward: {
        const double ready = input_ready(r, a);
        if (ready < 0) return stop();
        if (a.joined == 0) {
          start = std::max(now, ready);
          finish = start + duration(a);
          seen_.compute(r, i, start, finish, sent(a));
          forward_done(a, finish);
          break;
        }
        const action b = t_.actions[i + 1];
        const double other = input_ready(r, b);
        if (other < 0) return stop();
        start = std::max(now, std::max(ready, other));
        finish = start + pair_ * (duration(a) + duration(b));
        const double left = std::max(sent(a), sent(b));
        seen_.compute(r, i, start, finish, left);
        forward_done(a, finish);
        seen_.compute(r, ++i, start, finish, left);
        backward_done(b, finish);
        if (b.kind == action_kind::backward) release(b, finish);
        break;
      }
      case action_kind::backward:
      case action_kind::input_grad: {
        const double ready = input_ready(r, a);
        if (ready < 0) return stop();
        start = std::max(now, ready);
        finish = start + duration(a);
        seen_.compute(r, i, start, finish, sent(a));
        backward_done(a, finish);
        if (a.kind == action_kind::backward) release(a, finish);
        break;
      }
      case action_kind::weight_grad:
        finish = start + duration(a);
        seen_.compute(r, i, start, finish, 0);
        release(a, finish);
        break;
      case action_kind::optimizer:
        if constexpr (Lanes)
          for (std::size_t lane = 1; lane < streams_; ++lane) {
            if (head(r, lane) < i) return stop();
            start = std::max(start, at(r, lane).clock);
          }
        finish = start + duration(a);
        seen_.compute(r, i, start, finish, 0);
        break;
      case action_kind::recompute:
      case action_kind::reshard:
        if (Lanes && a.kind == action_kind::reshard) live_[a.stage] = not_yet;
        finish = start + duration(a);
        seen_.compute(r, i, start, finish, 0);
        break;
      default: // a lane action: not for this stream
        if (Lanes && a.kind == action_kind::unshard) passed_[a.stage] = now;
        finish = now;
      }
      now = finish;
      ++i;
    }
    return stop();
  }

  // The lanes -------------------------------------------------------------------------------------
  /// Moves a lane's cursor to its next action.
  void skip(std::size_t r, std::size_t lane) {
    std::size_t& i = at(r, lane).cursor;
    if (lane == 0) return;
    if (t_.lanes == lane_policy::single)
      while (i < t_.row[r + 1] && !is_lane(t_.actions[i].kind)) ++i;
    else
      while (i < t_.row[r + 1] && lane_of(t_.shape, t_.lanes, r, t_.actions[i]) != lane) ++i;
  }
  [[nodiscard]] std::size_t slot(const action& a) const noexcept {
    const slot_counts& n = t_.slots[a.stage];
    return slot_base_[a.stage] + (a.kind == action_kind::recv_forward
                                      ? a.microbatch % n.activation
                                      : n.activation + a.microbatch % n.gradient);
  }
  [[nodiscard]] double slot_ready(const action& a) const noexcept {
    return slot_base_.empty() ? 0 : slots_[slot(a)].free;
  }
  /// When this end could start, were it alone.
  [[nodiscard]] double lane_ready(const action& a) const noexcept {
    switch (a.kind) {
    case action_kind::send_forward:
      return out_f_[cell(a)];
    case action_kind::send_backward:
      return out_b_[cell(a)];
    case action_kind::recv_forward:
    case action_kind::recv_backward:
      return slot_ready(a);
    case action_kind::unshard:
      return passed_[a.stage];
    default:
      return done_[a.stage];
    }
  }
  [[nodiscard]] double lane_seconds(const action& a) const noexcept {
    switch (a.kind) {
    case action_kind::send_forward:
      return duration(a, cost_[a.stage].transfer);
    case action_kind::send_backward:
      return duration(a, cost_[a.stage - std::size_t{1}].transfer);
    case action_kind::tied_reduce:
      return duration(make_action(a.kind, 0), peer(a) == rank_of_[a.stage] ? 0 : tied_);
    default:
      return duration(a);
    }
  }
  void complete(std::size_t r, std::size_t lane, double start, double end) {
    stream& here = at(r, lane);
    const std::size_t i = here.cursor;
    const action& a = t_.actions[i];
    if (is_recv(a.kind)) {
      (a.kind == action_kind::recv_forward ? in_f_ : in_b_)[cell(a)] = end;
      if (!slot_base_.empty()) slots_[slot(a)] = {not_yet, a.microbatch};
    } else if (a.kind == action_kind::unshard) {
      live_[a.stage] = end, passed_[a.stage] = not_yet;
    }
    here.clock = end;
    here.posted = not_yet;
    seen_.lane(r, lane, i, start, end);
    ++here.cursor;
    skip(r, lane);
  }
  bool step_lane(std::size_t r, std::size_t lane) {
    stream& here = at(r, lane);
    const std::size_t i = here.cursor;
    if (i == t_.row[r + 1]) return false;
    const action& a = t_.actions[i];
    double ready = lane_ready(a);
    if (ready < 0) return false;
    ready = std::max(ready, here.clock);
    const std::size_t q = is_transfer(a.kind) || a.kind == action_kind::tied_reduce ? peer(a) : r;
    if (q == r) {
      complete(r, lane, ready, ready + lane_seconds(a));
      return true;
    }
    const action expected = partner_of(t_.shape, a);
    const std::size_t there = lane_of(t_.shape, t_.lanes, q, expected);
    const std::size_t j = at(q, there).cursor;
    const double posted = at(q, there).posted;
    if (posted < 0 || !faces(t_.actions[j], a, r)) {
      here.posted = ready;
      return false;
    }
    if (t_.actions[j] != expected) {
      mispaired_ = mispaired{{r, i}, {q, j}};
      return false;
    }
    const double start = std::max(ready, posted);
    const double end = start + lane_seconds(is_recv(a.kind) ? expected : a);
    complete(r, lane, start, end);
    complete(q, there, start, end);
    wake(q);
    return true;
  }
  /// Would a communicator pair `b` of a's peer with `a` of rank r?
  [[nodiscard]] bool faces(const action& b, const action& a, std::size_t r) const noexcept {
    if (peer(b) != r) return false;
    if (a.kind == action_kind::tied_reduce) return b.kind == action_kind::tied_reduce;
    return (is_send(a.kind) && is_recv(b.kind)) || (is_recv(a.kind) && is_send(b.kind));
  }

  const table& t_;
  std::span<const stage_costs> cost_;
  double tied_, pair_;
  Observer& seen_;
  double noise_;
  std::uint64_t seed_;
  std::size_t m_, stages_, streams_;
  bool explicit_ = false, trains_ = true;
  std::vector<std::uint32_t> rank_of_;
  std::vector<std::uint8_t> crosses_, queued_; // crosses_[s]: stage s and s + 1 are on two ranks
  std::vector<double> in_f_, in_b_;            // per cell: when the tensor, the gradient arrived
  std::vector<double> out_f_, out_b_;          // per cell: when the producer ended
  std::vector<std::size_t> waiting_, stack_;
  std::vector<stream> heads_;
  std::vector<std::size_t> finished_, slot_base_;
  std::vector<double> done_, live_, passed_; // per stage
  std::vector<slot_state> slots_;
  std::optional<mispaired> mispaired_;
};

} // namespace polyrank::pipeline::detail
