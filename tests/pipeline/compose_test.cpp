// A pipeline times replicas times a sharded optimizer, with a weight that the first and the last
// stage share: against the same model on one rank.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include "pipeline/toy_run.hpp"

#include <polyrank/host/loopback.hpp>
#include <polyrank/launch/mesh.hpp>
#include <polyrank/optim/sgd.hpp>
#include <polyrank/zero/sharded_optimizer.hpp>

#include <atomic>
#include <cmath>
#include <string>
#include <vector>

using namespace polyrank;
using namespace polyrank::pipeline;
using namespace polyrank::test;

namespace {

using loop = host::loopback::communicator;
using host::stream;

constexpr std::size_t microbatches = 8, steps = 5, weights = width * width; // of all replicas
constexpr sgd::options hyper{.lr = 0.2, .momentum = 0.9};
constexpr float max_norm = 0.05f; // clips every step

/// The rows of the microbatches of replica d of `replicas`, and their part of the batch.
struct part {
  std::vector<std::size_t> rows;
  toy_batch batch{0};
};
part part_of(std::size_t d, std::size_t replicas) {
  const std::vector<std::size_t> rows = ragged(microbatches);
  const toy_batch all(total(rows), 3);
  const range mine = partition(microbatches, replicas, d);
  part out;
  std::size_t first = 0;
  for (std::size_t k = 0; k < mine.end; ++k) {
    if (k >= mine.begin) {
      out.rows.push_back(rows[k]);
      for (std::size_t i = first * width; i < (first + rows[k]) * width; ++i)
        out.batch.x.push_back(all.x[i]), out.batch.target.push_back(all.target[i]);
    }
    first += rows[k];
  }
  return out;
}

struct trained {
  std::vector<std::vector<float>> w; // by stage; the last is the tied copy
  std::vector<float> norms;
};

/// The same on one rank: gradients from the model without a pipeline, one optimizer for all.
trained serial(std::size_t stages) {
  trained out;
  const part all = part_of(0, 1);
  host::loopback::run(1, [&](loop& comm) {
    std::vector<parameter<float>> parameters;
    for (std::size_t s = 0; s + 1 < stages; ++s)
      parameters.push_back({.name = polyrank::detail::cat("stage", s), .count = weights});
    sharded_optimizer<sgd, loop> opt(comm, parameters, hyper, {.stage = 0, .max_norm = max_norm});
    for (std::size_t s = 0; s + 1 < stages; ++s) {
      const std::vector<float> first = toy_weights(s);
      std::copy(first.begin(), first.end(), opt.value(s));
    }
    stream work;
    opt.load_values(work);
    for (std::size_t step = 0; step < steps; ++step) {
      opt.synchronize();
      std::vector<std::vector<float>> w;
      for (std::size_t s = 0; s < stages; ++s) {
        const float* at = opt.value(s + 1 < stages ? s : 0);
        w.emplace_back(at, at + weights);
      }
      std::vector<std::vector<float>> sum(stages - 1, std::vector<float>(weights, 0.0f));
      for (const auto& of_microbatch :
           toy_reference(w, all.batch, all.rows, 1 / static_cast<float>(total(all.rows))))
        for (std::size_t s = 0; s < stages; ++s)
          for (std::size_t i = 0; i < weights; ++i)
            sum[s + 1 < stages ? s : 0][i] += of_microbatch[s][i];
      opt.begin(0, 1);
      for (std::size_t s = 0; s + 1 < stages; ++s) {
        std::copy(sum[s].begin(), sum[s].end(), opt.grad(s, work));
        opt.ready(s, work);
      }
      opt.finish(work);
      opt.step(work);
      out.norms.push_back(opt.record().norm);
    }
    opt.synchronize();
    for (std::size_t s = 0; s < stages; ++s) {
      const float* at = opt.value(s + 1 < stages ? s : 0);
      out.w.emplace_back(at, at + weights);
    }
  });
  return out;
}

/// On t.shape.ranks x replicas ranks. Every rank writes its own stages' weights; the first and the
/// last replica must agree.
template <class Residency>
trained on_grid(const table& t, std::size_t replicas, std::size_t zero, Residency home,
                std::atomic<int>& wrong) {
  const std::size_t stages = t.shape.stages(), last = stages - 1;
  trained out;
  out.w.resize(stages);
  out.norms.resize(steps);
  std::vector<std::vector<float>> other(stages);
  const float seed = static_cast<float>(replicas) / static_cast<float>(total(ragged(microbatches)));
  host::loopback::run(static_cast<int>(t.shape.ranks * replicas), [&](loop& world) {
    launch::mesh<loop> grid(world, {{"pp", static_cast<int>(t.shape.ranks)}, {"dp", launch::rest}});
    loop &pp = grid.along("pp"), &dp = grid.along("dp");
    const auto r = static_cast<std::size_t>(pp.rank());
    const auto replica = static_cast<std::size_t>(dp.rank());
    const bool has_end = r == t.shape.rank_of(0) || r == t.shape.rank_of(last);
    loop ends = pp.split(has_end ? 0 : 1 + pp.rank(), pp.rank());
    const part mine = part_of(replica, replicas);
    std::vector<toy_stage> own = stages_of(t, r, mine.batch);
    std::vector<parameter<float>> parameters;
    std::vector<polyrank::placement> placements;
    for (const toy_stage& s : own) {
      parameters.push_back({.name = polyrank::detail::cat("stage", s.stage), .count = weights});
      placements.push_back({.stage = zero, .counted = s.stage != last});
    }
    sharded_optimizer<sgd, loop, float, float, Residency> opt(
        dp, parameters, hyper,
        {.stage = zero, .placements = placements, .ring = 8, .max_norm = max_norm}, home);
    opt.norm_over(pp);
    for (std::size_t c = 0; c < own.size(); ++c) {
      const std::vector<float> first = toy_weights(own[c].stage == last ? 0 : own[c].stage);
      std::copy(first.begin(), first.end(), opt.value(c));
    }
    stream compute;
    opt.load_values(compute);

    peer_transport<loop> link(pp);
    hooks<stream> h;
    h.tied = [&](std::size_t s, stream& lane) {
      const std::size_t c = t.shape.chunk_of(s);
      if (t.shape.rank_of(0) != t.shape.rank_of(last)) {
        const std::span<float> g(own[c].gradient, weights);
        ends.template all_reduce<float>(g, g, reduce_op::sum, on(lane, "tied"));
      } else if (s == last) { // both ends are here: add once
        const std::span<float> a(own[0].gradient, weights), b(own[c].gradient, weights);
        host::backend::add<float>(a, b, a, lane);
        host::backend::copy<float>(a, b, lane);
      }
    };
    h.reduce = [&](std::size_t s, stream& lane) {
      const bool tied_here = t.shape.rank_of(0) == t.shape.rank_of(last);
      if (tied_here && s == last) opt.ready(0, lane); // it was waiting for the sum
      if (!tied_here || s != 0) opt.ready(t.shape.chunk_of(s), lane);
    };
    h.optimizer = [&](stream& s) {
      opt.finish(s);
      opt.step(s);
    };
    executor run(link, std::span(own), t, {.rows = mine.rows, .hooks = h, .poison = true}, compute);
    for (std::size_t step = 0; step < steps; ++step) {
      opt.begin(0, 1);
      for (std::size_t c = 0; c < own.size(); ++c) {
        own[c].weights = opt.value(c);
        own[c].gradient = opt.grad(c, compute);
        opt.wait_param(c, compute);
        host::backend::fill(std::span<float>(own[c].gradient, weights), 0.0f, compute);
      }
      run.step(seed); // the optimizer takes the mean of replicas
      run.synchronize();
      const float norm = opt.record().norm;
      if (world.rank() == 0) out.norms[step] = norm;
      const std::int64_t bits = static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(norm));
      if (world.control().all_reduce_max(bits) != bits) ++wrong; // one norm for all
    }
    opt.synchronize();
    for (std::size_t c = 0; c < own.size(); ++c)
      for (auto* to : {replica == 0 ? &out.w : nullptr, replica + 1 == replicas ? &other : nullptr})
        if (to != nullptr) (*to)[own[c].stage].assign(opt.value(c), opt.value(c) + weights);
  });
  for (std::size_t s = 0; s < stages; ++s) wrong += out.w[s] == other[s] ? 0 : 1;
  wrong += out.w.front() == out.w.back() ? 0 : 1; // the tied copies, bit by bit
  return out;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double off = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    worst = !(off <= worst) ? off : worst; // NaN too
  }
  return worst;
}

} // namespace

