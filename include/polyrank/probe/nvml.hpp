// NVML, NVIDIA's management library, opened at run time: nothing is needed to build or to start,
// and a missing library, driver or function is an answer, not an error. Own prototypes for the few
// functions used; their layout is fixed by the library's ABI (documented in NVIDIA's NVML API
// reference). Every call has a deadline; after one is missed, no further call is made.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/probe/bounded_call.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>

namespace polyrank::probe {

namespace nvml_abi {

using handle = void*;
struct pci_info {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
struct memory {
  unsigned long long total, free, used;
};
struct utilization {
  unsigned gpu, memory; ///< percent of the last sample period
};
struct process {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};
struct field_value {
  unsigned field, scope;
  long long timestamp, latency;
  int type, result;
  union {
    double d;
    unsigned u;
    unsigned long long ull;
    long long ll;
  } value;
};
struct fabric_info { // version 2
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health_mask;
};
static_assert(sizeof(pci_info) == 68 && sizeof(process) == 24 && sizeof(field_value) == 40 &&
              sizeof(fabric_info) == 36);

enum result : int {
  success = 0,
  not_supported = 3,
  driver_not_loaded = 9,
  gpu_lost = 15,
  version_mismatch = 18
};
enum field : unsigned {
  nvlink_state = 165, ///< of link `scope`, from compute capability 9.0 on
  nvlink_version = 166,
  c2c_link_count = 170
};

} // namespace nvml_abi

/// The library, open. All calls return nothing when they failed, are not there, or came late.
class nvml {
 public:
  /// Opens `library` and initialises it; see state().
  explicit nvml(const std::string& library, std::chrono::milliseconds deadline)
      : deadline_(deadline) {
    // Opening runs the library's constructors: bounded too.
    const auto opened = bounded_call(
        [library] { return dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL); }, deadline);
    if (!opened) {
      hang("dlopen");
    } else if (*opened == nullptr) {
      state_ = state::no_library;
    } else {
      library_ = *opened;
      init_ = call<>("nvmlInit_v2").value_or(nvml_abi::driver_not_loaded);
      if (state_ != state::hung)
        state_ = init_ == nvml_abi::success            ? state::ready
                 : init_ == nvml_abi::version_mismatch ? state::mismatch
                                                       : state::no_driver;
    }
  }
  nvml(const nvml&) = delete;
  nvml& operator=(const nvml&) = delete;
  /// The library stays loaded: unloading it while a late call runs would crash.
  ~nvml() {
    if (state_ == state::ready) static_cast<void>(call<>("nvmlShutdown"));
  }

  enum class state : unsigned char { no_library, no_driver, mismatch, ready, hung };
  [[nodiscard]] state how() const noexcept { return state_; }
  [[nodiscard]] int init_result() const noexcept { return init_; }
  /// The call that did not return.
  [[nodiscard]] const std::string& hung_in() const noexcept { return hung_in_; }
  [[nodiscard]] int last_result() const noexcept { return last_; }

