// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker.hpp"

#include "gpu_kernels.hpp"
#include "small_win.hpp"

#include <polyrank/backend/buffer.hpp>
#include <polyrank/cuda/blas.hpp>
#include <polyrank/cuda/device.hpp>
#include <polyrank/cuda/memory.hpp>
#include <polyrank/cuda/nccl.hpp>
#include <polyrank/cuda/stream.hpp>
#include <polyrank/probe/collect_rank_facts.hpp>
#include <polyrank/probe/gpu_worker.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <unistd.h>

namespace polyrank::examples {

namespace {

using polyrank::detail::cat;
using probe::gpu_answer;

/// Start and end of some work of a stream, by the GPU's own clock.
class stopwatch {
 public:
  stopwatch() {
    cuda::check(cudaEventCreate(&start_), "cudaEventCreate");
    cuda::check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  stopwatch(const stopwatch&) = delete;
  stopwatch& operator=(const stopwatch&) = delete;
  ~stopwatch() {
    static_cast<void>(cudaEventDestroy(start_));
    static_cast<void>(cudaEventDestroy(end_));
  }
  /// Seconds of what `work` enqueues on `s`.
  template <class Work>
  double time(cudaStream_t s, Work work) {
    cuda::check(cudaEventRecord(start_, s), "cudaEventRecord");
    work();
    cuda::check(cudaEventRecord(end_, s), "cudaEventRecord");
    cuda::check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, start_, end_), "cudaEventElapsedTime");
    return static_cast<double>(ms) / 1e3;
  }
  /// The median of `n` times, after one that is not counted.
  template <class Work>
  double median(int n, cudaStream_t s, Work work) {
    static_cast<void>(time(s, work));
    std::vector<double> seconds;
    for (int i = 0; i < n; ++i) seconds.push_back(time(s, work));
    std::nth_element(seconds.begin(), seconds.begin() + n / 2, seconds.end());
    return seconds[static_cast<std::size_t>(n / 2)];
  }

 private:
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

/// Faults that kernels count.
class fault_count {
 public:
  fault_count() : count_(1, cuda::device_memory()) { clear(); }
  void clear() {
    cuda::check(cudaMemset(count_.data(), 0, sizeof(unsigned long long)), "cudaMemset");
  }
  [[nodiscard]] unsigned long long* pointer() { return count_.data(); }
  /// After all work of `s`.
  [[nodiscard]] unsigned long long read(const cuda::stream& s) {
    s.synchronize();
    unsigned long long n = 0;
    cuda::check(cudaMemcpy(&n, count_.data(), sizeof n, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return n;
  }

 private:
  buffer<unsigned long long> count_;
};

void copy(void* to, const void* from, std::size_t bytes, const cuda::stream& s) {
  cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s.native()), "cudaMemcpyAsync");
}

const char* data_word(unsigned long long faults) { return faults == 0 ? "ok" : "changed"; }

class worker {
 public:
  gpu_answer answer(const std::string& line) {
    std::istringstream words(line);
    std::string question;
    words >> question;
    gpu_answer a;
    a.how = gpu_answer::outcome::ok;
    try {
      if (question == "facts")
        facts(a);
      else if (question == "code")
        code(words);
      else if (question == "host_device")
        host_device(words, a);
      else if (question == "peer")
        peer(words, a);
      else if (question == "gemm")
        gemm(words, a);
      else if (question == "small_win")
        small_win(words, a);
      else if (question == "nccl_id")
        nccl_id(words, a);
      else if (question == "join")
        join(words);
      else if (question == "swap")
        swap(words, a);
      else if (question == "collective")
        collective(words, a);
      else if (question == "leave")
        leave();
      else
        throw usage_error(cat("GPU worker: unknown question \"", line, '"'));
    } catch (const comm_error& e) {
      a = {};
      a.how = gpu_answer::outcome::failed;
      a.code = e.code();
      a.text = e.what();
    } catch (const std::exception& e) {
      a = {};
      a.how = gpu_answer::outcome::failed;
      a.text = e.what();
    }
    return a;
  }

 private:
  template <class T>
  static T next(std::istringstream& words) {
    T value{};
    if (!(words >> value)) throw usage_error("GPU worker: a question without its numbers");
    return value;
  }
  static int choose(std::istringstream& words) {
    const int device = next<int>(words);
    cuda::check(cudaSetDevice(device), "cudaSetDevice");
    return device;
  }

