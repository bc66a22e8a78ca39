// The part of a sharded optimizer whose state is in host memory (ZeRO-Offload, Ren et al. 2021,
// https://arxiv.org/abs/2101.06840). A pipeline over buckets, on three streams:
//
//     down   gradient of bucket k to the host, as soon as it is reduced: while backward runs
//     cpu    update of bucket k by all threads, while bucket k+1 comes down
//     up     new values of bucket k back, while bucket k+1 is updated
//
// Roofline: 2 to 4 bytes a parameter down (bf16 as it is, else fp32), the value's 2 to 4 bytes up,
// and 28 + both bytes a parameter of host memory traffic (AdamW: read g, p, m, v, write p, m, v).
// Memory is one slab for each kind of data, of exactly the size needed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/buffer.hpp>
#include <polyrank/optim/parameter_groups.hpp>
#include <polyrank/zero/cpu_pool.hpp>
#include <polyrank/zero/ops.hpp>
#include <polyrank/zero/shard_layout.hpp>
#include <polyrank/zero/slab.hpp>
#include <polyrank/zero/zero_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace polyrank {

/// Elements of a shard whose parameters are in one group.
struct group_run {
  std::size_t group = 0;
  range elements{};
};

/// Where elements of a shard go to on the device.
template <element V>
struct upload {
  std::size_t at = 0; ///< of the shard's elements
  std::span<V> to;
};
/// Adds one that may go on where the last one ends.
template <element V>
void add_upload(std::vector<upload<V>>& all, const upload<V>& next) {
  if (!all.empty() && all.back().at + all.back().to.size() == next.at &&
      all.back().to.data() + all.back().to.size() == next.to.data())
    all.back().to = {all.back().to.data(), all.back().to.size() + next.to.size()};
  else
    all.push_back(next);
}

template <class Backend, elementwise_optimizer O, element V, element G>
class host_state {
 public:
  using stream = typename Backend::stream;
  using event = typename Backend::event;
  /// In which gradients come down: bf16 sums are rounded to bf16; fp16 sums may be out of range.
  using transfer = std::conditional_t<std::is_same_v<G, bf16>, bf16, float>;

