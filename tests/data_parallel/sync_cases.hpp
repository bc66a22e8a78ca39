// A small trainer's view of grad_sync; used on loopback threads and under mpirun alike.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/hash.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/host/backend.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace polyrank::test {

/// Parameter counts with zero, one, primes, and both sides of every alignment.
inline const std::vector<std::size_t> odd_counts{0, 1, 2, 3, 0, 63, 64, 65, 997, 1, 4099, 0};

/// Whose memory the gradients live in.
enum class memory { ours, users_contiguous, users_scattered, users_partly };

/// Parameters with values and, where asked, gradients of the user's own.
struct model {
  explicit model(const std::vector<std::size_t>& counts, memory whose = memory::ours) {
    std::size_t total = 0;
    for (const std::size_t c : counts) total += c + 3;
    values.resize(total);
    gradients.resize(total, -7.0f);
    std::size_t at = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      parameter<float> p{"p" + std::to_string(i), counts[i], values.data() + at, nullptr};
      const bool users = whose != memory::ours && (whose != memory::users_partly || i % 3 == 0);
      if (users && counts[i] > 0) p.gradient = gradients.data() + at;
      parameters.push_back(p);
      at += counts[i] + (whose == memory::users_contiguous ? 0 : 3);
    }
  }
  std::vector<float> values, gradients;
  std::vector<parameter<float>> parameters;
};

/// Gradient element k of parameter i in microbatch `block` (global number): a small integer, so
/// that sums are exact in any order ...
inline float integer_gradient(std::size_t i, std::size_t k, std::size_t block) {
  return static_cast<float>(mix(i * 1000003 + k * 101 + block) % 64) - 20.0f;
}
/// ... or a float whose sum depends on the order.
inline float rough_gradient(std::size_t i, std::size_t k, std::size_t block) {
  return std::ldexp(static_cast<float>(mix(i * 1000003 + k * 101 + block) % 1000003),
                    static_cast<int>(block % 13) - 26);
}

/// One step over `micros` microbatches per rank; `write` gives the gradient of a global block.
template <class Sync, class Write>
void backward(Sync& sync, host::stream& s, int rank, std::size_t micros, bool overwrite,
              Write write) {
  for (std::size_t m = 0; m < micros; ++m) {
    sync.begin(m, micros);
    const std::size_t block = static_cast<std::size_t>(rank) * micros + m;
    for (std::size_t i = sync.parameters().size(); i-- > 0;) {
      s.enqueue([g = sync.parameters()[i].count > 0 ? sync.grad(i) : nullptr,
                 n = sync.parameters()[i].count, i, m, block, overwrite, write] {
        for (std::size_t k = 0; k < n; ++k)
          g[k] = (overwrite || m == 0 ? 0.0f : g[k]) + write(i, k, block);
      });
      sync.ready(i, s);
    }
    sync.finish(s);
  }
}

/// Elements in which the gradients differ from the sum over all blocks (times `scale`).
template <class Sync, class Write>
std::size_t wrong(const Sync& sync, std::size_t blocks, float scale, Write write) {
  std::size_t bad = 0;
  for (std::size_t i = 0; i < sync.parameters().size(); ++i)
    for (std::size_t k = 0; k < sync.parameters()[i].count; ++k) {
      float sum = 0;
      for (std::size_t b = 0; b < blocks; ++b) sum += write(i, k, b);
      if (sync.grad(i)[k] != sum * scale) ++bad;
    }
  return bad;
}

/// Hash of all gradients in declaration order.
template <class Sync>
std::uint64_t digest(const Sync& sync) {
  std::uint64_t h = 0;
  for (std::size_t i = 0; i < sync.parameters().size(); ++i)
    h = hash_bytes(sync.parameters()[i].count > 0 ? sync.grad(i) : nullptr,
                   sync.parameters()[i].count * sizeof(float), h);
  return h;
}

} // namespace polyrank::test
