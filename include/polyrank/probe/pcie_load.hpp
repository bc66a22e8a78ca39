// The PCIe link of a GPU while something else keeps it busy: an idle GPU lowers the generation, so
// only this says what was trained.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/model.hpp>
#include <polyrank/probe/nvml.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace polyrank::probe {

class pcie_load {
 public:
  /// Of the GPU at `address`; without NVML or an address nothing is ever seen.
  pcie_load(const std::string& library, std::optional<pci_address> address) {
    if (!address || library.empty()) return;
    lib_ = std::make_unique<nvml>(library, std::chrono::milliseconds(2000));
    if (lib_->how() != nvml::state::ready) return;
    const unsigned count = lib_->get<unsigned>("nvmlDeviceGetCount_v2").value_or(0);
    for (unsigned i = 0; i < count && !device_; ++i) {
      const auto d = lib_->get<nvml_abi::handle>("nvmlDeviceGetHandleByIndex_v2", i);
      const auto pci =
          d ? lib_->get<nvml_abi::pci_info>("nvmlDeviceGetPciInfo_v3", *d) : std::nullopt;
      if (pci && pci->domain == address->domain && pci->bus == address->bus &&
          pci->device == address->device)
        device_ = d;
    }
  }

  /// Reads the link now; the best of all looks is kept.
  void look() {
    if (!device_) return;
    const auto generation = lib_->get<unsigned>("nvmlDeviceGetCurrPcieLinkGeneration", *device_);
    const auto width = lib_->get<unsigned>("nvmlDeviceGetCurrPcieLinkWidth", *device_);
    if (!generation || !width || static_cast<int>(*generation) < most_.generation) return;
    most_ = {static_cast<int>(*generation), static_cast<int>(*width)};
  }
  [[nodiscard]] pcie_link most() const noexcept { return most_; }

 private:
  std::unique_ptr<nvml> lib_;
  std::optional<nvml_abi::handle> device_;
  pcie_link most_;
};

} // namespace polyrank::probe
