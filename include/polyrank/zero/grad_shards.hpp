// The gradient half of a sharded optimizer: where each gradient is written, and how the buckets
// become fp32 sums of which each rank keeps its shard. Used by sharded_optimizer; alone, it is a
// reduce-scatter of gradients that overlaps with backward.
//
//     grad_shards<Comm, bf16> grads(comm, parameters, layout, memory, options);
//     grads.begin(micro, n_micro);
//     bf16* g = grads.grad(i, stream);      // write the gradient here, on `stream`; do not add
//     grads.ready(i, stream);
//     grads.finish(stream);
//     grads.sum(b)                          // fp32, this rank's shard of bucket b
//
// Every microbatch writes (never adds to) its gradients; the sum over microbatches is made here, in
// fp32. The pointer of grad(i) holds until ready(i), for one microbatch: at stage 2 buckets share a
// ring of buffers, and grad() makes `stream` wait until the buffer's last contents have left.
//
// 16-bit gradients are sent as they are and summed in fp32 in rank order (an all-to-all instead of
// a ring, which would round at every hop); fp32 ones go by the communicator's reduce_scatter.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/buffer.hpp>
#include <polyrank/backend/concepts.hpp>
#include <polyrank/data_parallel/parameter.hpp>
#include <polyrank/data_parallel/reduce_policy.hpp>
#include <polyrank/zero/ops.hpp>
#include <polyrank/zero/ready_tracker.hpp>
#include <polyrank/zero/shard_layout.hpp>
#include <polyrank/zero/zero_memory.hpp>

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace polyrank {

template <communicator Comm, element G>
  requires(collectives<Comm, float> && collectives<Comm, G> && point_to_point<Comm, float> &&
           element_operations<typename Comm::backend, float>)
class grad_shards {
 public:
  using backend = typename Comm::backend;
  using stream = typename backend::stream;
  using event = typename backend::event;

  /// `across`, if there are replicas of the shards, connects this rank with its counterparts.
  /// @throws usage_error for gradient pointers that stage 2 or deterministic mode cannot adopt
  template <element V>
  grad_shards(Comm& comm, Comm* across, const std::vector<parameter<G, V>>& parameters,
              const shard_layout& l, const zero_memory& m, std::pmr::memory_resource& memory)
      : comm_(&comm), across_(across), layout_(l), memory_(m), slots_(m.slots, memory),
        wire_(m.wire, memory), sums_(m.sums, memory), scratch_(m.scratch, memory), tracker_(l),
        buckets_(l.buckets().size()), ring_(m.ring_slots), stream_(comm.make_stream()) {
    for (std::size_t k = 0; k < m.levels; ++k) levels_.emplace_back(m.level, memory);
    for (const auto& p : parameters) {
      const bool adopted = p.gradient != nullptr && p.count > 0;
      const std::size_t stage = l.buckets()[l.slots()[names_.size()].bucket].stage;
      expects(!adopted || stage < 2, "parameter '", p.name,
              "' brings gradient memory of its own, but stage 2 keeps gradients only until they "
              "are reduced, in a ring of buffers that grad() hands out; leave the pointer null and "
              "write to grad(i, stream), or take stage 1");
      expects(!adopted || m.shape.blocks_per_rank == 0, "parameter '", p.name,
              "' brings gradient memory of its own, but deterministic mode folds blocks in memory "
              "of its own; leave the pointer null and write to grad(i, stream)");
      names_.push_back(p.name);
      adopted_.push_back(adopted ? p.gradient : nullptr);
      adopts_ = adopts_ || adopted;
    }
    for (std::size_t b = 0; b < buckets_.size(); ++b) buckets_[b].tag = detail::cat("bucket ", b);
  }

  grad_shards(grad_shards&&) noexcept = default;
  grad_shards& operator=(grad_shards&&) = delete;
  ~grad_shards() = default;

  /// Starts microbatch `micro` of `n_micro`.
  void begin(std::size_t micro, std::size_t n_micro) {
    const std::size_t blocks = memory_.shape.blocks_per_rank;
    if (micro >= n_micro)
      misuse("begin(", micro, ", ", n_micro, "): the microbatch is out of range");
    if (blocks > 0 && n_micro != blocks)
      misuse("begin(", micro, ", ", n_micro, "): deterministic mode has ", blocks,
             " blocks per rank");
    if (blocks == 0 && n_micro > memory_.shape.microbatches)
      misuse("begin(", micro, ", ", n_micro, "): memory was laid out for at most ",
             memory_.shape.microbatches, " microbatches; raise options.microbatches");
    if (running_ || micro != next_micro_ || (micro > 0 && n_micro != n_micro_))
      misuse("begin(", micro, ", ", n_micro, "): expected ",
             running_ ? "finish()" : detail::cat("microbatch ", next_micro_));
    n_micro_ = n_micro;
    next_micro_ = micro + 1;
    running_ = true;
    tracker_.start(layout_);
    for (state& b : buckets_) b.slot = nullptr;
    issue_complete();
  }

  /// Where gradient i of this microbatch must be written by work on `s`; null if it has no
  /// elements. Adopted memory is returned as it is.
  [[nodiscard]] G* grad(std::size_t i, stream& s) {
    check(i, "grad");
    if (layout_.slots()[i].count == 0) return nullptr;
    if (adopted_[i] != nullptr) return adopted_[i];
    const std::size_t b = layout_.slots()[i].bucket;
    G* const slot = slot_of(b);
    s.wait(*buckets_[b].free);
    return slot + (layout_.slots()[i].arena_offset - layout_.buckets()[b].base);
  }

  /// Gradient i of this microbatch has been enqueued on `producer`.
  void ready(std::size_t i, stream& producer) {
    check(i, "ready");
    if (layout_.slots()[i].count == 0) return;
    if (tracker_.declared(i))
      misuse("ready('", names_[i], "'): declared twice in microbatch ", next_micro_ - 1);
    tracker_.declare(i, producer);
    issue_complete();
  }

  /// Parameter i has no gradient in this microbatch: it counts as zero.
  void unused(std::size_t i, stream& producer) {
    check(i, "unused");
    if (layout_.slots()[i].count > 0 && !tracker_.declared(i))
      backend::fill(std::span<G>(grad(i, producer), layout_.slots()[i].count), G{}, producer);
    ready(i, producer);
  }

  /// Ends the microbatch. Throws usage_error naming the parameters that were never declared; the
  /// other ranks learn it too.
  void finish(stream& s) {
    if (!running_) misuse("finish: call begin first");
    if (tracker_.missing() > 0)
      misuse("finish: never made ready (or unused): ",
             tracker_.undeclared([this](std::size_t i) { return names_[i]; }));
    running_ = false;
    if (next_micro_ == n_micro_) next_micro_ = 0;
    if (!adopts_) return;
    packed_.record(stream_); // the trainer writes its own memory next, without asking for it
    s.wait(packed_);
  }

  /// Whether the last microbatch of a step is running or has just ended.
  [[nodiscard]] bool last() const noexcept { return next_micro_ == n_micro_ || next_micro_ == 0; }
  [[nodiscard]] bool between_steps() const noexcept { return !running_ && next_micro_ == 0; }
  /// Buckets issued in this microbatch.
  [[nodiscard]] std::size_t issued() const noexcept { return tracker_.taken(); }
  /// This rank's shard of bucket b, summed over ranks and microbatches; valid after reduced(b).
  [[nodiscard]] std::span<float> sum(std::size_t b) const {
    const range mine = layout_.buckets()[b].shard(comm_->rank());
    if (mine.empty()) return {};
    switch (home_of(layout_.buckets()[b], memory_.shape)) {
    case gradient_home::in_place:
      if constexpr (std::is_same_v<G, float>)
        return slots_.span().subspan(memory_.slot_at[b] + mine.begin, mine.size());
      return {};
    case gradient_home::full:
      return sums_.span().subspan(memory_.sum_at[b] + mine.begin, mine.size());
    case gradient_home::shard:
      break;
    }
    return sums_.span().subspan(memory_.sum_at[b], mine.size());
  }
  [[nodiscard]] const event& reduced(std::size_t b) const { return buckets_[b].reduced; }
  /// 1 / (ranks * microbatches) of the step: turns sums into means.
  [[nodiscard]] float mean() const noexcept {
    const int replicas = across_ != nullptr ? across_->size() : 1;
    return 1.0f / (static_cast<float>(comm_->size() * replicas) * static_cast<float>(n_micro_));
  }
  /// Collectives are issued on this stream.
  [[nodiscard]] stream& issue_stream() noexcept { return stream_; }

  /// Call it when everything that reads the sums has been waited for by issue_stream(): the next
  /// step may write where they are.
  void release() {
    for (state& b : buckets_) b.own_free.record(stream_);
  }
  /// Puts the sizes of what is allocated here into `m`.
  void measure(zero_memory& m) const noexcept {
    m.slots = slots_.size();
    m.wire = wire_.size();
    m.sums = sums_.size();
    m.scratch = scratch_.size();
    m.levels = levels_.size();
    m.level = levels_.empty() ? 0 : levels_.front().size();
  }
  /// Where non-finite local gradients are counted, by parameter, in backend memory; null: nobody
  /// looks.
  void count_bad(std::uint32_t* counts) noexcept { bad_ = counts; }

  template <class... Pieces>
  [[noreturn]] void misuse(const Pieces&... pieces) {
    usage_error e(detail::cat(pieces...));
    // The peers wait in a collective that this rank will never join.
    if constexpr (abortable<Comm>)
      comm_->abort(detail::cat("rank ", comm_->rank(), ": ", e.what()));
    throw e;
  }

 private:
  struct state {
    G* slot = nullptr;     // of this microbatch
    event* free = nullptr; // the slot's
    event own_free;        // of a bucket with a slot of its own
    event reduced;
    std::string tag;
  };
  struct ring_slot {
    static constexpr std::size_t nobody = static_cast<std::size_t>(-1);
    std::size_t holder = nobody;
    event free;
  };

  void check(std::size_t i, const char* call) {
    if (i >= names_.size()) misuse(call, "(", i, "): there are ", names_.size(), " parameters");
    if (!running_) misuse(call, "('", names_[i], "'): call begin first");
  }

  /// The buffer that bucket b is written to in this microbatch.
  G* slot_of(std::size_t b) {
    state& s = buckets_[b];
    if (s.slot != nullptr) return s.slot;
    if (has_own_slot(layout_.buckets()[b], memory_.shape)) {
      s.free = &s.own_free;
      return s.slot = slots_.data() + memory_.slot_at[b];
    }
    ring_slot& r = ring_[next_slot_];
    if (r.holder != ring_slot::nobody)
      misuse("grad: all ", ring_.size(),
             " bucket buffers are in use, by buckets that are not yet "
             "complete; buckets ",
             tracker_.taken(), " to ", b,
             " are open at once. Make gradients "
             "ready in about the reverse order of declaration, or raise options.ring");
    r.holder = b;
    s.free = &r.free;
    s.slot = slots_.data() + (memory_.slots - memory_.ring_slots * memory_.ring_slot) +
             next_slot_ * memory_.ring_slot;
    next_slot_ = (next_slot_ + 1) % ring_.size();
    return s.slot;
  }

  void issue_complete() {
    for (std::size_t b = 0; tracker_.take(b);) {
      if (layout_.buckets()[b].count > 0) consume(b);
      if (next_micro_ == n_micro_) buckets_[b].reduced.record(stream_);
    }
  }

  void consume(std::size_t b) {
    const shard_bucket& bucket = layout_.buckets()[b];
    G* const slot = slot_of(b);
    state& s = buckets_[b];
    tracker_.wait_for_producers(b, stream_);
    for (const std::size_t i : bucket.members)
      if (adopted_[i] != nullptr)
        backend::template copy<G>(
            std::span<const G>(adopted_[i], layout_.slots()[i].count),
            std::span<G>(slot + (layout_.slots()[i].arena_offset - bucket.base),
                         layout_.slots()[i].count),
            stream_);
    if (bad_ != nullptr)
      for (const std::size_t i : bucket.members)
        if (layout_.slots()[i].count > 0)
          zero_ops<backend>::template count_nonfinite<G>(
              {slot + (layout_.slots()[i].arena_offset - bucket.base), layout_.slots()[i].count},
              bad_ + i, stream_);

    const std::span<G> data(slot, bucket.padded);
    const auto where = on(stream_, s.tag);
    const bool last = next_micro_ == n_micro_;
    switch (home_of(bucket, memory_.shape)) {
    case gradient_home::in_place:
      if constexpr (std::is_same_v<G, float>) reduce_in_place(bucket, data, where);
      break;
    case gradient_home::full:
      if (memory_.shape.blocks_per_rank > 0)
        fold(b, data);
      else
        add_up(b, data);
      if (last && memory_.shape.blocks_per_rank == 0)
        reduce_in_place(bucket, sums_.span().subspan(memory_.sum_at[b], bucket.padded), where);
      break;
    case gradient_home::shard:
      reduce_into_shard(b, data, where);
      break;
    }
    if (last && across_ != nullptr && across_->size() > 1 && !sum(b).empty())
      across_->template all_reduce<float>(sum(b), sum(b), reduce_op::sum, where);
    s.free->record(stream_);
    for (ring_slot& r : ring_)
      if (r.holder == b) r.holder = ring_slot::nobody;
  }

  void to_float(std::span<const G> in, std::span<float> out) {
    if constexpr (std::is_same_v<G, float>)
      backend::template copy<float>(in, out, stream_);
    else
      backend::template cast<float, G>(in, out, stream_);
  }

  void reduce_in_place(const shard_bucket& b, std::span<float> data, on<stream> where) {
    if (comm_->size() == 1) return;
    if (!b.cut()) {
      comm_->template all_reduce<float>(data.first(b.count), data.first(b.count), reduce_op::sum,
                                        where);
    } else {
      const auto mine = data.subspan(static_cast<std::size_t>(comm_->rank()) * b.chunk, b.chunk);
      comm_->template reduce_scatter<float>(data, mine, reduce_op::sum, where);
    }
  }

  /// Microbatches of stages 0 and 1: sum += data, all of the bucket.
  void add_up(std::size_t b, std::span<const G> data) {
    const std::size_t n = layout_.buckets()[b].count;
    const std::span<float> sum = sums_.span().subspan(memory_.sum_at[b], n);
    if (next_micro_ == 1) return to_float(data.first(n), sum);
    if constexpr (std::is_same_v<G, float>) {
      backend::template add<float>(sum, data.first(n), sum, stream_);
    } else {
      to_float(data.first(n), scratch_.span().first(n));
      backend::template add<float>(sum, scratch_.span().first(n), sum, stream_);
    }
  }

  /// Deterministic mode: the tree of reduce_policy.hpp. Bit k of the block number says that level k
  /// holds the sum of 2^k earlier blocks.
  void fold(std::size_t b, std::span<const G> data) {
    const shard_bucket& bucket = layout_.buckets()[b];
    const std::size_t block = next_micro_ - 1, n = bucket.count;
    const std::span<float> sum = sums_.span().subspan(memory_.sum_at[b], n);
    const auto level = [&](std::size_t k) { return levels_[k].span().subspan(bucket.base, n); };
    to_float(data.first(n), sum);
    std::size_t carry = 0;
    for (; (block >> carry & 1) != 0; ++carry)
      backend::template add<float>(level(carry), sum, sum, stream_);
    if (block + 1 < n_micro_) return backend::template copy<float>(sum, level(carry), stream_);
    if (comm_->size() > 1)
      deterministic{}.issue<Comm, float>(*comm_, sum, scratch_.span(),
                                         on(stream_, buckets_[b].tag));
  }

  /// Stage 2, and 16-bit gradients: the sum over ranks of this microbatch, added to the shard.
  void reduce_into_shard(std::size_t b, std::span<G> data, on<stream> where) {
    const shard_bucket& bucket = layout_.buckets()[b];
    const bool first = next_micro_ == 1;
    const std::size_t n = bucket.cut() ? bucket.chunk : bucket.count;
    const std::span<float> sum = sums_.span().subspan(memory_.sum_at[b], n);
    const std::span<float> out = first ? sum : scratch_.span().first(n);
    if (!bucket.cut()) {
      to_float(data.first(n), out);
      if (comm_->size() > 1) comm_->template all_reduce<float>(out, out, reduce_op::sum, where);
    } else if constexpr (std::is_same_v<G, float>) {
      comm_->template reduce_scatter<float>(data, out, reduce_op::sum, where);
    } else {
      // out (the first chunk of scratch, if it is scratch), then one contribution after the other
      const std::span<float> one = scratch_.span().subspan(first ? 0 : n, n);
      const std::span<G> in = wire_.span().first(data.size());
      comm_->template all_to_all<G>(data, in, where);
      to_float(in.first(n), out);
      for (std::size_t r = 1; r < static_cast<std::size_t>(comm_->size()); ++r) {
        to_float(in.subspan(r * n, n), one);
        backend::template add<float>(out, one, out, stream_);
      }
    }
    if (!first) backend::template add<float>(sum, out, sum, stream_);
  }

  Comm *comm_, *across_;
  shard_layout layout_;
  zero_memory memory_;
  buffer<G> slots_, wire_;
  buffer<float> sums_, scratch_;
  std::vector<buffer<float>> levels_;
  std::vector<std::string> names_;
  std::vector<G*> adopted_;
  bool adopts_ = false, running_ = false;
  ready_tracker<stream, event> tracker_;
  std::vector<state> buckets_;
  std::vector<ring_slot> ring_;
  std::uint32_t* bad_ = nullptr;
  std::size_t next_slot_ = 0, next_micro_ = 0, n_micro_ = 1;
  event packed_;
  stream stream_; // last: drained before the memory goes
};

} // namespace polyrank
