// What every host communicator must do; run on loopback threads and under mpirun alike.
// Each check returns the number of wrong elements, so that callers can agree on a verdict.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/host/backend.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace polyrank::test {

/// Sizes around every threshold: nothing, one, primes, smaller than the ranks, small and large.
inline const std::vector<std::size_t> sizes{0,  1,    2,    3,    5,    7,     13,
                                            97, 1000, 8191, 8192, 8193, 30011, 100003};

template <class T>
T value(int rank, std::size_t i) {
  return static_cast<T>(static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 11));
}

template <class T, class Comm>
std::size_t check_all_reduce(Comm& comm, host::stream& s, std::size_t count, reduce_op op,
                             bool in_place) {
  const int n = comm.size();
  std::vector<T> in(count), out(count);
  for (std::size_t i = 0; i < count; ++i) in[i] = value<T>(comm.rank(), i);
  if (in_place) out = in;
  comm.template all_reduce<T>(in_place ? out : in, std::span(out), op, on(s));
  s.synchronize();
  std::size_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    T expected = value<T>(0, i);
    for (int r = 1; r < n; ++r) {
      const T x = value<T>(r, i);
      expected = op == reduce_op::sum   ? T(float(expected) + float(x))
                 : op == reduce_op::min ? (float(x) < float(expected) ? x : expected)
                                        : (float(x) > float(expected) ? x : expected);
    }
    if (!(float(out[i]) == float(expected))) ++bad;
  }
  return bad;
}

template <class Comm>
std::size_t check_reduce_scatter(Comm& comm, host::stream& s, std::size_t count, bool in_place) {
  const auto n = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank());
  std::vector<float> in(count * n), apart(count);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = value<float>(comm.rank(), i);
  const std::span<float> out =
      in_place ? std::span(in).subspan(me * count, count) : std::span(apart);
  comm.template reduce_scatter<float>(in, out, reduce_op::sum, on(s));
  s.synchronize();
  std::size_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    float expected = 0;
    for (std::size_t r = 0; r < n; ++r)
      expected += value<float>(static_cast<int>(r), me * count + i);
    if (out[i] != expected) ++bad;
  }
  return bad;
}

template <class Comm>
std::size_t check_all_gather(Comm& comm, host::stream& s, std::size_t count, bool in_place) {
  const auto n = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank());
  std::vector<std::int32_t> apart(count), out(count * n, -1);
  const std::span<std::int32_t> in =
      in_place ? std::span(out).subspan(me * count, count) : std::span(apart);
  for (std::size_t i = 0; i < count; ++i) in[i] = value<std::int32_t>(comm.rank(), i);
  comm.template all_gather<std::int32_t>(in, std::span(out), on(s));
  s.synchronize();
  std::size_t bad = 0;
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t i = 0; i < count; ++i)
      if (out[r * count + i] != value<std::int32_t>(static_cast<int>(r), i)) ++bad;
  return bad;
}

template <class Comm>
std::size_t check_all_to_all(Comm& comm, host::stream& s, std::size_t count) {
  const auto n = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank());
  std::vector<double> in(count * n), out(count * n, -1);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<double>(me * 1000000 + i);
  comm.template all_to_all<double>(in, std::span(out), on(s));
  s.synchronize();
  std::size_t bad = 0;
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t i = 0; i < count; ++i)
      if (out[r * count + i] != static_cast<double>(r * 1000000 + me * count + i)) ++bad;
  return bad;
}

template <class Comm>
std::size_t check_broadcast(Comm& comm, host::stream& s, std::size_t count, int root) {
  std::vector<float> data(count, -1);
  if (comm.rank() == root)
    for (std::size_t i = 0; i < count; ++i) data[i] = value<float>(root, i);
  comm.broadcast(std::span(data), root, on(s));
  s.synchronize();
  std::size_t bad = 0;
  for (std::size_t i = 0; i < count; ++i)
    if (data[i] != value<float>(root, i)) ++bad;
  return bad;
}

/// Everybody sends two messages to everybody, itself included.
template <class Comm>
std::size_t check_exchange(Comm& comm, host::stream& s, std::size_t count) {
  const int n = comm.size();
  std::vector<std::vector<float>> in(static_cast<std::size_t>(2 * n)), out = in;
  std::vector<transfer<float>> batch;
  for (int k = 0; k < 2 * n; ++k) {
    const int peer = k % n, turn = k / n;
    auto& to = out[static_cast<std::size_t>(k)];
    to.assign(count, static_cast<float>(comm.rank() * 100 + peer * 10 + turn));
    in[static_cast<std::size_t>(k)].assign(count, -1);
    batch.push_back(send_to(peer, std::span(to)));
  }
  for (int k = 0; k < 2 * n; ++k)
    batch.push_back(receive_from(k % n, std::span(in[static_cast<std::size_t>(k)])));
  comm.exchange(std::span<const transfer<float>>(batch), on(s));
  s.synchronize();
  std::size_t bad = 0;
  for (int k = 0; k < 2 * n; ++k)
    for (const float x : in[static_cast<std::size_t>(k)])
      if (x != static_cast<float>(k % n * 100 + comm.rank() * 10 + k / n)) ++bad;
  return bad;
}

/// All of the above, for all sizes.
template <class Comm>
std::size_t check_everything(Comm& comm, host::stream& s,
                             const std::vector<std::size_t>& counts = sizes) {
  std::size_t bad = 0;
  for (const std::size_t count : counts) {
    for (const bool in_place : {false, true}) {
      bad += check_all_reduce<float>(comm, s, count, reduce_op::sum, in_place);
      bad += check_reduce_scatter(comm, s, count, in_place);
      bad += check_all_gather(comm, s, count, in_place);
    }
    bad += check_all_reduce<bf16>(comm, s, count, reduce_op::sum, false); // small integers: exact
    bad += check_all_reduce<std::int64_t>(comm, s, count, reduce_op::min, true);
    bad += check_all_reduce<double>(comm, s, count, reduce_op::max, false);
    bad += check_all_to_all(comm, s, count);
    for (int root = 0; root < comm.size(); ++root) bad += check_broadcast(comm, s, count, root);
    bad += check_exchange(comm, s, count);
  }
  return bad;
}

} // namespace polyrank::test
