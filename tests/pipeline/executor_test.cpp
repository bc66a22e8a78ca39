// The executor on threads: every schedule, many shapes, against the model without a pipeline.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "pipeline/toy_run.hpp"

#include <polyrank/host/loopback.hpp>
#include <polyrank/pipeline/measure.hpp>
#include <polyrank/pipeline/recompute.hpp>
#include <polyrank/pipeline/tune.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

using namespace polyrank;
using namespace polyrank::pipeline;
using namespace polyrank::test;

namespace {

auto contains(const std::string& text) {
#if __has_include(<catch2/catch_test_macros.hpp>)
  return Catch::Matchers::ContainsSubstring(text);
#else
  return Catch::Contains(text);
#endif
}

using loop = host::loopback::communicator;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true; // ten times slower: m = 1, p + 1, 2p + 1
#else
constexpr bool sanitized = false;
#endif

struct outcome {
  std::atomic<int> wrong_gradients{0}, wrong_rows{0}, alive{0}, wrong_peaks{0};
  [[nodiscard]] bool fine() const {
    return wrong_gradients == 0 && wrong_rows == 0 && alive == 0 && wrong_peaks == 0;
  }
};

using plain = peer_transport<loop>;

/// Sends late and says so later: whoever reuses a buffer early spoils what is sent.
struct slow_transport : plain {
  using plain::plain;
  void exchange(const shape& s, const action& a, std::span<std::byte> data, std::string_view tag) {
    const auto wait = [&](std::uint32_t salt) {
      const auto us = hash_combine(a.stage * 64 + a.microbatch, salt) % 300;
      lane(lane_of(s, policy(), static_cast<std::size_t>(rank()), a)).enqueue([us] {
        std::this_thread::sleep_for(std::chrono::microseconds(us));
      });
    };
    if (is_send(a.kind)) wait(1);
    plain::exchange(s, a, data, tag);
    if (is_send(a.kind)) wait(2);
  }
};

/// Runs table `t` on threads and adds up what is wrong.
template <class Transport = plain, class Stage = toy_stage>
void run_on_threads(const table& t, outcome& out, conditions how = {}) {
  host::loopback::run(static_cast<int>(t.shape.ranks),
                      [&](loop& comm) {
                        if (how.immediate) comm.set_stream_mode(host::stream::mode::immediate);
                        const mistakes m = run_table<Transport, Stage>(comm, t, how);
                        out.wrong_gradients += m.gradients, out.wrong_rows += m.rows;
                        out.alive += m.alive, out.wrong_peaks += m.peaks;
                      },
                      {.timeout = std::chrono::seconds(5), .faults = {}});
}

} // namespace

#define REQUIRE_FINE(t, out)                                                                       \
  INFO("p " << (t).shape.ranks << " m " << (t).shape.microbatches << ": " << (out).wrong_gradients \
            << " wrong gradients, " << (out).wrong_rows << " wrong rows, " << (out).alive          \
            << " alive, " << (out).wrong_peaks << " wrong peaks");                                 \
  REQUIRE((out).fine())

TEST_CASE("every schedule gives the gradients of the model without a pipeline, bit by bit",
          "[executor]") {
  for (const std::size_t p : {1u, 2u, 3u, 4u, 8u})
    for (std::size_t m = 1; m <= 3 * p; m += sanitized && m > 1 ? p : 1)
      for (const schedule s : training_schedules) {
        const table t = lowered(s, p, m);
        outcome out;
        run_on_threads(t, out, {.poison = m % 2 == 0});
        INFO(traits_of(s).name);
        REQUIRE_FINE(t, out);
      }
}

TEST_CASE("sends that end late, and freed buffers full of NaN, spoil nothing", "[executor]") {
  for (const schedule s : training_schedules)
    for (const lane_policy lanes : {lane_policy::single, lane_policy::per_channel}) {
      const table t = lowered(s, 3, 5, 0, {.lanes = lanes});
      outcome out;
      run_on_threads<slow_transport>(t, out, {.steps = 2, .poison = true});
      INFO(traits_of(s).name);
      REQUIRE_FINE(t, out);
    }
}

