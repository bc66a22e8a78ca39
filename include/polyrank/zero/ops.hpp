// What a sharded optimizer asks of a backend beyond backend/concepts.hpp: zero_ops<Backend>. Here
// for host memory; another backend specialises it with the same five functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/host/backend.hpp>
#include <polyrank/optim/grad_norm.hpp>
#include <polyrank/optim/grad_scale.hpp>
#include <polyrank/optim/update_mixed.hpp>
#include <polyrank/zero/options.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace polyrank {

/// What decides about an update; resolve() turns it into numbers when the update runs.
struct update_control {
  const step_record* record = nullptr; ///< in memory that the update can read
  clip_policy policy = clip_policy::exact;
  grad_scale_terms terms;
  std::uint64_t step = 1; ///< counted by the host; used where nothing is ever skipped
  double rate = 1;        ///< of the learning-rate schedule
  std::optional<std::uint64_t> stochastic_seed;
};

struct update_numbers {
  bool skip = false;
  float factor = 1;
  std::uint64_t step = 1;
};

[[nodiscard]] POLYRANK_HD inline update_numbers resolve(const update_control& c) noexcept {
  switch (c.policy) {
  case clip_policy::exact:
    return {c.record->skip != 0, c.record->factor, c.record->applied};
  case clip_policy::previous_step:
    return {false, factor_from(c.record->norm, c.terms), c.step};
  case clip_policy::none:
    break;
  }
  return {false, c.terms.mean, c.step};
}

/// A contiguous part of a shard: `value` is what the forward pass reads. Where values are fp32 and
/// no copy is kept, `master` is the value itself and `value` is empty.
template <elementwise_optimizer O, element G, element V>
struct shard_piece {
  mixed_range<O, G, V> data;
  std::size_t logical = 0; ///< index of the first element in the whole model
};

/// Updates a piece on the calling thread.
template <elementwise_optimizer O, element G, element V>
void update_piece(const shard_piece<O, G, V>& p, const update_numbers& n,
                  const typename O::hyper& hyper, const std::optional<std::uint64_t>& seed,
                  simd_level level) {
  if constexpr (std::is_same_v<V, bf16>) {
    if (seed) {
      mixed_range<O, G, V> masters = p.data;
      masters.value = {};
      update_mixed(masters, hyper, n.factor, level);
      return round_all(p.data.master, p.data.value, {.seed = *seed, .step = n.step}, p.logical);
    }
  }
  update_mixed(p.data, hyper, n.factor, level);
}

template <class Backend>
struct zero_ops;

/// Whether sharded_optimizer works on the backend.
template <class Backend>
concept has_zero_ops = requires { sizeof(zero_ops<Backend>); };

template <>
struct zero_ops<host::backend> {
  using stream = host::stream;

  /// counter += elements that are infinite or NaN. The counter is host memory.
  template <element G>
  static void count_nonfinite(std::span<const G> g, std::uint32_t& counter, stream& s) {
    s.enqueue([g, to = &counter] {
      for (const G x : g) *to += std::isfinite(static_cast<float>(x)) ? 0 : 1;
    });
  }

  /// See optim/grad_norm.hpp.
  static void squares(std::span<const float> from, std::span<double> blocks, stream& s) {
    s.enqueue([from, blocks] { squares_of_blocks(from, blocks); });
  }

  /// Folds the blocks and concludes the record, both in backend memory.
  static void conclude(std::span<double> blocks, step_record* record, const grad_scale_terms& terms,
                       stream& s) {
    s.enqueue([=] { polyrank::conclude(*record, fold_blocks(blocks), terms); });
  }

  /// Updates the pieces, which must live until it has run, with fp32 gradients.
  template <elementwise_optimizer O, element V>
  static void update(std::span<const shard_piece<O, float, V>> pieces,
                     const typename O::options& options, const update_control& control, stream& s) {
    s.enqueue([=, level = best_simd()] {
      const update_numbers n = resolve(control);
      if (n.skip) return;
      const typename O::hyper hyper = O::at(options, n.step, control.rate);
      for (const auto& p : pieces) update_piece(p, n, hyper, control.stochastic_seed, level);
    });
  }

  /// Runs `f` on a CPU in the order of the stream.
  template <class F>
  static void on_cpu(F&& f, stream& s) {
    s.enqueue(std::forward<F>(f));
  }
};

} // namespace polyrank
