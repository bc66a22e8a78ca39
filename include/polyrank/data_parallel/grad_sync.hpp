// grad_sync: the six lines that make a trainer data-parallel. Gradients are summed over all ranks
// in buckets, while backward still computes the next ones.
//
//     std::vector<parameter<float>> params{{"fc1", n1, w1, g1}, {"fc2", n2, w2, g2}};
//     grad_sync sync(comm, params);            // broadcasts the parameters from rank 0
//     for (...) {
//       sync.begin(micro, accumulate);         // per microbatch
//       ... kernel that writes g2 ...          // backward, last layer first
//       sync.ready(1, stream);                 // right after it
//       ... kernel that writes g1 ...
//       sync.ready(0, stream);
//       sync.finish(stream);                   // after the last microbatch: gradients are the mean
//     }
//
// Rules. Every rank makes the same begin and finish calls; the order of ready calls is free:
// buckets are issued in index order whatever finishes first. Each parameter is declared `ready` or
// `unused` once per microbatch (`sync_all` does the rest). Communication happens after the last
// microbatch only. Nothing here waits on the host; nothing allocates after construction.
//
// Gradient memory. A parameter with a `gradient` pointer keeps it: a bucket whose gradients lie end
// to end is reduced in place, others are packed. Without a pointer grad_sync owns it: see grad(i).
//
// With the `deterministic` policy a microbatch is a block: call begin(b, blocks / ranks), write (do
// not accumulate) each block's gradient into grad(i), where b = 0 ... blocks/ranks - 1. See
// reduce_policy.hpp.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/agree.hpp>
#include <polyrank/backend/buffer.hpp>
#include <polyrank/backend/concepts.hpp>
#include <polyrank/core/cost_model_file.hpp>
#include <polyrank/data_parallel/grad_sync_options.hpp>
#include <polyrank/data_parallel/layout.hpp>
#include <polyrank/data_parallel/parameter.hpp>
#include <polyrank/data_parallel/reduce_policy.hpp>
#include <polyrank/data_parallel/verify_replicas.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polyrank {

template <communicator Comm, element G = float, element V = G, class Policy = all_reduce_sum>
  requires reduce_policy<Policy, Comm, G> && element_operations<typename Comm::backend, G>
class grad_sync {
 public:
  using backend = typename Comm::backend;
  using stream = typename backend::stream;
  using event = typename backend::event;

  /// Agrees on the model with all ranks, broadcasts parameters and buffers. `comm` must outlive
  /// this. Throws mismatch_error (on every rank, naming the first difference), usage_error.
  /// @collective
  grad_sync(Comm& comm, std::vector<parameter<G, V>> parameters, Policy policy = {},
            grad_sync_options o = {})
      : comm_(&comm), parameters_(std::move(parameters)), policy_(policy), leave_(o.leave),
        communicates_(comm.size() > 1 || o.always_communicate),
        blocks_(policy.blocks_per_rank(comm.size())), stream_(comm.make_stream()) {
    plan(o);
    agree_on_model();
    if constexpr (requires { policy_.check(comm); }) policy_.check(comm);
    share_weights(o.weight);
    allocate(o);
    if (o.broadcast) broadcast(o.buffers);
  }

  grad_sync(grad_sync&&) noexcept = default;
  grad_sync& operator=(grad_sync&&) = delete;
  ~grad_sync() = default;

  /// Where gradient `i` must be written.
  [[nodiscard]] G* grad(std::size_t i) const {
    expects(i < parameters_.size(), "grad: parameter ", i, " of ", parameters_.size());
    return parameters_[i].gradient;
  }

