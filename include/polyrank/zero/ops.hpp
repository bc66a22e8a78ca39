// What a sharded optimizer asks of a backend beyond backend/concepts.hpp: zero_ops<Backend>. Here
// for host memory; cuda_ops.hpp has the GPU's. Another backend specialises it with the same
// functions; see the host's for what each does.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/host/backend.hpp>
#include <polyrank/optim/grad_norm.hpp>
#include <polyrank/optim/update_mixed.hpp>
#include <polyrank/zero/slab.hpp>
#include <polyrank/zero/step_numbers.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace polyrank {

/// A contiguous part of a shard: `value` is what the forward pass reads. Where values are fp32 and
/// no copy is kept, `master` is the value itself and `value` is empty.
template <elementwise_optimizer O, element G, element V>
struct shard_piece {
  mixed_range<O, G, V> data;
  std::size_t logical = 0; ///< index of the first element in the whole model

  /// Whether `next` goes on where this ends, in every array: then both are one piece.
  [[nodiscard]] bool continues(const shard_piece& next) const noexcept {
    const std::size_t n = data.master.size();
    bool goes_on = logical + n == next.logical &&
                   data.master.data() + n == next.data.master.data() &&
                   data.gradient.data() + n == next.data.gradient.data() &&
                   data.value.empty() == next.data.value.empty() &&
                   (data.value.empty() || data.value.data() + n == next.data.value.data());
    for (std::size_t k = 0; k < data.state.size(); ++k)
      goes_on = goes_on && data.state[k].data() + n == next.data.state[k].data();
    return goes_on;
  }
  void append(const shard_piece& next) noexcept {
    const auto longer = [](auto& a, const auto& b) { a = {a.data(), a.size() + b.size()}; };
    longer(data.master, next.data.master);
    longer(data.gradient, next.data.gradient);
    longer(data.value, next.data.value);
    for (std::size_t k = 0; k < data.state.size(); ++k) longer(data.state[k], next.data.state[k]);
  }
};

/// Updates a piece on the calling thread.
template <elementwise_optimizer O, element G, element V>
void update_piece(const shard_piece<O, G, V>& p, const step_numbers<O>& n,
                  const std::optional<std::uint64_t>& seed, simd_level level) {
  if constexpr (std::is_same_v<V, bf16>) {
    if (seed) {
      mixed_range<O, G, V> masters = p.data;
      masters.value = {};
      update_mixed(masters, n.hyper, n.factor, level);
      return round_all(p.data.master, p.data.value, {.seed = *seed, .step = n.step}, p.logical);
    }
  }
  update_mixed(p.data, n.hyper, n.factor, level);
}

template <class Backend>
struct zero_ops;

/// Whether sharded_optimizer works on the backend.
template <class Backend>
concept has_zero_ops = requires { sizeof(zero_ops<Backend>); };

template <>
struct zero_ops<host::backend> {
  using stream = host::stream;

  /// *counter += elements that are infinite or NaN; the counter is backend memory.
  template <element G>
  static void count_nonfinite(std::span<const G> g, std::uint32_t* counter, stream& s) {
    s.enqueue([g, counter] {
      for (const G x : g) *counter += std::isfinite(static_cast<float>(x)) ? 0 : 1;
    });
  }

  /// See optim/grad_norm.hpp.
  static void squares(std::span<const float> from, std::span<double> blocks, stream& s) {
    s.enqueue([from, blocks] { squares_of_blocks(from, blocks); });
  }

  /// Folds the blocks, which are scratch then, and concludes the record.
  static void conclude(std::span<double> blocks, step_record* record, const grad_scale_terms& terms,
                       stream& s) {
    s.enqueue([=] { polyrank::conclude(*record, fold_blocks(blocks), terms); });
  }

  /// Writes the numbers of the step, in backend memory.
  template <elementwise_optimizer O>
  static void prepare(step_numbers<O>* to, const typename O::options& options,
                      const update_control& control, stream& s) {
    s.enqueue([=] { *to = resolve<O>(control, options); });
  }

  /// Updates the pieces, which must live until it has run, with fp32 gradients.
  template <elementwise_optimizer O, element V>
  static void update(std::span<const shard_piece<O, float, V>> pieces,
                     const step_numbers<O>* numbers, const std::optional<std::uint64_t>& seed,
                     stream& s) {
    s.enqueue([=, level = best_simd()] {
      if (numbers->skip) return;
      for (const auto& p : pieces) update_piece(p, *numbers, seed, level);
    });
  }

  /// Runs `f` on a CPU in the order of the stream.
  template <class F>
  static void on_cpu(F&& f, stream& s) {
    s.enqueue(std::forward<F>(f));
  }

  /// What makes host memory good for transfers to the device: nothing here.
  [[nodiscard]] static slab_hooks transfers() noexcept { return {}; }
};

} // namespace polyrank
