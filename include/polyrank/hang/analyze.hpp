// The diagnosis: from what is known of the ranks to one verdict. Pure, so that every verdict can be
// tested on recorded rings.
//
//     hang::verdict v = hang::analyze(samples, {.deadline_ns = 120'000'000'000});
//     if (v.hang()) std::fputs(hang::report_text(v).c_str(), stderr);
//
// The rules, in order: a start-up that does not end; histories that differ; dead ranks; hosts out
// of reach; then, once nothing has moved for the deadline, the waits: somebody who is waited for
// and waits for nobody has not entered or is blocked; if there is no such rank the waits form a
// circle; if everybody is in, the transport hangs; if all is done, a host thread does. A job that
// moves is looked through for a straggler.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/hang/compare.hpp>
#include <polyrank/hang/straggler.hpp>
#include <polyrank/hang/verdict.hpp>
#include <polyrank/hang/waits.hpp>
#include <polyrank/hang/words.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::hang {

struct circumstances {
  std::uint64_t deadline_ns = 120'000'000'000;
  int world = 0;             ///< ranks of the job; 0: as many as the rings say
  std::uint64_t late_ns = 0; ///< of waiting, below which nobody is called a straggler
  bool second_look = true;   ///< an earlier look, some time ago, saw the same
  bool complete = true;      ///< ranks without a sample are worth a suspicion
  bool failed_too = true;    ///< a rank that has reported its error itself counts as dead
};

namespace detail {

class analysis {
 public:
  analysis(std::span<const sample> samples, const circumstances& c)
      : samples_(samples), given_(c), all_(look(samples)) {
    v_.ranks = c.world;
    for (const sample& s : samples)
      if (s.ring.valid()) v_.ranks = std::max(v_.ranks, s.ring.size());
    v_.ranks = std::max(v_.ranks, static_cast<int>(samples.size()));
  }

  verdict run() {
    find_forks();
    if (!start_up() && !different() && !dead() && !out_of_reach() && !meeting() && !stuck()) slow();
    v_.stuck_ns = longest_stuck();
    finish();
    return std::move(v_);
  }

 private:
  /// Sets the verdict; `what` follows the head of the line.
  bool say(verdict_code code, std::vector<int> suspects, std::string what, bool certain) {
    v_.code = code;
    v_.suspects = std::move(suspects);
    v_.certain = certain;
    v_.headline =
        cat("HANG verdict ", name_of(code), " (confidence ", certain ? "high" : "low", "): ", what);
    return true;
  }
  void operation_is(const record& r) {
    v_.operation = r;
    v_.has_operation = true;
  }
  [[nodiscard]] std::string comm_words(const record& r) const {
    return cat("comm ", r.comm, ' ', words_for(r));
  }
  [[nodiscard]] std::string describe(int rank) const {
    const rank_state* r = all_.find(rank);
    return r != nullptr ? words_for(*r->from) : cat("rank ", rank);
  }

  void find_forks() {
    for (const sample& s : samples_)
      if (s.ring.valid() && s.ring.at(layout::f_forks) != 0)
        v_.findings.push_back(
            cat(words_for(s), " has ", s.ring.at(layout::f_forks),
                " child(ren) of the same program: a fork after start-up shares MPI's, CUDA's and "
                "the network's memory; fork before, or use exec (RDMAV_FORK_SAFE=1 for verbs)"));
  }

