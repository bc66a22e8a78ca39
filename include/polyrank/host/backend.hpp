// The host backend: ordinary memory, host streams, and element-wise work on them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>
#include <polyrank/core/error.hpp>
#include <polyrank/core/hash.hpp>
#include <polyrank/host/memory.hpp>
#include <polyrank/host/reduce.hpp>
#include <polyrank/host/stopwatch.hpp>
#include <polyrank/host/stream.hpp>

#include <cstring>
#include <memory_resource>
#include <new>
#include <span>
#include <string_view>
#include <type_traits>

namespace polyrank::host {

/// A model of polyrank::backend. The operations are enqueued; spans must live until they have run.
struct backend {
  using stream = host::stream;
  using event = host::event;
  using stopwatch = host::stopwatch;
  static constexpr std::string_view name = "host";
  static constexpr bool on_device = false;

  /// Ordinary aligned memory (host/memory.hpp).
  [[nodiscard]] static std::pmr::memory_resource& memory() noexcept { return host::memory(); }

  /// out[i] = value
  template <element T>
  static void fill(std::span<T> out, T value, stream& s) {
    s.enqueue([out, value] {
      for (T& x : out) x = value;
    });
  }

  /// out = in; equal sizes.
  template <element T>
  static void copy(std::span<const std::type_identity_t<T>> in, std::span<T> out, stream& s) {
    expects(in.size() == out.size(), "copy: ", in.size(), " elements into ", out.size());
    s.enqueue([in, out] {
      if (!out.empty() && in.data() != out.data())
        std::memmove(out.data(), in.data(), out.size_bytes());
    });
  }

  /// out = a + b; equal sizes; out may be a or b. 16-bit floats are added in fp32 and rounded once.
  template <element T>
  static void add(std::span<const std::type_identity_t<T>> a,
                  std::span<const std::type_identity_t<T>> b, std::span<T> out, stream& s) {
    expects(a.size() == out.size() && b.size() == out.size(), "add: ", a.size(), " + ", b.size(),
            " elements into ", out.size());
    s.enqueue([a = a.data(), b = b.data(), out] {
      detail::reduce<reduce_op::sum>(a, b, out.data(), out.size());
    });
  }

  /// out[i] *= factor
  template <element T>
  static void scale(std::span<T> out, float factor, stream& s) {
    s.enqueue([out, factor] {
      for (T& x : out) x = static_cast<T>(static_cast<float>(x) * factor);
    });
  }

  /// out[i] = To(in[i]), rounded once; equal sizes.
  template <element To, element From>
  static void cast(std::span<const From> in, std::span<To> out, stream& s) {
    expects(in.size() == out.size(), "cast: ", in.size(), " elements into ", out.size());
    s.enqueue([in = in.data(), out] {
      for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = static_cast<To>(static_cast<float>(in[i]));
    });
  }

  /// out = hash of the bytes; `out` is in host memory and valid once the stream got there.
  template <element T>
  static void hash(std::span<const T> in, std::uint64_t& out, stream& s) {
    s.enqueue([in, to = &out] { *to = hash_bytes(in.data(), in.size_bytes()); });
  }
};

} // namespace polyrank::host
