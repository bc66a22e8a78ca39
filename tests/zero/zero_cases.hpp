// A small model, and what a trainer does with a sharded optimizer; on loopback threads and under
// mpirun.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/poisoned.hpp"

#include <polyrank/core/hash.hpp>
#include <polyrank/host/backend.hpp>
#include <polyrank/optim/adamw.hpp>
#include <polyrank/optim/apply.hpp>
#include <polyrank/optim/parameter_groups.hpp>
#include <polyrank/zero/sharded_optimizer.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <string>
#include <utility>
#include <vector>

namespace polyrank::test {

/// Zero, one, primes, both sides of a norm block, one tensor of several chunks.
inline const std::vector<std::size_t> zero_counts{0,    1,    2,   3, 0,     4095,
                                                  4096, 4097, 997, 1, 20011, 0};

inline float initial_value(std::size_t i, std::size_t k) {
  return static_cast<float>(mix(i * 7919 + k) % 128) / 64.0f - 1; // exact in bf16
}
/// A small integer, so that sums are exact in any order, also in bf16.
inline float gradient_at(std::size_t i, std::size_t k, std::size_t block) {
  return static_cast<float>(mix(i * 1000003 + k * 101 + block * 7) % 16) - 5.0f;
}
/// A float whose sums depend on the order.
inline float rough_gradient_at(std::size_t i, std::size_t k, std::size_t block) {
  return std::ldexp(static_cast<float>(mix(i * 1000003 + k * 101 + block) % 1000003),
                    static_cast<int>(block % 13) - 26);
}

template <class V>
std::vector<parameter<V, V>> parameters_of(const std::vector<std::size_t>& counts) {
  std::vector<parameter<V, V>> all;
  for (std::size_t i = 0; i < counts.size(); ++i)
    all.push_back({detail::cat("p", i), counts[i], nullptr, nullptr});
  return all;
}

/// Fills the values on every rank, with other numbers on ranks other than 0, and starts.
template <class Optimizer>
void start(Optimizer& opt, host::stream& s, int rank) {
  for (std::size_t i = 0; i < opt.parameters().size(); ++i) {
    using value_type = std::remove_cvref_t<decltype(*opt.value(0))>;
    for (std::size_t k = 0; k < opt.parameters()[i].count; ++k)
      opt.value(i)[k] =
          static_cast<value_type>(initial_value(i, k) + static_cast<float>(rank) * 100);
  }
  opt.load_values(s);
}

/// One step of `micros` microbatches; write(i, k, global microbatch) is the gradient.
template <class Optimizer, class Write>
void train_step(Optimizer& opt, host::stream& s, int rank, std::size_t micros, Write write) {
  for (std::size_t m = 0; m < micros; ++m) {
    opt.begin(m, micros);
    const std::size_t block = static_cast<std::size_t>(rank) * micros + m;
    for (std::size_t i = opt.parameters().size(); i-- > 0;) {
      opt.wait_param(i, s);
      auto* g = opt.grad(i, s);
      s.enqueue([g, n = opt.parameters()[i].count, i, block, write] {
        for (std::size_t k = 0; k < n; ++k)
          g[k] = static_cast<std::remove_cvref_t<decltype(*g)>>(write(i, k, block));
      });
      opt.ready(i, s);
    }
    opt.finish(s);
  }
  opt.step(s);
}

/// Hash of all values.
template <class Optimizer>
std::uint64_t digest(const Optimizer& opt) {
  std::uint64_t h = 0;
  for (std::size_t i = 0; i < opt.parameters().size(); ++i)
    h = hash_bytes(opt.value(i), opt.parameters()[i].count * sizeof *opt.value(i), h);
  return h;
}

/// The same training on one rank, by apply() alone.
template <class O, class Write>
std::vector<std::vector<float>> serial(const std::vector<std::size_t>& counts,
                                       parameter_groups<O> groups, std::size_t steps,
                                       std::size_t blocks, float max_norm, Write write) {
  std::vector<std::vector<float>> values, state;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    values.emplace_back(counts[i]);
    state.emplace_back(O::state_count * counts[i]);
    for (std::size_t k = 0; k < counts[i]; ++k) values[i][k] = initial_value(i, k);
  }
  for (std::size_t step = 1; step <= steps; ++step) {
    std::vector<std::vector<float>> sums;
    double squares = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      sums.emplace_back(counts[i]);
      for (std::size_t k = 0; k < counts[i]; ++k) {
        for (std::size_t b = 0; b < blocks; ++b) sums[i][k] += write(i, k, b);
        squares += static_cast<double>(sums[i][k]) * static_cast<double>(sums[i][k]);
      }
    }
    step_record r;
    conclude(r, squares, {.mean = 1.0f / static_cast<float>(blocks), .max_norm = max_norm});
    groups.at(step);
    for (std::size_t i = 0; i < counts.size(); ++i)
      apply<O>(values[i], sums[i], planes_of<O>(state[i]), groups[i], r.factor);
  }
  return values;
}
template <class O, class Write>
std::vector<std::vector<float>> serial(const std::vector<std::size_t>& counts,
                                       const typename O::options& options, std::size_t steps,
                                       std::size_t blocks, float max_norm, Write write) {
  return serial<O>(counts, parameter_groups<O>(names_of(parameters_of<float>(counts)), options),
                   steps, blocks, max_norm, write);
}

/// What values of type V are for those masters.
template <class V>
std::vector<std::vector<float>> rounded_to(std::vector<std::vector<float>> tensors) {
  for (auto& tensor : tensors)
    for (float& x : tensor) x = static_cast<float>(static_cast<V>(x));
  return tensors;
}

/// Elements whose bits differ from `expected`.
template <class Optimizer>
std::size_t wrong(const Optimizer& opt, const std::vector<std::vector<float>>& expected) {
  std::size_t bad = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    for (std::size_t k = 0; k < expected[i].size(); ++k) {
      const auto is = static_cast<float>(opt.value(i)[k]);
      bad += std::memcmp(&is, &expected[i][k], sizeof is) == 0 ? 0 : 1;
    }
  return bad;
}

} // namespace polyrank::test