  bool start_up() {
    std::vector<int> starting, missing;
    std::uint64_t age = 0;
    for (int r = 0; r < given_.world; ++r)
      if (all_.find(r) == nullptr) missing.push_back(r);
    for (const rank_state& r : all_.ranks)
      if (!r.ring()) missing.push_back(r.from->rank);
    std::sort(missing.begin(), missing.end());
    bool anyone_dead = false;
    for (const sample& s : samples_)
      if (s.ring.valid() && s.ring.life() == life::starting) {
        starting.push_back(s.rank);
        const std::uint64_t born = s.ring.at(layout::f_created_ns);
        if (born < s.now) age = std::max(age, s.now - born);
        anyone_dead = anyone_dead || s.process == process_state::dead;
      }
    // A host from which nobody is missing lets the others speak first.
    const bool others_know = given_.world == 0 && missing.empty();
    const std::uint64_t patience =
        given_.deadline_ns + (others_know ? given_.deadline_ns / 4 + 500'000'000 : 0);
    if (starting.empty() || age < patience || anyone_dead) return false;
    std::vector<int> stopped;
    for (const int r : starting)
      if (all_.find(r)->from->process == process_state::stopped) stopped.push_back(r);
    std::vector<int> suspects = !missing.empty() ? missing : !stopped.empty() ? stopped : starting;
    std::string what =
        cat(starting.size(), '/', v_.ranks, " ranks are in MPI_Init for ", seconds(age));
    if (!missing.empty())
      what += cat("; ", names(missing), missing.size() == 1 ? " has" : " have", " not come to it",
                  whereabouts_of(missing[0]));
    else if (!stopped.empty())
      what += cat("; ", words_for(stopped), stopped.size() == 1 ? " is" : " are", " stopped");
    if (others_know) what += "; nobody of this host is missing, so look for a rank of another host";
    return say(verdict_code::init_timeout, std::move(suspects), std::move(what), true);
  }
  /// Where a rank without a flight recorder is, if that is known.
  [[nodiscard]] std::string whereabouts_of(int rank) const {
    const rank_state* r = all_.find(rank);
    return r != nullptr && !r->ring() && !r->from->where.empty() ? " (" + r->from->where + ')'
                                                                 : std::string();
  }

