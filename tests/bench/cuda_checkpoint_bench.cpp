// What a save costs a training that goes on meanwhile, on a GPU: state as of GPT-2 124M with AdamW
// (weights and two moments, fp32: 1.5 GB), a step of bf16 products and an update that reads and
// writes the whole state. Beside it the plain way: stop, copy to pinned memory, write, fsync. JSON
// lines; times are medians, in ms.
//     cuda_checkpoint_bench [MEGABYTES] [DIRECTORY]
// SPDX-License-Identifier: Apache-2.0
#include "cuda/support.hpp"
#include "timing.hpp"

#include <polyrank/checkpoint/posix_files.hpp>
#include <polyrank/checkpoint/saver.hpp>
#include <polyrank/checkpoint/snapshot.hpp>
#include <polyrank/cuda/backend.hpp>
#include <polyrank/cuda/blas.hpp>
#include <polyrank/host/loopback.hpp>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include <unistd.h>

using namespace polyrank;
using namespace polyrank::checkpoint;
using bench::median, bench::milliseconds;

int main(int argc, char** argv) {
  const std::size_t count = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1493) * 250'000;
  const fs::path dir = fs::path(argc > 2 ? argv[2] : fs::temp_directory_path().c_str()) /
                       ("polyrank_cuda_checkpoint_" + std::to_string(getpid()));
  const std::vector<tensor_info> tensors{{"state", dtype::f32, {count}}};
  posix_files files;
  files.make_directory(dir);
  host::loopback::run(1, [&](host::loopback::communicator& comm) {
    cuda::stream compute;
    cuda::blas blas;
    auto state = test::empty<float>(count);
    constexpr std::size_t side = 8192;
    auto a = test::empty<bf16>(side * side), b = test::empty<bf16>(side * side),
         c = test::empty<bf16>(side * side);
    cuda::backend::fill(state.span(), 0.5f, compute);
    for (auto* m : {&a, &b}) cuda::backend::fill(m->span(), bf16(0.01f), compute);
    snapshot<cuda::backend> copies;
    saver save(comm.control(), files,
               {.directory = dir / "c", .keep = 1, .memory = &cuda::pinned_memory()});
    const double reserve_ms = milliseconds([&] { save.reserve(tensors, {{0, 0, count}}); });

    const auto step = [&] {
      for (int layer = 0; layer < 12; ++layer)
        blas.gemm<bf16>({side, side, side}, a.data(), b.data(), c.data(), compute);
      copies.hold(compute);
      cuda::backend::scale(state.span(), 1.0f, compute);
      compute.synchronize();
    };
    const auto begin = [&](std::uint64_t at) {
      copies.begin(compute);
      save.save(
          at, {}, tensors, {{0, 0, count}},
          [&](const fragment& f, std::span<std::byte> out) {
            copies.take<float>(state.span().subspan(f.offset, f.count), out);
          },
          &copies);
    };
    std::vector<double> quiet, first, busy, call, whole, plain, copy;
    buffer<float> pinned(count, cuda::pinned_memory());
    for (int i = 0; i < 5; ++i) step();
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 20; ++i) quiet.push_back(milliseconds(step));
      whole.push_back(milliseconds([&] {
        double started = 0;
        first.push_back(milliseconds([&] {
          started = milliseconds([&] { begin(static_cast<std::uint64_t>(round)); });
          step();
        }));
        call.push_back(started);
        for (std::optional<save_result> r; !r;) {
          busy.push_back(milliseconds([&] {
            step();
            r = save.poll();
          }));
          if (r && !r->error.empty()) std::exit(1);
        }
      }));
      plain.push_back(milliseconds([&] {
        copy.push_back(milliseconds([&] {
          cuda::backend::copy<float>(state.span(), pinned.span(), compute);
          compute.synchronize();
        }));
        const auto f = files.create(dir / "plain");
        f->write(std::as_bytes(std::span<const float>(pinned.span())));
        f->sync();
      }));
    }
    const double base = median(quiet), bytes = 4e-6 * static_cast<double>(count);
    const double busy_sum = std::accumulate(busy.begin(), busy.end(), 0.0) +
                            std::accumulate(first.begin(), first.end(), 0.0);
    const auto steps = static_cast<double>(busy.size() + first.size());
    std::printf(
        "{\"bench\": \"cuda checkpoint: steps\", \"megabytes\": %.0f, \"quiet_ms\": %.2f, "
        "\"while_saving_ms\": %.2f, \"ratio\": %.4f, \"first_ms\": %.2f, \"call_ms\": %.2f, "
        "\"mean_ratio_over_a_save\": %.4f, \"steps_in_a_save\": %.1f}\n",
        bytes, base, median(busy), median(busy) / base, median(first), median(call),
        busy_sum / steps / base, steps / 3);
    std::printf("{\"bench\": \"cuda checkpoint: save\", \"ms\": %.0f, \"plain_ms\": %.0f, "
                "\"plain_copy_ms\": %.1f, \"plain_copy_gb_per_s\": %.1f, \"reserve_ms\": %.0f, "
                "\"extra_memory_ratio\": %.4f}\n",
                median(whole), median(plain), median(copy), bytes / median(copy), reserve_ms,
                static_cast<double>(save.memory_bytes()) / (1e6 * bytes));
  });
  fs::remove_all(dir);
  return 0;
}