  /// No context is made on any device: the memory of the GPUs stays as it is.
  static void facts(gpu_answer& a) {
    int driver = 0, runtime = 0, count = 0, version = 0;
    cuda::check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    cuda::check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    const cudaError_t seen = cudaGetDeviceCount(&count);
    if (seen == cudaErrorInsufficientDriver)
      throw cuda::cuda_error("cudaGetDeviceCount", seen, cuda::unusable());
    cuda::check(seen, "cudaGetDeviceCount");
    a.values["driver"] = cat(driver);
    a.values["runtime"] = cat(runtime);
    if (ncclGetVersion(&version) == ncclSuccess)
      a.values["nccl"] = cuda::nccl_version_text(version);
    std::string cublas;
    for (const auto part : {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL})
      if (int n = 0; cublasGetProperty(part, &n) == CUBLAS_STATUS_SUCCESS)
        cublas += cat(cublas.empty() ? "" : ".", n);
    a.values["cublas"] = cublas;
    for (int d = 0; d < count; ++d) {
      cudaDeviceProp p{};
      cuda::check(cudaGetDeviceProperties(&p, d), "cudaGetDeviceProperties");
      char bus[32] = "";
      cuda::check(cudaDeviceGetPCIBusId(bus, sizeof bus, d), "cudaDeviceGetPCIBusId");
      std::string uuid = "GPU-";
      for (std::size_t i = 0; i < 16; ++i) {
        constexpr char digits[] = "0123456789abcdef";
        const auto byte = static_cast<unsigned char>(p.uuid.bytes[i]);
        if (i == 4 || i == 6 || i == 8 || i == 10) uuid += '-';
        uuid += digits[byte >> 4];
        uuid += digits[byte & 15];
      }
      a.values[cat("device", d)] =
          cat(bus, '|', uuid, '|', p.name, '|', p.major * 10 + p.minor, '|', p.totalGlobalMem);
      for (int other = d + 1; other < count; ++other) {
        const auto both = [&](cudaDeviceP2PAttr what) {
          int forth = 0, back = 0;
          static_cast<void>(cudaDeviceGetP2PAttribute(&forth, what, d, other));
          static_cast<void>(cudaDeviceGetP2PAttribute(&back, what, other, d));
          return std::pair(std::min(forth, back), std::max(forth, back));
        };
        a.values[cat("peer", d, '.', other)] = cat(both(cudaDevP2PAttrAccessSupported).first, '|',
                                                   both(cudaDevP2PAttrNativeAtomicSupported).first,
                                                   '|', both(cudaDevP2PAttrPerformanceRank).second);
      }
    }
    static_cast<void>(cudaGetLastError());
    std::string libraries;
    for (const std::string& path : probe::detail::loaded_libraries("/proc/self/maps"))
      libraries += (libraries.empty() ? "" : "|") + path;
    a.values["libraries"] = libraries;
  }

  /// Runs a kernel of this program.
  static void code(std::istringstream& words) {
    choose(words);
    buffer<std::uint64_t> one(1, cuda::device_memory());
    const cuda::stream s;
    gpu_kernels::fill_pattern(one.data(), 1, 1, s.native());
    s.synchronize();
  }

  void host_device(std::istringstream& words, gpu_answer& a) {
    choose(words);
    const auto n = next<std::size_t>(words) / 8; // words of eight bytes
    buffer<std::uint64_t> up(n, cuda::pinned_memory()), down(n, cuda::pinned_memory()),
        device(n, cuda::device_memory()), other(n, cuda::device_memory());
    cuda::stream s, t;
    fault_count faults;
    for (std::size_t i = 0; i < n; ++i) up.data()[i] = gpu_kernels::pattern(1, i);
    copy(device.data(), up.data(), 8 * n, s);
    gpu_kernels::count_pattern_faults(device.data(), n, 1, faults.pointer(), s.native());
    gpu_kernels::fill_pattern(other.data(), n, 2, s.native());
    copy(down.data(), other.data(), 8 * n, s);
    unsigned long long bad = faults.read(s);
    for (std::size_t i = 0; i < n; ++i) bad += down.data()[i] != gpu_kernels::pattern(2, i) ? 1 : 0;
    a.values["data"] = data_word(bad);

    stopwatch watch;
    const double bytes = 8.0 * static_cast<double>(n);
    a.values["to_device"] =
        cat(bytes / watch.median(9, s.native(), [&] { copy(device.data(), up.data(), 8 * n, s); }));
    a.values["from_device"] = cat(
        bytes / watch.median(9, s.native(), [&] { copy(down.data(), other.data(), 8 * n, s); }));
    cuda::event begun, ended;
    a.values["both_ways"] = cat(2 * bytes / watch.median(9, s.native(), [&] {
      begun.record(s);
      t.wait(begun);
      copy(device.data(), up.data(), 8 * n, s);
      copy(down.data(), other.data(), 8 * n, t);
      ended.record(t);
      s.wait(ended);
    }));
    a.values["latency"] =
        cat(watch.median(21, s.native(), [&] { copy(device.data(), up.data(), 8, s); }));
  }

