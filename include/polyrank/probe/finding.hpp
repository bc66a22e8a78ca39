// What the probe can find, as data: a table of kinds, each with its severity, exit code, advice and
// a public reference. Checks make findings of these kinds; the documentation's table is printed
// from here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <polyrank/core/error.hpp>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace polyrank::probe {

enum class severity : unsigned char { warning, failure };

/// One kind of finding.
struct finding_kind {
  std::string_view code;  ///< stable, for scripts
  int exit = 10;          ///< of the program: 10 warnings, 20 failed, 21 P2P, 22 ranks disagree, 23
  std::string_view title; ///< what is wrong
  std::string_view advice;
  std::string_view reference;  ///< where others met it
  bool cured_by_reset = false; ///< only a GPU reset or a reboot helps

  [[nodiscard]] constexpr severity level() const noexcept {
    return exit == 10 || exit == 23 ? severity::warning : severity::failure;
  }
};

/// All kinds, by topic.
[[nodiscard]] inline std::span<const finding_kind> finding_kinds() noexcept {
  static constexpr finding_kind kinds[] = {
      // The GPU and its driver.
      {"no_gpu", 23, "no GPU is visible",
       "check `nvidia-smi`, the driver, and in a container --gpus all (NVIDIA Container Toolkit)",
       "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit"},
      {"driver_mismatch", 20, "the driver's library and kernel module are of different versions",
       "reload the kernel module or reboot: a package update replaced the library only",
       "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide", true},
      {"nvml_hung", 20, "a call into NVML did not return in time",
       "the driver hangs: look for Xid lines in dmesg; reset the GPU or reboot", "NVIDIA/nccl#968",
       true},
      {"cuda_hung", 20, "CUDA did not start in time",
       "the driver hangs: look for Xid lines in dmesg; reset the GPU or reboot",
       "NVIDIA/open-gpu-kernel-modules#1333", true},
      {"cuda_unusable", 20, "the driver shows a GPU, but CUDA cannot use it",
       "check CUDA_VISIBLE_DEVICES, the rights on /dev/nvidia*, and the container's devices",
       "NVIDIA/nvidia-docker#400"},
      {"driver_too_old", 20, "the driver is older than the CUDA runtime of this program",
       "update the driver, or build with a toolkit that is not newer than it",
       "NVIDIA/nccl-tests#12"},
      {"no_code", 20, "the program holds no code for this GPU",
       "build with CMAKE_CUDA_ARCHITECTURES (nvcc -arch) that includes its compute capability",
       "pytorch/pytorch#31981"},
      {"gpu_lost", 20, "a GPU has fallen off the bus",
       "reset the GPU or reboot; reseat it if it recurs",
       "https://docs.nvidia.com/deploy/xid-errors", true},
      {"fabric_not_ready", 20, "the NVSwitch fabric is not up on this GPU",
       "systemctl enable --now nvidia-fabricmanager (the same version as the driver)",
       "NVIDIA/nccl-tests#264"},
      {"fabric_lost", 20, "one GPU is out of the NVSwitch fabric while its peers are in",
       "drain the node and reset the GPUs; until then leave this GPU out (CUDA_VISIBLE_DEVICES)",
       "NVIDIA/nccl#1488", true},
      {"fabric_unhealthy", 20, "the fabric reports bad health", "reset the GPUs or reboot",
       "NVIDIA/nccl#2186", true},
      {"nvlink_down", 20, "NVLinks that this GPU has are not active",
       "look for Xid 74 in dmesg; reset the GPU, reseat its bridge or board", "NVIDIA/nccl#340",
       true},
      {"nvlink_uneven", 10, "GPUs of one machine have different numbers of active NVLinks",
       "the ring runs at the speed of the weakest GPU: compare `nvidia-smi nvlink -s`",
       "NVIDIA/nccl#557"},
      {"pcie_downtrained", 10, "a PCIe link runs below what both ends can do",
       "reseat the card or its riser; check the slot's lanes in the BIOS", "NVIDIA/NVSentinel#890"},
      {"ecc_errors", 20, "uncorrected memory errors since the driver was loaded",
       "drain the GPU; run a memory test; a reset retires the page",
       "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt", true},
      {"row_remap", 20, "a memory row waits to be remapped, or could not be",
       "reset the GPU; if the remapping failed, replace it",
       "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt", true},
      {"throttled", 10, "the GPU is slowed down by power or heat",
       "check cooling and power; `nvidia-smi -q -d PERFORMANCE`", "NVIDIA/NVSentinel#890"},
      {"mig_on", 10, "MIG is on: NCCL sees the parent GPU, and slices have no P2P",
       "one rank per GPU, or NCCL >= 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1", "NVIDIA/nccl#1716"},
      {"compute_mode", 10, "the compute mode keeps processes out", "nvidia-smi -c DEFAULT",
       "https://docs.nvidia.com/deploy/mps"},
      {"gpu_busy", 10, "other processes use this GPU",
       "end them if they are left over from an earlier job (orphan ranks)", "NVIDIA/nccl#968"},
      {"memory_taken", 10, "much of the GPU's memory is in use before the job starts",
       "end what is left over from an earlier job; `nvidia-smi` lists processes of all containers "
       "only on the host",
       "NVIDIA/nccl#582"},
      {"memory_short", 20, "the GPU has less free memory than the job needs",
       "end other processes, or ask for less (--memory)", "NVIDIA/nccl#582"},
      {"p2p_off", 20, "NVLink joins two GPUs, but the driver allows no P2P between them",
       "check NVreg_RegistryDwords, MIG, and the hypervisor; NCCL_IGNORE_DISABLED_P2P=1 lets it "
       "run slowly",
       "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"},
      {"acs_redirect", 10, "PCIe access control sends P2P traffic through the root complex",
       "turn ACS off: setpci -s BRIDGE ECAP_ACS+6.w=0 or in the BIOS; else NCCL_P2P_DISABLE=1 "
       "(slower)",
       "NVIDIA/nccl#2079"},
      {"iommu_translates", 10, "the IOMMU translates the addresses of this GPU",
       "iommu=pt on the kernel command line; P2P may hang or corrupt data otherwise",
       "pytorch/pytorch#84803"},
      {"p2p_hung", 21, "a copy between two GPUs does not end",
       "do not train here: turn ACS off or set iommu=pt; NCCL_P2P_DISABLE=1 works around it "
       "(slower); if the process cannot be killed, reset the GPU or reboot",
       "NVIDIA/nccl#2079"},
      {"p2p_corrupt", 21, "data change on the way between two GPUs",
       "do not train here: turn the IOMMU off or set iommu=pt, turn ACS off; NCCL_P2P_DISABLE=1 "
       "works around it (slower)",
       "pytorch/pytorch#84803"},
      {"host_copy_corrupt", 20, "data change between host memory and the GPU",
       "do not train here: test the memory, reseat the card",
       "https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html"},
      {"gpu_test_failed", 20, "a test on the GPU ended with an error",
       "read the error; dmesg may hold an Xid line of the same time",
       "https://docs.nvidia.com/deploy/xid-errors"},
      {"gpu_test_hung", 20, "a test on one GPU does not end",
       "look for Xid lines in dmesg; reset the GPU or reboot", "NVIDIA/nccl#968", true},
      {"link_slow", 10, "a link of a GPU is slower than such a link should be",
       "check the PCIe generation under load, ACS, NUMA binding, and what else runs on the host",
       "NVIDIA/NVSentinel#890"},
      {"link_bad", 20, "a link of a GPU has less than 60 % of its usual bandwidth",
       "compare with another host; check PCIe width and generation, NVLinks, ACS and the IOMMU",
       "NVIDIA/NVSentinel#890"},
      {"gemm_slow", 10, "a GPU multiplies matrices slower than its peers",
       "check clocks, power cap and cooling: `nvidia-smi -q -d PERFORMANCE,CLOCK,POWER`",
       "NVIDIA/NVSentinel#890"},
      {"small_win_wrong", 20, "a small model on the GPU gives other gradients than on the host",
       "do not train here: run `dcgmi diag -r 3`, look at ECC errors and Xid lines",
       "https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html"},
      {"memory_kept", 10, "GPU memory was not given back after it was freed",
       "another process takes memory meanwhile, or the driver leaks: compare `nvidia-smi`",
       "https://docs.nvidia.com/deploy/xid-errors"},
      {"numa_unknown", 10, "the NUMA node of a device is not known",
       "usual in virtual machines: give NCCL a topology file (NCCL_TOPO_FILE) of this machine type",
       "NVIDIA/nccl#1674"},
      // The host.
      {"shm_too_low", 20, "/dev/shm has too little room for NCCL and MPI",
       "docker run --shm-size=1g (or --ipc=host); in Kubernetes an emptyDir with medium: Memory",
       "NVIDIA/nccl#290"},
      {"shm_tight", 10, "/dev/shm is smaller than NCCL and MPI like it",
       "docker run --shm-size=1g (or --ipc=host)", "NVIDIA/nccl#525"},
      {"shm_stale", 10, "/dev/shm holds files of NCCL jobs that are gone", "rm /dev/shm/nccl-*",
       "NVIDIA/nccl#342"},
      {"memlock_low", 10, "locked memory is limited: RDMA cannot register its buffers",
       "ulimit -l unlimited, in limits.conf or the service that starts ranks; log in again",
       "NVIDIA/nccl-tests#206"},
      {"nofile_low", 10, "few files may be open at once", "ulimit -n 65536", "NVIDIA/nccl#550"},
      {"stack_unlimited", 10,
       "an unlimited stack makes threads small and can crash NCCL before 2.28", "ulimit -s 8192",
       "NVIDIA/nccl#2186"},
      {"library_twice", 20, "two copies of one library are loaded",
       "keep one: look at LD_LIBRARY_PATH, rpath and Python packages", "NVIDIA/nccl#1328"},
      {"one_cpu", 10, "a rank may run on one CPU only, so its threads take turns",
       "mpirun --bind-to none, or --map-by slot:PE=n", "NVIDIA/nccl#1017"},
      {"cpus_shared", 10, "the ranks of a host share fewer CPUs than there are ranks",
       "mpirun --bind-to none, fewer ranks, or more CPUs for the job", "LLNL/lbann#560"},
      {"cpus_far", 10, "a rank runs on CPUs that are far from its GPU",
       "bind each rank to the CPUs of its GPU: see polyrank_probe launch-line", "NVIDIA/nccl#1017"},
      {"env_interface", 20, "NCCL_SOCKET_IFNAME names no usable interface of this host",
       "name one that polyrank_probe lists, or leave it unset", "horovod/horovod#310"},
      {"env_loopback", 10, "NCCL_SOCKET_IFNAME=^... lets the loopback interface in",
       "use ^docker0,lo or leave it unset", "horovod/horovod#700"},
      {"env_blocking", 10, "CUDA_LAUNCH_BLOCKING=1 can make NCCL hang and always slows down",
       "unset CUDA_LAUNCH_BLOCKING", "NVIDIA/nccl#750"},
      {"env_slow", 10, "a variable turns off a fast path",
       "unset it, unless it works around a fault",
       "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"},
      {"launcher_mismatch", 20, "the launcher and the MPI library do not fit",
       "use the mpirun of the MPI that the program is linked with", "NVIDIA/nccl-tests#213"},
      // The ranks against each other.
      {"env_differs", 22, "a variable differs between ranks",
       "mpirun -x NAME passes it on; look at /etc/nccl.conf and ~/.nccl.conf of each host",
       "NVIDIA/nccl#394"},
      {"version_differs", 22, "a library or driver differs between ranks",
       "install the same version on every host", "NVIDIA/nccl#354"},
      {"limits_differ", 10, "limits differ between ranks", "set them alike on every host",
       "NVIDIA/nccl-tests#206"},
      {"cpu_differs", 10, "hosts have different CPUs",
       "NCCL may choose other algorithms on each: pin NCCL_ALGO and NCCL_PROTO alike",
       "NVIDIA/nccl#1136"},
      {"gpu_differs", 10, "ranks have different GPU models",
       "the slowest sets the pace; pin NCCL_ALGO and NCCL_PROTO alike", "NVIDIA/nccl#1110"},
      {"gpu_twice", 22, "two ranks use the same GPU",
       "choose the GPU by the local rank (OMPI_COMM_WORLD_LOCAL_RANK, SLURM_LOCALID)",
       "volcengine/verl#161"},
      {"nics_differ", 22, "hosts show different numbers of RDMA NICs",
       "set NCCL_IB_HCA alike, or fix the device cgroup of the odd host", "NVIDIA/nccl#2428"},
      {"uneven_hosts", 10, "hosts run different numbers of ranks",
       "start the same number everywhere: some NCCL versions hang in bootstrap otherwise",
       "NVIDIA/nccl#2385"},
      {"wrong_interface", 20, "a rank announces an address that other hosts cannot reach",
       "NCCL_SOCKET_IFNAME=<the interface between the hosts>, and for Open MPI --mca "
       "btl_tcp_if_include <it> --mca oob_tcp_if_include <it>",
       "horovod/horovod#310"},
      {"nccl_hung", 20, "NCCL does not connect all ranks in time",
       "look at the ranks named, their interfaces (NCCL_SOCKET_IFNAME) and NCCL_DEBUG=INFO",
       "NVIDIA/nccl#1677"},
      {"nccl_failed", 20, "NCCL reports an error", "read it; NCCL_DEBUG=INFO says more",
       "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"},
      {"port_blocked", 20, "a TCP connection between two ranks is dropped",
       "open the ports of net.ipv4.ip_local_port_range between the hosts", "NVIDIA/nccl#352"},
      {"port_refused", 20, "a TCP connection between two ranks is refused",
       "a firewall rejects it, or the address belongs to another host", "NVIDIA/nccl#352"},
      {"rank_data_corrupt", 20, "data between two ranks arrive changed",
       "do not train here: test memory and network; try another MPI transport",
       "pytorch/pytorch#84803"},
      {"rank_link_slow", 10, "the link between two ranks is much slower than its peers",
       "compare cable, switch port and interface of these hosts",
       "https://github.com/stas00/ml-engineering/tree/master/network"},
      {"data_unreadable", 20, "the data directory cannot be read on some rank",
       "mount it on every host, with the same path and rights",
       "https://github.com/stas00/ml-engineering/tree/master/storage"},
      {"data_slow", 10, "one rank reads the data directory much slower than the others",
       "check its mount and cache; copy the data to local disks",
       "https://github.com/stas00/ml-engineering/tree/master/storage"},
  };
  return kinds;
}

