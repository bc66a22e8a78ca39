// How much memory a sharded optimizer takes on one rank, buffer by buffer. Pure. The optimizer
// allocates exactly this, and the planner (plan/memory.hpp) prints it.
//
//     const zero_memory m = zero_memory::of(layout, rank, {.gradient = 2, .value = 2, .states =
//     2}); m.device_bytes(), m.host_bytes()
//
// Gradients. Where a bucket is written depends on the stage and on accumulation:
//
//     stage 0, 1; 1 microbatch     an arena of all buckets; reduced in place if it is fp32
//     stage 0, 1; more             a ring of a few buckets, added into an fp32 arena of everything
//     stage 2                      a ring of a few buckets, reduced into the fp32 shard each time
//     deterministic                a ring, and log2(blocks per rank) + 1 fp32 arenas of everything:
//                                  the saving of stage 2 is given up for equal bits
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>
#include <polyrank/zero/shard_layout.hpp>
#include <polyrank/zero/step_numbers.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace polyrank {

struct zero_shape {
  std::size_t gradient = 4, value = 4; ///< bytes of an element
  std::size_t states = 2;              ///< planes of the optimizer's state (AdamW: 2)
  std::size_t microbatches = 1;        ///< most per step
  std::size_t ring = 3;                ///< bucket buffers, where a ring is used
  std::size_t blocks_per_rank = 0;     ///< deterministic mode; else 0
  bool adopts_values = false;          ///< parameters live elsewhere; one staging bucket instead
  bool adopts_gradients = false;       ///< gradients are written elsewhere, and copied
  bool offload = false;                ///< state of `fraction` of the elements is in host memory
  double fraction = 1;
  bool on_device = true;   ///< the backend's memory is not the host's
  bool counts_bad = false; ///< non-finite gradients are counted by parameter
  std::size_t groups = 1;  ///< with options of their own
};

/// Where the gradients of one bucket go.
enum class gradient_home {
  in_place, ///< reduced where it is written
  full,     ///< added up in fp32, all of the bucket
  shard     ///< reduced into the fp32 shard
};

[[nodiscard]] constexpr gradient_home home_of(const shard_bucket& b, const zero_shape& s) noexcept {
  if (s.blocks_per_rank > 0 || (b.stage < 2 && s.microbatches > 1)) return gradient_home::full;
  return b.stage < 2 && s.gradient == sizeof(float) ? gradient_home::in_place
                                                    : gradient_home::shard;
}
/// Whether the bucket has a buffer of its own that gradients are written to, or shares the ring.
[[nodiscard]] constexpr bool has_own_slot(const shard_bucket& b, const zero_shape& s) noexcept {
  return b.stage < 2 && s.microbatches == 1 && s.blocks_per_rank == 0;
}

/// Elements of each buffer, on one rank.
struct zero_memory {
  zero_shape shape;
  std::vector<std::size_t> slot_at{}; ///< by bucket: where it is written, if it has its own slot
  std::vector<std::size_t> sum_at{};  ///< by bucket: where its fp32 sums are
  std::vector<bool> on_host{};        ///< by bucket: whether its state is in host memory
  std::vector<std::size_t> host_at{}, device_at{}; ///< by bucket: where its state is
  std::size_t ring_slots = 0, ring_slot = 0;   ///< number; elements of one, of the gradient's type
  std::size_t slots = 0;                       ///< own slots and ring, of the gradient's type
  std::size_t sums = 0, levels = 0, level = 0; ///< fp32; `levels` arenas of `level`
  std::size_t wire = 0;     ///< of the gradient's type: what an all-to-all receives
  std::size_t scratch = 0;  ///< fp32
  std::size_t values = 0;   ///< of the value's type: the parameters, or staging
  std::size_t elements = 0; ///< of the model, without padding
  std::size_t device_masters = 0, device_state = 0; ///< fp32, and fp32 planes together
  std::size_t blocks = 0;                           ///< fp64 sums of the norm
  std::size_t counters = 0;                         ///< 32-bit, of non-finite gradients
  std::size_t rounded = 0; ///< of the transfer's type: a bucket's sums on their way to the host
  std::size_t host_masters = 0, host_state = 0;    ///< fp32, pinned
  std::size_t host_gradients = 0, host_values = 0; ///< of the transfer's and the value's type

  /// The type in which gradients travel to the host: bf16 as they are, else fp32 (a sum of fp16
  /// gradients may be out of range).
  std::size_t transfer = 4; ///< bytes

