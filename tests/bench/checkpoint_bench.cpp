// Checkpoints beside a plain write and read of the same bytes, and what a save costs the steps that
// go on meanwhile. One JSON line a figure; times are medians of interleaved repetitions, in ms.
//
//     checkpoint_bench [--small] [DIRECTORY [MEBIBYTES]]
//
// SPDX-License-Identifier: Apache-2.0
#include "timing.hpp"

#include <polyrank/checkpoint/posix_files.hpp>
#include <polyrank/checkpoint/saver.hpp>
#include <polyrank/host/loopback.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <unistd.h>

using namespace polyrank;
using namespace polyrank::checkpoint;
using bench::median, bench::milliseconds;

namespace {

/// A step of `n` multiply-adds.
float step(std::vector<float>& x) {
  float sum = 0;
  for (int pass = 0; pass < 4; ++pass)
    for (float& v : x) {
      v = v * 0.999f + 0.001f;
      sum += v;
    }
  return sum;
}

} // namespace

int main(int argc, char** argv) {
  const bool small = argc > 1 && std::string(argv[1]) == "--small";
  fs::path dir = !small && argc > 1 ? fs::path(argv[1]) : fs::temp_directory_path();
  const std::size_t size = small ? 1 : argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 64;
  dir /= "polyrank_checkpoint_bench_" + std::to_string(getpid());
  posix_files files;
  files.make_directory(dir);
  const std::size_t count = size << 18, repeats = small ? 3 : 7; // floats
  const std::vector<tensor_info> tensors{{"w", dtype::f32, {count}}};
  std::vector<float> state(count, 1.0f), back(count);
  const double megabytes = static_cast<double>(count) * 4 / 1e6;

  host::loopback::run(1, [&](host::loopback::communicator& comm) {
    saver saver(comm.control(), files, {.directory = dir / "c", .keep = 1});
    const auto begin = [&](std::uint64_t at) {
      saver.save(at, {}, tensors, {{0, 0, count}},
                 [&](const fragment& f, std::span<std::byte> out) {
                   std::memcpy(out.data(), state.data() + f.offset, out.size());
                 });
    };
    std::vector<double> plain_write, plain_read, save, stall, load, header;
    for (std::size_t i = 0; i < repeats; ++i) {
      plain_write.push_back(milliseconds([&] {
        const auto f = files.create(dir / "plain");
        f->write(std::as_bytes(std::span<const float>(state)));
        f->sync();
      }));
      save.push_back(milliseconds([&] {
        stall.push_back(milliseconds([&] { begin(i); }));
        if (!saver.wait()->error.empty()) std::exit(1);
      }));
      plain_read.push_back(milliseconds(
          [&] { std::memcpy(back.data(), files.open(dir / "plain")->bytes().data(), count * 4); }));
      load.push_back(milliseconds([&] {
        reader r(files, latest_step(files, dir / "c")->path);
        r.read("w", 0, std::as_writable_bytes(std::span(back)));
      }));
    }
    std::printf(
        "{\"bench\": \"checkpoint.save\", \"megabytes\": %.1f, \"ms\": %.2f, \"plain_ms\": %.2f, "
        "\"ratio\": %.3f, \"stall_ms\": %.2f, \"extra_memory_ratio\": %.3f}\n",
        megabytes, median(save), median(plain_write), median(save) / median(plain_write),
        median(stall),
        static_cast<double>(saver.memory_bytes()) / (4.0 * static_cast<double>(count)));
    std::printf(
        "{\"bench\": \"checkpoint.load\", \"megabytes\": %.1f, \"ms\": %.2f, \"plain_ms\": %.2f, "
        "\"ratio\": %.3f}\n",
        megabytes, median(load), median(plain_read), median(load) / median(plain_read));

    // Steps with and without a save under way.
    std::vector<float> x(std::size_t{1} << (small ? 14 : 18), 0.5f);
    std::vector<double> quiet, busy;
    float keep = 0;
    for (std::size_t i = 0; i < repeats; ++i) {
      for (int k = 0; k < 20; ++k) quiet.push_back(milliseconds([&] { keep += step(x); }));
      begin(100 + i);
      while (saver.busy())
        busy.push_back(milliseconds([&] {
          keep += step(x);
          static_cast<void>(saver.poll());
        }));
    }
    std::printf("{\"bench\": \"checkpoint.step\", \"ms\": %.4f, \"while_saving_ms\": %.4f, "
                "\"ratio\": %.3f, "
                "\"check\": %g}\n",
                median(quiet), median(busy), median(busy) / median(quiet),
                static_cast<double>(keep));
  });

  // The header of many tensors.
  std::vector<tensor_entry> many;
  for (int i = 0; i < (small ? 1000 : 10000); ++i)
    many.push_back({"model.layers." + std::to_string(i) + ".weight", &type_of(dtype::f32), {4, 4}});
  std::string text;
  const double made = milliseconds([&] { text = make_header(many); });
  std::vector<std::byte> file(text.size() + many.size() * 64);
  std::memcpy(file.data(), text.data(), text.size());
  const double parsed = milliseconds([&] { static_cast<void>(parse_header(file, "many")); });
  std::printf("{\"bench\": \"checkpoint.header\", \"tensors\": %zu, \"write_ms\": %.2f, "
              "\"read_ms\": %.2f}\n",
              many.size(), made, parsed);
  fs::remove_all(dir);
  return 0;
}
