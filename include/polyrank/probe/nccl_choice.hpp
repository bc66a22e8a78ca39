// What NCCL will use between two GPUs of one host: P2P, shared memory, or the network. A model of
// its rules (graph/paths.cc, transport/p2p.cc): P2P where the path is not worse than a level (PXB
// unless NCCL_P2P_LEVEL says otherwise) and the driver allows it; else SHM; else NET.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/model.hpp>

#include <cstdlib>
#include <string>
#include <string_view>

namespace polyrank::probe {

struct nccl_settings {
  bool p2p_disable = false, shm_disable = false;
  int p2p_level = 3; ///< 0 LOC, 1 NVL, 2 PIX, 3 PXB, 4 PHB, 5 SYS

  [[nodiscard]] static nccl_settings from_environment() {
    const auto get = [](const char* name) -> std::string_view {
      const char* value = std::getenv(name);
      return value != nullptr ? value : "";
    };
    nccl_settings s;
    s.p2p_disable = get("NCCL_P2P_DISABLE") == "1";
    s.shm_disable = get("NCCL_SHM_DISABLE") == "1";
    const std::string_view level = get("NCCL_P2P_LEVEL");
    constexpr std::string_view names[] = {"LOC", "NVL", "PIX", "PXB", "PHB", "SYS"};
    for (int i = 0; i < 6; ++i)
      if (level == names[i] || (level.size() == 1 && level[0] == '0' + i)) s.p2p_level = i;
    return s;
  }
};

/// Fills `nccl` of pairs whose path is known.
inline void choose_nccl_transport(machine& m, const nccl_settings& s) {
  for (gpu_pair& p : m.pairs) {
    const path_class pci = p.pci_nccl != path_class::unknown ? p.pci_nccl : p.pci;
    if (!p.nvlink.some() && pci == path_class::unknown) continue;
    constexpr int level[] = {2, 3, 4, 4, 5, 6}; // of each path class; NODE counts as PHB
    const int need = p.nvlink.some() ? 1 : level[static_cast<std::size_t>(pci)];
    const bool refused = (p.p2p_read.known() && *p.p2p_read != "OK") ||
                         (p.p2p_write.known() && *p.p2p_write != "OK");
    const bool p2p = !s.p2p_disable && !refused && need <= s.p2p_level;
    p.nccl = {p2p ? "P2P" : s.shm_disable ? "NET" : "SHM", source::inferred};
  }
}

} // namespace polyrank::probe
