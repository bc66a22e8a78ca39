// Traces: what counts as exposed, clocks that differ, and ranks that trace together on loopback.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/host/loopback.hpp>
#include <polyrank/monitor/trace.hpp>

#include <atomic>
#include <cmath>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

using namespace polyrank;
using host::loopback::run;
using loop_comm = host::loopback::communicator;

namespace {

trace_span span(span_kind kind, double begin, double end, std::size_t stream = 0) {
  return {.name = "x", .kind = kind, .stream = stream, .begin = begin, .end = end};
}
constexpr auto compute = span_kind::compute, communication = span_kind::communication,
               other = span_kind::other;

} // namespace

TEST_CASE("communication is exposed where no stream computes", "[trace]") {
  const auto judge = [](std::vector<trace_span> spans) {
    return exposure_of({.streams = {"a", "b"}, .spans = std::move(spans)});
  };
  exposure e = judge({span(compute, 10, 20), span(communication, 15, 30, 1)});
  REQUIRE((e.window == 20 && e.communication == 15 && e.exposed == 10));
  e = judge({span(communication, 0, 10), span(compute, 2, 4, 1), span(compute, 3, 5, 2),
             span(compute, 8, 20, 1)}); // a hole is not hidden
  REQUIRE((e.window == 20 && e.communication == 10 && e.exposed == 5));
  e = judge({span(communication, 0, 6), span(communication, 4, 8, 1), span(compute, 0, 8, 2)});
  REQUIRE((e.communication == 8 && e.exposed == 0));             // two at one time count once
  e = judge({span(communication, 5, 7), span(other, 0, 20, 1)}); // a copy hides nothing
  REQUIRE((e.window == 20 && e.communication == 2 && e.exposed == 2));
  e = judge({span(compute, 0, 4), span(communication, 4, 6), span(compute, 6, 9)}); // they touch
  REQUIRE((e.window == 9 && e.exposed == 2));
  REQUIRE(judge({}).window == 0);
}

TEST_CASE("clocks that are apart are found out, within the stated error", "[trace]") {
  std::atomic<int> bad{0};
  run(4, [&](loop_comm& comm) {
    const double ahead = 1e6 * comm.rank() - 3e5 * (comm.rank() % 2);
    const clock_offset o =
        measure_offset(comm.control(), [&] { return steady_microseconds() + ahead; });
    if (!(std::abs(o.ahead - ahead) <= o.error + 1e-3)) ++bad;
    if (comm.rank() == 0 ? o.error != 0 : !(o.error > 0 && o.error < 1e6)) ++bad;
  });
  REQUIRE(bad == 0);
}

TEST_CASE("between two measurements the offset changes evenly", "[trace]") {
  clock_map to_common({.at = 1000, .ahead = 100, .error = 3});
  REQUIRE(to_common(5000) == 4900);
  to_common.end_with({.at = 2000, .ahead = 120, .error = 7});
  REQUIRE(to_common(1000) == 900);
  REQUIRE(to_common(1500) == 1500 - 110);
  REQUIRE(to_common(2500) == 2500 - 120); // no guess beyond
  REQUIRE(to_common.error() == 7);
}

TEST_CASE("names and numbers of a Chrome trace", "[trace]") {
  rank_trace t{.streams = {"a \"b\" \\"}, .spans = {span(compute, 1000.25, 1001.5)}};
  t.spans[0].name = "tab\there";
  const std::string text = chrome_events(t, 3, clock_map({}), 1000.5);
  REQUIRE(text.find(R"({"name":"a \"b\" \\"})") != std::string::npos);
  REQUIRE(
      text.find(R"("name":"tab here","cat":"compute","pid":3,"tid":0,"ts":-0.250,"dur":1.250)") !=
      std::string::npos);
}