TEST_CASE("pipeline x replicas x ZeRO with tied weights train as one rank does", "[executor]") {
  for (const schedule s : {schedule::zb_h1, schedule::interleaved, schedule::zb_v}) {
    const table t =
        lowered(s, 2, microbatches / 2, 0, {.tied = true, .reduce = true, .optimizer = true});
    const trained want = serial(t.shape.stages());
    for (const std::size_t zero : {1u, 2u})
      for (const bool offload : {false, true}) {
        INFO(traits_of(s).name << " stage " << zero << (offload ? ", offloaded" : ""));
        std::atomic<int> wrong{0};
        const trained got = offload ? on_grid(t, 2, zero, on_host{.threads = 1}, wrong)
                                    : on_grid(t, 2, zero, on_device{}, wrong);
        REQUIRE(wrong == 0);
        for (std::size_t k = 0; k < want.w.size(); ++k)
          REQUIRE(largest_difference(got.w[k], want.w[k]) < 2e-6);
        REQUIRE(want.norms.front() > 2 * max_norm); // it does clip
        for (std::size_t k = 0; k < steps; ++k)
          REQUIRE(got.norms[k] == Approx(want.norms[k]).epsilon(1e-5));
      }
  }
}

TEST_CASE("the norm is the same on every mesh of 8 ranks", "[executor]") {
  const trained want = serial(8);
  for (const std::size_t p : {1u, 2u, 4u, 8u}) {
    const table t = lowered(schedule::interleaved, p, microbatches * p / 8, 8 / p,
                            {.tied = true, .reduce = true, .optimizer = true});
    std::atomic<int> wrong{0};
    const trained got = on_grid(t, 8 / p, 1, on_device{}, wrong);
    INFO("pp " << p << " x dp " << 8 / p);
    REQUIRE(wrong == 0);
    for (std::size_t k = 0; k < steps; ++k)
      REQUIRE(got.norms[k] == Approx(want.norms[k]).epsilon(1e-5));
    for (std::size_t k = 0; k < want.w.size(); ++k)
      REQUIRE(largest_difference(got.w[k], want.w[k]) < 4e-6);
  }
}
