// Runs a lowered schedule: this rank's list of actions, with a model's stages, over any backend.
//
//     table t = lower(generate(schedule::zb_v, 4, 8), costs);
//     peer_transport link(comm, t.lanes);
//     std::vector<block> stages = ...;                  // chunk 0, chunk 1 of this rank
//     executor run(link, std::span(stages), t, {.rows = {32}}, compute);
//     run.step(1.0f / 256);                             // enqueues a whole step
//     run.synchronize();                                // gradients are there
//
// The host never waits inside step(): compute runs on one stream, each lane of the table on its
// own, and events order them. Microbatches may have different numbers of rows, the same ones in
// every step until set_rows(). What stages send each other is compared at construction, on every
// rank; every message carries its microbatch and step, which synchronize() compares.
//
// Memory is laid out at construction (plan.hpp), in one block: slots for what comes and goes, and a
// place for each activation. memory() tells simulate() the sizes, so that it predicts the peak.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/agree.hpp>
#include <polyrank/backend/buffer.hpp>
#include <polyrank/pipeline/costs.hpp>
#include <polyrank/pipeline/plan.hpp>
#include <polyrank/pipeline/stage.hpp>
#include <polyrank/pipeline/stamps.hpp>
#include <polyrank/pipeline/transport.hpp>
#include <polyrank/pipeline/validate.hpp>
#include <polyrank/pipeline/watch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory_resource>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::pipeline {

/// What a table may ask for beside the stages; each is enqueued on the stream it is given.
template <class Stream>
struct hooks {
  using of_stage = std::function<void(std::size_t stage, Stream&)>;
  of_stage reduce{};                        ///< REDUCE_GRAD: sum over the replicas
  of_stage tied{};                          ///< TIED_REDUCE: sum with the other end's gradient
  of_stage unshard{}, reshard{};            ///< gather the parameters, drop them
  std::function<void(Stream&)> optimizer{}; ///< OPTIMIZER: the update
};

template <class Stream>
struct executor_options {
  std::vector<std::size_t> rows{1}; ///< of each microbatch; a single number is for all
  pipeline::hooks<Stream> hooks{};
  bool poison = false;        ///< what is given back is filled with NaN, to find early reuse
  hang::ring* ring = nullptr; ///< learns which action the rank is at (host streams)
  std::pmr::memory_resource* memory = nullptr; ///< null: the backend's own
};

template <transport T, class S>
  requires stage<S, typename T::backend::stream>
class executor {
 public:
  using backend = typename T::backend;
  using stream = typename backend::stream;
  using event = typename backend::event;

  /// `stages`: of this rank, by chunk; stage c is t.shape.stage_of(rank, c). Transport, stages and
  /// `compute` must outlive this. @collective
  /// @throws on every rank, before anything runs: usage_error (sizes, missing functions or hooks),
  /// data_error (a table that does not run), mismatch_error (boundaries that do not fit)
  executor(T& link, std::span<S> stages, table t, executor_options<stream> o, stream& compute)
      : link_(&link), stages_(stages), table_(std::move(t)), options_(std::move(o)),
        compute_(&compute), rank_(static_cast<std::size_t>(link.rank())) {
    together(link_->control(), "pipeline", [&] { check_own(); });
    exchange_facts();
    together(link_->control(), "pipeline",
             [&] { plan_ = rank_plan(table_, rank_, facts_, max_rows()); });
    allocate();
  }
  executor(const executor&) = delete; // queued work refers to it
  executor& operator=(const executor&) = delete;
  /// Queued work runs (or is skipped, after a failure) before memory goes.
  ~executor() {
    const auto quietly = [](stream& s) {
      try {
        s.synchronize();
      } catch (...) { // reported by whoever waited for results
      }
    };
    quietly(*compute_);
    for_lanes(quietly);
  }