  /// peer FROM TO BYTES direct|host: copies between two GPUs of this process.
  void peer(std::istringstream& words, gpu_answer& a) {
    const int from = next<int>(words), to = next<int>(words);
    const auto n = next<std::size_t>(words) / 8;
    const bool direct = next<std::string>(words) == "direct";
    if (direct) {
      int forth = 0, back = 0;
      cuda::check(cudaDeviceCanAccessPeer(&forth, from, to), "cudaDeviceCanAccessPeer");
      cuda::check(cudaDeviceCanAccessPeer(&back, to, from), "cudaDeviceCanAccessPeer");
      a.values["access"] = cat(forth != 0 && back != 0 ? 1 : 0);
      if (forth == 0 || back == 0) return;
    }
    for (const auto& [self, other] : {std::pair(from, to), std::pair(to, from)}) {
      cuda::check(cudaSetDevice(self), "cudaSetDevice");
      const cudaError_t code =
          direct ? cudaDeviceEnablePeerAccess(other, 0) : cudaDeviceDisablePeerAccess(other);
      if (code == cudaErrorPeerAccessAlreadyEnabled || code == cudaErrorPeerAccessNotEnabled)
        static_cast<void>(cudaGetLastError());
      else
        cuda::check(code, "cudaDeviceEnablePeerAccess");
    }
    cuda::check(cudaSetDevice(to), "cudaSetDevice");
    buffer<std::uint64_t> target(n, cuda::device_memory());
    cuda::stream on_target;
    fault_count faults;
    cuda::check(cudaSetDevice(from), "cudaSetDevice");
    buffer<std::uint64_t> origin(n, cuda::device_memory());
    cuda::stream s;
    const auto send = [&] {
      cuda::check(cudaMemcpyPeerAsync(target.data(), to, origin.data(), from, 8 * n, s.native()),
                  "cudaMemcpyPeerAsync");
    };
    // Several patterns, so that old data in the target cannot pass for new ones; with direct
    // access also kernels that write to the other GPU, as NCCL's do.
    unsigned long long bad = 0;
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      const bool by_kernel = direct && seed > 2;
      gpu_kernels::fill_pattern(by_kernel ? target.data() : origin.data(), n, seed, s.native());
      if (!by_kernel) send();
      s.synchronize();
      const cuda::scoped_device here(to);
      gpu_kernels::count_pattern_faults(target.data(), n, seed, faults.pointer(),
                                        on_target.native());
      bad = faults.read(on_target);
    }
    a.values["data"] = data_word(bad);
    stopwatch watch;
    a.values["bandwidth"] = cat(8.0 * static_cast<double>(n) / watch.median(5, s.native(), send));
    a.values["latency"] = cat(watch.median(21, s.native(), [&] {
      cuda::check(cudaMemcpyPeerAsync(target.data(), to, origin.data(), from, 8, s.native()),
                  "cudaMemcpyPeerAsync");
    }));
  }

  /// Floating-point operations per second of large square products in 16 bits.
  static void gemm(std::istringstream& words, gpu_answer& a) {
    const cuda::device_info device = cuda::describe(choose(words));
    constexpr std::size_t n = 8192;
    buffer<std::uint16_t> memory(3 * n * n, cuda::device_memory());
    cuda::blas blas;
    cuda::stream s;
    // Power, and with it speed, depends on the values: these are like a network's.
    gpu_kernels::fill_units(memory.data(), 2 * n * n, device.has_bf16(), s.native());
    const auto rate = [&]<class T>(T* x) {
      const auto ten = [&] {
        for (int i = 0; i < 10; ++i) blas.gemm<T>({n, n, n}, x, x + n * n, x + 2 * n * n, s);
      };
      return 10 * 2.0 * n * n * n / stopwatch().median(3, s.native(), ten);
    };
    a.values["flops"] = cat(device.has_bf16() ? rate(reinterpret_cast<bf16*>(memory.data()))
                                              : rate(reinterpret_cast<fp16*>(memory.data())));
    a.values["type"] = device.has_bf16() ? "bf16" : "fp16";
  }