/// The kind of a code. @throws usage_error for one that there is not
[[nodiscard]] inline const finding_kind& find_kind(std::string_view code) {
  const auto kinds = finding_kinds();
  const auto found = std::find_if(kinds.begin(), kinds.end(),
                                  [&](const finding_kind& k) { return k.code == code; });
  expects(found != kinds.end(), "no kind of finding is called ", code);
  return *found;
}

struct finding {
  std::string code;
  std::string evidence; ///< who, where, how much
  int rank = -1;        ///< -1: a host or a machine, not one rank
  std::string host;

  [[nodiscard]] const finding_kind& kind() const { return find_kind(code); }
};

/// The program's exit code: 21 > 22 > 20 > 23 > 10 > 0.
[[nodiscard]] inline int exit_code(std::span<const finding> findings) {
  for (const int code : {21, 22, 20, 23, 10})
    if (std::any_of(findings.begin(), findings.end(),
                    [&](const finding& f) { return f.kind().exit == code; }))
      return code;
  return 0;
}

/// The table of all kinds, as Markdown; docs/probe.md holds it.
[[nodiscard]] inline std::string findings_markdown() {
  std::string out = "| code | exit | what | what to do | reference |\n|---|---|---|---|---|\n";
  for (const finding_kind& k : finding_kinds()) {
    std::string reference(k.reference);
    if (const std::size_t hash = reference.find('#');
        hash != std::string::npos && !reference.starts_with("http"))
      reference = polyrank::detail::cat('[', k.reference, "](https://github.com/",
                                        k.reference.substr(0, hash), "/issues/",
                                        k.reference.substr(hash + 1), ')');
    else
      reference = polyrank::detail::cat("[documentation](", k.reference, ')');
    out += polyrank::detail::cat("| `", k.code, "` | ", k.exit, " | ", k.title, " | ", k.advice,
                                 k.cured_by_reset ? " (only a reset or reboot cures it)" : "",
                                 " | ", reference, " |\n");
  }
  return out;
}

} // namespace polyrank::probe