TEST_CASE("a lane for each channel, more chunks, other costs, recomputation", "[executor]") {
  for (const schedule s : training_schedules)
    for (const std::size_t p : {2u, 3u, 4u, 5u}) {
      INFO(traits_of(s).name);
      const table channels = lowered(s, p, p + 1, 0, {.lanes = lane_policy::per_channel}, 0);
      outcome a;
      run_on_threads(channels, a, {.steps = 2, .accumulate = true});
      REQUIRE_FINE(channels, a);
      const table again = lowered(s, p, 2 * p - 1, 0, {.recompute = true}, 0.3);
      outcome b;
      run_on_threads(again, b, {.poison = true});
      REQUIRE_FINE(again, b);
      if (traits_of(s).max_chunks < 3) continue;
      const table more = lowered(s, p, p, 3);
      outcome c;
      run_on_threads(more, c);
      REQUIRE_FINE(more, c);
    }
}

namespace {

/// Does the two passes of an overlapped pair in one piece, the backward's parts first.
struct pairing_stage : toy_stage {
  using toy_stage::toy_stage;
  static inline std::atomic<int> pairs{0};
  void forward_backward(const pass& f, pairing_stage& other, const pass& b) {
    ++pairs;
    other.backward_input(b);
    forward(f);
    other.backward_weight(b);
  }
};

} // namespace

TEST_CASE("a stage that can overlap gets the pairs of dualpipe_v in one call", "[executor]") {
  for (const std::size_t p : {1u, 2u, 3u, 4u}) {
    const table t = lowered(schedule::dualpipe_v, p, 2 * p + 1);
    int expected = 0;
    for (std::size_t r = 0; r < p; ++r)
      for (std::size_t i = 0; i + 1 < t.of(r).size(); ++i)
        if (t.of(r)[i].joined != 0 && t.of(r)[i + 1].kind == action_kind::backward) ++expected;
    pairing_stage::pairs = 0;
    outcome out;
    run_on_threads<plain, pairing_stage>(t, out, {.poison = true});
    REQUIRE_FINE(t, out);
    REQUIRE(pairing_stage::pairs == expected);
    REQUIRE((expected > 0 || p == 1));
  }
}