  /// Starts microbatch `micro` of `n_micro`. Throws usage_error out of turn.
  void begin(std::size_t micro, std::size_t n_micro) {
    if (!batches_.empty() && step_ >= batches_[rank()])
      misuse("begin: this rank joined with ", batches_[rank()], " batches; call absent() now");
    if (micro >= n_micro)
      misuse("begin(", micro, ", ", n_micro, "): the microbatch is out of range");
    if (blocks_ != 0 && n_micro != blocks_)
      misuse("begin(", micro, ", ", n_micro, "): deterministic mode has ", blocks_,
             " blocks per rank");
    if (micro != next_micro_ || (micro > 0 && n_micro != n_micro_) || running_)
      misuse("begin(", micro, ", ", n_micro, "): expected ", running_ ? "finish()" : "microbatch ",
             running_ ? "" : detail::cat(next_micro_));
    start(micro, n_micro);
  }

  /// Gradient `i` of this microbatch has been enqueued on `producer`. Throws usage_error if it was
  /// declared before.
  void ready(std::size_t i, stream& producer) {
    if (i >= parameters_.size())
      misuse("ready(", i, "): there are ", parameters_.size(), " parameters");
    if (!running_) misuse("ready('", parameters_[i].name, "'): call begin first");
    if (parameters_[i].count == 0) return;
    if (declared_[i])
      misuse("ready('", parameters_[i].name, "'): declared twice in microbatch ", next_micro_ - 1);
    note_producer(state_[layout_.slots()[i].bucket], producer);
    declare(i);
  }

  /// Parameter `i` has no gradient in this microbatch: it is zeroed where nothing was accumulated
  /// yet.
  void unused(std::size_t i, stream& producer) {
    if (i >= parameters_.size())
      misuse("unused(", i, "): there are ", parameters_.size(), " parameters");
    if (running_ && !declared_[i] && (blocks_ != 0 || next_micro_ == 1))
      backend::fill(gradient(i), G{}, producer);
    ready(i, producer);
  }

  /// Declares everything not yet declared as ready: for a backward that is one call.
  void sync_all(stream& producer) {
    for (const std::size_t i : layout_.order())
      if (!declared_[i]) ready(i, producer);
  }

  /// Ends the microbatch; after the last one, makes `consumer` wait for the reduced gradients.
  /// Throws usage_error naming the parameters that were never declared; the other ranks learn it
  /// too.
  void finish(stream& consumer) {
    check_stream(consumer, "finish");
    if (!end_micro()) return;
    done_.record(stream_);
    consumer.wait(done_);
  }

  /// As finish(consumer), but after the last microbatch calls `each(i)` for every parameter that is
  /// not empty, in the order of their buckets; what it enqueues on `consumer` may read gradient i.
  /// So the update of the first buckets hides the reduction of the last ones.
  template <class Each>
  void finish(stream& consumer, Each each) {
    check_stream(consumer, "finish");
    if (!end_micro()) return;
    done_.record(stream_);
    if (!by_bucket_) consumer.wait(done_); // no bucket had an event in this first step
    for (std::size_t b = 0; b < state_.size(); ++b) {
      if (by_bucket_) consumer.wait(state_[b].reduced);
      for_each_parameter(b, each);
    }
    by_bucket_ = true;
    consumer.wait(done_);
  }

  /// Turns the sum that the last finish() left (or scaled) into the mean: 1 / (ranks *
  /// microbatches); with weights, 1 / (their sum * microbatches).
  [[nodiscard]] float grad_scale() const noexcept { return scale_; }

  /// For ranks with unequal numbers of batches: `batches` is how many steps this rank has data for.
  /// Returns the largest number of all ranks. Do that many steps, the last ones with absent() on
  /// ranks without a batch; each mean is over the ranks that have one. @collective
  [[nodiscard]] std::size_t join(std::size_t batches) {
    expects(blocks_ == 0,
            "join: deterministic mode fixes the work of every step; give all ranks the "
            "same number of batches");
    const std::vector<std::uint64_t> all = gather<std::uint64_t>(batches);
    batches_.assign(all.begin(), all.end());
    step_ = 0;
    return *std::max_element(batches_.begin(), batches_.end());
  }

