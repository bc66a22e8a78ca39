// One world and one NCCL communicator for all test cases of cuda.ranks, and a small trainer on it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/mpi_require.hpp"

#include "cuda/support.hpp"

#include <polyrank/cuda/communicator.hpp>
#include <polyrank/data_parallel/grad_sync.hpp>
#include <polyrank/launch/world.hpp>

#include <cmath>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

namespace polyrank::test {

// NCCL's kernels read whole 4-byte words, also of a single 16-bit element (seen by memcheck in
// 2.28.9), so what they get is a little longer than its contents.
class roomy_memory final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t n, std::size_t alignment) override {
    return cuda::device_memory().allocate(n + 16, alignment);
  }
  void do_deallocate(void* p, std::size_t n, std::size_t alignment) override {
    cuda::device_memory().deallocate(p, n + 16, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return dynamic_cast<const roomy_memory*>(&other) != nullptr;
  }
};
inline roomy_memory roomy;

template <class T>
buffer<T> roomy_up(const std::vector<T>& from) {
  return up(from, roomy);
}

// Meeting takes a second, so the test cases share one world; what they leave must be in order.
struct job {
  launch::world w = launch::world::adopt(MPI_COMM_WORLD);
  cuda::communicator comm = cuda::join(w);
};
inline std::unique_ptr<job> shared;

inline cuda::communicator& shared_comm() {
  if (shared == nullptr) shared = std::make_unique<job>();
  return shared->comm;
}

template <class T>
std::size_t differences(const buffer<T>& got, const std::vector<T>& expected) {
  const auto host = down(got);
  std::size_t bad = host.size() == expected.size() ? 0 : 1;
  for (std::size_t i = 0; i < expected.size(); ++i) bad += !(host[i] == expected[i]);
  return bad;
}

inline const std::vector<std::size_t> odd_counts{0, 1, 2, 3, 0, 63, 64, 65, 997, 1, 4099, 0, 30011};

enum class memory { ours, users };

/// Parameters on the device, and the gradients of a global block as upload-ready vectors.
struct model {
  explicit model(memory whose, int rank) {
    for (std::size_t i = 0; i < odd_counts.size(); ++i) {
      const std::size_t n = odd_counts[i];
      values.push_back(roomy_up(std::vector<float>(n, static_cast<float>(rank))));
      if (whose == memory::users) gradients.push_back(empty<float>(n));
      parameters.push_back({polyrank::detail::cat("p", i), n, values[i].data(),
                            whose == memory::users ? gradients[i].data() : nullptr});
    }
  }
  std::vector<buffer<float>> values, gradients;
  std::vector<parameter<float>> parameters;
};

inline float integer_gradient(std::size_t i, std::size_t k, std::size_t block) {
  return static_cast<float>(mix(i * 1000003 + k * 101 + block) % 64) - 20.0f;
}
inline float rough_gradient(std::size_t i, std::size_t k, std::size_t block) {
  return std::ldexp(static_cast<float>(mix(i * 1000003 + k * 101 + block) % 1000003),
                    static_cast<int>(block % 13) - 26);
}

/// One step; gradients come from two streams in turn, each `late` by some time. Returns all
/// gradients in order.
template <class Sync, class Write>
std::vector<float> step(Sync& sync, cuda::communicator& comm, std::size_t micros, bool overwrite,
                        Write write, std::chrono::microseconds late = {}) {
  cuda::stream s[2] = {comm.make_stream(), comm.make_stream()};
  std::vector<buffer<float>> alive;
  const auto& parameters = sync.parameters();
  for (std::size_t m = 0; m < micros; ++m) {
    const std::size_t block = static_cast<std::size_t>(comm.rank()) * micros + m;
    std::vector<buffer<float>> fresh; // uploaded before, so that only the delay is in the way
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      std::vector<float> g(parameters[i].count);
      for (std::size_t k = 0; k < g.size(); ++k) g[k] = write(i, k, block);
      fresh.push_back(roomy_up(g));
    }
    sync.begin(m, micros);
    for (std::size_t i = parameters.size(); i-- > 0;) {
      if (parameters[i].count == 0) continue;
      cuda::stream& on_this = s[i % 2];
      if (late.count() > 0) delay(on_this, late);
      const std::span<float> g(sync.grad(i), parameters[i].count);
      if (overwrite || m == 0)
        cuda::backend::copy<float>(fresh[i].span(), g, on_this);
      else
        cuda::backend::add<float>(fresh[i].span(), g, g, on_this);
      sync.ready(i, on_this);
    }
    sync.finish(s[0]);
    for (auto& b : fresh) alive.push_back(std::move(b));
  }
  s[0].synchronize();
  std::vector<float> all;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto g = down(std::span<const float>(sync.grad(i), parameters[i].count));
    all.insert(all.end(), g.begin(), g.end());
  }
  return all;
}

template <class Write>
std::size_t wrong(const std::vector<float>& got, std::size_t blocks, Write write) {
  std::size_t bad = 0, at = 0;
  for (std::size_t i = 0; i < odd_counts.size(); ++i)
    for (std::size_t k = 0; k < odd_counts[i]; ++k) {
      float sum = 0;
      for (std::size_t b = 0; b < blocks; ++b) sum += write(i, k, b);
      bad += got[at++] != sum;
    }
  return bad;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

} // namespace polyrank::test
