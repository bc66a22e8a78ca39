// Which GPU a rank takes: the one of its local rank; and what all ranks together must check.
//
//     const int device = cuda::select_device(comm.control(), world.local_rank(),
//     world.local_size(),
//                                            cuda::sharing_allowed());
//
// One visible device is taken as it is (the launcher has chosen). Two ranks on one GPU are an error
// on every rank, unless POLYRANK_SHARE_GPU=1: NCCL then needs a set-up of its own, see
// scripts/gpu_ranks.sh, and it is for tests only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/backend/hosts.hpp>
#include <polyrank/cuda/device.hpp>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::cuda {

/// POLYRANK_SHARE_GPU=1: several ranks may use one GPU.
[[nodiscard]] inline bool sharing_allowed() noexcept {
  const char* value = std::getenv("POLYRANK_SHARE_GPU");
  return value != nullptr && std::string_view(value) == "1";
}

/// A rank's GPU, or why it has none.
struct placement {
  std::string host, bus_id, model;
  int local_rank = 0, local_size = 1, visible = 0;
  std::string failure; ///< of this rank; empty where all is well
};

/// The device index of a rank: pure.
[[nodiscard]] constexpr int device_of(int local_rank, int visible) noexcept {
  return visible <= 1 ? 0 : local_rank % visible;
}

/// What is wrong with the placements of all ranks (in rank order), or empty: pure.
[[nodiscard]] inline std::string placement_fault(const std::vector<placement>& all, bool sharing) {
  using polyrank::detail::cat;
  for (std::size_t r = 0; r < all.size(); ++r)
    if (!all[r].failure.empty()) return cat("rank ", r, " on ", all[r].host, ": ", all[r].failure);
  if (!sharing)
    for (std::size_t r = 0; r < all.size(); ++r)
      if (all[r].visible > 1 && all[r].local_size > all[r].visible)
        return cat(all[r].local_size, " ranks on ", all[r].host, ", which has ", all[r].visible,
                   " GPUs: start fewer ranks there (POLYRANK_SHARE_GPU=1 shares GPUs, for tests)");
  for (std::size_t r = 0; r < all.size() && !sharing; ++r)
    for (std::size_t q = 0; q < r; ++q)
      if (all[q].host == all[r].host && all[q].bus_id == all[r].bus_id)
        return cat("ranks ", q, " and ", r, " on ", all[r].host, " both use GPU ", all[r].bus_id,
                   ": start at most one rank for each GPU, or let the launcher give each rank its "
                   "own CUDA_VISIBLE_DEVICES (POLYRANK_SHARE_GPU=1 shares GPUs, for tests)");
  return {};
}

/// A warning where the ranks have different models of GPU (the slowest sets the pace): pure.
[[nodiscard]] inline std::string mixed_models(const std::vector<placement>& all) {
  for (std::size_t r = 1; r < all.size(); ++r)
    if (all[r].model != all[0].model)
      return polyrank::detail::cat("mixed GPUs: rank 0 has ", all[0].model, ", rank ", r, " has ",
                                   all[r].model, "; the slowest sets the pace");
  return {};
}

namespace detail {

inline std::string pack(const placement& p) {
  return polyrank::detail::cat(p.host, '\n', p.bus_id, '\n', p.model, '\n', p.local_size, '\n',
                               p.visible, '\n', p.failure);
}

inline placement unpack(std::string_view text) {
  const auto next = [&] {
    const std::size_t end = text.find('\n');
    const std::string field(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return field;
  };
  placement p;
  p.host = next();
  p.bus_id = next();
  p.model = next();
  p.local_size = std::atoi(next().c_str());
  p.visible = std::atoi(next().c_str());
  p.failure = std::string(text);
  return p;
}

} // namespace detail

/// Chooses this rank's GPU and checks the choice of all ranks; does not make it current. Throws
/// usage_error on every rank. `warnings` gets what is odd but works. @collective
template <control_channel Control>
[[nodiscard]] int select_device(Control& control, int local_rank, int local_size, bool sharing,
                                std::vector<std::string>* warnings = nullptr) {
  placement mine;
  mine.local_rank = local_rank;
  mine.local_size = local_size;
  mine.host = host_name();
  mine.failure = unusable();
  mine.visible = mine.failure.empty() ? device_count() : 0;
  const int device = device_of(local_rank, mine.visible);
  if (mine.failure.empty()) try {
      const device_info info = describe(device);
      mine.bus_id = info.bus_id;
      mine.model = info.name;
    } catch (const error& e) {
      mine.failure = e.what();
    }
  std::vector<placement> all;
  for (const std::string& text : control.all_gather(detail::pack(mine)))
    all.push_back(detail::unpack(text));
  const std::string fault = placement_fault(all, sharing);
  if (!fault.empty()) throw on_every_rank(usage_error(fault));
  if (const std::string odd = mixed_models(all); !odd.empty() && warnings != nullptr)
    warnings->push_back(odd);
  return device;
}

} // namespace polyrank::cuda