  /// Takes part in a step of `n_micro` microbatches without a batch: contributes zero and weighs
  /// nothing. Only after join(), once this rank's batches are used up.
  void absent(std::size_t n_micro, stream& s) {
    if (running_ || next_micro_ != 0 || batches_.empty() || step_ < batches_[rank()])
      misuse("absent: this rank still has batches to do; see join()");
    start(n_micro - 1, n_micro);
    for (const std::size_t i : layout_.order()) {
      if (parameters_[i].count == 0) continue;
      backend::fill(gradient(i), G{}, s);
      ready(i, s);
    }
    finish(s);
  }

  /// On every `every`-th call: throws mismatch_error on all ranks, naming the first parameter whose
  /// bits differ between ranks. Waits for `s`. @collective
  void verify_replicas(stream& s, std::size_t every = 1) {
    if (++verify_calls_ % every == 0)
      polyrank::verify_replicas(*comm_, std::span<const parameter<G, V>>(parameters_), s);
  }

  [[nodiscard]] const polyrank::layout& layout() const noexcept { return layout_; }
  [[nodiscard]] const std::vector<parameter<G, V>>& parameters() const noexcept {
    return parameters_;
  }
  /// True where the arena is registered with the transport, on all ranks.
  [[nodiscard]] bool registered() const noexcept {
    if constexpr (windowed<Comm>)
      return window_.registered();
    else
      return false;
  }
  /// Bytes allocated: arena, folding arenas and scratch.
  [[nodiscard]] std::size_t bytes() const noexcept {
    std::size_t sum = arena_.size_bytes() + scratch_.size_bytes() + kept_.size_bytes();
    for (const auto& level : levels_) sum += level.size_bytes();
    return sum;
  }

 private:
  /// What happens to one bucket.
  struct bucket_state {
    std::span<G> data;       // reduced here
    bool packed = false;     // gradients are copied in before and out after
    std::size_t missing = 0; // parameters not yet declared in this microbatch
    struct producer {
      stream* where = nullptr;
      event written;
    };
    std::vector<producer> streams; // kept between steps, so that events are made once
    std::size_t producers = 0;     // in this microbatch
    event folded, reduced;
    std::string tag;
  };

  template <class... Pieces>
  [[noreturn]] void misuse(const Pieces&... pieces) {
    usage_error e(detail::cat(pieces...));
    // The peers wait in a collective that this rank will never join.
    if constexpr (abortable<Comm>)
      comm_->abort(detail::cat("rank ", comm_->rank(), ": ", e.what()));
    throw e;
  }

  /// Ends the microbatch; whether it was the last one of its step.
  [[nodiscard]] bool end_micro() {
    if (!running_) misuse("finish: call begin first");
    if (missing_ > 0) misuse("finish: never made ready (or unused): ", undeclared());
    running_ = false;
    if (next_micro_ < n_micro_) return false;
    next_micro_ = 0;
    scale_ = scale_of(step_++);
    return true;
  }

  void start(std::size_t micro, std::size_t n_micro) {
    n_micro_ = n_micro;
    next_micro_ = micro + 1;
    running_ = true;
    next_bucket_ = 0;
    missing_ = parameters_.size();
    std::fill(declared_.begin(), declared_.end(), false);
    for (std::size_t b = 0; b < state_.size(); ++b) {
      state_[b].missing = layout_.buckets()[b].last - layout_.buckets()[b].first;
      state_[b].producers = 0;
    }
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (parameters_[i].count == 0) declare(i); // nothing will be written
  }

  [[nodiscard]] std::size_t rank() const noexcept {
    return static_cast<std::size_t>(comm_->rank());
  }

  /// One value of every rank. @collective
  template <class T>
  [[nodiscard]] std::vector<T> gather(T mine) {
    std::vector<T> all;
    for (const std::string& word :
         comm_->control().all_gather({reinterpret_cast<const char*>(&mine), sizeof mine})) {
      all.emplace_back();
      std::memcpy(&all.back(), word.data(), sizeof mine);
    }
    return all;
  }

