// The smallest types that satisfy the concepts of the seam: a check that the concepts ask for no
// more than they say, and a starting point for a backend of one's own. Nothing here runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/concepts.hpp>

namespace polyrank::archetype {

struct stream;

struct event {
  void record(stream&);
  void synchronize();
  bool query();
};

struct stream {
  void wait(const event&);
  void synchronize();
};

struct backend {
  using stream = archetype::stream;
  using event = archetype::event;
  static constexpr std::string_view name = "archetype";
  static constexpr bool on_device = true;
  static std::pmr::memory_resource& memory();

  template <element T>
  static void fill(std::span<T>, T, stream&);
  template <element T>
  static void copy(std::span<const T>, std::span<T>, stream&);
  template <element T>
  static void add(std::span<const T>, std::span<const T>, std::span<T>, stream&);
  template <element T>
  static void scale(std::span<T>, float, stream&);
  template <element To, element From>
  static void cast(std::span<const From>, std::span<To>, stream&);
  template <element T>
  static void hash(std::span<const T>, std::uint64_t&, stream&);
};

struct control_channel {
  int rank();
  int size();
  std::vector<std::string> all_gather(std::string_view);
  std::int64_t all_reduce_max(std::int64_t);
  void barrier(std::chrono::milliseconds);
};

/// A communicator without any operation: satisfies `communicator` only.
struct bare_communicator {
  using backend = archetype::backend;
  int rank();
  int size();
  stream make_stream();
  control_channel& control();
};

struct communicator : bare_communicator {
  template <element T>
  void all_reduce(std::span<const T>, std::span<T>, reduce_op, on<stream>);
  template <element T>
  void reduce_scatter(std::span<const T>, std::span<T>, reduce_op, on<stream>);
  template <element T>
  void all_gather(std::span<const T>, std::span<T>, on<stream>);
  template <element T>
  void all_to_all(std::span<const T>, std::span<T>, on<stream>);
  template <element T>
  void broadcast(std::span<T>, int, on<stream>);
  template <element T>
  void exchange(std::span<const transfer<T>>, on<stream>);
  communicator split(int, int);
  void abort(std::string_view) noexcept;
  void check();
};

} // namespace polyrank::archetype