  /// `memory` is the host's (null: slabs of our own), `backend_memory` the backend's; `make_stream`
  /// is called for the three streams. `groups` must outlive this.
  template <class MakeStream>
  host_state(const shard_layout& l, const zero_memory& m, int rank,
             const parameter_groups<O>& groups, std::size_t threads,
             std::pmr::memory_resource* memory, std::pmr::memory_resource& backend_memory,
             MakeStream make_stream)
      : groups_(&groups), numbers_(groups.groups().size()), pool_(threads),
        slabs_(zero_ops<Backend>::transfers(), &pool_),
        masters_(m.host_masters, memory != nullptr ? *memory : slabs_),
        state_(m.host_state, memory != nullptr ? *memory : slabs_),
        gradients_(m.host_gradients, memory != nullptr ? *memory : slabs_),
        values_(m.host_values, memory != nullptr ? *memory : slabs_),
        record_(m.host_masters == 0 ? 0 : 1, memory != nullptr ? *memory : slabs_),
        rounded_(m.rounded, backend_memory), buckets_(l.buckets().size()), down_(make_stream()),
        cpu_(make_stream()), up_(make_stream()) {
    const state_planes<O> planes = planes_of<O>(state_.span());
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      const range mine = l.buckets()[b].shard(rank);
      if (!m.on_host[b] || mine.empty()) continue;
      const std::size_t at = m.host_at[b], n = mine.size();
      const std::size_t first = l.buckets()[b].members.front();
      piece& p = buckets_[b].data;
      p = {{masters_.span().subspan(at, n),
            gradients_.span().subspan(at, n),
            {},
            values_.span().subspan(at, n)},
           l.slots()[first].logical_offset + mine.begin};
      if constexpr (O::state_count > 0)
        for (std::size_t k = 0; k < O::state_count; ++k) p.data.state[k] = planes[k].subspan(at, n);
    }
  }

  host_state(const host_state&) = delete; // queued work refers to it
  host_state& operator=(const host_state&) = delete;

  [[nodiscard]] std::size_t threads() const noexcept { return pool_.size(); }
  /// The shard of bucket b in host memory; its spans are empty if it is not here.
  [[nodiscard]] const mixed_range<O, transfer, V>& shard(std::size_t b) const {
    return buckets_[b].data.data;
  }

  /// Puts the sizes of what is allocated here into `m`.
  void measure(zero_memory& m) const noexcept {
    m.host_masters = masters_.size();
    m.host_state = state_.size();
    m.host_gradients = gradients_.size();
    m.host_values = values_.size();
    m.rounded = rounded_.size();
  }

  /// Masters from the values of bucket b in device memory; state zero. Waits.
  void load(std::size_t b, std::span<const V> values, std::size_t at) {
    piece& p = buckets_[b].data;
    const auto here = p.data.part(at, at + values.size());
    // What the device has already is sent again where a step is skipped.
    Backend::template copy<V>(values, here.value, down_);
    zero_ops<Backend>::on_cpu(
        [this, here] {
          pool_.share(here.master.size(), [&](std::size_t begin, std::size_t end) {
            for (std::size_t i = begin; i < end; ++i)
              here.master[i] = static_cast<float>(here.value[i]);
            for (const auto& plane : here.state)
              std::fill(plane.begin() + offset(begin), plane.begin() + offset(end), 0.0f);
          });
        },
        down_);
    down_.synchronize();
  }

  /// Bucket b's sums come down once they are `reduced`. Rounded by the device, where half of the
  /// bytes are enough.
  void bring(std::size_t b, std::span<const float> sums, const event& reduced) {
    state& s = buckets_[b];
    down_.wait(reduced);
    down_.wait(s.updated); // of the step before, which reads where this is written
    const std::span<transfer> to(
        gradients_.data() + (s.data.data.gradient.data() - gradients_.data()), sums.size());
    if constexpr (std::is_same_v<transfer, float>) {
      Backend::template copy<float>(sums, to, down_);
    } else if constexpr (!Backend::on_device) {
      Backend::template cast<transfer, float>(sums, to, down_);
    } else {
      const std::span<transfer> half = rounded_.span().first(sums.size());
      Backend::template cast<transfer, float>(sums, half, down_);
      Backend::template copy<transfer>(half, to, down_);
    }
    s.landed.record(down_);
  }

  /// The record comes down once it is `concluded`.
  void bring_record(const step_record* record, const event& concluded) {
    if (record_.size() == 0) return;
    down_.wait(concluded);
    down_.wait(last_update_);
    Backend::template copy<std::byte>(
        {reinterpret_cast<const std::byte*>(record), sizeof *record},
        std::span<std::byte>(reinterpret_cast<std::byte*>(record_.data()), sizeof *record), down_);
    record_landed_.record(down_);
  }

  /// Updates bucket b, which consists of `runs` (they must live until then), when its gradient
  /// (and, for policies that read it, the record) has landed.
  void update(std::size_t b, std::span<const group_run> runs, update_control control) {
    state& s = buckets_[b];
    cpu_.wait(s.landed);
    if (control.policy != clip_policy::none) cpu_.wait(record_landed_);
    cpu_.wait(s.sent); // of the step before, which reads where this is written
    control.record = record_.data();
    zero_ops<Backend>::on_cpu(
        [this, p = &s.data, runs, control, level = best_simd()] {
          for (std::size_t g = 0; g < numbers_.size(); ++g)
            numbers_[g] = resolve<O>(control, groups_->groups()[g].settings);
          if (numbers_.front().skip) return;
          pool_.share(p->data.master.size(), [&](std::size_t begin, std::size_t end) {
            for (const group_run& run : runs)
              if (const range r = intersect(run.elements, {begin, end}); !r.empty())
                update_piece<O, transfer, V>({p->data.part(r.begin, r.end), p->logical + r.begin},
                                             numbers_[run.group], control.stochastic_seed, level);
          });
        },
        cpu_);
    s.updated.record(cpu_);
    last_update_.record(cpu_);
  }

  /// From now on values may go up: the trainer does not read the old ones any more.
  void allow_up(const event& trained) { up_.wait(trained); }
  /// Elements [at, at + to.size()) of the shard's new values go to device memory.
  void send(std::size_t b, std::size_t at, std::span<V> to) {
    up_.wait(buckets_[b].updated);
    Backend::template copy<V>(buckets_[b].data.data.value.subspan(at, to.size()), to, up_);
    buckets_[b].sent.record(up_);
  }
  [[nodiscard]] const event& sent(std::size_t b) const { return buckets_[b].sent; }
  /// The host waits until everything has run.
  void synchronize() {
    down_.synchronize();
    cpu_.synchronize();
    up_.synchronize();
  }

 private:
  using piece = shard_piece<O, transfer, V>;
  struct state {
    piece data;
    event landed, updated, sent;
  };

  static std::ptrdiff_t offset(std::size_t i) noexcept { return static_cast<std::ptrdiff_t>(i); }

  const parameter_groups<O>* groups_;
  std::vector<step_numbers<O>> numbers_; // by group; of the update that runs
  cpu_pool pool_;
  slab_resource slabs_;
  buffer<float> masters_, state_;
  buffer<transfer> gradients_;
  buffer<V> values_;
  buffer<step_record> record_;
  buffer<transfer> rounded_; // in device memory
  std::vector<state> buckets_;
  event record_landed_, last_update_;
  stream down_, cpu_, up_; // last: drained before the memory goes
};

} // namespace polyrank