  /// A small model on the device: loss and the worst gradient's error beside the host's, and the
  /// free memory before and after.
  static void small_win(std::istringstream& words, gpu_answer& a) {
    choose(words);
    const small_model m;
    const small_result want = run_on_host(m);
    double worst = 0, loss = 0;
    std::size_t before = 0, after = 0, total = 0;
    for (int turn = 0; turn < 2; ++turn) { // the first loads code, which stays
      cuda::check(cudaMemGetInfo(&before, &total), "cudaMemGetInfo");
      std::tie(loss, worst) = run_on_device(m, want);
      cuda::check(cudaMemGetInfo(&after, &total), "cudaMemGetInfo");
    }
    a.values["loss"] = cat(loss);
    a.values["loss_on_host"] = cat(want.loss);
    a.values["worst"] = cat(std::max(worst, std::abs(loss - want.loss) / want.loss));
    a.values["free_before"] = cat(before);
    a.values["free_after"] = cat(after);
    a.values["memory"] = cat(total);
  }

  /// Loss, and the greatest error of a gradient relative to its matrix's greatest value.
  static std::pair<double, double> run_on_device(const small_model& m, const small_result& want) {
    constexpr int B = small_model::batch, I = small_model::inputs, H = small_model::hidden,
                  C = small_model::classes;
    const auto device = [](const auto& host) {
      using T = typename std::remove_cvref_t<decltype(host)>::value_type;
      buffer<T> out(host.size(), cuda::device_memory());
      cuda::check(
          cudaMemcpy(out.data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
          "cudaMemcpy");
      return out;
    };
    const auto floats = [](int n) {
      return buffer<float>(static_cast<std::size_t>(n), cuda::device_memory());
    };
    auto x = device(m.x), w1 = device(m.w1), b1 = device(m.b1), w2 = device(m.w2),
         b2 = device(m.b2);
    auto labels = device(m.labels);
    auto z = floats(B * H), a = floats(B * H), y = floats(B * C), d = floats(B * C),
         da = floats(B * H), loss = floats(B);
    auto dw1 = floats(I * H), db1 = floats(H), dw2 = floats(H * C), db2 = floats(C);
    cuda::blas blas;
    cuda::stream s;
    blas.gemm<float>({B, H, I}, x.data(), w1.data(), z.data(), s);
    gpu_kernels::add_bias(z.data(), b1.data(), a.data(), B, H, true, s.native());
    blas.gemm<float>({B, C, H}, a.data(), w2.data(), y.data(), s);
    gpu_kernels::add_bias(y.data(), b2.data(), y.data(), B, C, false, s.native());
    gpu_kernels::softmax_loss(y.data(), labels.data(), loss.data(), d.data(), B, C, s.native());
    blas.gemm<float>({.m = H, .n = C, .k = B, .a_transposed = true}, a.data(), d.data(), dw2.data(),
                     s);
    gpu_kernels::sum_rows(d.data(), db2.data(), B, C, s.native());
    blas.gemm<float>({.m = B, .n = H, .k = C, .b_transposed = true}, d.data(), w2.data(), da.data(),
                     s);
    gpu_kernels::relu_backward(a.data(), da.data(), std::size_t{B} * H, s.native());
    blas.gemm<float>({.m = I, .n = H, .k = B, .a_transposed = true}, x.data(), da.data(),
                     dw1.data(), s);
    gpu_kernels::sum_rows(da.data(), db1.data(), B, H, s.native());
    s.synchronize();
    const auto host = [](const buffer<float>& from) {
      std::vector<float> out(from.size());
      cuda::check(cudaMemcpy(out.data(), from.data(), 4 * out.size(), cudaMemcpyDeviceToHost),
                  "cudaMemcpy");
      return out;
    };
    double mean = 0, worst = 0;
    for (const float one : host(loss)) mean += static_cast<double>(one) / B;
    const auto compare = [&](const buffer<float>& got, const std::vector<double>& expected) {
      const std::vector<float> values = host(got);
      double most = 0, error = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        most = std::max(most, std::abs(expected[i]));
        const double off = std::abs(values[i] - expected[i]);
        error = off <= error ? error : off; // NaN counts
      }
      worst = std::max(worst, error == error ? error / most : 1e30);
    };
    compare(dw1, want.w1), compare(db1, want.b1), compare(dw2, want.w2), compare(db2, want.b2);
    return {mean, worst};
  }

