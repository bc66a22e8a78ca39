// What can be judged without a GPU: choices, version checks, and that the types fit the seam.
// SPDX-License-Identifier: Apache-2.0
#include "support/catch.hpp"

#include <polyrank/cuda/communicator.hpp>
#include <polyrank/cuda/nvtx.hpp>

using namespace polyrank;
using cuda::placement;

static_assert(backend<cuda::backend>);
static_assert(element_operations<cuda::backend, float>);
static_assert(element_operations<cuda::backend, bf16>);
static_assert(communicator<cuda::communicator>);
static_assert(collectives<cuda::communicator, float>);
static_assert(collectives<cuda::communicator, bf16>);
static_assert(point_to_point<cuda::communicator, float>);
static_assert(splittable<cuda::communicator>);
static_assert(abortable<cuda::communicator>);
static_assert(windowed<cuda::communicator>);

namespace {

placement at(std::string host, std::string bus_id, int local_rank, int local_size, int visible) {
  placement p;
  p.host = std::move(host);
  p.bus_id = std::move(bus_id);
  p.model = "NVIDIA H200";
  p.local_rank = local_rank;
  p.local_size = local_size;
  p.visible = visible;
  return p;
}

} // namespace

TEST_CASE("a rank takes the GPU of its local rank; the only visible one is taken as it is") {
  CHECK(cuda::device_of(0, 8) == 0);
  CHECK(cuda::device_of(7, 8) == 7);
  CHECK(cuda::device_of(3, 1) == 0); // the launcher has set CUDA_VISIBLE_DEVICES for each rank
  CHECK(cuda::device_of(0, 0) == 0);
}

TEST_CASE("more ranks than GPUs, and two ranks on one GPU, are refused by name") {
  using cuda::placement_fault;
  CHECK(placement_fault({at("a", "01", 0, 2, 2), at("a", "02", 1, 2, 2)}, false).empty());
  CHECK(placement_fault({at("a", "01", 0, 1, 1), at("b", "01", 0, 1, 1)}, false).empty());
  const auto many = placement_fault(
      {at("a", "01", 0, 3, 2), at("a", "02", 1, 3, 2), at("a", "01", 2, 3, 2)}, false);
  CHECK(many.find("3 ranks on a, which has 2 GPUs") != std::string::npos);
  const std::vector<placement> same{at("a", "01", 0, 2, 1), at("a", "01", 1, 2, 1)};
  CHECK(placement_fault(same, false).find("ranks 0 and 1 on a both use GPU 01") == 0);
  CHECK(placement_fault(same, true).empty());
  auto broken = same;
  broken[1].failure = "no GPU is visible";
  CHECK(placement_fault(broken, true) == "rank 1 on a: no GPU is visible");
}

TEST_CASE("mixed models are named") {
  std::vector<placement> all{at("a", "01", 0, 2, 2), at("a", "02", 1, 2, 2)};
  CHECK(cuda::mixed_models(all).empty());
  all[1].model = "NVIDIA A100";
  CHECK(cuda::mixed_models(all).find("rank 0 has NVIDIA H200, rank 1 has NVIDIA A100") !=
        std::string::npos);
}

TEST_CASE("placements survive the wire") {
  placement p = at("host", "0000:01:00.0", 0, 2, 8);
  p.failure = "two\nlines";
  const placement q = cuda::detail::unpack(cuda::detail::pack(p));
  CHECK(q.host == p.host);
  CHECK(q.bus_id == p.bus_id);
  CHECK(q.model == p.model);
  CHECK(q.local_size == 2);
  CHECK(q.visible == 8);
  CHECK(q.failure == p.failure);
}

TEST_CASE("an NCCL library older than its header is refused; hanging versions are named") {
  using cuda::judge_nccl;
  CHECK(judge_nccl(22809, 22809, "x").refusal.empty());
  CHECK(judge_nccl(22809, 22809, "x").warning.empty());
  const auto older = judge_nccl(22809, 21904, "/opt/libnccl.so.2");
  CHECK(older.refusal.find("compiled with NCCL 2.28.9, running with 2.19.4 (/opt/libnccl.so.2)") !=
        std::string::npos);
  CHECK(judge_nccl(21904, 22809, "x").refusal.empty());
  CHECK_FALSE(judge_nccl(21904, 22809, "x").warning.empty());
  CHECK(judge_nccl(22803, 22803, "x").warning.find("hang") != std::string::npos);
  CHECK_FALSE(judge_nccl(22809, 30000, "x").refusal.empty());
  CHECK(cuda::nccl_version_text(2708) == "2.7.8");
}

TEST_CASE("the loaded NCCL says where it came from") {
  CHECK(cuda::loaded_nccl_path().find("nccl") != std::string::npos);
  CHECK(cuda::judge_nccl(NCCL_VERSION_CODE, cuda::loaded_nccl(), cuda::loaded_nccl_path())
            .refusal.empty());
}

TEST_CASE("without a driver a program learns why, and does not crash") {
  const std::string why = cuda::unusable();
  CHECK(why.empty() == (cuda::device_count() > 0));
  if (!why.empty()) CHECK_THROWS_AS(cuda::current_device(), cuda::cuda_error);
  cuda::nvtx_range nobody_listens("range");
}

TEST_CASE("a driver that is too old is named, with what to do") {
  using cuda::driver_fault;
  CHECK(driver_fault(13000, 13000).empty());
  CHECK(driver_fault(12020, 12080).empty()); // minor versions fit
  CHECK(driver_fault(13000, 12080).empty());
  CHECK(driver_fault(11040, 12000)
            .find("the driver is too old: it supports CUDA 11.4, this program "
                  "was built with 12.0; update the driver, or build with "
                  "CUDA 11") == 0);
  CHECK(driver_fault(0, 12000).find("there is no NVIDIA driver") == 0);
}

TEST_CASE("errors say what to do") {
  const auto said = [](cudaError_t code) {
    try {
      cuda::check(code, "kernel launch");
    } catch (const cuda::cuda_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(said(cudaErrorNoKernelImageForDevice).find("rebuild with CMAKE_CUDA_ARCHITECTURES") !=
        std::string::npos);
  CHECK(said(cudaErrorInsufficientDriver).find("update the driver") != std::string::npos);
  CHECK(said(cudaErrorNoDevice).find("CUDA_VISIBLE_DEVICES") != std::string::npos);
  CHECK(said(cudaErrorIllegalAddress).find("compute-sanitizer") != std::string::npos);
}

TEST_CASE("a stream of another GPU is named") {
  CHECK(cuda::stream_fault(1, 1).empty());
  CHECK(cuda::stream_fault(1, 0).find("the stream belongs to GPU 1, the work to GPU 0") == 0);
}

TEST_CASE("a window is opened by all ranks or by none") {
  using cuda::window_fault;
  CHECK(window_fault({{64, ""}, {64, ""}}).empty());
  CHECK(window_fault({{64, ""}, {0, "it was told not to"}}) == "rank 1: it was told not to");
  CHECK(window_fault({{64, ""}, {64, ""}, {32, ""}}) == "rank 0 registers 64 bytes, rank 2 32");
}

TEST_CASE("the first cause of a failure is kept") {
  cuda::failure f;
  CHECK_NOTHROW(f.check());
  f.set("first");
  f.set("second");
  try {
    f.check();
    FAIL("no exception");
  } catch (const aborted_error& e) {
    CHECK(e.cause() == "first");
  }
}