  /// Enqueues one step. `seed` is handed to the stages: 1 / (samples of the global batch), so that
  /// all sums over microbatches, replicas and stages are means.
  void step(float seed = 1) {
    seed_ = seed;
    ++steps_;
    for (event& e : lanes_) compute_->wait(e); // they read the last step's stamps
    stamps_.begin(steps_, *compute_);
    for_lanes([&](stream& s) { s.wait(stamps_.there()); });
    watch_.begin(link_->control(), *compute_);
    const std::span<const action> list = table_.of(rank_);
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].joined != 0)
        issue_pair(i), ++i;
      else
        issue(i);
    watch_.end(*compute_);
  }

  /// The host waits for the step; rethrows what failed. Compares the headers of all messages.
  /// @throws data_error naming a message that belongs to another microbatch or step
  void synchronize() {
    for_lanes([](stream& s) { s.synchronize(); });
    compute_->synchronize();
    stamps_.compare(steps_, *compute_);
  }

  /// Other microbatch sizes, from the next step on; at most those of the construction.
  /// @collective
  void set_rows(std::vector<std::size_t> rows) {
    together(link_->control(), "pipeline", [&] {
      expects(rows.size() == 1 || rows.size() == table_.shape.microbatches, rows.size(),
              " sizes for ", table_.shape.microbatches, " microbatches");
      for (const std::size_t r : rows)
        expects(r <= plan_.max_rows(), "a microbatch of ", r, " rows, but there is room for ",
                plan_.max_rows());
    });
    std::string text;
    for (const std::size_t r : rows) text += polyrank::detail::cat("microbatch of ", r, '\n');
    agree(link_->control(), "the ranks cut the batch differently", text);
    options_.rows = std::move(rows);
    place_rows();
  }

  /// Sizes of all stages of all ranks, in bytes: `memory` of costs, for simulate().
  [[nodiscard]] const std::vector<stage_memory>& memory() const noexcept { return facts_.memory; }
  /// Activations and contexts alive now, and at most, as counted while issuing.
  [[nodiscard]] std::size_t live_bytes() const noexcept { return live_; }
  [[nodiscard]] std::size_t peak_activation_bytes() const noexcept { return peak_; }
  /// With all slots: what simulate() calls peak_memory.
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return plan_.slot_bytes() + peak_; }
  /// What was allocated for it: more where blocks of different sizes leave gaps.
  [[nodiscard]] std::size_t reserved_bytes() const noexcept { return plan_.bytes(); }

  [[nodiscard]] const pipeline::table& table() const noexcept { return table_; }
  [[nodiscard]] stream& compute() noexcept { return *compute_; }
  [[nodiscard]] std::size_t rank() const noexcept { return rank_; }
  [[nodiscard]] T& link() noexcept { return *link_; }
  [[nodiscard]] action_watch<backend>& watch() noexcept { return watch_; }

 private:
  static constexpr bool splits = split_stage<S, stream>, whole = whole_stage<S, stream>;

  /// A buffer of a boundary: `ready` when its contents are there, `free` when nobody reads them.
  struct slot {
    event ready, free;
  };
  /// The slots of one kind of one stage.
  struct slots {
    std::vector<slot> all;
    slot& of(std::size_t microbatch) { return all[microbatch % all.size()]; }
  };
  struct local_stage {
    slots input, gradient, output, input_gradient;
    event done, gathered; // last gradient; parameters are there
    std::size_t finished = 0;
  };

  // Construction ---
  void check_own() const {
    check(table_.shape);
    const shape& s = table_.shape;
    expects(s.ranks == static_cast<std::size_t>(link_->size()), "the schedule is for ", s.ranks,
            " ranks, the communicator has ", link_->size());
    expects(stages_.size() == s.chunks, "the schedule has ", s.chunks,
            " stages per rank, this rank brings ", stages_.size());
    expects(table_.lanes == link_->policy(), "the table was lowered for another lane policy than ",
            "the transport was made for");
    expects(options_.rows.size() == 1 || options_.rows.size() == s.microbatches,
            "rows: ", options_.rows.size(), " sizes for ", s.microbatches, " microbatches");
    require_valid(table_);
    if (!table_.has_transfers())
      for (std::size_t b = 0; b + 1 < s.stages(); ++b)
        expects(!s.crosses(b), "the table has no transfers: give it to lower() first");
    if (table_.has(action_kind::input_grad))
      expects(splits,
              "the schedule computes input and weight gradients apart, but the stage has no ",
              missing_half(), "; write it (stage.hpp), or take a schedule that does not split");
    const auto needs = [&](action_kind k, const auto& hook, std::string_view name) {
      expects(!table_.has(k) || static_cast<bool>(hook), "the table has ", name_of(k),
              ", so options.hooks.", name, " must be set");
    };
    needs(action_kind::reduce, options_.hooks.reduce, "reduce");
    needs(action_kind::tied_reduce, options_.hooks.tied, "tied");
    needs(action_kind::unshard, options_.hooks.unshard, "unshard");
    needs(action_kind::reshard, options_.hooks.reshard, "reshard");
    needs(action_kind::optimizer, options_.hooks.optimizer, "optimizer");
  }
  [[nodiscard]] static std::string_view missing_half() {
    constexpr bool input = requires(S& s, const pass<stream>& p) { s.backward_input(p); };
    constexpr bool weight = requires(S& s, const pass<stream>& p) { s.backward_weight(p); };
    return input    ? "backward_weight()"
           : weight ? "backward_input()"
                    : "backward_input() and backward_weight()";
  }

  [[nodiscard]] std::size_t max_rows() const {
    return *std::max_element(options_.rows.begin(), options_.rows.end());
  }

  /// Every rank learns what all stages send, expect and hold. @collective
  void exchange_facts() {
    std::string common = polyrank::detail::cat(
        "ranks ", table_.shape.ranks, "\nmicrobatches ", table_.shape.microbatches, "\nchunks ",
        table_.shape.chunks, "\nactions with the hash ",
        hash_bytes(table_.actions.data(), table_.actions.size() * sizeof(action)), '\n');
    for (const std::size_t r : options_.rows)
      common += polyrank::detail::cat("microbatch of ", r, " rows\n");
    agree(link_->control(), "pipeline: the ranks run different schedules", common);
    std::string mine;
    for (const S& s : stages_) append(mine, s.inputs(), s.outputs(), s.bytes(max_rows()));
    facts_ = detail::facts(table_.shape, max_rows(), link_->control().all_gather(mine));
  }
  static void append(std::string& out, const std::vector<boundary>& in,
                     const std::vector<boundary>& to, const stage_bytes& b) {
    detail::pack(out, in);
    detail::pack(out, to);
    detail::pack(out, b);
  }

  void allocate() {
    auto& memory = options_.memory != nullptr ? *options_.memory : backend::memory();
    if (table_.slots.empty()) table_.slots = plan_.slots();
    bytes_ = buffer<std::byte>(plan_.bytes(), memory);
    local_.resize(stages_.size());
    for (std::size_t c = 0; c < stages_.size(); ++c) {
      const slot_counts& n = table_.slots[stage_at(c)];
      local_[c].input.all.resize(std::max<std::uint32_t>(1, n.activation));
      local_[c].gradient.all.resize(std::max<std::uint32_t>(1, n.gradient));
      local_[c].output.all.resize(std::max<std::uint32_t>(1, n.output));
      local_[c].input_gradient.all.resize(std::max<std::uint32_t>(1, n.input_gradient));
    }
    block_.assign(stages_.size() * table_.shape.microbatches, 0);
    lanes_.resize(max_lanes);
    trains_ = table_.has(action_kind::backward) || table_.has(action_kind::input_grad);
    for (const action& a : table_.of(rank_)) names_.push_back(detail::words_of(a));
    place_rows();
    stamps_.prepare(table_, rank_, *compute_, memory);
    watch_.prepare(table_.of(rank_).size(), options_.ring);
  }

  void place_rows() {
    rows_.clear(), first_row_.clear();
    std::size_t first = 0;
    for (std::size_t k = 0; k < table_.shape.microbatches; ++k) {
      rows_.push_back(options_.rows.size() == 1 ? options_.rows[0] : options_.rows[k]);
      first_row_.push_back(first);
      first += rows_.back();
    }
  }

  // One action ---
  [[nodiscard]] std::size_t stage_at(std::size_t chunk) const {
    return table_.shape.stage_of(rank_, chunk);
  }
  [[nodiscard]] std::size_t chunk_of(const action& a) const {
    return table_.shape.chunk_of(a.stage);
  }
  [[nodiscard]] local_stage& local(const action& a) { return local_[chunk_of(a)]; }
  [[nodiscard]] bool first(const action& a) const noexcept { return a.stage == 0; }
  [[nodiscard]] bool last(const action& a) const noexcept {
    return a.stage + std::size_t{1} == table_.shape.stages();
  }
  [[nodiscard]] bool from_below(const action& a) const {
    return !first(a) && table_.shape.crosses(a.stage - std::size_t{1});
  }
  [[nodiscard]] bool to_above(const action& a) const {
    return !last(a) && table_.shape.crosses(a.stage);
  }
  template <class Body>
  void for_lanes(Body body) {
    const std::size_t lanes = table_.lanes == lane_policy::single ? 2 : max_lanes;
    for (std::size_t lane = 1; lane < lanes; ++lane) body(link_->lane(lane));
  }
  using side = detail::slot_side;

  [[nodiscard]] std::span<std::byte> message(std::size_t stage, side which, std::size_t k) {
    return bytes_.span().subspan(plan_.offset(stage, which, k),
                                 plan_.message(stage, which).bytes(rows_[k]));
  }
  void point(std::vector<void*>& out, const action& a, side which, std::size_t k) {
    plan_.message(a.stage, which)
        .point(out, bytes_.data() + plan_.offset(a.stage, which, k), rows_[a.microbatch]);
  }
  void poison(std::span<std::byte> data, stream& s) {
    if (options_.poison && !data.empty())
      backend::template fill<float>(
          std::span<float>(reinterpret_cast<float*>(data.data()), data.size() / sizeof(float)),
          std::numeric_limits<float>::quiet_NaN(), s);
  }

  /// The tensor that stage `from` of this rank left for stage `to`: copied on the compute stream.
  void move_here(std::size_t from, side out, std::size_t to, side in, std::size_t k) {
    const std::span<std::byte> source = message(from, out, k);
    backend::template copy<std::byte>(source, message(to, in, k), *compute_);
    poison(source, *compute_);
  }

  /// The pass of a compute action; the pointer lists are of `n` (a pair needs two sets).
  [[nodiscard]] pass<stream> pass_of(const action& a, std::size_t n) {
    auto& p = pointers_[n];
    const std::size_t k = a.microbatch;
    const bool forward = a.kind == action_kind::forward || a.kind == action_kind::recompute;
    for (auto* list : {&p.in, &p.out, &p.dy, &p.dx}) list->clear();
    if (!first(a)) point(p.in, a, side::input, k);
    if (forward && !last(a))
      point(p.out, a, a.kind == action_kind::forward ? side::output : side::scratch, k);
    if (!forward && !last(a)) point(p.dy, a, side::gradient, k);
    if (!forward && a.kind != action_kind::weight_grad && !first(a))
      point(p.dx, a, side::input_gradient, k);
    return {.stream = *compute_,
            .stage = a.stage,
            .microbatch = k,
            .rows = rows_[k],
            .first_row = first_row_[k],
            .seed = seed_,
            .memory = bytes_.data() + block_[chunk_of(a) * table_.shape.microbatches + k],
            .input = p.in,
            .output = p.out,
            .output_gradient = p.dy,
            .input_gradient = p.dx};
  }

  void hold(std::size_t bytes) { live_ += bytes, peak_ = std::max(peak_, live_); }
  void drop(std::size_t at, std::size_t from, std::size_t to) {
    live_ -= to - from;
    poison(bytes_.span().subspan(at + from, to - from), *compute_);
  }

  /// What a compute action waits for, and its place.
  void before(std::size_t i) {
    const action a = table_.of(rank_)[i];
    local_stage& l = local(a);
    const std::size_t k = a.microbatch;
    std::size_t& block = block_[chunk_of(a) * table_.shape.microbatches + k];
    switch (a.kind) {
    case action_kind::forward:
      if (from_below(a))
        compute_->wait(l.input.of(k).ready);
      else if (!first(a))
        move_here(a.stage - std::size_t{1}, side::output, a.stage, side::input, k);
      if (to_above(a)) compute_->wait(l.output.of(k).free);
      [[fallthrough]];
    case action_kind::recompute:
      compute_->wait(l.gathered);
      block = plan_.block(i);
      hold(plan_.activation(a.stage));
      break;
    case action_kind::backward:
    case action_kind::input_grad:
      if (to_above(a))
        compute_->wait(l.gradient.of(k).ready);
      else if (!last(a))
        move_here(a.stage + std::size_t{1}, side::input_gradient, a.stage, side::gradient, k);
      if (from_below(a)) compute_->wait(l.input_gradient.of(k).free);
      compute_->wait(l.gathered);
      break;
    default:
      break;
    }
  }

  /// What a compute action leaves: messages to be sent, memory, slots.
  void after(std::size_t i) {
    const action a = table_.of(rank_)[i];
    local_stage& l = local(a);
    const std::size_t k = a.microbatch, cell = chunk_of(a) * table_.shape.microbatches + k;
    const std::size_t whole_block = plan_.activation(a.stage), context = plan_.context(a.stage);
    bool over = false;
    switch (a.kind) {
    case action_kind::forward:
      if (to_above(a)) l.output.of(k).ready.record(*compute_);
      if (plan_.dropped(i)) drop(block_[cell], 0, whole_block);
      over = !trains_;
      break;
    case action_kind::backward:
      if (from_below(a)) l.input_gradient.of(k).ready.record(*compute_);
      drop(block_[cell], 0, whole_block);
      over = true;
      break;
    case action_kind::input_grad:
      if (from_below(a)) l.input_gradient.of(k).ready.record(*compute_);
      drop(block_[cell], context, whole_block);
      break;
    case action_kind::weight_grad:
      drop(block_[cell], 0, context);
      over = true;
      break;
    default:
      break;
    }
    if (!over) return;
    if (!first(a)) poison(message(a.stage, side::input, k), *compute_);
    if (!last(a) && trains_) poison(message(a.stage, side::gradient, k), *compute_);
    if (from_below(a)) l.input.of(k).free.record(*compute_);
    if (to_above(a) && trains_) l.gradient.of(k).free.record(*compute_);
    if (++l.finished < table_.shape.microbatches) return;
    l.finished = 0;
    l.done.record(*compute_);
  }

  void compute(std::size_t i) {
    const action a = table_.of(rank_)[i];
    watch_.wait(names_[i], *compute_);
    before(i);
    watch_.start(i, names_[i], *compute_);
    S& s = stages_[chunk_of(a)];
    const pass<stream> p = pass_of(a, 0);
    switch (a.kind) {
    case action_kind::input_grad:
      if constexpr (splits) s.backward_input(p);
      break;
    case action_kind::weight_grad:
      if constexpr (splits) s.backward_weight(p);
      break;
    case action_kind::backward:
      if constexpr (whole) {
        s.backward(p);
      } else {
        s.backward_input(p);
        s.backward_weight(p);
      }
      break;
    default:
      s.forward(p);
    }
    watch_.stop(i, *compute_);
    after(i);
  }

  /// A forward and the backward of another stage, together if the stage can.
  void issue_pair(std::size_t i) {
    if constexpr (overlap_stage<S, stream>) {
      const action f = table_.of(rank_)[i], b = table_.of(rank_)[i + 1];
      if (b.kind == action_kind::backward) {
        before(i), before(i + 1);
        watch_.start(i, names_[i], *compute_), watch_.start(i + 1, names_[i + 1], *compute_);
        const pass<stream> forward = pass_of(f, 0);
        stages_[chunk_of(f)].forward_backward(forward, stages_[chunk_of(b)], pass_of(b, 1));
        watch_.stop(i, *compute_), watch_.stop(i + 1, *compute_);
        after(i), after(i + 1);
        return;
      }
    }
    compute(i), compute(i + 1);
  }

  void issue(std::size_t i) {
    const action a = table_.of(rank_)[i];
    if (a.kind <= action_kind::recompute) return compute(i);
    const std::size_t lane = lane_of(table_.shape, table_.lanes, rank_, a);
    stream& s = lane == 0 ? *compute_ : link_->lane(lane);
    local_stage& l = local(a);
    const hooks<stream>& h = options_.hooks;
    switch (a.kind) {
    case action_kind::send_forward:
      send(i, side::output, l.output.of(a.microbatch), s);
      break;
    case action_kind::send_backward:
      send(i, side::input_gradient, l.input_gradient.of(a.microbatch), s);
      break;
    case action_kind::recv_forward:
      receive(i, side::input, l.input.of(a.microbatch), s);
      break;
    case action_kind::recv_backward:
      receive(i, side::gradient, l.gradient.of(a.microbatch), s);
      break;
    case action_kind::unshard:
      l.gathered.record(*compute_); // all compute before it
      s.wait(l.gathered);
      hook(i, s, [&] { h.unshard(a.stage, s); });
      l.gathered.record(s);
      break;
    case action_kind::tied_reduce:
      s.wait(l.done);
      hook(i, s, [&] { h.tied(a.stage, s); });
      break;
    case action_kind::reduce:
      s.wait(l.done);
      hook(i, s, [&] { h.reduce(a.stage, s); });
      break;
    case action_kind::optimizer:
      for (event& e : lanes_) s.wait(e);
      hook(i, s, [&] { h.optimizer(s); });
      break;
    default:
      hook(i, s, [&] { h.reshard(a.stage, s); });
    }
    if (lane > 0) lanes_[lane].record(s);
  }
  template <class Body>
  void hook(std::size_t i, stream& s, Body body) {
    watch_.start(i, names_[i], s);
    body();
    watch_.stop(i, s);
  }

  void send(std::size_t i, side which, slot& from, stream& s) {
    const action a = table_.of(rank_)[i];
    const std::span<std::byte> data = message(a.stage, which, a.microbatch);
    s.wait(from.ready);
    stamps_.write(i, data, s);
    watch_.start(i, {}, s);
    link_->exchange(table_.shape, a, data, names_[i]);
    watch_.stop(i, s);
    poison(data, s);
    from.free.record(s);
  }
  void receive(std::size_t i, side which, slot& to, stream& s) {
    const action a = table_.of(rank_)[i];
    const std::span<std::byte> data = message(a.stage, which, a.microbatch);
    s.wait(to.free);
    watch_.start(i, {}, s);
    link_->exchange(table_.shape, a, data, names_[i]);
    watch_.stop(i, s);
    stamps_.read(i, data, s);
    to.ready.record(s);
  }
  T* link_;
  std::span<S> stages_;
  pipeline::table table_;
  executor_options<stream> options_;
  stream* compute_;
  std::size_t rank_;
  detail::facts facts_;
  rank_plan plan_;
  buffer<std::byte> bytes_;
  std::vector<local_stage> local_;
  std::vector<std::size_t> block_; // per cell: where its activation is now
  std::vector<event> lanes_;       // the last action of each
  std::vector<std::string> names_; // per action
  std::vector<std::size_t> rows_, first_row_;
  message_stamps<backend> stamps_;
  struct {
    std::vector<void*> in, out, dy, dx;
  } pointers_[2];
  action_watch<backend> watch_;
  float seed_ = 1;
  std::uint64_t steps_ = 0;
  std::size_t live_ = 0, peak_ = 0;
  bool trains_ = true;
};

} // namespace polyrank::pipeline