  void share_weights(float mine) {
    weights_ = gather(mine);
    for (std::size_t r = 0; r < weights_.size(); ++r) {
      weighted_ = weighted_ || weights_[r] != 1;
      if (!(weights_[r] > 0))
        throw on_every_rank(usage_error(detail::cat("grad_sync: the weight of rank ", r, " is ",
                                                    weights_[r], "; it must be positive")));
    }
    if (weighted_ && blocks_ != 0)
      throw on_every_rank(usage_error(
          "grad_sync: deterministic mode gives every block the same weight; leave weight = 1"));
  }

  /// 1 / (weights of the ranks that take part in step `step` * microbatches).
  [[nodiscard]] float scale_of(std::size_t step) const noexcept {
    float sum = 0;
    for (std::size_t r = 0; r < weights_.size(); ++r)
      if (batches_.empty() || step < batches_[r]) sum += weights_[r];
    return 1.0f / (sum * static_cast<float>(n_micro_));
  }

  [[nodiscard]] std::span<G> gradient(std::size_t i) const noexcept {
    return {parameters_[i].gradient, parameters_[i].count};
  }
  [[nodiscard]] std::string undeclared() const {
    std::string names;
    std::size_t left = 8;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (!declared_[i] && left > 0) {
        names += detail::cat(names.empty() ? "'" : ", '", parameters_[i].name, "'");
        if (--left == 0 && missing_ > 8) names += detail::cat(" and ", missing_ - 8, " more");
      }
    return names;
  }

  void plan(const grad_sync_options& o) {
    std::vector<std::size_t> counts;
    std::size_t total = 0;
    for (const auto& p : parameters_) {
      counts.push_back(p.count);
      total += p.count * sizeof(G);
      expects(!o.broadcast || p.value != nullptr || p.count == 0, "grad_sync: parameter '", p.name,
              "' has no value pointer, so it cannot be broadcast from rank 0; set it, or set "
              "options.broadcast = false");
      expects(blocks_ == 0 || p.gradient == nullptr, "grad_sync: parameter '", p.name,
              "' brings gradient memory of its own, but deterministic mode folds blocks in memory "
              "that grad_sync owns; "
              "leave the pointer null and write to grad(i)");
      if constexpr (requires { backend::check_pointer(p.value, std::string_view()); }) {
        if (p.count == 0) continue; // else: is it memory of this rank's device?
        backend::check_pointer(p.value,
                               detail::cat("grad_sync: value of parameter '", p.name, "'"));
        backend::check_pointer(p.gradient,
                               detail::cat("grad_sync: gradient of parameter '", p.name, "'"));
      }
    }
    // In deterministic mode the number of blocks, which is the same for any number of ranks: a
    // gradient's alignment, on which the bits of a matrix product may depend, then is too.
    const std::size_t ranks =
        static_cast<std::size_t>(comm_->size()) * std::max<std::size_t>(blocks_, 1);
    // Large enough to hide latency, small enough that most of backward is left to overlap with.
    const cost_model measured = agreed_cost_model(comm_->control());
    const std::size_t least = std::size_t{1} << 20;
    const std::size_t bucket_bytes = o.bucket_bytes != 0
                                         ? o.bucket_bytes
                                         : std::clamp(o.cost.value_or(measured).bucket_bytes(ranks),
                                                      least, std::max(least, total / 8));
    layout_ = polyrank::layout::make(
        counts, sizeof(G),
        {.bucket_bytes = bucket_bytes, .tail_bytes = o.tail_bytes, .order = o.order});
    declared_.resize(parameters_.size());
    refuse_overlap();
  }

