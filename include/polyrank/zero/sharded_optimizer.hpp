// An optimizer whose state is spread over the ranks (ZeRO stages 1 and 2, Rajbhandari et al. 2020,
// https://arxiv.org/abs/1910.02054). Each rank keeps fp32 masters and moments of its shard only,
// gets the summed gradients of its shard, updates it, and all ranks gather the new values bucket by
// bucket while the next forward pass has begun.
//
//     std::vector<parameter<bf16>> params{{"fc1", n1}, {"fc2", n2}};
//     sharded_optimizer<adamw, Comm, bf16> opt(comm, params, {.lr = 1e-3}, {.stage = 2});
//     ... write the initial values to opt.value(i) ...
//     opt.load_values(stream);                     // rank 0's are everybody's
//     for (...) {
//       opt.set_rate(schedule(step));
//       for (micro ...) {
//         opt.begin(micro, n_micro);
//         ... forward; before layer i reads its weights: opt.wait_param(i, stream) ...
//         ... backward: write (do not add) the gradient to opt.grad(i, stream) ...
//         opt.ready(i, stream);
//         opt.finish(stream);
//       }
//       opt.step(stream);                          // waits for nothing on the host
//     }
//
// Stage 0 has the same interface with everything on every rank. With options.blocks, gradients are
// folded as in deterministic mode (data_parallel/reduce_policy.hpp), the same for all stages: bits
// do not depend on stage, number of ranks or residency, as long as values and gradients are fp32.
//
// Options may differ between groups of parameters: pass parameter_groups<O> (optim/
// parameter_groups.hpp) in the place of O's options. Stages too: options.placements.
//
// Types: O the optimizer, V of the values, G of the gradients, Residency on_device or on_host.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/agree.hpp>
#include <polyrank/backend/buffer.hpp>
#include <polyrank/data_parallel/parameter.hpp>
#include <polyrank/optim/parameter_groups.hpp>
#include <polyrank/zero/gather_values.hpp>
#include <polyrank/zero/grad_shards.hpp>
#include <polyrank/zero/model_text.hpp>
#include <polyrank/zero/offload.hpp>
#include <polyrank/zero/offload_setup.hpp>
#include <polyrank/zero/ops.hpp>
#include <polyrank/zero/options.hpp>
#include <polyrank/zero/step_numbers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace polyrank {

template <elementwise_optimizer O, communicator Comm, element V = float, element G = V,
          class Residency = on_device>
  requires(collectives<Comm, V> && collectives<Comm, double> &&
           has_zero_ops<typename Comm::backend>)
class sharded_optimizer {
 public:
  using backend = typename Comm::backend;
  using stream = typename backend::stream;
  using event = typename backend::event;
  using ops = zero_ops<backend>;
  static constexpr bool offloads = std::is_same_v<Residency, on_host>;
  /// Values in fp32 on the device are their own masters.
  static constexpr bool keeps_masters = !std::is_same_v<V, float>;

  /// Agrees on model and options with all ranks. `comm`, and `across` if there are replicas of the
  /// shards (shards inside a host, replicas over hosts: `across` connects counterparts), must
  /// outlive this. A parameter with a `value` pointer stays where it is (and costs copies); the
  /// others are put into one arena, see value(i). Gradient pointers are adopted at stages 0 and 1.
  /// @throws usage_error (options), mismatch_error, out_of_memory; host memory is judged together
  /// @collective
  sharded_optimizer(Comm& comm, const std::vector<parameter<G, V>>& parameters,
                    const typename O::options& for_all, const sharded_options& o = {},
                    Residency home = {}, Comm* across = nullptr)
      : sharded_optimizer(comm, parameters, parameter_groups<O>(names_of(parameters), for_all), o,
                          home, across) {}
  /// The same with options by group; the groups have the parameters' names, in their order.
  sharded_optimizer(Comm& comm, std::vector<parameter<G, V>> parameters, parameter_groups<O> groups,
                    const sharded_options& o = {}, Residency home = {}, Comm* across = nullptr)
      : comm_(&comm), across_(across), parameters_(std::move(parameters)),
        groups_(std::move(groups)), options_(o), layout_(make_layout()), plan_(make_plan(home)),
        grads_(comm, across, parameters_, layout_, plan_, memory()),
        values_(plan_.values, memory()), masters_(plan_.device_masters, memory()),
        state_(plan_.device_state, memory()), blocks_(plan_.blocks, memory()),
        control_(plan_.shape.groups, memory()), bad_(plan_.counters, memory()),
        buckets_(layout_.buckets().size()), work_(comm.make_stream()) {
    agree_on_model();
    place_values();
    place_pieces();
    if (o.count_bad_gradients) {
      forget_bad();
      grads_.count_bad(bad_.data());
    }
    if constexpr (offloads) make_host(home);
  }
  sharded_optimizer(const sharded_optimizer&) = delete; // queued work refers to it
  sharded_optimizer& operator=(const sharded_optimizer&) = delete;
  /// Queued work refers to members: it runs (or is skipped, after a failure) before they go.
  ~sharded_optimizer() {
    const auto quietly = [](auto& what) {
      try {
        what.synchronize();
      } catch (...) { // reported by whoever waited for results
      }
    };
    if constexpr (offloads)
      if (host_ != nullptr) quietly(*host_);
    quietly(work_);
    quietly(grads_.issue_stream());
  }