  /// Some are where a communicator is made, and not all others come.
  bool meeting() {
    std::vector<int> here, elsewhere;
    std::uint64_t age = 0;
    for (const rank_state& r : all_.ranks) {
      if (!r.ring() || r.from->ring.life() != life::running) continue;
      const std::uint64_t since = r.from->ring.at(layout::f_state_since_ns);
      if (r.from->ring.state() == host_state::init) {
        here.push_back(r.from->rank);
        if (since != 0 && since < r.from->now) age = std::max(age, r.from->now - since);
      } else {
        elsewhere.push_back(r.from->rank);
      }
    }
    for (int r = 0; r < given_.world; ++r)
      if (const rank_state* s = all_.find(r); s == nullptr || !s->ring()) elsewhere.push_back(r);
    // Where all have come it only takes its time, as it may with many ranks.
    const std::uint64_t patience = given_.deadline_ns + (elsewhere.empty() ? 60'000'000'000 : 0);
    if (here.empty() || age < patience || paused(here) || paused(elsewhere)) return false;
    std::string what = cat(here.size(), '/', v_.ranks, " ranks wait for ", seconds(age),
                           " to make a communicator: ", words_for_state(*all_.find(here[0])->from));
    if (!elsewhere.empty()) {
      what += cat("; ", names(elsewhere), " did not come to it");
      if (const rank_state* first = all_.find(elsewhere[0]); first != nullptr)
        what += cat(". ", words_for_last(*first), "; ", words_for_state(*first->from));
    }
    return say(verdict_code::init_timeout, elsewhere.empty() ? here : elsewhere, std::move(what),
               given_.second_look);
  }

  bool different() {
    for (std::size_t c = 0; c < all_.comms.size(); ++c) {
      const difference d = compare(all_, c);
      if (!d.found || d.factions.size() < 2) continue;
      const faction &many = d.factions[0], &few = d.factions[1];
      std::vector<int> suspects;
      v_.tie = many.ranks.size() == few.ranks.size();
      for (std::size_t f = v_.tie ? 0 : 1; f < d.factions.size(); ++f)
        suspects.insert(suspects.end(), d.factions[f].ranks.begin(), d.factions[f].ranks.end());
      std::sort(suspects.begin(), suspects.end());
      operation_is(many.what);
      if (d.forgotten)
        return say(verdict_code::mismatch, suspects,
                   cat("comm ", many.what.comm, ": the histories of ", words_for(many.ranks),
                       " and ", words_for(few.ranks), " differ before #", d.seq,
                       ", the oldest operation that is still recorded"),
                   true);
      if (d.skipped) {
        v_.tie = false;
        return say(verdict_code::never_entered, few.ranks,
                   cat(comm_words(many.what), ": ", many.ranks.size(), '/',
                       many.ranks.size() + few.ranks.size(), " ranks entered; ", names(few.ranks),
                       " skipped it and went on with ", words_for(few.what)),
                   true);
      }
      std::string what = cat(comm_words(many.what), " on ", words_for(many.ranks));
      for (std::size_t f = 1; f < d.factions.size() && f < 4; ++f)
        what += cat("; ", words_for(d.factions[f].what), " on ", names(d.factions[f].ranks));
      if (d.swapped) what += "; they issued this and the next operation in different orders";
      if (v_.tie) what += "; a tie: either side may be wrong";
      return say(verdict_code::mismatch, std::move(suspects), std::move(what), true);
    }
    return false;
  }

  /// A group in which somebody waits for one of `wanted`, the one that waits longest.
  [[nodiscard]] const wait_group* waiting_for(const wait_graph& g,
                                              const std::vector<int>& wanted) const {
    const wait_group* best = nullptr;
    for (const wait_group& w : g.groups)
      for (const int m : w.missing)
        if (std::find(wanted.begin(), wanted.end(), m) != wanted.end() &&
            (best == nullptr || w.what.started_ns < best->what.started_ns))
          best = &w;
    return best;
  }

  /// The first collective to which `rank` never came and others did, if it is earlier than what
  /// they wait in now. On a GPU they may be past it: NCCL ends a kernel whose peer is gone.
  [[nodiscard]] std::optional<wait_group> never_came(int rank, const wait_group* now) const {
    const rank_state* r = all_.find(rank);
    if (r == nullptr || (now != nullptr && now->what.is_exchange())) return {};
    for (const position& p : r->positions) {
      if (now != nullptr && (p.comm != now->comm || p.last_seq + 1 >= now->what.seq)) continue;
      wait_group g{.comm = p.comm, .what = {}, .missing = {rank}};
      for (const rank_state& other : all_.ranks) {
        const position* q = other.ring() && able(other) ? other.in(p.comm) : nullptr;
        record what;
        if (q == nullptr || q->last_seq <= p.last_seq ||
            !sequence(other, all_.comms[p.comm].id).read(p.last_seq + 1, what))
          continue;
        if (g.waiters.empty()) g.what = what;
        g.waiters.push_back(other.from->rank);
      }
      if (!g.waiters.empty()) return g;
    }
    return {};
  }

  /// For so long that no operation of it can be missed by reading its ring before its state.
  [[nodiscard]] static bool has_left(const rank_state& r) {
    if (!r.ring() || r.from->ring.life() != life::leaving) return false;
    const std::uint64_t since = r.from->ring.at(layout::f_state_since_ns);
    return since != 0 && since + 200'000'000 < r.from->now;
  }

  bool dead() {
    std::vector<int> gone;
    for (const rank_state& r : all_.ranks) {
      if (!r.ring()) {
        if (r.from->process == process_state::dead) gone.push_back(r.from->rank);
        continue;
      }
      const life l = r.from->ring.life();
      if ((r.from->process == process_state::dead && (l == life::starting || l == life::running)) ||
          (l == life::failed && given_.failed_too))
        gone.push_back(r.from->rank);
    }
    const wait_graph g = waits_of(all_, given_.complete);
    const bool left = gone.empty(); // whoever is found now left in good order
    if (left)
      for (const rank_state& r : all_.ranks)
        if (has_left(r) && never_came(r.from->rank, nullptr)) gone.push_back(r.from->rank);
    if (gone.empty()) {
      for (const int root : g.roots)
        if (const rank_state* r = all_.find(root);
            r != nullptr && r->ring() && r->from->ring.life() == life::leaving)
          gone.push_back(root);
      if (longest_stuck() < std::min<std::uint64_t>(given_.deadline_ns, 1'000'000'000))
        return false; // it may have finished its part a moment before the others
    }
    if (gone.empty()) return false;
    show(g);
    std::string what;
    const wait_group* w = waiting_for(g, gone);
    const std::optional<wait_group> earlier = never_came(gone[0], w);
    if (earlier) w = &*earlier;
    if (w != nullptr) {
      operation_is(w->what);
      what = cat(comm_words(w->what), ": ", words_for(w->waiters),
                 w->waiters.size() == 1 ? " waits" : " wait", " for ");
    } else {
      what = "job: nobody waits yet for ";
    }
    what += names(gone);
    const rank_state* first = all_.find(gone[0]);
    const std::string error = first->ring() ? first->from->ring.error() : std::string();
    what += left ? cat(gone.size() == 1 ? ", which has" : ", which have", " left the program")
            : error.empty() ? std::string(gone.size() == 1 ? ", which is dead" : ", which are dead")
                            : std::string(gone.size() == 1 ? ", which left by an error"
                                                           : ", which left by errors");
    if (first->ring()) {
      if (!error.empty()) what += cat("; its last words: \"", error, '"');
      what += "; " + words_for_last(*first);
    }
    return say(verdict_code::rank_dead, gone, std::move(what), true);
  }

  bool out_of_reach() {
    std::vector<int> lost;
    for (const sample& s : samples_)
      if (s.process == process_state::unreachable) lost.push_back(s.rank);
    if (lost.empty() || longest_stuck() < given_.deadline_ns) return false;
    const wait_graph g = waits_of(all_, given_.complete);
    show(g);
    std::vector<std::string> hosts;
    for (const int r : lost)
      if (const std::string h = host_of(*all_.find(r)->from);
          std::find(hosts.begin(), hosts.end(), h) == hosts.end())
        hosts.push_back(h);
    std::string what;
    if (const wait_group* w = oldest(g); w != nullptr) {
      operation_is(w->what);
      what = cat(comm_words(w->what), ": nothing moves for ", seconds(longest_stuck()), "; ");
    }
    what += hosts.size() == 1 ? "host " : "hosts ";
    for (std::size_t i = 0; i < hosts.size() && i < 8; ++i) what += (i == 0 ? "" : ", ") + hosts[i];
    what += cat(" (", words_for(lost), ") dead or unreachable");
    return say(verdict_code::transport, std::move(lost), std::move(what), given_.second_look);
  }

  [[nodiscard]] std::uint64_t longest_stuck() const {
    std::uint64_t most = 0;
    for (const rank_state& r : all_.ranks)
      if (able(r)) most = std::max(most, r.stuck());
    return most;
  }
  [[nodiscard]] static const wait_group* oldest(const wait_graph& g) {
    const wait_group* best = nullptr;
    for (const wait_group& w : g.groups)
      if (best == nullptr || w.what.started_ns < best->what.started_ns) best = &w;
    return best;
  }
  [[nodiscard]] bool paused(const std::vector<int>& ranks) const {
    return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
      const rank_state* r = all_.find(rank);
      return r != nullptr && r->ring() && r->from->ring.paused(r->from->now);
    });
  }

  bool stuck() {
    const std::uint64_t age = longest_stuck();
    if (age < given_.deadline_ns) return idle_host();
    const wait_graph g = waits_of(all_, given_.complete);
    if (paused(g.roots) || paused(g.blocked)) return false;
    show(g);
    if (!g.roots.empty()) return rooted(g, age);
    if (!g.circle.empty()) return circle(g);
    if (!g.blocked.empty()) return blocked(g.blocked, age);
    if (const wait_group* w = oldest(g); w != nullptr) {
      operation_is(w->what);
      std::size_t in = 0, unknown = 0; // of the members
      for (const int m : all_.comms[w->comm].members)
        if (const rank_state* r = all_.find(m); r != nullptr && r->ring())
          ++in;
        else
          ++unknown;
      std::string what =
          w->what.is_exchange()
              ? cat(comm_words(w->what), " of rank ", w->waiters[0], ": both sides are in it")
              : cat(comm_words(w->what), ": all ", in, unknown > 0 ? " known" : "",
                    " ranks entered, ", in - std::min(in, w->waiters.size()), " are done");
      what += cat(", nothing moves for ", seconds(age));
      if (!given_.complete) what += "; as far as this host can see: others are not known";
      return say(verdict_code::transport, w->waiters, std::move(what), given_.second_look);
    }
    return false;
  }

  bool rooted(const wait_graph& g, std::uint64_t age) {
    std::vector<int> absent, held;
    for (const int r : g.roots)
      (std::find(g.blocked.begin(), g.blocked.end(), r) != g.blocked.end() ? held : absent)
          .push_back(r);
    if (absent.empty()) return blocked(held, age);
    const wait_group* w = waiting_for(g, absent);
    operation_is(w->what);
    // Of those, the ones that this operation waits for.
    std::erase_if(absent, [&](int r) {
      return std::find(w->missing.begin(), w->missing.end(), r) == w->missing.end();
    });
    const std::size_t in = w->waiters.size(), members = in + w->missing.size();
    std::string what = w->what.is_exchange() ? cat(comm_words(w->what), ": rank ", w->waiters[0],
                                                   " waits for ", seconds(age), "; ")
                                             : cat(comm_words(w->what), ": ", in, '/', members,
                                                   " ranks entered ", seconds(age), " ago; ");
    const rank_state* first = all_.find(absent[0]);
    const bool halted = first != nullptr && first->from->process == process_state::stopped;
    what += names(absent) + (absent.size() == 1 && first != nullptr && !first->ring()
                                 ? " has no flight recorder"
                                 : " did not");
    if (first != nullptr)
      what += cat(". ", words_for_last(*first), "; ", words_for_state(*first->from));
    if (!w->what.is_exchange() && !halted && members > 2) {
      if (in < absent.size()) {
        what += cat(". ", words_for(w->waiters), in == 1 ? " is" : " are",
                    " the minority: perhaps one operation too many there");
      } else if (in == absent.size()) {
        v_.tie = true;
        what += ". A tie: either half may be wrong";
      }
    }
    std::vector<int> suspects = absent;
    if (!w->what.is_exchange() && !halted && members > 2 && in < absent.size())
      suspects = w->waiters;
    return say(verdict_code::never_entered, std::move(suspects), std::move(what),
               given_.second_look);
  }

  bool blocked(const std::vector<int>& ranks, std::uint64_t age) {
    const rank_state& r = *all_.find(ranks[0]);
    const record& what = r.unfinished.front();
    operation_is(what);
    return say(verdict_code::gpu_blocked, ranks,
               cat(comm_words(what), ": issued on ", names(ranks), ' ', seconds(age),
                   " ago, but its stream does not come to it; ", words_for_state(*r.from)),
               given_.second_look);
  }

  bool circle(const wait_graph& g) {
    bool transfers = true;
    std::string what;
    for (std::size_t i = 0; i < g.circle.size(); ++i) {
      const wait_group& w = g.groups[g.circle[i]];
      transfers = transfers && w.what.is_exchange();
      const record* own = &w.what; // the call site of this very rank
      for (const record& u : all_.find(g.circle_ranks[i])->unfinished)
        if (u.comm == w.what.comm && u.seq == w.what.seq && u.is_exchange() == w.what.is_exchange())
          own = &u;
      if (i < 4)
        what +=
            cat(i == 0 ? "" : "; ", "rank ", g.circle_ranks[i], " waits in comm ", own->comm, ' ',
                words_for(*own), " for rank ", g.circle_ranks[(i + 1) % g.circle_ranks.size()]);
    }
    if (g.circle.size() > 4) what += cat("; and ", g.circle.size() - 4, " more");
    operation_is(g.groups[g.circle[0]].what);
    return say(transfers ? verdict_code::p2p_cycle : verdict_code::order_inversion, g.circle_ranks,
               std::move(what), given_.second_look);
  }

  /// All done, and a declared wait that does not end.
  bool idle_host() {
    std::vector<int> waiting;
    std::uint64_t age = 0;
    for (const rank_state& r : all_.ranks) {
      if (!r.ring()) continue;
      if (!r.unfinished.empty()) return false;
      const host_state s = r.from->ring.state();
      const std::uint64_t since = r.from->ring.at(layout::f_state_since_ns);
      if (r.from->ring.life() == life::running && (s == host_state::mpi || s == host_state::sync) &&
          since != 0 && r.from->now > since && r.from->now - since >= given_.deadline_ns &&
          !r.from->ring.paused(r.from->now)) {
        waiting.push_back(r.from->rank);
        age = std::max(age, r.from->now - since);
      }
    }
    if (waiting.empty()) return false;
    std::vector<int> others;
    for (const rank_state& r : all_.ranks)
      if (r.ring() && std::find(waiting.begin(), waiting.end(), r.from->rank) == waiting.end())
        others.push_back(r.from->rank);
    if (paused(others)) return false;
    const bool some = !others.empty() && others.size() < waiting.size();
    const std::vector<int>& suspects = some ? others : waiting;
    return say(verdict_code::host, suspects,
               cat("all operations are done; ", words_for(waiting),
                   waiting.size() == 1 ? " waits for " : " wait for ", seconds(age), ": ",
                   words_for_state(*all_.find(waiting[0])->from),
                   some ? cat("; not there: ", names(others)) : std::string()),
               given_.second_look);
  }

  void slow() {
    const lateness late = find_straggler(all_, given_.late_ns);
    if (late.rank < 0) return;
    operation_is(late.example);
    say(verdict_code::straggler, {late.rank},
        cat(describe(late.rank), " is last in ", late.last, " of ", late.of,
            " collectives; the others waited for it ", seconds(late.lost_ns), " of ",
            seconds(late.window_ns), ", most in ", comm_words(late.example)),
        true);
    v_.headline.replace(0, 12, "HANG finding");
  }

  /// "rank 3 (node2 pid 4711)", or the numbers where there are several.
  [[nodiscard]] std::string names(const std::vector<int>& ranks) const {
    return ranks.size() == 1 ? describe(ranks[0]) : words_for(ranks);
  }

  void show(const wait_graph& g) {
    v_.waits.clear();
    for (const wait_group& w : g.groups)
      for (const int from : w.waiters)
        for (const int to : w.missing)
          if (v_.waits.size() < 512) v_.waits.push_back({from, to});
  }

  void finish() {
    if (v_.code == verdict_code::none) return;
    std::vector<const rank_state*> order;
    for (const int s : v_.suspects)
      if (const rank_state* r = all_.find(s); r != nullptr && order.size() < 9) order.push_back(r);
    for (const rank_state& r : all_.ranks)
      if (order.size() < 12 && std::find(order.begin(), order.end(), &r) == order.end())
        order.push_back(&r);
    for (const rank_state* r : order) {
      const bool suspect =
          std::find(v_.suspects.begin(), v_.suspects.end(), r->from->rank) != v_.suspects.end();
      v_.table.push_back(
          cat(suspect ? "> " : "  ", words_for(*r->from), ": ",
              r->unfinished.empty()
                  ? words_for_last(*r)
                  : cat(words_for(r->unfinished.front()),
                        r->unfinished.front().started_ns != 0 ? " running since "
                                                              : " not started, issued ",
                        ago(r->unfinished.front().entered_ns, r->from->now)),
              "; ", words_for_state(*r->from)));
    }
    // Hosts to leave out next time: where the machine may be at fault, and others remain.
    if (v_.code != verdict_code::rank_dead && v_.code != verdict_code::transport &&
        v_.code != verdict_code::gpu_blocked && v_.code != verdict_code::straggler)
      return;
    std::vector<std::string> every;
    const auto add = [](std::vector<std::string>& to, const std::string& h) {
      if (!h.empty() && std::find(to.begin(), to.end(), h) == to.end()) to.push_back(h);
    };
    for (const sample& s : samples_) add(every, host_of(s));
    for (const int s : v_.suspects)
      if (const rank_state* r = all_.find(s)) add(v_.hosts, host_of(*r->from));
    if (v_.hosts.size() >= every.size() || v_.hosts.size() > 16) v_.hosts.clear();
  }

  std::span<const sample> samples_;
  circumstances given_;
  scene all_;
  verdict v_;
};

} // namespace detail

/// The verdict on a job of which these samples, one a rank, are known. Pure.
[[nodiscard]] inline verdict analyze(std::span<const sample> samples, const circumstances& c = {}) {
  return detail::analysis(samples, c).run();
}

} // namespace polyrank::hang