  /// Tied tensors: one gradient under two names would be reduced twice, and be ready too early.
  void refuse_overlap() const {
    std::vector<const parameter<G, V>*> adopted;
    for (const auto& p : parameters_)
      if (p.gradient != nullptr && p.count > 0) adopted.push_back(&p);
    std::stable_sort(adopted.begin(), adopted.end(), [](const auto* a, const auto* b) {
      return std::less<>()(a->gradient, b->gradient);
    });
    for (std::size_t k = 1; k < adopted.size(); ++k)
      expects(
          adopted[k - 1]->gradient + adopted[k - 1]->count <= adopted[k]->gradient,
          "grad_sync: the gradients of '", adopted[k - 1]->name, "' and '", adopted[k]->name,
          "' overlap; declare a tied tensor once, and make it ready behind the last kernel that "
          "adds to it");
  }

  void agree_on_model() {
    std::string text = detail::cat("policy ", Policy::name, ", gradients ", name_of(dtype_of<G>),
                                   ", ", blocks_, " blocks per rank, leaving ",
                                   leave_ == gradients_hold::mean ? "means" : "sums", '\n');
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      text += detail::cat("parameter ", i, " '", parameters_[i].name, "' of ", parameters_[i].count,
                          ' ', name_of(dtype_of<V>), '\n');
    for (const polyrank::bucket& b : layout_.buckets())
      text += detail::cat("bucket of parameters ", layout_.order()[b.first], " to ",
                          layout_.order()[b.last - 1], ", ", b.elements.size(), " elements\n");
    agree(comm_->control(), "the ranks have different models", text);
  }