  /// Where parameter i is: the trainer's own pointer, or a place in the arena; null if it is empty.
  [[nodiscard]] V* value(std::size_t i) const {
    expects(i < parameters_.size(), "value: parameter ", i, " of ", parameters_.size());
    return parameters_[i].value;
  }

  /// Takes the values now there (written by work on `s`) as the start: rank 0's go to all ranks,
  /// state becomes zero, steps start from 1. Waits. @collective
  void load_values(stream& s) {
    s.synchronize();
    stream& c = grads_.issue_stream();
    for (const auto& p : parameters_) {
      if (p.count == 0) continue;
      const std::span<V> all(p.value, p.count);
      if (across_ != nullptr && across_->size() > 1)
        across_->template broadcast<V>(all, 0, on(c, p.name));
      if (comm_->size() > 1) comm_->template broadcast<V>(all, 0, on(c, p.name));
    }
    c.synchronize();
    backend::fill(state_.span(), 0.0f, work_);
    const step_record fresh{.scaler = initial(options_.scaler)};
    backend::template copy<std::byte>({reinterpret_cast<const std::byte*>(&fresh), sizeof fresh},
                                      record_bytes(), work_);
    if constexpr (keeps_masters)
      for (const auto& b : buckets_)
        for (const auto& of_group : b.pieces)
          for (const auto& p : of_group)
            backend::template cast<float, V>(p.data.value, p.data.master, work_);
    if constexpr (offloads)
      for (std::size_t b = 0; b < buckets_.size(); ++b)
        for (const auto& [at, to] : buckets_[b].uploads) host_->load(b, to, at);
    work_.synchronize();
    steps_ = 0;
    loaded_ = true;
  }

  /// Goes on after `steps` steps: call load_values() with the values of then, fill masters and
  /// state (for_each_fragment), then this, with record() of then. Waits.
  void resume_at(std::uint64_t steps, const step_record& then) {
    if (!loaded_) grads_.misuse("resume_at: call load_values first");
    backend::template copy<std::byte>({reinterpret_cast<const std::byte*>(&then), sizeof then},
                                      record_bytes(), work_);
    work_.synchronize();
    steps_ = steps;
  }

