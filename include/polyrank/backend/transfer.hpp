// One message between two ranks; a batch of them is one operation (`exchange`), so that a send and
// the receive that answers it never wait for each other.
//
//     comm.exchange({{send_to(next, out), receive_from(previous, in)}}, on(stream));
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/dtype.hpp>

#include <cstddef>
#include <span>

namespace polyrank {

template <element T>
struct transfer {
  int peer = 0;          ///< rank in the communicator
  T* data = nullptr;     ///< read when sending, written when receiving
  std::size_t count = 0; ///< elements; both sides must agree
  bool sends = false;
};

template <element T>
[[nodiscard]] transfer<T> send_to(int peer, std::span<const T> data) noexcept {
  return {peer, const_cast<T*>(data.data()), data.size(), true};
}
template <element T>
[[nodiscard]] transfer<T> send_to(int peer, std::span<T> data) noexcept {
  return {peer, data.data(), data.size(), true};
}
template <element T>
[[nodiscard]] transfer<T> receive_from(int peer, std::span<T> data) noexcept {
  return {peer, data.data(), data.size(), false};
}

} // namespace polyrank