  void allocate(const grad_sync_options& o) {
    std::pmr::memory_resource& memory = o.memory != nullptr ? *o.memory : backend::memory();
    std::pmr::memory_resource* arena_memory = &memory;
    std::string refusal; // of a window
    if constexpr (windowed<Comm>) {
      if (comm_->size() == 1)
        refusal = "there is one rank";
      else if (!o.window)
        refusal = "it was told not to";
      else if (o.memory != nullptr && !o.memory->is_equal(comm_->window_memory()))
        refusal = "its arena is in the caller's memory";
      else
        arena_memory = &comm_->window_memory();
    }
    state_.resize(layout_.buckets().size());
    bool needs_arena = false;
    for (std::size_t b = 0; b < state_.size(); ++b) {
      state_[b].tag = detail::cat("bucket ", b);
      state_[b].data = contiguous(layout_.buckets()[b]);
      needs_arena =
          needs_arena || (state_[b].data.empty() && !layout_.buckets()[b].elements.empty());
    }
    if (needs_arena) arena_ = buffer<G>(layout_.arena_count(), *arena_memory);
    if constexpr (windowed<Comm>)
      window_ = comm_->register_window(arena_.data(), arena_.size_bytes(), refusal);
    for (std::size_t b = 0; b < state_.size(); ++b) {
      const range r = layout_.buckets()[b].elements;
      if (!state_[b].data.empty() || r.empty()) continue;
      state_[b].data = arena_.span().subspan(r.begin, r.size());
      for (std::size_t k = layout_.buckets()[b].first; k < layout_.buckets()[b].last; ++k)
        if (parameters_[layout_.order()[k]].gradient != nullptr) state_[b].packed = true;
    }
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      adopted_.push_back(parameters_[i].gradient != nullptr);
      if (!adopted_[i] && parameters_[i].count > 0)
        parameters_[i].gradient = arena_.data() + layout_.slots()[i].arena_offset;
    }
    if (blocks_ > 1)
      for (int level = 0; level < std::countr_zero(blocks_); ++level)
        levels_.emplace_back(arena_.size(), memory);
    if constexpr (detail::keeps_state<Policy>) {
      if (communicates_) kept_ = buffer<G>(policy_.kept(layout_.arena_count()), memory);
      backend::fill(kept_.span(), G{}, stream_);
    }
    if (communicates_)
      scratch_ = buffer<G>(policy_.scratch(layout_.largest_bucket(), comm_->size()), memory);
  }

  /// The memory of a bucket whose gradients all belong to the trainer and lie end to end, in any
  /// order.
  [[nodiscard]] std::span<G> contiguous(const polyrank::bucket& b) const {
    std::vector<std::span<G>> parts;
    for (std::size_t k = b.first; k < b.last; ++k) {
      const auto& p = parameters_[layout_.order()[k]];
      if (p.count == 0) continue;
      if (p.gradient == nullptr) return {};
      parts.emplace_back(p.gradient, p.count);
    }
    std::sort(parts.begin(), parts.end(),
              [](auto x, auto y) { return std::less<>()(x.data(), y.data()); });
    for (std::size_t k = 1; k < parts.size(); ++k)
      if (parts[k - 1].data() + parts[k - 1].size() != parts[k].data()) return {};
    return parts.empty() ? std::span<G>() : std::span<G>(parts[0].data(), b.elements.size());
  }

  void broadcast(const std::vector<std::span<std::byte>>& buffers) {
    if (comm_->size() == 1) return;
    for (const auto& p : parameters_)
      if (p.count > 0)
        comm_->template broadcast<V>(std::span<V>(p.value, p.count), 0, on(stream_, p.name));
    for (const auto b : buffers) comm_->template broadcast<std::byte>(b, 0, on(stream_, "buffer"));
    stream_.synchronize();
  }

  /// A stream of another device is the wrong one.
  void check_stream(const stream& s, std::string_view call) {
    if constexpr (requires { backend::stream_fault(s, stream_); }) {
      if (const std::string fault = backend::stream_fault(s, stream_); !fault.empty())
        misuse(call, ": ", fault);
    }
  }

  void note_producer(bucket_state& b, stream& producer) {
    check_stream(producer, "ready");
    for (std::size_t k = 0; k < b.producers; ++k)
      if (b.streams[k].where == &producer) return b.streams[k].written.record(producer);
    if (b.producers == b.streams.size()) b.streams.emplace_back();
    b.streams[b.producers].where = &producer;
    b.streams[b.producers++].written.record(producer);
  }

  void declare(std::size_t i) {
    declared_[i] = true;
    --missing_;
    bucket_state& b = state_[layout_.slots()[i].bucket];
    const bool last_micro = next_micro_ == n_micro_;
    if (--b.missing > 0) return;
    if (blocks_ > 1) fold(b, next_micro_ - 1);
    if (!last_micro) return;
    // One order on all ranks: bucket k leaves after bucket k-1, however early it is complete.
    for (; next_bucket_ < state_.size() && state_[next_bucket_].missing == 0; ++next_bucket_)
      reduce(next_bucket_);
  }

  /// Deterministic mode: adds block `block` into the binary counter, on the stream that completed
  /// the bucket. Bit k of the block number says that level k holds the sum of 2^k earlier blocks.
  void fold(bucket_state& b, std::size_t block) {
    if (b.data.empty()) return;
    stream& s = *b.streams[b.producers - 1].where;
    for (std::size_t k = 0; k + 1 < b.producers; ++k) s.wait(b.streams[k].written);
    const auto at = static_cast<std::size_t>(b.data.data() - arena_.data());
    const auto level = [&](std::size_t k) { return levels_[k].span().subspan(at, b.data.size()); };
    std::size_t carry = 0;
    for (; (block >> carry & 1) != 0; ++carry) {
      const bool stays = block + 1 < blocks_ && (block >> (carry + 1) & 1) == 0;
      backend::template add<G>(level(carry), b.data, stays ? level(carry + 1) : b.data, s);
    }
    if (carry == 0 && block + 1 < blocks_) backend::template copy<G>(b.data, level(0), s);
    // All producers may write the next block only after this.
    b.folded.record(s);
    for (std::size_t k = 0; k + 1 < b.producers; ++k) b.streams[k].where->wait(b.folded);
    b.streams[b.producers - 1].written.record(s);
  }

  void reduce(std::size_t index) {
    sum(index);
    if (by_bucket_) state_[index].reduced.record(stream_);
  }

  void sum(std::size_t index) {
    bucket_state& b = state_[index];
    for (std::size_t k = 0; k < b.producers; ++k) stream_.wait(b.streams[k].written);
    if (b.data.empty()) return;
    if (b.packed && communicates_) move(index, true);
    if (weighted_) scale(index, weights_[rank()]);
    if (communicates_) issue(index);
    if (leave_ == gradients_hold::mean) scale(index, scale_of(step_));
    if (b.packed && communicates_) move(index, false);
  }

  void issue(std::size_t index) {
    const bucket_state& b = state_[index];
    const auto where = on(stream_, b.tag);
    if constexpr (detail::keeps_state<Policy>) {
      const range r = layout_.buckets()[index].elements;
      policy_.issue(*comm_, b.data, kept_.span().subspan(r.begin, r.size()), scratch_.span(),
                    where);
    } else {
      policy_.issue(*comm_, b.data, scratch_.span(), where);
    }
  }

  void scale(std::size_t index, float factor) {
    if (factor == 1) return;
    if (state_[index].packed && !communicates_) // nothing was packed
      for_each_parameter(index,
                         [&](std::size_t i) { backend::scale(gradient(i), factor, stream_); });
    else
      backend::scale(state_[index].data, factor, stream_);
  }

  /// Copies the gradients that lie elsewhere into the bucket, or back.
  void move(std::size_t index, bool into_bucket) {
    for_each_parameter(index, [&](std::size_t i) {
      if (!adopted_[i]) return;
      const std::span<G> mine = gradient(i),
                         there =
                             arena_.span().subspan(layout_.slots()[i].arena_offset, mine.size());
      backend::template copy<G>(into_bucket ? mine : there, into_bucket ? there : mine, stream_);
    });
  }
  template <class F>
  void for_each_parameter(std::size_t bucket_index, F f) {
    const polyrank::bucket& b = layout_.buckets()[bucket_index];
    for (std::size_t k = b.first; k < b.last; ++k)
      if (parameters_[layout_.order()[k]].count > 0) f(layout_.order()[k]);
  }

  Comm* comm_;
  std::vector<parameter<G, V>> parameters_;
  Policy policy_;
  gradients_hold leave_;
  bool communicates_;
  std::size_t blocks_; // per rank and step in deterministic mode, else 0
  polyrank::layout layout_;
  std::vector<bool> declared_, adopted_;
  std::vector<bucket_state> state_;
  buffer<G> arena_, scratch_, kept_;     // kept_: what the policy keeps, by bucket
  detail::window_of<Comm>::type window_; // of the arena
  std::vector<buffer<G>> levels_;
  std::size_t next_micro_ = 0, n_micro_ = 1, next_bucket_ = 0, missing_ = 0, verify_calls_ = 0;
  bool running_ = false, weighted_ = false;
  bool by_bucket_ = false;           // whether each bucket records an event: someone asks for it
  std::size_t step_ = 0;             // finished steps since construction or join
  float scale_ = 1;                  // of the last finished step
  std::vector<float> weights_;       // of each rank
  std::vector<std::size_t> batches_; // of each rank, after join
  event done_;
  stream stream_; // last: drained before the memory goes
};

template <class Comm, class G, class V>
grad_sync(Comm&, std::vector<parameter<G, V>>) -> grad_sync<Comm, G, V, all_reduce_sum>;
template <class Comm, class G, class V, class Policy>
grad_sync(Comm&, std::vector<parameter<G, V>>, Policy) -> grad_sync<Comm, G, V, Policy>;
template <class Comm, class G, class V, class Policy>
grad_sync(Comm&, std::vector<parameter<G, V>>, Policy, grad_sync_options)
    -> grad_sync<Comm, G, V, Policy>;

} // namespace polyrank