  /// The norm counts what all ranks of `others` have: the stages of a pipeline, say, whose
  /// parameters are different ones. Call it before the first step, with the same options on all of
  /// them.
  /// @collective over `others`
  void norm_over(Comm& others) {
    others_ = &others;
    const std::vector<std::string> all =
        others.control().all_gather(detail::cat(own_blocks_.size()));
    std::size_t total = 0, before = 0;
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (static_cast<int>(r) == others.rank()) before = total;
      total += std::stoull(all[r]);
    }
    blocks_ = buffer<double>(total, memory());
    own_blocks_ = {before, before + own_blocks_.size()};
  }

  /// The learning-rate factor of the coming step; set it before begin(0, ...).
  void set_rate(double factor) noexcept { rate_ = factor; }

  /// Starts microbatch `micro` of `n_micro`; each writes its own gradient.
  void begin(std::size_t micro, std::size_t n_micro) {
    if (!loaded_) grads_.misuse("begin: call load_values first");
    if (micro == 0) noted_ = 0;
    grads_.begin(micro, n_micro);
    note_issued();
  }
  /// Where the gradient of parameter i must be written by work on `s` in this microbatch.
  [[nodiscard]] G* grad(std::size_t i, stream& s) { return grads_.grad(i, s); }
  /// Gradient i has been enqueued on `producer`.
  void ready(std::size_t i, stream& producer) {
    grads_.ready(i, producer);
    note_issued();
  }
  /// Parameter i has no gradient in this microbatch.
  void unused(std::size_t i, stream& producer) {
    grads_.unused(i, producer);
    note_issued();
  }
  /// Ends the microbatch.
  void finish(stream& s) { grads_.finish(s); }

  /// Clips (or skips), updates, and starts to gather the new values. Work of `s` so far may still
  /// read the old ones; later work must call wait_param. @collective
  void step(stream& s) {
    if (!grads_.between_steps() || noted_ != buckets_.size())
      grads_.misuse("step: finish all microbatches first");
    trained_.record(s);
    const clip_policy policy = options_.clip == clip_policy::previous_step && steps_ == 0
                                   ? clip_policy::exact
                                   : options_.clip;
    const update_control control = control_of(policy);
    if (policy == clip_policy::exact) conclude();
    work_.wait(trained_);
    for (std::size_t g = 0; g < plan_.shape.groups; ++g)
      ops::template prepare<O>(numbers(g), groups_.groups()[g].settings, control, work_);
    if constexpr (offloads) host_->allow_up(trained_);
    // Forward reads the bucket first that backward finished last.
    for (std::size_t b = buckets_.size(); b-- > 0;) {
      if (on_host_now(b) && policy == clip_policy::exact) update_on_host(b, control);
      for (std::size_t g = 0; g < plan_.shape.groups; ++g)
        if (const auto& pieces = buckets_[b].pieces[g]; !pieces.empty())
          ops::template update<O, V>(pieces, numbers(g), options_.stochastic_seed, work_);
      send_up(b);
    }
    for (std::size_t b = buckets_.size(); b-- > 0;) gather(b);
    if (policy == clip_policy::previous_step) conclude();
    read_.record(work_);
    grads_.issue_stream().wait(read_);
    grads_.release();
    ++steps_;
  }

  /// `s` waits for the new values of parameter i: call it before the first kernel that reads them.
  void wait_param(std::size_t i, stream& s) const {
    expects(i < parameters_.size(), "wait_param: parameter ", i, " of ", parameters_.size());
    s.wait(buckets_[layout_.slots()[i].bucket].gathered);
  }
  void wait_all(stream& s) const {
    for (const auto& b : buckets_) s.wait(b.gathered);
  }

  /// In backend memory, for work on a stream that has waited for the last step: multiply the loss
  /// by it.
  [[nodiscard]] const float* loss_scale() const noexcept { return &device_record()->scaler.scale; }
  /// Norm, factor and verdict of the last step, on the host. Waits for it.
  [[nodiscard]] step_record record() {
    step_record r;
    backend::template copy<std::byte>(record_bytes(), {reinterpret_cast<std::byte*>(&r), sizeof r},
                                      work_);
    work_.synchronize();
    return r;
  }
  /// Which ranks had gradients that were not finite since the last call, and in which parameters:
  /// "rank 2: 'fc1.weight' (3 elements)"; empty if none. Waits. @collective
  /// @throws usage_error unless options.count_bad_gradients is set
  [[nodiscard]] std::string bad_gradients() {
    expects(options_.count_bad_gradients,
            "bad_gradients: nobody counted; set options.count_bad_gradients");
    grads_.issue_stream().synchronize();
    std::vector<std::uint32_t> counts(bad_.size());
    backend::template copy<std::byte>(std::as_bytes(bad_.span()),
                                      std::as_writable_bytes(std::span(counts)), work_);
    forget_bad();
    std::string mine;
    for (std::size_t i = 0; i < counts.size(); ++i)
      if (counts[i] != 0) mine += detail::cat(mine.empty() ? "'" : ", '", parameters_[i].name, "'");
    return by_rank(comm_->control().all_gather(mine));
  }

  [[nodiscard]] const shard_layout& layout() const noexcept { return layout_; }
  [[nodiscard]] const zero_memory& plan() const noexcept { return plan_; }
  /// The plan with the sizes of what was allocated in the place of its own.
  [[nodiscard]] zero_memory in_use() const {
    zero_memory m = plan_;
    grads_.measure(m);
    m.values = values_.size();
    m.device_masters = masters_.size();
    m.device_state = state_.size();
    m.blocks = blocks_.size();
    m.counters = bad_.size();
    if constexpr (offloads) host_->measure(m);
    return m;
  }
  [[nodiscard]] const std::vector<parameter<G, V>>& parameters() const noexcept {
    return parameters_;
  }
  [[nodiscard]] const std::vector<std::string>& warnings() const noexcept { return warnings_; }
  [[nodiscard]] Comm& communicator() const noexcept { return *comm_; }
  /// This rank's fp32 masters and state of bucket b: spans in device or in host memory.
  struct shard_state {
    std::span<float> master;
    state_planes<O> state;
  };
  /// Piece by piece: visit(fragment, shard_state). Call synchronize() first.
  template <class Visit>
  void for_each_fragment(Visit visit) const {
    for (const fragment& f : layout_.fragments(comm_->rank())) {
      const std::size_t b = layout_.slots()[f.parameter].bucket;
      const std::size_t at = layout_.in_shard(f, comm_->rank());
      shard_state s;
      if constexpr (offloads)
        if (on_host_now(b)) {
          const auto& h = host_->shard(b);
          visit(f, shard_state{h.master.subspan(at, f.count), part_of(h.state, at, f.count)});
          continue;
        }
      if constexpr (keeps_masters)
        s.master = masters_.span().subspan(plan_.device_at[b] + at, f.count);
      else
        s.master = {parameters_[f.parameter].value + f.offset, f.count};
      s.state = part_of(planes_of<O>(state_.span()), plan_.device_at[b] + at, f.count);
      visit(f, s);
    }
  }
  /// The host waits until the last step, its gathering included, has run.
  void synchronize() {
    if constexpr (offloads) host_->synchronize();
    work_.synchronize();
    grads_.issue_stream().synchronize();
  }

 private:
  struct state {
    std::vector<std::vector<shard_piece<O, float, V>>> pieces; // of this rank, on the device
    std::vector<group_run> runs;                               // of its shard in host memory
    std::vector<upload<V>> uploads;
    event updated, gathered;
  };

  [[nodiscard]] std::pmr::memory_resource& memory() const {
    return options_.memory != nullptr ? *options_.memory : backend::memory();
  }
  [[nodiscard]] std::span<std::byte> record_bytes() const noexcept {
    return {reinterpret_cast<std::byte*>(device_record()), sizeof(step_record)};
  }
  /// In backend memory.
  [[nodiscard]] step_record* device_record() const noexcept { return &control_.data()->record; }
  [[nodiscard]] step_numbers<O>* numbers(std::size_t group) const noexcept {
    return control_block::numbers_of<O>(control_.data() + group);
  }
  void forget_bad() {
    const std::vector<std::uint32_t> none(bad_.size());
    backend::template copy<std::byte>(std::as_bytes(std::span(none)),
                                      std::as_writable_bytes(bad_.span()), work_);
    work_.synchronize();
  }
  static state_planes<O> part_of(state_planes<O> planes, std::size_t at, std::size_t count) {
    if constexpr (O::state_count > 0)
      for (auto& p : planes) p = p.subspan(at, count);
    return planes;
  }
  template <class Has>
  [[nodiscard]] bool adopts(Has has) const {
    return std::any_of(parameters_.begin(), parameters_.end(), has);
  }
  /// Whether this rank's shard of bucket b is in host memory.
  [[nodiscard]] bool on_host_now(std::size_t b) const {
    return offloads && plan_.on_host[b] && !layout_.buckets()[b].shard(comm_->rank()).empty();
  }

  [[nodiscard]] shard_layout make_layout() const {
    options_.check(dtype_of<V>, across_ != nullptr);
    expects(groups_.names() == names_of(parameters_),
            "sharded_optimizer: the parameter groups have other names than the parameters");
    std::vector<std::size_t> counts;
    for (const auto& p : parameters_) counts.push_back(p.count);
    return shard_layout::make(counts, comm_->size(), sizeof(G),
                              {.stage = options_.stage,
                               .placements = options_.placements,
                               .bucket_bytes = options_.bucket_bytes,
                               .tail_bytes = options_.tail_bytes});
  }

  [[nodiscard]] zero_memory make_plan(const Residency& home) const {
    zero_shape s{.gradient = sizeof(G),
                 .value = sizeof(V),
                 .states = O::state_count,
                 .microbatches = options_.microbatches,
                 .ring = options_.ring,
                 .adopts_values = adopts([](const auto& p) { return p.value != nullptr; }),
                 .adopts_gradients = adopts([](const auto& p) { return p.gradient != nullptr; }),
                 .offload = offloads,
                 .on_device = backend::on_device,
                 .counts_bad = options_.count_bad_gradients,
                 .groups = groups_.groups().size()};
    if (options_.blocks > 0)
      s.blocks_per_rank = deterministic{options_.blocks}.blocks_per_rank(comm_->size());
    if constexpr (offloads) {
      expects(home.fraction > 0 && home.fraction <= 1, "offload: the fraction is ", home.fraction,
              "; it must be in (0, 1], and on_device{} keeps everything on the device");
      s.fraction = home.fraction;
    }
    return zero_memory::of(layout_, comm_->rank(), s, std::is_same_v<G, bf16>);
  }

  void agree_on_model() {
    agree(comm_->control(), "the ranks have different models",
          describe_model(parameters_, groups_, options_) + layout_.describe());
    if (std::is_same_v<G, fp16> && !options_.scaler.enabled)
      warnings_.push_back("gradients are fp16, but the loss scaler is off: small gradients become "
                          "zero; set options.scaler.enabled (bf16 needs none)");
  }

  /// Gives each parameter without memory a place in the arena.
  void place_values() {
    const bool adopts = plan_.shape.adopts_values;
    refuse_ties(parameters_);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      auto& p = parameters_[i];
      if (p.count == 0) continue;
      expects(!adopts || p.value != nullptr, "parameter '", p.name,
              "' has no value pointer, but others have; give all of them one, or none");
      if (!adopts) p.value = values_.data() + layout_.slots()[i].arena_offset;
      if constexpr (requires { backend::check_pointer(p.value, std::string_view()); }) {
        backend::check_pointer(p.value, detail::cat("value of parameter '", p.name, "'"));
        if (p.gradient != nullptr)
          backend::check_pointer(p.gradient, detail::cat("gradient of parameter '", p.name, "'"));
      }
    }
  }

  /// What this rank updates, as pieces that are contiguous everywhere.
  void place_pieces() {
    const state_planes<O> planes = planes_of<O>(state_.span());
    for (state& b : buckets_) b.pieces.resize(groups_.groups().size());
    for (const fragment& f : layout_.fragments(comm_->rank())) {
      const slot& where = layout_.slots()[f.parameter];
      const std::size_t at = layout_.in_shard(f, comm_->rank());
      const std::span<V> value(parameters_[f.parameter].value + f.offset, f.count);
      const std::size_t group = groups_.group_of(f.parameter);
      state& mine = buckets_[where.bucket];
      if (on_host_now(where.bucket)) {
        if (mine.runs.empty() || mine.runs.back().group != group)
          mine.runs.push_back({group, {at, at}});
        mine.runs.back().elements.end = at + f.count;
        add_upload(mine.uploads, {at, value});
        continue;
      }
      shard_piece<O, float, V> p;
      p.logical = where.logical_offset + f.offset;
      p.data.gradient = grads_.sum(where.bucket).subspan(at, f.count);
      p.data.state = part_of(planes, plan_.device_at[where.bucket] + at, f.count);
      if constexpr (keeps_masters) {
        p.data.master = masters_.span().subspan(plan_.device_at[where.bucket] + at, f.count);
        p.data.value = value;
      } else {
        p.data.master = value;
      }
      auto& pieces = mine.pieces[group];
      if (!pieces.empty() && pieces.back().continues(p))
        pieces.back().append(p);
      else
        pieces.push_back(p);
    }
  }

  void make_host(const on_host& home) {
    const std::size_t threads =
        set_up_offload(comm_->control(), plan_.host_bytes(), home.threads, warnings_);
    take_together(comm_->control(), [&] {
      host_ =
          std::make_unique<host_half>(layout_, plan_, comm_->rank(), groups_, threads, home.memory,
                                      memory(), [this] { return comm_->make_stream(); });
    });
  }

  [[nodiscard]] grad_scale_terms terms() const {
    return {.mean = grads_.mean(), .max_norm = options_.max_norm, .scaler = options_.scaler};
  }
  [[nodiscard]] update_control control_of(clip_policy policy) const {
    return {.record = device_record(),
            .policy = policy,
            .terms = terms(),
            .step = steps_ + 1,
            .rate = rate_,
            .stochastic_seed = options_.stochastic_seed};
  }

  /// For each bucket whose last reduction has been issued: its squares, and its way to the host.
  void note_issued() {
    if (!grads_.last()) return;
    for (; noted_ < grads_.issued(); ++noted_) {
      const std::size_t b = noted_;
      const std::span<float> sums = grads_.sum(b);
      if (options_.clip != clip_policy::none) square(b, sums);
      if constexpr (offloads) {
        if (!on_host_now(b)) continue;
        host_->bring(b, sums, grads_.reduced(b));
        const bool early = options_.clip == clip_policy::none ||
                           (options_.clip == clip_policy::previous_step && steps_ > 0);
        if (early) update_on_host(b, control_of(options_.clip));
      }
    }
  }

  /// Squares of this rank's part of bucket b; what another rank counts is zero here.
  void square(std::size_t b, std::span<const float> sums) {
    const shard_bucket& bucket = layout_.buckets()[b];
    const std::span<double> blocks =
        blocks_.span().subspan(own_blocks_.begin + bucket.first_block, bucket.blocks());
    if (blocks.empty()) return;
    work_.wait(grads_.reduced(b));
    const bool everywhere = !bucket.cut() && bucket.owner < 0; // one rank counts it
    if (comm_->size() > 1 || !bucket.counted) backend::fill(blocks, 0.0, work_);
    if (sums.empty() || !bucket.counted || (everywhere && comm_->rank() != 0)) return;
    const std::size_t first = bucket.shard(comm_->rank()).begin / norm_block;
    ops::squares(sums, blocks.subspan(first, ceil_div(sums.size(), norm_block)), work_);
  }

  /// The norm over all ranks, and what it means for the step.
  void conclude() {
    if ((comm_->size() > 1 || others_ != nullptr) && blocks_.size() > 0) {
      stream& c = grads_.issue_stream();
      const std::span<double> all = blocks_.span(),
                              own = all.subspan(own_blocks_.begin, own_blocks_.size());
      if (others_ != nullptr) {
        backend::fill(all.first(own_blocks_.begin), 0.0, work_);
        backend::fill(all.subspan(own_blocks_.end), 0.0, work_);
      }
      squared_.record(work_);
      c.wait(squared_);
      if (comm_->size() > 1 && !own.empty())
        comm_->template all_reduce<double>(own, own, reduce_op::sum, on(c, "norm"));
      if (others_ != nullptr)
        others_->template all_reduce<double>(all, all, reduce_op::sum, on(c, "norm of all"));
      summed_.record(c);
      work_.wait(summed_);
    }
    ops::conclude(blocks_.span(), device_record(), terms(), work_);
    concluded_.record(work_);
    if constexpr (offloads) host_->bring_record(device_record(), concluded_);
  }

  void update_on_host(std::size_t b, const update_control& control) {
    if constexpr (offloads) host_->update(b, buckets_[b].runs, control);
  }

  /// After this, `updated` says that the device has this rank's new values of bucket b.
  void send_up(std::size_t b) {
    state& s = buckets_[b];
    if constexpr (offloads)
      if (on_host_now(b)) {
        for (const auto& [at, to] : s.uploads) host_->send(b, at, to);
        return;
      }
    s.updated.record(work_);
  }

  /// All ranks get the new values of bucket b.
  void gather(std::size_t b) {
    const shard_bucket& bucket = layout_.buckets()[b];
    state& s = buckets_[b];
    stream& c = grads_.issue_stream();
    if constexpr (offloads)
      c.wait(on_host_now(b) ? host_->sent(b) : s.updated);
    else
      c.wait(s.updated);
    const bool staged = plan_.shape.adopts_values;
    const std::span<V> arena =
        values_.size() == 0 ? std::span<V>()
                            : values_.span().subspan(staged ? 0 : bucket.base, bucket.padded);
    gather_values(*comm_, bucket, layout_.slots(), parameters_, arena, staged, c);
    s.gathered.record(c);
  }

  using host_half = std::conditional_t<offloads, host_state<backend, O, V, G>, int>;

  Comm *comm_, *across_;
  std::vector<parameter<G, V>> parameters_;
  parameter_groups<O> groups_;
  sharded_options options_;
  shard_layout layout_;
  zero_memory plan_;
  std::vector<std::string> warnings_;
  grad_shards<Comm, G> grads_;
  buffer<V> values_;
  buffer<float> masters_, state_;
  buffer<double> blocks_;
  Comm* others_ = nullptr;
  range own_blocks_{0, blocks_.size()};
  buffer<control_block> control_;
  buffer<std::uint32_t> bad_; // non-finite local gradients, by parameter
  std::vector<state> buckets_;
  std::unique_ptr<host_half> host_;
  std::size_t noted_ = 0;
  std::uint64_t steps_ = 0;
  double rate_ = 1;
  bool loaded_ = false;
  event trained_, squared_, summed_, concluded_, read_;
  stream work_; // last: drained before the memory goes
};

} // namespace polyrank
