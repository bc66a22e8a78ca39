// Snapshots of device memory: what is saved is the state at the moment, whatever comes after it.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/support.hpp"
#include "support/catch.hpp"

#include <polyrank/checkpoint/posix_files.hpp>
#include <polyrank/checkpoint/saver.hpp>
#include <polyrank/checkpoint/snapshot.hpp>
#include <polyrank/cuda/backend.hpp>
#include <polyrank/host/loopback.hpp>

#include <chrono>
#include <string>
#include <vector>

#include <unistd.h>

using namespace polyrank;
using namespace polyrank::checkpoint;

TEST_CASE("a save takes the state of its moment, and compute goes on", "[checkpoint]") {
  const fs::path dir =
      fs::temp_directory_path() / ("polyrank_snapshot_" + std::to_string(getpid()));
  constexpr std::size_t count = 1'000'003;
  const std::vector<tensor_info> tensors{{"w", dtype::f32, {count}}};
  posix_files files;
  std::vector<float> found(count);
  double enqueued_ms = 0;
  bool overlapped = false;
  host::loopback::run(1, [&](host::loopback::communicator& comm) {
    cuda::stream compute;
    auto state = test::empty<float>(count);
    snapshot<cuda::backend> copies;
    saver save(comm.control(), files, {.directory = dir, .memory = &cuda::pinned_memory()});
    save.reserve(tensors, {{0, 0, count}});
    cuda::backend::fill(state.span(), 0.0f, compute); // loads kernels
    test::delay(compute, std::chrono::milliseconds(1));
    compute.synchronize();
    for (int step = 1; step <= 2; ++step) {
      test::delay(compute, std::chrono::milliseconds(100));
      cuda::backend::fill(state.span(), static_cast<float>(step), compute);
      const auto start = std::chrono::steady_clock::now();
      copies.begin(compute);
      save.save(
          static_cast<std::uint64_t>(step), {}, tensors, {{0, 0, count}},
          [&](const fragment& f, std::span<std::byte> out) {
            copies.take<float>(state.span().subspan(f.offset, f.count), out);
          },
          &copies);
      copies.hold(compute);
      cuda::backend::fill(state.span(), -1.0f, compute); // at once, were it not held
      enqueued_ms =
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
              .count();
      overlapped = !save.poll();
      if (!save.wait()->error.empty()) throw error("save");
    }
    reader r(files, dir / "step_000000000002");
    r.read("w", 0, std::as_writable_bytes(std::span(found)));
  });
  fs::remove_all(dir);
  REQUIRE(found == std::vector<float>(count, 2.0f));
  REQUIRE(overlapped);
  INFO("save() took " << enqueued_ms << " ms, the work before it 100 ms");
  REQUIRE(enqueued_ms < 60);
}