  /// name(arguments..., &out): the value that the function writes.
  template <class Out, class... Arguments>
  [[nodiscard]] std::optional<Out> get(const char* name, Arguments... arguments) {
    return get_from<Out>(Out{}, name, arguments...);
  }
  /// The same, with a value that the function also reads (a version, a capacity).
  template <class Out, class... Arguments>
  [[nodiscard]] std::optional<Out> get_from(Out start, const char* name, Arguments... arguments) {
    using function = int (*)(Arguments..., Out*);
    const auto f = reinterpret_cast<function>(find(name));
    if (f == nullptr) return std::nullopt;
    const auto answer = bounded_call(
        [f, start, arguments...]() mutable {
          Out out = start;
          const int result = f(arguments..., &out);
          return std::pair(result, out);
        },
        deadline_);
    if (!answer) {
      hang(name);
      return std::nullopt;
    }
    last_ = answer->first;
    return answer->first == nvml_abi::success ? std::optional(answer->second) : std::nullopt;
  }
  /// For functions with several outputs: use(function, out) calls it and returns its result.
  template <class Out, class Use>
  [[nodiscard]] std::optional<Out> with(const char* name, Use use) {
    void* const f = find(name);
    if (f == nullptr) return std::nullopt;
    const auto answer = bounded_call(
        [f, use] {
          Out out{};
          const int result = use(f, out);
          return std::pair(result, out);
        },
        deadline_);
    if (!answer) {
      hang(name);
      return std::nullopt;
    }
    last_ = answer->first;
    return answer->first == nvml_abi::success ? std::optional(answer->second) : std::nullopt;
  }
  /// name(handle, char*, size).
  [[nodiscard]] std::string text(const char* name, nvml_abi::handle device) {
    using function = int (*)(nvml_abi::handle, char*, unsigned);
    const auto f = reinterpret_cast<function>(find(name));
    if (f == nullptr) return {};
    const auto answer = bounded_call(
        [f, device] {
          std::array<char, 128> out{};
          return f(device, out.data(), 96) == nvml_abi::success ? std::string(out.data())
                                                                : std::string();
        },
        deadline_);
    if (!answer) hang(name);
    return answer.value_or("");
  }
  /// name(char*, size).
  [[nodiscard]] std::string text(const char* name) {
    using function = int (*)(char*, unsigned);
    const auto f = reinterpret_cast<function>(find(name));
    if (f == nullptr) return {};
    const auto answer = bounded_call(
        [f] {
          std::array<char, 128> out{};
          return f(out.data(), 96) == nvml_abi::success ? std::string(out.data()) : std::string();
        },
        deadline_);
    if (!answer) hang(name);
    return answer.value_or("");
  }
  /// One field of a device; nothing where it is not supported.
  [[nodiscard]] std::optional<unsigned> field(nvml_abi::handle device, unsigned id,
                                              unsigned scope) {
    nvml_abi::field_value v{};
    v.field = id;
    v.scope = scope;
    const auto answer = get_from(v, "nvmlDeviceGetFieldValues", device, 1);
    if (!answer || answer->result != nvml_abi::success) return std::nullopt;
    return answer->value.u;
  }

  /// Compute processes; nothing where they cannot be listed.
  [[nodiscard]] std::optional<std::vector<nvml_abi::process>> processes(nvml_abi::handle device) {
    using function = int (*)(nvml_abi::handle, unsigned*, nvml_abi::process*);
    const auto f = reinterpret_cast<function>(find("nvmlDeviceGetComputeRunningProcesses_v3"));
    if (f == nullptr) return std::nullopt;
    const auto answer = bounded_call(
        [f, device] {
          unsigned count = 64;
          std::vector<nvml_abi::process> list(count);
          const int result = f(device, &count, list.data());
          list.resize(result == nvml_abi::success ? std::min<std::size_t>(count, list.size()) : 0);
          return std::pair(result, list);
        },
        deadline_);
    if (!answer) hang("nvmlDeviceGetComputeRunningProcesses_v3");
    if (!answer || answer->first != nvml_abi::success) return std::nullopt;
    return answer->second;
  }

 private:
  template <class... Arguments>
  std::optional<int> call(const char* name, Arguments... arguments) {
    using function = int (*)(Arguments...);
    const auto f = reinterpret_cast<function>(find(name));
    if (f == nullptr) return std::nullopt;
    const auto result = bounded_call([f, arguments...] { return f(arguments...); }, deadline_);
    if (!result) hang(name);
    return result;
  }
  [[nodiscard]] void* find(const char* name) const noexcept {
    return library_ == nullptr || state_ == state::hung ? nullptr : dlsym(library_, name);
  }
  void hang(const char* name) {
    state_ = state::hung;
    hung_in_ = name;
  }

  void* library_ = nullptr;
  std::chrono::milliseconds deadline_;
  state state_ = state::no_driver;
  int init_ = 0, last_ = 0;
  std::string hung_in_;
};

} // namespace polyrank::probe