  [[nodiscard]] static zero_memory of(const shard_layout& l, int rank, const zero_shape& s,
                                      bool bf16_gradients = false) {
    zero_memory m{.shape = s};
    m.transfer = bf16_gradients ? 2 : 4;
    const bool several = l.ranks() > 1, narrow = s.gradient < sizeof(float);
    std::size_t ringed = 0;
    m.place_state(l, rank);
    for (const shard_bucket& b : l.buckets()) {
      m.elements += b.count;
      const gradient_home home = home_of(b, s);
      const std::size_t stored = home == gradient_home::full ? b.padded
                                 : b.cut()                   ? b.chunk
                                                             : b.padded;
      m.slot_at.push_back(m.slots);
      m.sum_at.push_back(m.sums);
      if (has_own_slot(b, s)) {
        m.slots += b.padded;
      } else if (b.count > 0) {
        ++ringed;
        m.ring_slot = std::max(m.ring_slot, b.padded);
      }
      if (home != gradient_home::in_place) m.sums += stored;
      if (home == gradient_home::shard) {
        if (narrow && several && b.cut()) {
          m.wire = std::max(m.wire, b.padded);
          m.scratch = std::max(m.scratch, s.microbatches > 1 ? 2 * b.chunk : b.chunk);
        } else if (s.microbatches > 1) {
          m.scratch = std::max(m.scratch, stored);
        }
      } else if (home == gradient_home::full) {
        const bool adds_narrow = narrow && s.blocks_per_rank == 0;
        if (adds_narrow || (several && s.blocks_per_rank > 0))
          m.scratch = std::max(m.scratch, b.padded);
      }
      m.values += s.adopts_values ? 0 : b.padded;
    }
    m.ring_slots = std::min(ringed, s.ring);
    m.slots += m.ring_slots * m.ring_slot;
    if (s.adopts_values && several) m.values = l.largest_padded();
    m.level = s.blocks_per_rank > 1 ? l.padded_count() : 0;
    m.levels =
        s.blocks_per_rank > 1 ? static_cast<std::size_t>(std::countr_zero(s.blocks_per_rank)) : 0;
    m.blocks = l.block_count();
    m.counters = s.counts_bad ? l.slots().size() : 0;
    if (s.on_device && m.transfer < sizeof(float))
      for (std::size_t b = 0; b < l.buckets().size(); ++b)
        if (m.on_host[b]) m.rounded = std::max(m.rounded, l.buckets()[b].shard(rank).size());
    return m;
  }

  /// Bytes of the whole optimizer in device memory; on the host backend, in host memory too.
  [[nodiscard]] std::size_t device_bytes() const noexcept {
    return gradient_bytes() + value_bytes() + sizeof(float) * (device_masters + device_state) +
           transfer * rounded + control_bytes();
  }
  /// The norm's sums, the counters, and what updates read.
  [[nodiscard]] std::size_t control_bytes() const noexcept {
    return sizeof(double) * blocks + sizeof(std::uint32_t) * counters +
           sizeof(control_block) * shape.groups;
  }
  /// Bytes of the trainer's own memory that takes part, beside device_bytes().
  [[nodiscard]] std::size_t adopted_bytes() const noexcept {
    return elements * ((shape.adopts_values ? shape.value : 0) +
                       (shape.adopts_gradients ? shape.gradient : 0));
  }
  [[nodiscard]] std::size_t gradient_bytes() const noexcept {
    return shape.gradient * (slots + wire) + sizeof(float) * (sums + levels * level + scratch);
  }
  [[nodiscard]] std::size_t value_bytes() const noexcept { return shape.value * values; }
  /// Bytes of page-locked host memory.
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return host_masters == 0
               ? 0
               : sizeof(float) * (host_masters + host_state) + transfer * host_gradients +
                     shape.value * host_values + sizeof(step_record);
  }

 private:
  /// The state of the first buckets is put in host memory, until `fraction` of the elements is
  /// there: they are complete first, so most of backward is left to hide their way.
  void place_state(const shard_layout& l, int rank) {
    std::size_t total = 0, before = 0;
    for (const shard_bucket& b : l.buckets()) total += b.count;
    const double wanted = shape.offload ? shape.fraction * static_cast<double>(total) : 0;
    for (const shard_bucket& b : l.buckets()) {
      const std::size_t n = round_up(b.shard(rank).size(), 16);
      on_host.push_back(static_cast<double>(before) < wanted);
      before += b.count;
      device_at.push_back(device_state);
      host_at.push_back(host_masters);
      if (on_host.back()) {
        host_masters += n;
      } else {
        device_state += n;
      }
    }
    host_state = host_masters * shape.states;
    host_gradients = host_values = host_masters;
    device_masters = shape.value == sizeof(float) ? 0 : device_state; // else the values are masters
    device_state *= shape.states;
  }
};

} // namespace polyrank