TEST_CASE("ranks trace together: every collective ends after all have begun it", "[trace]") {
  constexpr int n = 3;
  std::mutex mutex;
  std::vector<std::vector<trace_span>> reductions(n); // on the common clock
  std::vector<trace_report> reports(n);
  run(n, [&](loop_comm& comm) {
    tracer together(comm.control());
    clock_map common(measure_offset(comm.control()));
    host::timeline line;
    comm.trace(&line);
    host::stream s, side;
    line.name_stream(s, "compute");
    std::vector<float> x(1000, 1.0f), y(1000);
    for (int step = 0; step < 4; ++step) {
      line.enable(step > 0);
      {
        const host::timeline::scope work(&line, s, "work");
        s.enqueue([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(comm.rank() == 1 ? 3 : 1));
        });
      }
      comm.all_reduce<float>(x, std::span(y), reduce_op::sum, on(side, "bucket 0"));
    }
    s.synchronize();
    side.synchronize();
    comm.trace(nullptr);
    comm.all_reduce<float>(x, std::span(y), reduce_op::sum, on(side, "not traced"));
    side.synchronize();
    const rank_trace mine = line.collect();
    common.end_with(measure_offset(comm.control()));
    const trace_report r = together.finish(comm.control(), mine);
    const std::lock_guard lock(mutex);
    const auto me = static_cast<std::size_t>(comm.rank());
    reports[me] = r;
    for (trace_span of : mine.spans)
      if (of.kind == communication) {
        of.begin = common(of.begin) - common.error();
        of.end = common(of.end) + common.error();
        reductions[me].push_back(of);
      }
  });
  for (const auto& of_rank : reductions) {
    REQUIRE(of_rank.size() == 3);
    for (std::size_t k = 0; k < 3; ++k) {
      REQUIRE(of_rank[k].name == "bucket 0");
      for (const auto& of_other : reductions) REQUIRE(of_other[k].end >= of_rank[k].begin);
    }
  }
  REQUIRE(reports[1].chrome.empty());
  for (const char* part : {R"("name":"rank 2")", R"("name":"compute")", R"("name":"work")"})
    REQUIRE(reports[0].chrome.find(part) != std::string::npos);
  REQUIRE(reports[0].chrome.find("not traced") == std::string::npos);
  for (const trace_report& r : reports) {
    REQUIRE(r.ranks.size() == n);
    REQUIRE(r.exposed_percent() == reports[0].exposed_percent());
    for (const exposure& e : r.ranks) {
      REQUIRE((e.window >= 3000 && e.communication > 0));
      REQUIRE((e.exposed >= 0 && e.exposed <= e.communication));
    }
  }
}

TEST_CASE("a full timeline drops spans and says so", "[trace]") {
  host::timeline line(2);
  host::stream s;
  line.enable(true);
  for (int i = 0; i < 5; ++i) {
    const host::timeline::scope work(&line, s, "work");
  }
  s.synchronize();
  const rank_trace t = line.collect();
  REQUIRE((t.spans.size() == 2 && t.dropped == 3));
  REQUIRE(t.streams == std::vector<std::string>{"stream 0"});
}

namespace {

/// all_reduce_sum over a link that takes two milliseconds a bucket.
struct slow_sum {
  static constexpr std::string_view name = "slow_sum";
  host::timeline* line;

  [[nodiscard]] static std::size_t blocks_per_rank(int) { return 0; }
  [[nodiscard]] static std::size_t scratch(std::size_t, int) { return 0; }
  template <class C>
  void issue(C& comm, std::span<float> data, std::span<float>, on<host::stream> where) const {
    const host::timeline::scope span(line, where.stream, where.tag, communication);
    where.stream.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
    comm.template all_reduce<float>(data, data, reduce_op::sum, where);
  }
};

} // namespace

TEST_CASE("slow communication: no buffer is written too early, and backward hides some of it",
          "[trace][overlap]") {
  std::atomic<int> bad{0};
  run(3, [&](loop_comm& comm) {
    host::timeline line;
    line.enable(true);
    std::vector<float> values(8 * 100);
    std::vector<parameter<float>> layers;
    for (std::size_t i = 0; i < 8; ++i)
      layers.push_back({std::to_string(i), 100, values.data() + 100 * i, nullptr});
    grad_sync sync(comm, layers, slow_sum{&line},
                   {.bucket_bytes = 400, .tail_bytes = 400, .leave = gradients_hold::sum});
    host::stream s;
    for (int step = 0; step < 3; ++step) { // the next step writes into the same buffers
      sync.begin(0, 1);
      for (std::size_t i = 8; i-- > 0;) {
        {
          const host::timeline::scope span(&line, s, "backward");
          s.enqueue([g = sync.grad(i), i, step, r = comm.rank()] {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            std::fill(g, g + 100, static_cast<float>(100 * step + 10 * static_cast<int>(i) + r));
          });
        }
        sync.ready(i, s);
      }
      sync.finish(s);
      s.enqueue([&, step] {
        for (std::size_t i = 0; i < 8; ++i)
          for (std::size_t k = 0; k < 100; ++k)
            if (sync.grad(i)[k] !=
                3 * static_cast<float>(100 * step + 10 * static_cast<int>(i)) + 3)
              ++bad;
      });
    }
    s.synchronize();
    const exposure e = exposure_of(line.collect());
    // Eight buckets of 2 ms a step, of which seven can run beside backward.
    if (!(e.communication >= 3 * 8 * 2000 && e.exposed < 0.9 * e.communication)) ++bad;
  });
  REQUIRE(bad == 0);
}
