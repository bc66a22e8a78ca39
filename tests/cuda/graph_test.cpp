// A whole step - gradients, communication, norm, update - captured in a CUDA graph: replays give
// the bits of the eager step.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/ranks.hpp"

#include <polyrank/cuda/graph.hpp>
#include <polyrank/cuda/norm.hpp>
#include <polyrank/cuda/optimizer.hpp>
#include <polyrank/optim/adamw.hpp>

using namespace polyrank;
using namespace polyrank::test;
using cuda::stream;
using device = cuda::backend;

namespace {

/// A trainer whose step enqueues device work only, so that it can be captured.
template <class Policy>
class trainer {
 public:
  trainer(cuda::communicator& comm, Policy policy)
      : comm_(comm), model_(memory::ours, comm.rank()),
        micros_(std::max<std::size_t>(1, policy.blocks_per_rank(comm.size()))),
        sync_(comm, model_.parameters, policy,
              {.bucket_bytes = 4096, .leave = gradients_hold::sum}) {
    std::vector<cuda::optimizer<adamw>::range> ranges;
    std::vector<std::span<const float>> gradients;
    for (std::size_t i = 0; i < odd_counts.size(); ++i) {
      const std::size_t n = odd_counts[i];
      for (auto* plane : {&first_, &second_}) plane->push_back(empty<float>(n));
      for (std::size_t m = 0; m < micros_; ++m) batch_.push_back(roomy_up(std::vector<float>(n)));
      ranges.push_back({model_.values[i].data(),
                        sync_.grad(i),
                        {first_[i].data(), second_[i].data()},
                        nullptr,
                        n});
      gradients.emplace_back(sync_.grad(i), n);
    }
    norm_ = std::make_unique<cuda::grad_norm<float>>(gradients);
    update_ = std::make_unique<cuda::optimizer<adamw>>(ranges);
  }

  stream& compute() { return compute_; }

  void reset() {
    for (std::size_t i = 0; i < odd_counts.size(); ++i) {
      device::fill(model_.values[i].span(), 0.5f, compute_);
      device::fill(first_[i].span(), 0.0f, compute_);
      device::fill(second_[i].span(), 0.0f, compute_);
    }
  }
  /// The data and the learning rate of step k.
  template <class Write>
  void prepare(std::size_t k, Write write) {
    compute_.synchronize();
    for (std::size_t i = 0; i < odd_counts.size(); ++i)
      for (std::size_t m = 0; m < micros_; ++m) {
        std::vector<float> g(odd_counts[i]);
        const std::size_t block = static_cast<std::size_t>(comm_.rank()) * micros_ + m;
        for (std::size_t e = 0; e < g.size(); ++e) g[e] = write(i, e + 7 * k, block);
        if (!g.empty()) put(g, batch_[i * micros_ + m].span());
      }
    update_->set(adamw::at({.lr = 1e-2 / static_cast<double>(k + 1)}, k + 1), compute_);
  }
  void step() {
    for (std::size_t m = 0; m < micros_; ++m) {
      sync_.begin(m, micros_);
      fork_.record(compute_);
      side_.wait(fork_);
      for (std::size_t i = odd_counts.size(); i-- > 0;) {
        if (odd_counts[i] == 0) continue;
        stream& producer = i % 2 == 0 ? compute_ : side_;
        device::copy<float>(batch_[i * micros_ + m].span(),
                            std::span<float>(sync_.grad(i), odd_counts[i]), producer);
        sync_.ready(i, producer);
      }
      join_.record(side_);
      compute_.wait(join_);
      sync_.finish(compute_);
    }
    norm_->run({.scale = sync_.grad_scale(), .max_norm = 1}, compute_);
    update_->step(norm_->control(), compute_);
  }
  std::vector<float> values() {
    compute_.synchronize();
    std::vector<float> all;
    for (const auto& v : model_.values)
      for (const float x : down(v)) all.push_back(x);
    return all;
  }

 private:
  cuda::communicator& comm_;
  model model_;
  std::size_t micros_;
  grad_sync<cuda::communicator, float, float, Policy> sync_;
  std::vector<buffer<float>> first_, second_, batch_;
  std::unique_ptr<cuda::grad_norm<float>> norm_;
  std::unique_ptr<cuda::optimizer<adamw>> update_;
  stream compute_, side_;
  cuda::event fork_, join_;
};

/// Five steps eager, five steps as replays of one graph; the values after each.
template <class Policy, class Write>
void check_replays(cuda::communicator& comm, Policy policy, Write write) {
  trainer<Policy> t(comm, policy);
  std::vector<std::vector<float>> eager;
  t.reset();
  for (std::size_t k = 0; k < 5; ++k) {
    t.prepare(k, write);
    t.step();
    eager.push_back(t.values());
  }
  t.reset();
  const auto step = cuda::graph::capture(t.compute(), [&] { t.step(); });
  const auto recorded = shared->w.recorder().size();
  MPI_REQUIRE(MPI_COMM_WORLD, step.count().kernels > 0);
  for (std::size_t k = 0; k < 5; ++k) {
    t.prepare(k, write);
    step.launch(t.compute());
    MPI_REQUIRE(MPI_COMM_WORLD, same_bits(t.values(), eager[k]));
  }
  MPI_REQUIRE(MPI_COMM_WORLD, shared->w.recorder().size() == recorded);
  t.reset(); // and eager once more, after the graph
  for (std::size_t k = 0; k < 2; ++k) {
    t.prepare(k, write);
    t.step();
    MPI_REQUIRE(MPI_COMM_WORLD, same_bits(t.values(), eager[k]));
  }
}

} // namespace

TEST_CASE("a step captured in a graph replays the bits of the eager step") {
  auto& comm = shared_comm();
  check_replays(comm, all_reduce_sum{}, integer_gradient);
  if (8 % comm.size() == 0) check_replays(comm, deterministic{8}, rough_gradient);
}

TEST_CASE("operations of one graph on two streams keep the host's order") {
  auto& comm = shared_comm();
  stream a = comm.make_stream(), b = comm.make_stream();
  const float n = static_cast<float>(comm.size());
  auto x = roomy_up(std::vector<float>(1000, 1.0f));
  comm.all_reduce<float>(x.span(), x.span(), reduce_op::sum, on(b)); // outside: not waited for
  b.synchronize();
  cuda::event begin, end;
  const auto both = cuda::graph::capture(a, [&] {
    begin.record(a);
    b.wait(begin); // takes part
    delay(a, std::chrono::milliseconds(5));
    comm.all_reduce<float>(x.span(), x.span(), reduce_op::sum, on(a));
    comm.all_reduce<float>(x.span(), x.span(), reduce_op::sum, on(b));
    end.record(b);
    a.wait(end);
  });
  both.launch(a);
  both.launch(a);
  a.synchronize();
  MPI_REQUIRE(MPI_COMM_WORLD, differences(x, std::vector<float>(1000, n * n * n * n * n)) == 0);
}

TEST_CASE("a body that throws leaves the stream usable") {
  auto& comm = shared_comm();
  stream s = comm.make_stream();
  CHECK_THROWS_AS(cuda::graph::capture(s, [] { throw data_error("file 7 is truncated"); }),
                  data_error);
  auto x = roomy_up(std::vector<float>(10, 1.0f));
  device::fill(x.span(), 3.0f, s);
  s.synchronize();
  MPI_REQUIRE(MPI_COMM_WORLD, differences(x, std::vector<float>(10, 3.0f)) == 0);
}