TEST_CASE("the host enqueues whole steps while no work has been done", "[executor]") {
  const table t = lowered(schedule::zb_v, 3, 9);
  std::atomic<int> done{0}, early{0}, never{0};
  host::loopback::run(3, [&](loop& comm) {
    const toy_batch batch(9);
    std::vector<toy_stage> stages = stages_of(t, static_cast<std::size_t>(comm.rank()), batch);
    std::atomic<bool> go{false};
    for (toy_stage& s : stages)
      s.on_work = [&](char, std::size_t) {
        const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (!go && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
        if (!go) ++never; // step() waits for its own work
        ++done;
      };
    host::stream compute = comm.make_stream();
    plain link(comm);
    executor run(link, std::span(stages), t, {}, compute);
    run.step();
    run.step();
    early += done;
    comm.control().barrier(std::chrono::seconds(30));
    go = true;
    run.synchronize();
  });
  REQUIRE(never == 0);
  REQUIRE(early == 0);
  REQUIRE(done == 2 * 9 * 6 * 3); // steps, microbatches, stages, F I W
}

TEST_CASE("every transfer on a lane is complete when the lane is", "[executor]") {
  const shape s{2, 40};
  std::atomic<int> wrong{0};
  for (const lane_policy lanes : {lane_policy::single, lane_policy::per_channel})
    host::loopback::run(2, [&](loop& comm) {
      plain link(comm, lanes);
      const bool sends = comm.rank() == 0;
      std::vector<std::vector<std::byte>> messages;
      for (std::size_t k = 0; k < s.microbatches; ++k)
        messages.emplace_back(1 + k * k * 97, sends ? std::byte(k + 1) : std::byte{0});
      std::size_t lane = 0;
      for (std::size_t k = 0; k < s.microbatches; ++k) {
        const action a = sends ? make_action(action_kind::send_forward, 0, k)
                               : make_action(action_kind::recv_forward, 1, k);
        lane = lane_of(s, lanes, static_cast<std::size_t>(comm.rank()), a);
        link.exchange(s, a, messages[k], "x");
      }
      link.lane(lane).synchronize();
      for (std::size_t k = 0; k < s.microbatches; ++k)
        for (const std::byte b : messages[k]) wrong += b == std::byte(k + 1) ? 0 : 1;
    });
  REQUIRE(wrong == 0);
}

TEST_CASE("a memory cap decides what is computed again, and holds while it runs", "[executor]") {
  for (const schedule s : {schedule::one_f_one_b, schedule::gpipe, schedule::zb_h1, schedule::zb_v,
                           schedule::dualpipe_v}) {
    const table whole = generate(s, 4, 9, default_chunks(s));
    const costs c = even_costs(whole.shape, 1, 1, 1, 0.05, 2.0 / 3); // as the toy's W
    const double most = simulate(whole, c).ranks[0].peak_activation;
    double least = 0; // which the refusal names
    try {
      static_cast<void>(recompute_to_fit(whole, c, 0.1));
    } catch (const usage_error& e) {
      const std::string text = e.what();
      least = std::stod(text.substr(text.find("works is ") + 9));
    }
    REQUIRE((least > 0 && least < most));
    std::size_t before = 0;
    for (const double share : {1.0, 0.5, 0.0}) {
      const double cap = share * most + (1 - share) * least * (1 + 1e-5);
      const table fitted = recompute_to_fit(whole, c, cap);
      const table t = lower(fitted, c);
      const auto again = static_cast<std::size_t>(
          std::count_if(t.actions.begin(), t.actions.end(),
                        [](const action& a) { return a.kind == action_kind::recompute; }));
      INFO(traits_of(s).name << ' ' << share << ": " << again << " recomputed");
      for (const rank_report& r : simulate(t, c).ranks)
        REQUIRE(r.peak_activation <= cap * (1 + 1e-9));
      REQUIRE((share == 1.0) == (again == 0));
      REQUIRE(again >= before); // a lower cap, more of it
      REQUIRE(again <= whole.shape.stages() * 9);
      before = again;
      outcome out;
      run_on_threads(t, out, {.poison = true});
      REQUIRE_FINE(t, out);
    }
  }
}

TEST_CASE("a table of one's own, without slots: a buffer for every microbatch", "[executor]") {
  table t = lowered(schedule::zb_v, 3, 6);
  t.slots.clear();
  outcome out;
  run_on_threads(t, out, {.steps = 2, .poison = true});
  REQUIRE(out.wrong_gradients + out.wrong_rows + out.alive == 0); // the simulator knows no slots
}

TEST_CASE("without threads of their own, streams run the schedules that cannot block",
          "[executor]") {
  for (const schedule s : training_schedules)
    for (const std::size_t m : {1u, 4u, 7u}) {
      const table t = lowered(s, 3, m);
      outcome out;
      run_on_threads(t, out, {.immediate = true});
      INFO(traits_of(s).name);
      REQUIRE_FINE(t, out);
    }
}

TEST_CASE("evaluation runs forward only, on all ranks, also where the loss is on rank 0",
          "[executor]") {
  for (const placement place : {placement::loop, placement::vee}) {
    const table t = [&] {
      const table forward = generate(schedule::forward_only, shape{3, 7, 2, place});
      return lower(forward, even_costs(forward.shape, 1, 1, 1, 0.05));
    }();
    outcome out;
    run_on_threads(t, out, {.steps = 2, .poison = true});
    REQUIRE_FINE(t, out);
  }
}

TEST_CASE("peaks do not grow with the number of microbatches", "[executor]") {
  for (const schedule s : {schedule::one_f_one_b, schedule::zb_h1, schedule::zb_v}) {
    const auto peak = [&](std::size_t m) {
      const table t = lowered(s, 4, m);
      costs c = even_costs(t.shape, 1, 1, 1, 0);
      for (stage_memory& b : c.memory) b.boundary = b.boundary_gradient = 1;
      return simulate(t, c).peak_memory(); // which the executor's counters equal
    };
    REQUIRE(peak(16) == peak(64));
  }
}

TEST_CASE("what a step took picks the next schedule, which runs", "[executor]") {
  const table t = lowered(schedule::zb_h1, 3, 6);
  costs c;
  std::atomic<int> others{0};
  host::loopback::run(3, [&](loop& comm) {
    const toy_batch batch(6);
    std::vector<toy_stage> stages = stages_of(t, static_cast<std::size_t>(comm.rank()), batch);
    for (toy_stage& s : stages) // the last stage's W is long
      s.on_work = [&s](char kind, std::size_t) {
        const bool heavy = s.stage == 2 && kind == 'W';
        std::this_thread::sleep_for(std::chrono::milliseconds(heavy ? 8 : 1));
      };
    host::stream compute = comm.make_stream();
    plain link(comm);
    executor run(link, std::span(stages), t, {}, compute);
    run.watch().measure(true);
    run.step();
    run.synchronize();
    const costs mine = profile(measured(run), run.memory());
    const std::string bytes(reinterpret_cast<const char*>(mine.stages.data()),
                            mine.stages.size() * sizeof(stage_costs));
    for (const std::string& other : comm.control().all_gather(bytes)) others += other != bytes;
    if (comm.rank() == 0) c = mine;
  });
  REQUIRE(others == 0);                 // every rank has the same costs, so takes the same schedule
  for (const stage_costs& s : c.stages) // a sleep is never shorter than asked for
    REQUIRE((s.forward >= 1e-3 && s.input_grad >= 1e-3 && s.weight_grad >= 1e-3));
  REQUIRE(c.stages[2].weight_grad >= 8e-3);
  tune_request q;
  q.ranks = 3, q.microbatches = {6}, q.chunks = {1, 2};
  q.costs_of = [&](const shape& s) { return recut(c, t.shape, s); };
  q.memory_cap = simulate(generate(schedule::one_f_one_b, 3, 6), c).peak_memory(); // bytes
  const tuned next = tune(q);
  REQUIRE(next.report.peak_memory() <= q.memory_cap * (1 + 1e-9));
  REQUIRE(next.report.makespan <= simulate(generate(schedule::one_f_one_b, 3, 6), c).makespan);
  const table again = lower(next.table, q.costs_of(next.table.shape));
  outcome out;
  run_on_threads(again, out, {.poison = true});
  INFO(next.name);
  REQUIRE_FINE(again, out);
}

TEST_CASE("microbatches of other sizes in later steps", "[executor]") {
  const table t = lowered(schedule::interleaved, 2, 4);
  const std::vector<std::size_t> large{3, 3, 3, 3}, small{3, 3, 3, 1};
  std::atomic<int> wrong{0}, refused{0};
  host::loopback::run(2, [&](loop& comm) {
    const toy_batch batch(12);
    std::vector<toy_stage> stages = stages_of(t, static_cast<std::size_t>(comm.rank()), batch);
    host::stream compute = comm.make_stream();
    plain link(comm);
    executor run(link, std::span(stages), t, {.rows = {3}}, compute);
    for (const auto& rows : {large, small, large}) {
      run.set_rows(rows);
      for (toy_stage& s : stages) s.dw.assign(s.dw.size(), 0.0f);
      run.step(0.125f);
      run.synchronize();
      const auto reference = toy_reference(4, batch, rows, 0.125f);
      for (const toy_stage& s : stages)
        if (s.dw != toy_expected(t, s.stage, reference)) ++wrong;
    }
    try {
      run.set_rows({4});
    } catch (const usage_error& e) {
      if (e.collective() && std::string(e.what()).find("room for 3") != std::string::npos)
        ++refused;
    }
    try {
      run.set_rows(comm.rank() == 0 ? small : large);
    } catch (const mismatch_error& e) {
      if (e.collective()) ++refused;
    }
  });
  REQUIRE(wrong == 0);
  REQUIRE(refused == 4);
}

namespace {

/// A transport whose rank 0 sends microbatch 1 under the header of another.
struct confusing_transport : plain {
  using plain::plain;
  std::int32_t by = 1;
  void exchange(const shape& s, const action& a, std::span<std::byte> data, std::string_view tag) {
    if (rank() == 0 && is_send(a.kind) && a.microbatch == 1)
      lane(1).enqueue([data, by = by] {
        std::int32_t header;
        std::memcpy(&header, data.data(), sizeof header);
        header += by;
        std::memcpy(data.data(), &header, sizeof header);
      });
    plain::exchange(s, a, data, tag);
  }
};

std::string what_synchronize_says(std::int32_t header_is_off_by) {
  const table t = lowered(schedule::gpipe, 2, 4);
  std::string text;
  host::loopback::run(2, [&](loop& comm) {
    const toy_batch batch(4);
    std::vector<toy_stage> stages = stages_of(t, static_cast<std::size_t>(comm.rank()), batch);
    host::stream compute = comm.make_stream();
    confusing_transport link(comm);
    link.by = header_is_off_by;
    executor run(link, std::span(stages), t, {}, compute);
    run.step();
    try {
      run.synchronize();
    } catch (const data_error& e) {
      text = e.what(); // rank 1's
    }
  });
  return text;
}

} // namespace

TEST_CASE("a message of another microbatch or step is noticed", "[executor]") {
  REQUIRE(what_synchronize_says(0).empty());
  REQUIRE_THAT(what_synchronize_says(1), contains("1RECV_F1 got microbatch 2 of boundary 0"));
  REQUIRE_THAT(what_synchronize_says(1 << 24), contains("of another step"));
}

// What is refused, before the first step and on every rank ----------------------------------------

namespace {

struct whole_only : toy_stage {
  using toy_stage::toy_stage;
  void backward(const pass& p) {
    toy_stage::backward_input(p);
    toy_stage::backward_weight(p);
  }
  void backward_input(const pass&) = delete;
};

/// Constructs an executor on two threads; every rank must throw the same error of type E.
template <class E, class Stage = toy_stage, class Change>
std::string refusal(table t, Change change, int ranks = 2) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  host::loopback::run(ranks, [&](loop& comm) {
    const toy_batch batch(64);
    const auto r = static_cast<std::size_t>(comm.rank());
    std::vector<Stage> stages;
    for (std::size_t c = 0; c < t.shape.chunks; ++c)
      stages.emplace_back(r < t.shape.ranks ? t.shape.stage_of(r, c) : 0, t.shape.stages(), batch);
    host::stream compute = comm.make_stream();
    plain link(comm);
    executor_options<host::stream> o;
    table mine = t;
    change(r, mine, stages, o);
    try {
      executor run(link, std::span(stages), mine, o, compute);
    } catch (const E& e) {
      if (e.collective()) said[r] = e.what();
    }
  });
  for (const std::string& s : said)
    if (s != said[0]) return "different errors: " + said[0] + " | " + s;
  return said[0];
}

/// A stage whose input is of another width than what is sent to it.
struct odd_stage : toy_stage {
  using toy_stage::toy_stage;
  std::size_t wide = width;
  [[nodiscard]] std::vector<pipeline::boundary> inputs() const {
    auto all = toy_stage::inputs();
    if (!all.empty()) all[0].row = wide;
    return all;
  }
};

} // namespace