  /// Rank 0 of a new communicator listens from here on.
  static void nccl_id(std::istringstream& words, gpu_answer& a) {
    choose(words);
    ncclUniqueId id{};
    cuda::check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    std::string text;
    for (const char c : id.internal) {
      text += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
      text += "0123456789abcdef"[static_cast<unsigned char>(c) & 15];
    }
    a.values["id"] = text;
  }

  /// join DEVICE RANK SIZE ID
  void join(std::istringstream& words) {
    leave();
    choose(words);
    rank_ = next<int>(words);
    size_ = next<int>(words);
    const auto text = next<std::string>(words);
    ncclUniqueId id{};
    expects(text.size() == 2 * sizeof id.internal, "GPU worker: an NCCL id of ", text.size(),
            " digits");
    for (std::size_t i = 0; i < sizeof id.internal; ++i)
      id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
    cuda::check(ncclCommInitRank(&comm_, size_, id, rank_), "ncclCommInitRank");
    stream_.emplace();
  }

  void leave() {
    if (comm_ != nullptr)
      cuda::check(ncclCommDestroy(std::exchange(comm_, nullptr)), "ncclCommDestroy");
    stream_.reset();
  }

  /// swap BYTES TIMED, between the two ranks of the communicator: both send at once, then rank 0
  /// sends alone.
  void swap(std::istringstream& words, gpu_answer& a) {
    expects(comm_ != nullptr && size_ == 2, "GPU worker: swap needs two ranks that have joined");
    const auto n = next<std::size_t>(words) / 8;
    const bool timed = next<int>(words) != 0;
    const int peer = 1 - rank_;
    cudaStream_t const s = stream_->native();
    buffer<std::uint64_t> out(n, cuda::device_memory()), in(n, cuda::device_memory());
    fault_count faults;
    const auto both = [&](std::size_t bytes) {
      cuda::check(ncclGroupStart(), "ncclGroupStart");
      cuda::check(ncclSend(out.data(), bytes, ncclUint8, peer, comm_, s), "ncclSend", comm_);
      cuda::check(ncclRecv(in.data(), bytes, ncclUint8, peer, comm_, s), "ncclRecv", comm_);
      cuda::check(ncclGroupEnd(), "ncclGroupEnd", comm_);
    };
    const auto one_way = [&](std::size_t bytes, bool sends) {
      if (sends)
        cuda::check(ncclSend(out.data(), bytes, ncclUint8, peer, comm_, s), "ncclSend", comm_);
      else
        cuda::check(ncclRecv(in.data(), bytes, ncclUint8, peer, comm_, s), "ncclRecv", comm_);
    };
    const auto mine = static_cast<std::uint64_t>(rank_), theirs = static_cast<std::uint64_t>(peer);
    for (std::uint64_t turn = 0; turn < 2; ++turn) {
      gpu_kernels::fill_pattern(out.data(), n, 10 * turn + mine + 1, s);
      both(8 * n);
      gpu_kernels::count_pattern_faults(in.data(), n, 10 * turn + theirs + 1, faults.pointer(), s);
    }
    a.values["data"] = data_word(faults.read(*stream_));
    if (!timed) return;
    const double bytes = 8.0 * static_cast<double>(n);
    stopwatch watch;
    a.values["both_ways"] = cat(2 * bytes / watch.median(5, s, [&] { both(8 * n); }));
    a.values["bandwidth"] = cat(bytes / watch.median(5, s, [&] { one_way(8 * n, rank_ == 0); }));
    constexpr int turns = 20;
    a.values["latency"] = cat(watch.median(3, s, [&] {
      for (int i = 0; i < 2 * turns; ++i) one_way(8, (i % 2 == 0) == (rank_ == 0));
    }) / (2 * turns));
  }

