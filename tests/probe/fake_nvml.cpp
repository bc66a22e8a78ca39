// A libnvidia-ml.so with synthetic answers, opened by the tests as the real one would be. The
// machine is chosen by POLYRANK_FAKE_NVML. Layout of structs: as in the NVML reference.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

#include <polyrank/probe/nvml.hpp>

namespace {

namespace abi = polyrank::probe::nvml_abi;

std::string scenario() {
  const char* name = std::getenv("POLYRANK_FAKE_NVML");
  return name != nullptr ? name : "";
}
bool is(const char* name) { return scenario() == name; }

int gpus() {
  if (is("pcie") || is("bridged")) return 4;
  if (is("vm") || is("mig") || is("downtrained") || is("busy") || is("hidden")) return 1;
  return is("empty") ? 0 : 8;
}
int number(abi::handle d) { return static_cast<int>(reinterpret_cast<std::size_t>(d)) - 1; }
bool cube() { return is("cube"); }
bool on_switch() { return is("nvswitch") || is("lost_fabric"); }

// Hybrid cube mesh of eight: links of each pair.
int cube_links(int a, int b) {
  constexpr int n[8][8] = {{0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0},
                           {1, 2, 0, 2, 0, 0, 1, 0}, {2, 1, 2, 0, 0, 0, 0, 1},
                           {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1},
                           {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0}};
  return n[a][b];
}
/// The GPU at the far end of a link; -1: a switch, -2: no such link.
int far_end(int g, int link) {
  if (on_switch()) return link < 18 ? -1 : -2;
  if (is("bridged")) return link < 4 ? (g ^ 1) : -2;
  if (!cube()) return -2;
  for (int other = 0; other < 8; ++other)
    if ((link -= cube_links(g, other)) < 0) return other;
  return -2;
}
void put_pci(abi::pci_info* out, unsigned bus) {
  std::memset(out, 0, sizeof *out);
  out->bus = bus;
  std::snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", bus);
}
unsigned bus_of(int g) { return 0x10U * static_cast<unsigned>(g + 1) + 1; }
constexpr int unsupported = abi::not_supported;

} // namespace

extern "C" {
int nvmlInit_v2() {
  if (is("mismatch")) return abi::version_mismatch;
  if (is("no_driver")) return abi::driver_not_loaded;
  return 0;
}
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* n) {
  *n = static_cast<unsigned>(gpus());
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, abi::handle* d) {
  if (is("fallen") && i == 2) return abi::gpu_lost;
  *d = reinterpret_cast<abi::handle>(static_cast<std::size_t>(i) + 1);
  return 0;
}
int nvmlDeviceGetPciInfo_v3(abi::handle d, abi::pci_info* out) {
  put_pci(out, bus_of(number(d)));
  return 0;
}
int nvmlDeviceGetUUID(abi::handle d, char* out, unsigned size) {
  if (is("hang")) sleep(3600);
  std::snprintf(out, size, "GPU-synthetic-%d", number(d));
  return 0;
}
int nvmlDeviceGetName(abi::handle, char* out, unsigned size) {
  std::snprintf(out, size, "Synthetic GPU");
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(abi::handle, int* high, int* low) {
  *high = on_switch() ? 9 : cube() ? 7 : 8;
  *low = 0;
  return 0;
}
int nvmlDeviceGetCurrPcieLinkGeneration(abi::handle, unsigned* v) {
  *v = 1; // idle
  return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(abi::handle, unsigned* v) {
  *v = is("downtrained") ? 8 : 16;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(abi::handle, unsigned* v) {
  *v = 5;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(abi::handle, unsigned* v) {
  *v = 16;
  return 0;
}
int nvmlDeviceGetMemoryInfo(abi::handle, abi::memory* m) {
  const unsigned long long used = is("hidden") ? 30 : 1;
  *m = {80ULL << 30, (80 - used) << 30, used << 30};
  return 0;
}
int nvmlDeviceGetNvLinkCapability(abi::handle d, unsigned link, unsigned, unsigned* v) {
  if (far_end(number(d), static_cast<int>(link)) == -2) return unsupported;
  *v = 1;
  return 0;
}
int nvmlDeviceGetNvLinkState(abi::handle d, unsigned link, unsigned* v) {
  *v = is("bridged") && number(d) == 3 && link == 3 ? 0 : 1;
  return 0;
}
int nvmlDeviceGetFieldValues(abi::handle d, int n, abi::field_value* v) {
  for (int i = 0; i < n; ++i) {
    v[i].result = 0;
    if (v[i].field == abi::nvlink_state)
      v[i].value.u = far_end(number(d), static_cast<int>(v[i].scope)) != -2;
    else if (v[i].field == abi::nvlink_version)
      v[i].value.u = on_switch() ? 4 : 2;
    else
      v[i].result = unsupported;
  }
  return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(abi::handle d, unsigned link, abi::pci_info* out) {
  const int other = far_end(number(d), static_cast<int>(link));
  put_pci(out, other < 0 ? 0xf0U + link % 4 : bus_of(other));
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(abi::handle d, unsigned link, int* type) {
  *type = far_end(number(d), static_cast<int>(link)) < 0 ? 2 : 0;
  return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(abi::handle a, abi::handle b, int* level) {
  *level = (number(a) < gpus() / 2) == (number(b) < gpus() / 2) ? 40 : 50;
  return 0;
}
int nvmlDeviceGetP2PStatus(abi::handle, abi::handle, int, int* status) {
  *status = is("pcie") ? 1 : 0;
  return 0;
}
int nvmlDeviceGetGpuFabricInfoV(abi::handle d, abi::fabric_info* f) {
  if (!on_switch()) return unsupported;
  f->state = is("lost_fabric") && number(d) == 5 ? 2 : 3;
  f->status = 0;
  f->health_mask = 0xaa;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(abi::handle, int, int, unsigned long long* n) {
  *n = 0;
  return 0;
}
int nvmlDeviceGetRemappedRows(abi::handle, unsigned* a, unsigned* b, unsigned* pending,
                              unsigned* failed) {
  *a = *b = *pending = *failed = 0;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(abi::handle, unsigned long long* bits) {
  *bits = 1; // idle
  return 0;
}
int nvmlDeviceGetMigMode(abi::handle, unsigned* now, unsigned* pending) {
  *now = *pending = is("mig") ? 1 : 0;
  return 0;
}
int nvmlDeviceGetUtilizationRates(abi::handle, abi::utilization* u) {
  *u = {is("hidden") ? 97U : 0U, 0};
  return 0;
}
int nvmlDeviceGetComputeMode(abi::handle, int* mode) {
  *mode = 0;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(abi::handle, unsigned* n, abi::process* list) {
  *n = is("busy") ? 1 : 0;
  if (is("busy")) list[0] = {4711, 3ULL << 30, 0, 0};
  return 0;
}
}