TEST_CASE("what cannot run is refused on every rank before the first step", "[executor]") {
  const table t = lowered(schedule::one_f_one_b, 2, 3);
  CHECK_THAT((refusal<usage_error, whole_only>(lowered(schedule::zb_h1, 2, 3), [](auto&&...) {})),
             contains("the stage has no backward_input()"));
  CHECK_THAT((refusal<usage_error>(
                 t, [](auto&&...) {}, 3)),
             contains("the schedule is for 2 ranks, the communicator has 3"));
  CHECK_THAT((refusal<mismatch_error, odd_stage>(
                 t, [](std::size_t, table&, auto& stages, auto&) { stages[0].wide = 8; })),
             contains("tensor 0 between stage 0 and 1: rank 0 sends 'x' f32 x 4, rank 1 expects "
                      "'x' f32 x 8"));
  CHECK_THAT((refusal<mismatch_error>(t,
                                      [](std::size_t r, table& mine, auto&, auto&) {
                                        if (r == 1) mine = lowered(schedule::gpipe, 2, 3);
                                      })),
             contains("the ranks run different schedules"));
  CHECK_THAT(
      (refusal<mismatch_error>(t, [](std::size_t r, table&, auto&, auto& o) { o.rows = {1 + r}; })),
      contains("microbatch of 1 rows, rank 1 has microbatch of 2 rows"));
  CHECK_THAT((refusal<usage_error>(t,
                                   [](std::size_t, table&, auto&, auto& o) {
                                     o.rows = {1, 2};
                                   })),
             contains("2 sizes for 3 microbatches"));
  CHECK_THAT((refusal<usage_error>(t,
                                   [](std::size_t r, table&, auto& stages, auto&) {
                                     if (r == 1) stages.clear();
                                   })),
             contains("rank 1: the schedule has 1 stages per rank, this rank brings 0"));
  CHECK_THAT((refusal<usage_error>(generate(schedule::gpipe, 2, 3), [](auto&&...) {})),
             contains("give it to lower() first"));
  CHECK_THAT(
      (refusal<usage_error>(lowered(schedule::gpipe, 2, 3, 0, {.reduce = true}), [](auto&&...) {})),
      contains("options.hooks.reduce must be set"));
  CHECK_THAT(
      (refusal<usage_error>(lowered(schedule::gpipe, 2, 3, 0, {.lanes = lane_policy::per_channel}),
                            [](auto&&...) {})),
      contains("another lane policy"));
  CHECK_THAT((refusal<data_error>(t,
                                  [](std::size_t, table& mine, auto&, auto&) {
                                    std::swap(mine.actions[0], mine.actions[1]); // SEND before F
                                  })),
             contains("comes before its forward"));
  CHECK_THAT((refusal<usage_error>(t,
                                   [](std::size_t, table&, auto& stages, auto&) {
                                     stages[0].stages = 3; // the last one sends
                                   })),
             contains("the last stage sends 'x' f32 x 4, but nobody is behind it"));
}