  /// collective NAME BYTES REPEAT; BYTES of the whole buffer; REPEAT 0: verified only.
  void collective(std::istringstream& words, gpu_answer& a) {
    expects(comm_ != nullptr, "GPU worker: collective before join");
    const auto name = next<std::string>(words);
    const auto bytes = next<std::size_t>(words);
    const int repeat = next<int>(words);
    const auto ranks = static_cast<std::size_t>(size_), me = static_cast<std::size_t>(rank_);
    const std::size_t part = std::max<std::size_t>(bytes / 4 / ranks, 1), n = part * ranks;
    cudaStream_t const s = stream_->native();
    buffer<float> in(n, cuda::device_memory()), out(n, cuda::device_memory());
    fault_count faults;
    const auto mine = static_cast<float>(rank_);
    const float sum = static_cast<float>(size_ * (size_ - 1) / 2);
    gpu_kernels::fill_ramp(out.data(), n, -1, 0, s);
    const auto verify = [&](std::size_t at, std::size_t count, float base, float factor,
                            std::size_t start) {
      gpu_kernels::count_ramp_faults(out.data() + at, count, base, factor, start, faults.pointer(),
                                     s);
    };
    std::function<void()> run, check;
    if (name == "all_reduce") {
      gpu_kernels::fill_ramp(in.data(), n, mine, 0, s);
      run = [&] {
        cuda::check(ncclAllReduce(in.data(), out.data(), n, ncclFloat, ncclSum, comm_, s),
                    "ncclAllReduce", comm_);
      };
      check = [&] { verify(0, n, sum, static_cast<float>(size_), 0); };
    } else if (name == "reduce_scatter") {
      gpu_kernels::fill_ramp(in.data(), n, mine, 0, s);
      run = [&] {
        cuda::check(ncclReduceScatter(in.data(), out.data(), part, ncclFloat, ncclSum, comm_, s),
                    "ncclReduceScatter", comm_);
      };
      check = [&] { verify(0, part, sum, static_cast<float>(size_), me * part); };
    } else if (name == "all_gather") {
      gpu_kernels::fill_ramp(in.data(), part, mine, 0, s);
      run = [&] {
        cuda::check(ncclAllGather(in.data(), out.data(), part, ncclFloat, comm_, s),
                    "ncclAllGather", comm_);
      };
      check = [&] {
        for (std::size_t r = 0; r < ranks; ++r) verify(r * part, part, static_cast<float>(r), 1, 0);
      };
    } else if (name == "broadcast") {
      gpu_kernels::fill_ramp(in.data(), n, mine, 0, s);
      run = [&] {
        cuda::check(ncclBroadcast(in.data(), out.data(), n, ncclFloat, 0, comm_, s),
                    "ncclBroadcast", comm_);
      };
      check = [&] { verify(0, n, 0, 1, 0); };
    } else if (name == "all_to_all") {
      for (std::size_t r = 0; r < ranks; ++r)
        gpu_kernels::fill_ramp(in.data() + r * part, part,
                               mine * static_cast<float>(size_) + static_cast<float>(r), 0, s);
      run = [&] {
        cuda::check(ncclGroupStart(), "ncclGroupStart");
        for (std::size_t r = 0; r < ranks; ++r) {
          const int to = static_cast<int>(r);
          cuda::check(ncclSend(in.data() + r * part, part, ncclFloat, to, comm_, s), "ncclSend",
                      comm_);
          cuda::check(ncclRecv(out.data() + r * part, part, ncclFloat, to, comm_, s), "ncclRecv",
                      comm_);
        }
        cuda::check(ncclGroupEnd(), "ncclGroupEnd", comm_);
      };
      check = [&] {
        for (std::size_t r = 0; r < ranks; ++r)
          verify(r * part, part, static_cast<float>(r * ranks + me), 1, 0);
      };
    } else {
      throw usage_error(cat("GPU worker: no collective is called ", name));
    }
    run();
    check();
    a.values["data"] = data_word(faults.read(*stream_));
    a.values["bytes"] = cat(4 * n);
    if (repeat == 0) return;
    stopwatch watch;
    a.values["seconds"] = cat(watch.median(3, s, [&] {
      for (int i = 0; i < repeat; ++i) run();
    }) / repeat);
  }

  ncclComm_t comm_ = nullptr;
  std::optional<cuda::stream> stream_;
  int rank_ = 0, size_ = 0;
};

} // namespace

int run_gpu_worker() {
  // NCCL and others print to standard output; answers keep it to themselves.
  std::FILE* const out = fdopen(dup(1), "w");
  if (out == nullptr || dup2(2, 1) < 0) return 1;
  // A failed test of NVLink multicast can put all GPUs of a host out of service until a reset: it
  // is used only where the user asks for it.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  worker w;
  for (std::string line; std::getline(std::cin, line);) {
    std::fputs((encode(w.answer(line)) + '\n').c_str(), out);
    std::fflush(out);
  }
  _exit(0); // a communicator whose peers are gone must not keep us
}

} // namespace polyrank::examples
